/*
 * page_data.c - a page for programs: CSV with one line per cell, and JSON with what `lacuna analyze
 * --explain` shows.
 */
#include "reproduce/pagetext.h"

#include "core/version.h"
#include "reproduce/claims.h"

#include <math.h>
#include <string.h>

static void field(struct buf *b, const char *s, bool last)
{
    if (s && strpbrk(s, ",\"\n")) {
        buf_puts(b, "\"");
        for (; *s; s++)
            buf_printf(b, *s == '"' ? "\"\"" : "%c", *s);
        buf_puts(b, "\"");
    } else {
        buf_puts(b, s ? s : "");
    }
    buf_puts(b, last ? "\n" : ",");
}

static void number(struct buf *b, double x)
{
    char text[32] = "";
    if (isfinite(x))
        snprintf(text, sizeof text, "%.6g", x);
    field(b, text, false);
}

static void put_cell(const struct page *p, int block, int row, int column, struct buf *b)
{
    const struct page_block *g = &p->blocks[block];
    const struct page_cell *c = page_cell_at(g, row, column);
    struct paper_number x;
    char text[32];
    bool has = page_printed(p, g, &g->rows.e[row], &g->columns.e[column], 0, &x);
    field(b, p->recipe->id, false);
    snprintf(text, sizeof text, "%d", block + 1);
    field(b, text, false);
    field(b, g->rows.e[row].path, false);
    field(b, g->columns.e[column].path, false);
    field(b, c->printed, false);
    field(b, has ? x.unit : "", false);
    field(b, c->ours, false);
    number(b, c->ours ? c->stats.sd : NAN);
    number(b, c->ours ? c->stats.lo : NAN);
    number(b, c->ours ? c->stats.hi : NAN);
    number(b, c->ours ? (double)c->stats.units : NAN);
    number(b, c->ours ? (double)c->stats.calls : NAN);
    field(b, cell_state_names[c->state], false);
    field(b, c->letters, false);
    field(b, c->ours ? p->plan->models->m[c->model].name : "", false);
    field(b, c->n_jobs ? c->jobs[0] : "", false);
    field(b, c->reason, true);
}

int page_csv(const struct page *p, struct buf *b, struct err *err)
{
    buf_puts(b, "id,block,row,column,printed,printed_unit,ours,sd,lo,hi,n_units,n_calls,state,"
                "letters,model,job,reason\n");
    for (int i = 0; i < p->n_blocks; i++)
        for (int r = 0; r < p->blocks[i].rows.n; r++)
            for (int c = 0; c < p->blocks[i].columns.n; c++)
                if (page_cell_at(&p->blocks[i], r, c)->state != CELL_EMPTY ||
                    page_cell_at(&p->blocks[i], r, c)->reason)
                    put_cell(p, i, r, c, b);
    return buf_check(b, "page", err);
}

static void list(struct jw *w, const char *key, const struct str_list *l)
{
    jw_key(w, key);
    jw_arr(w);
    for (int64_t i = 0; i < l->n; i++)
        jw_str(w, l->items[i]);
    jw_arr_end(w);
}

static void json_cell(const struct page *p, const struct page_block *g, int row, int column,
                      struct jw *w)
{
    const struct page_cell *c = page_cell_at(g, row, column);
    jw_obj(w);
    jw_kstr(w, "row", g->rows.e[row].path);
    jw_kstr(w, "column", g->columns.e[column].path);
    jw_kstr(w, "printed", c->printed);
    jw_kstr(w, "ours", c->ours);
    jw_kstr(w, "state", cell_state_names[c->state]);
    if (c->reason)
        jw_kstr(w, "reason", c->reason);
    if (c->ours) {
        jw_knum(w, "value", c->value[0]);
        jw_knum(w, "sd", c->stats.sd);
        jw_knum(w, "lo", c->stats.lo);
        jw_knum(w, "hi", c->stats.hi);
        jw_kint(w, "units", c->stats.units);
        jw_kint(w, "calls", c->stats.calls);
        jw_kstr(w, "of", c->stats.of);
        jw_kstr(w, "letters", c->letters);
        jw_kstr(w, "model", p->plan->models->m[c->model].name);
        jw_kstr(w, "weights", p->plan->models->m[c->model].id);
        jw_kstr(w, "metric", c->metric);
        if (c->stat)
            jw_kstr(w, "stat", c->stat);
        if (c->second && isfinite(c->value[1])) {
            jw_knum(w, "second", c->value[1]);
            jw_kstr(w, "second_metric", c->second);
        }
        if (c->pairs) {
            jw_key(w, "pairs");
            jw_value(w, c->pairs);
        }
        jw_kstr(w, "job", p->recipe->jobs[c->job].name);
        jw_kstr(w, "where", c->where);
        jw_key(w, "folders");
        jw_arr(w);
        for (int k = 0; k < c->n_jobs; k++)
            jw_str(w, c->jobs[k]);
        jw_arr_end(w);
        list(w, "records", &c->records);
    }
    jw_obj_end(w);
}

static void json_claim(const struct claim_row *r, struct jw *w)
{
    jw_obj(w);
    jw_kstr(w, "id", r->id);
    jw_kstr(w, "text", r->text);
    jw_kstr(w, "model", r->model);
    jw_kstr(w, "printed", r->printed);
    jw_kstr(w, "metric", r->metric);
    jw_kstr(w, "a", r->a);
    jw_knum(w, "a_mean", r->mean[0]);
    jw_kstr(w, "b", r->b);
    jw_knum(w, "b_mean", r->mean[1]);
    jw_kstr(w, "test", r->test);
    jw_knum(w, "value", r->value.value);
    jw_knum(w, "lo", r->value.lo);
    jw_knum(w, "hi", r->value.hi);
    jw_kint(w, "n", r->value.n);
    jw_kstr(w, "of", r->of);
    jw_kstr(w, "answer", claim_state_names[r->state]);
    jw_kstr(w, "why", r->why);
    jw_obj_end(w);
}

int page_json(const struct page *p, struct buf *b, struct err *err)
{
    struct jw w;
    struct buf command = {0};
    page_command(p, &command);
    jw_init(&w, b, 1);
    jw_obj(&w);
    jw_kint(&w, "page", 1);
    jw_kstr(&w, "id", p->recipe->id);
    jw_kstr(&w, "title", buf_str(&p->title));
    jw_kstr(&w, "caption", page_caption(p));
    jw_kbool(&w, "quick", p->quick);
    jw_kbool(&w, "failed", p->failed);
    jw_kstr(&w, "version", lacuna_version());
    jw_kstr(&w, "command", buf_str(&command));
    jw_key(&w, "claims");
    jw_arr(&w);
    for (int64_t i = 0; i < p->n_claims; i++)
        json_claim(&p->claims[i], &w);
    jw_arr_end(&w);
    list(&w, "notes", &p->notes);
    list(&w, "commands", &p->made_by);
    jw_key(&w, "cells");
    jw_arr(&w);
    for (int i = 0; i < p->n_blocks; i++)
        for (int r = 0; r < p->blocks[i].rows.n; r++)
            for (int c = 0; c < p->blocks[i].columns.n; c++)
                if (page_cell_at(&p->blocks[i], r, c)->state != CELL_EMPTY ||
                    page_cell_at(&p->blocks[i], r, c)->reason)
                    json_cell(p, &p->blocks[i], r, c, &w);
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_puts(b, "\n");
    buf_free(&command);
    return buf_check(b, "page", err);
}
