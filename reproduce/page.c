/*
 * page.c - a page from what is finished, and its files, of which only what changed is written.
 */
#include "reproduce/page.h"

#include "analyze/format.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void page_note(struct page *p, const char *fmt, ...)
{
    OWN(free_at) char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    p->notes.failed |= vasprintf(&text, fmt, ap) < 0;
    va_end(ap);
    if (!p->notes.failed && !str_list_has(&p->notes, text))
        str_list_add(&p->notes, text);
}

/* "spargeattn:9" as "SpargeAttn, Table 9". */
static void make_title(struct page *p)
{
    static const char *const names[PAPERS] = {"SpargeAttn", "SampleAttention", "SALE", "FG-Attn"};
    const char *id = p->recipe->id, *item = strchr(id, ':') + 1;
    bool number = p->recipe->figure && item[0] == 'f' && isdigit((unsigned char)item[1]);
    bool text = strcmp(item, "text") == 0;
    for (int i = 0; i < PAPERS; i++)
        if (strncmp(id, paper_ids[i], (size_t)(item - id) - 1) == 0)
            buf_printf(&p->title, "%s, %s %s", names[i],
                       !p->recipe->figure ? "Table"
                       : number           ? "Figure"
                       : text             ? "numbers in the"
                                          : "figure",
                       item + number);
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
    OWN(buf_free) struct buf b = {0};
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
        page_note(p, "%s", buf_str(&b));
}

/* Jobs that were left out, as a whole or in part, or failed, those with one reason in one note. */
static void add_missing(struct page *p)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));) {
        struct str_list names = {0};
        struct buf b = {0};
        if (!s->reason[0] || step_lacks_file(s))
            continue;
        p->failed = p->failed || s->failed;
        for (const struct step *t = NULL; (t = next_step(p->plan, p->at, t));) {
            const char *name = step_job(p->plan, t)->name;
            if (t->failed != s->failed || t->left_out != s->left_out ||
                strcmp(t->reason, s->reason) != 0)
                continue;
            if (str_list_has(&names, name))
                continue;
            buf_printf(&b, "%s%s", names.n ? ", " : "", name);
            str_list_add(&names, name);
        }
        page_note(p, "%s: %s: %s", s->failed ? "Failed" : "Left out", buf_str(&b), s->reason);
        str_list_free(&names);
        buf_free(&b);
    }
}

/* What the drawing shows, in the words that stand beside it. */
static int add_figure_caption(struct page *p, struct err *err)
{
    OWN(buf_free) struct buf path = {0}, text = {0};
    for (const struct step *s = NULL; (s = next_drawing(p->plan, p->at, s));) {
        buf_reset(&path);
        buf_reset(&text);
        buf_printf(&path, "%s/figure.txt", s->id);
        PASS_ON(buf_check(&path, "path", err));
        PASS_ON(buf_read_file(&text, buf_str(&path), (size_t)1 << 20, err));
        if (text.data)
            text.data[strcspn(text.data, "\n")] = '\0';
        page_note(p, "%s", buf_str(&text));
    }
    return 0;
}

/* Places without a number of ours, those with one reason in one note, which stands once. */
static void add_absent(struct page *p)
{
    const char *pattern, *other;
    json_t *v, *w;
    json_object_foreach((json_t *)p->recipe->absent, pattern, v)
    {
        OWN(buf_free) struct buf b = {0};
        json_object_foreach((json_t *)p->recipe->absent, other, w)
        {
            if (json_equal(v, w) && strcmp(other, "*") != 0)
                buf_printf(&b, "%s%s", b.len ? ", " : " for ", other);
        }
        page_note(p, "No number of ours%s: %s", buf_str(&b), json_string_value(v));
    }
}

/* What readers must know beside letters: names that mislead, reasons of cells, notes of the csv. */
static int add_notes(struct page *p, struct err *err)
{
    const json_t *note = json_object_get(p->recipe->item, "note");
    size_t n;
    json_t *v;
    PASS_ON(add_figure_caption(p, err));
    if (json_is_string(note))
        page_note(p, "%s", json_string_value(note));
    json_array_foreach(p->recipe->notes, n, v) page_note(p, "%s", json_string_value(v));
    if (!p->recipe->figure || !p->n_blocks) /* rows of a list say it */
        add_absent(p);
    for (int i = 0; i < p->plan->models->n; i++)
        if (p->plan->models->m[i].chat && page_uses(p, -1, i))
            page_note(p, "Prompts of %s stand in a chat text", p->plan->models->m[i].name);
    add_missing(p);
    add_missing_files(p);
    return p->notes.failed ? err_set(err, ERR_NOMEM, "page: out of memory") : 0;
}

/* The commands of all jobs behind the page, inputs first, each once. */
static void add_commands(struct page *p)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));)
        for (int k = 0; k < 2 && s->done; k++) {
            OWN(buf_free) struct buf b = {0};
            buf_puts(&b, "lacuna");
            command_text(&s->argv[k], s->id, &b);
            if (s->argv[k].n && !str_list_has(&p->made_by, buf_str(&b)))
                str_list_add(&p->made_by, buf_str(&b));
        }
}

/* Have both cases one number in every unit? */
static int are_equal(const struct page *p, const json_t *x, const json_t *y, bool *equal,
                     struct err *err)
{
    const struct choice a = {-1, -1, x, NULL}, b = {-1, -1, y, NULL};
    OWN(unit_values_free) struct unit_values u = {0}, w = {0};
    PASS_ON(evidence_units(&p->evidence, &a, "err_l1_rel", &u, err));
    PASS_ON(evidence_units(&p->evidence, &b, "err_l1_rel", &w, err));
    *equal = u.n > 0 && units_equal(&u, &w, true);
    return 0;
}

