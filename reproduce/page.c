/*
 * page.c - a page from what is finished.
 */
#include "reproduce/page.h"

#include "core/fileio.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* "spargeattn:9" as "SpargeAttn, Table 9". */
static void make_title(struct page *p)
{
    static const struct {
        const char *id, *name;
    } names[] = {{"spargeattn:", "SpargeAttn"},
                 {"sampleattention:", "SampleAttention"},
                 {"sale:", "SALE"},
                 {"fg-attn:", "FG-Attn"}};
    const char *id = p->recipe->id;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i].id);
        if (strncmp(id, names[i].id, n) != 0)
            continue;
        const char *item = id + n;
        buf_printf(&p->title, "%s, ", names[i].name);
        if (!p->recipe->figure)
            buf_printf(&p->title, "Table %s", item);
        else if (item[0] == 'f' && isdigit((unsigned char)item[1]))
            buf_printf(&p->title, "Figure %s", item + 1);
        else
            buf_printf(&p->title, "figure %s", item);
    }
}

/* "video-dit, 1536 tokens" for the page's first line. */
static void name_ours(struct page *p)
{
    for (int m = 0; m < p->plan->models->n; m++) {
        const struct choice all = {m, -1, NULL, NULL};
        int64_t low = INT64_MAX, high = 0;
        for (const struct proof *v = NULL; (v = next_proof(&p->evidence, &all, v));) {
            low = v->r->n_q < low ? v->r->n_q : low;
            high = v->r->n_q > high ? v->r->n_q : high;
        }
        if (!high)
            continue;
        buf_printf(&p->ours, "%s%s, ", p->ours.len ? "; " : "", p->plan->models->m[m].name);
        if (low < high) {
            count_text(&p->ours, low);
            buf_puts(&p->ours, " to ");
        }
        count_text(&p->ours, high);
        buf_puts(&p->ours, " tokens");
    }
}

/* One note for all files of benchmarks that were not given. */
static void add_missing_files(struct page *p)
{
    struct buf b = {0};
    const char *of = "";
    for (const struct step *s = NULL, *t; (s = next_step(p->plan, p->at, s));) {
        for (t = next_step(p->plan, p->at, NULL); t->task != s->task;)
            t = next_step(p->plan, p->at, t);
        if (!step_lacks_file(s) || t != s)
            continue;
        bool first = strcmp(of, s->task->of) != 0;
        buf_printf(&b, "%s%s%s%s", !b.len ? "Files that were not given (--tasks DIR): " : "",
                   b.len ? first ? "; " : ", " : "", first ? s->task->of : "", first ? "'s " : "");
        buf_puts(&b, s->task->file);
        of = s->task->of;
    }
    if (b.len)
        str_list_add(&p->notes, buf_str(&b));
    buf_free(&b);
}

/* Jobs that were left out or failed, those with one reason in one note. */
static void add_missing(struct page *p)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));) {
        struct str_list names = {0};
        struct buf b = {0};
        bool told = false;
        if ((!s->failed && !s->left_out) || step_lacks_file(s))
            continue;
        p->failed = p->failed || s->failed;
        for (const struct step *t = NULL; (t = next_step(p->plan, p->at, t));) {
            const char *name = step_job(p->plan, t)->name;
            if (t->failed != s->failed || t->left_out != s->left_out ||
                strcmp(t->reason, s->reason) != 0)
                continue;
            told = told || t < s;
            if (!str_list_has(&names, name))
                str_list_add(&names, name);
        }
        buf_puts(&b, s->failed ? "Failed: " : "Left out: ");
        for (int64_t k = 0; k < names.n; k++)
            buf_printf(&b, "%s%s", k ? ", " : "", names.items[k]);
        buf_printf(&b, ": %s", s->reason);
        if (!told)
            str_list_add(&p->notes, buf_str(&b));
        str_list_free(&names);
        buf_free(&b);
    }
}

/* What the drawing shows, in the words that stand beside it. */
static int add_figure_caption(struct page *p, struct err *err)
{
    struct buf path = {0}, text = {0};
    int rc = 0;
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));) {
        if (!s->done || step_job(p->plan, s)->kind != DO_DRAW)
            continue;
        buf_reset(&path);
        buf_reset(&text);
        buf_printf(&path, "%s/figure.txt", s->id);
        TRY(buf_check(&path, "path", err));
        TRY(buf_read_file(&text, buf_str(&path), (size_t)1 << 20, err));
        if (text.data)
            text.data[strcspn(text.data, "\n")] = '\0';
        str_list_add(&p->notes, buf_str(&text));
    }
out:
    buf_free(&path);
    buf_free(&text);
    return rc;
}

/* What readers must know beside letters: names that mislead, reasons of cells, notes of the csv. */
static int add_notes(struct page *p, struct err *err)
{
    const json_t *note = json_object_get(p->recipe->item, "note");
    const char *pattern;
    size_t n;
    json_t *v;
    int rc = add_figure_caption(p, err);
    if (rc)
        return rc;
    if (json_is_string(note))
        str_list_add(&p->notes, json_string_value(note));
    json_array_foreach(p->recipe->notes, n, v) str_list_add(&p->notes, json_string_value(v));
    json_object_foreach((json_t *)p->recipe->absent, pattern, v)
    {
        struct buf b = {0};
        buf_printf(&b, "%s%s%s: %s", strcmp(pattern, "*") ? "No number of ours for " : "",
                   strcmp(pattern, "*") ? pattern : "No number of ours", "", json_string_value(v));
        str_list_add(&p->notes, buf_str(&b));
        buf_free(&b);
    }
    add_missing(p);
    add_missing_files(p);
    return p->notes.failed ? err_set(err, ERR_NOMEM, "page: out of memory") : 0;
}

/* The commands of all jobs behind the page, inputs first, each once. */
static void add_commands(struct page *p)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));)
        for (int k = 0; k < 2 && s->done; k++) {
            struct buf b = {0};
            buf_puts(&b, "lacuna");
            command_text(&s->argv[k], s->id, &b);
            if (s->argv[k].n && !str_list_has(&p->made_by, buf_str(&b)))
                str_list_add(&p->made_by, buf_str(&b));
            buf_free(&b);
        }
}

/* Have both cases one number in every unit? */
static int are_equal(const struct page *p, const json_t *x, const json_t *y, bool *equal,
                     struct err *err)
{
    const struct choice a = {-1, -1, x, NULL}, b = {-1, -1, y, NULL};
    struct unit_values u = {0}, w = {0};
    int rc = 0;
    TRY(evidence_units(&p->evidence, &a, "err_l1_rel", &u, err));
    TRY(evidence_units(&p->evidence, &b, "err_l1_rel", &w, err));
    *equal = u.n > 0 && u.n == w.n;
    for (int64_t i = 0; *equal && i < u.n; i++)
        *equal = u.u[i].sum == w.u[i].sum && u.u[i].calls == w.u[i].calls;
out:
    unit_values_free(&u);
    unit_values_free(&w);
    return rc;
}

/* Two cases with equal numbers in every unit were one experiment under two names; not so two names
 * that a recipe gives to one. */
static int note_equal_runs(struct page *p, struct err *err)
{
    const char *a, *b;
    json_t *x, *y;
    int rc = 0;
    json_object_foreach((json_t *)p->recipe->cases, a, x)
        json_object_foreach((json_t *)p->recipe->cases, b, y)
    {
        struct buf t = {0};
        bool equal = false;
        if (strcmp(a, b) >= 0 || json_equal(x, y))
            continue;
        TRY(are_equal(p, x, y, &equal, err));
        buf_printf(&t,
                   "The runs '%s' and '%s' are equal in every head: a setting that tells them "
                   "apart had no effect",
                   a, b);
        if (equal)
            str_list_add(&p->notes, buf_str(&t));
        buf_free(&t);
    }
out:
    return rc;
}

int page_make(const struct plan *plan, int recipe, const struct paper_data *d, struct page *p,
              struct err *err)
{
    int rc = 0;
    p->plan = plan;
    p->data = d;
    p->at = recipe;
    p->recipe = &plan->recipes[recipe];
    p->quick = plan->quick && p->recipe->n_jobs > 0;
    make_title(p);
    TRY(evidence_load(plan, recipe, &p->evidence, err));
    TRY(grid_make(p, err));
    TRY(page_fill(p, err));
    add_commands(p);
    TRY(page_claims(p, err));
    TRY(note_equal_runs(p, err));
    TRY(add_notes(p, err));
    name_ours(p);
    TRY(buf_check(&p->title, "page", err));
    TRY(buf_check(&p->ours, "page", err));
    if (p->made_by.failed)
        rc = err_set(err, ERR_NOMEM, "page: out of memory");
out:
    return rc;
}

void page_free(struct page *p)
{
    grid_free(p);
    evidence_free(&p->evidence);
    free(p->claims);
    str_list_free(&p->notes);
    str_list_free(&p->made_by);
    buf_free(&p->title);
    buf_free(&p->ours);
    memset(p, 0, sizeof *p);
}