/* Two cases with equal numbers in every unit were one experiment under two names; not so two names
 * that a recipe gives to one. */
static int note_equal_runs(struct page *p, struct err *err)
{
    const char *a, *b;
    json_t *x, *y;
    json_object_foreach((json_t *)p->recipe->cases, a, x)
        json_object_foreach((json_t *)p->recipe->cases, b, y)
    {
        bool equal = false;
        if (strcmp(a, b) < 0 && !json_equal(x, y))
            PASS_ON(are_equal(p, x, y, &equal, err));
        if (equal)
            page_note(p,
                      "The runs '%s' and '%s' are equal in every head: a setting that tells them "
                      "apart had no effect",
                      a, b);
    }
    return 0;
}

/* Build a page from what is finished. Free also after a failure. */
static int page_make(const struct plan *plan, int recipe, const struct paper_data *d,
                     struct page *p, struct err *err)
{
    p->plan = plan;
    p->data = d;
    p->at = recipe;
    p->recipe = &plan->recipes[recipe];
    p->quick = plan->quick && p->recipe->n_jobs > 0;
    make_title(p);
    PASS_ON(evidence_load(plan, recipe, &p->evidence, err));
    PASS_ON(grid_make(p, err));
    PASS_ON(page_fill(p, err));
    add_commands(p);
    PASS_ON(page_claims(p, err));
    PASS_ON(note_equal_runs(p, err));
    PASS_ON(add_notes(p, err));
    name_ours(p);
    PASS_ON(buf_check(&p->title, "page", err));
    PASS_ON(buf_check(&p->ours, "page", err));
    if (p->made_by.failed)
        return err_set(err, ERR_NOMEM, "page: out of memory");
    return 0;
}

static void page_free(struct page *p)
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

/* ---- files ----------------------------------------------------------------------------------- */

static const struct writer {
    const char *suffix;
    int (*write)(const struct page *p, struct buf *b, struct err *err);
} writers[] = {{"md", page_md},
               {"tex", page_tex},
               {"html", page_html},
               {"csv", page_csv},
               {"json", page_json}};

/* "../pages/spargeattn-9.md" */
static int make_path(const char *folder, const char *id, const char *suffix, struct buf *path,
                     struct err *err)
{
    buf_reset(path);
    buf_printf(path, "../%s/", folder);
    item_file(id, path);
    buf_printf(path, ".%s", suffix);
    return buf_check(path, "path", err);
}

/* Write a file unless it has this content. */
static int write_changed(const char *path, const struct buf *text, bool *changed, struct err *err)
{
    OWN(buf_free) struct buf old = {0};
    struct err ignored = {0};
    bool same = access(path, F_OK) == 0 &&
                buf_read_file(&old, path, (size_t)1 << 30, &ignored) == 0 && old.len == text->len &&
                memcmp(buf_str(&old), buf_str(text), old.len) == 0;
    int rc = buf_check(text, path, err);
    if (!rc && !same)
        rc = file_write_atomic(path, buf_str(text), text->len, err);
    *changed = *changed || !same;
    return rc;
}

static int copy_figures(const struct plan *p, int recipe, bool *changed, struct err *err)
{
    static const char *const suffixes[] = {"png", "pdf"};
    OWN(buf_free) struct buf from = {0}, to = {0}, content = {0};
    for (const struct step *s = NULL; (s = next_drawing(p, recipe, s));)
        for (int k = 0; k < 2; k++) {
            buf_reset(&from);
            buf_reset(&content);
            buf_printf(&from, "%s/figure.%s", s->id, suffixes[k]);
            PASS_ON(make_path("figures", p->recipes[recipe].id, suffixes[k], &to, err));
            PASS_ON(make_dirs("../figures", err));
            PASS_ON(buf_read_file(&content, buf_str(&from), (size_t)64 << 20, err));
            PASS_ON(write_changed(buf_str(&to), &content, changed, err));
        }
    return 0;
}

int output_page(const struct plan *p, int recipe, const struct paper_data *d, bool *changed,
                struct err *err)
{
    OWN(page_free) struct page page = {0};
    OWN(buf_free) struct buf path = {0}, text = {0};
    PASS_ON(make_dirs("../pages", err));
    PASS_ON(page_make(p, recipe, d, &page, err));
    PASS_ON(copy_figures(p, recipe, changed, err));
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        buf_reset(&text);
        PASS_ON(writers[i].write(&page, &text, err));
        PASS_ON(make_path("pages", page.recipe->id, writers[i].suffix, &path, err));
        PASS_ON(write_changed(buf_str(&path), &text, changed, err));
    }
    return 0;
}

int output_index(const struct paper_data *d, struct err *err)
{
    const json_t *item;
    OWN(buf_free) struct buf b = {0}, path = {0};
    bool changed = false;
    buf_printf(&b,
               "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>Reproduced tables</title>\n"
               "<style>%s</style>\n<ul>\n",
               html_style);
    for (size_t i = 0; (item = paper_item_at(d, i)); i++) {
        const char *id = json_str_or(item, "id", "");
        PASS_ON(make_path("pages", id, "html", &path, err));
        if (access(buf_str(&path), F_OK) != 0)
            continue;
        buf_printf(&b, "<li><a href=\"%s\">", buf_str(&path) + strlen("../"));
        html_text(id, &b);
        buf_puts(&b, "</a> ");
        html_text(json_str_or(item, "caption", ""), &b);
        buf_puts(&b, "\n");
    }
    buf_puts(&b, "</ul>\n");
    return write_changed("../index.html", &b, &changed, err);
}
