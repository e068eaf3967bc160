/*
 * output.c - writing what changed, and nothing else: a second call finds every page made of the
 * same inputs and touches no file.
 */
#include "reproduce/page.h"

#include "analyze/format.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/sealed.h"

#include <string.h>
#include <unistd.h>

/* Raised when the same inputs give another page. */
#define PAGE_VERSION "8"

static const struct writer {
    const char *suffix;
    int (*write)(const struct page *p, struct buf *b, struct err *err);
} writers[] = {{"md", page_md},
               {"tex", page_tex},
               {"html", page_html},
               {"csv", page_csv},
               {"json", page_json}};

#define WRITERS (sizeof writers / sizeof *writers)

int output_open(struct output *o, struct err *err)
{
    json_t *doc = NULL;
    if (access("../plan.json", F_OK) == 0) {
        int rc = seal_json_file("../plan.json", (size_t)8 << 20, &doc, err);
        if (rc)
            return rc;
        o->made = json_incref(json_object_get(doc, "pages"));
        json_decref(doc);
    }
    if (!json_is_object(o->made)) {
        json_decref(o->made);
        o->made = json_object();
    }
    return o->made ? 0 : err_set(err, ERR_NOMEM, "plan.json: out of memory");
}

void output_free(struct output *o)
{
    json_decref(o->made);
    memset(o, 0, sizeof *o);
}

/* A hash of everything that a page is made of: not of models that other pages show, nor of what
 * other pages have made of steps that are left out here. */
static int page_inputs(const struct output *o, int recipe, char text[40], struct err *err)
{
    const struct plan *p = o->plan;
    struct buf b = {0};
    buf_printf(&b, "%s %s %s %d %d", PAGE_VERSION, o->data->content, p->recipes[recipe].content,
               p->quick, p->cuda);
    for (int i = 0; i < p->models->n; i++)
        if (json_object_get(p->recipes[recipe].roles, p->models->m[i].role))
            buf_printf(&b, " %s=%s:%s", p->models->m[i].role, p->models->m[i].name,
                       p->models->m[i].id);
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        bool done = s->done && !s->left_out;
        if (s->recipe == recipe)
            buf_printf(&b, "\n%d %s %d %s %s", s->job, s->n_vars ? s->var[0].value : "", done,
                       s->id, s->reason);
    }
    hash_text(hash_bytes(buf_str(&b), b.len), text);
    int rc = buf_check(&b, "plan", err);
    buf_free(&b);
    return rc;
}

static int page_path(const struct recipe *r, const char *suffix, struct buf *path, struct err *err)
{
    buf_reset(path);
    buf_puts(path, "../pages/");
    page_file(r->id, path);
    buf_printf(path, ".%s", suffix);
    return buf_check(path, "path", err);
}

static bool files_there(const struct recipe *r)
{
    struct buf path = {0};
    struct err ignored = {0};
    bool all = true;
    for (size_t i = 0; i < WRITERS && all; i++)
        all = page_path(r, writers[i].suffix, &path, &ignored) == 0 &&
              access(buf_str(&path), F_OK) == 0;
    buf_free(&path);
    return all;
}

static int copy_figure(const struct output *o, int recipe, struct err *err)
{
    static const char *const suffixes[] = {"png", "pdf"};
    const struct plan *p = o->plan;
    struct buf from = {0}, to = {0}, content = {0};
    int rc = 0;
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        if (s->recipe != recipe || !s->done || step_job(p, s)->kind != DO_DRAW)
            continue;
        for (int k = 0; k < 2; k++) {
            buf_reset(&from);
            buf_reset(&to);
            buf_reset(&content);
            buf_printf(&from, "%s/figure.%s", s->id, suffixes[k]);
            buf_puts(&to, "../figures/");
            page_file(p->recipes[recipe].id, &to);
            buf_printf(&to, ".%s", suffixes[k]);
            TRY(make_dirs("../figures", err));
            TRY(buf_read_file(&content, buf_str(&from), (size_t)64 << 20, err));
            TRY(file_write_atomic(buf_str(&to), content.data, content.len, err));
        }
    }
out:
    buf_free(&from);
    buf_free(&to);
    buf_free(&content);
    return rc;
}

static int write_page(struct output *o, int recipe, struct err *err)
{
    struct page page = {0};
    struct buf path = {0}, text = {0};
    int rc = 0;
    TRY(make_dirs("../pages", err));
    TRY(page_make(o->plan, recipe, o->data, &page, err));
    TRY(copy_figure(o, recipe, err));
    for (size_t i = 0; i < WRITERS; i++) {
        buf_reset(&text);
        TRY(writers[i].write(&page, &text, err));
        TRY(page_path(page.recipe, writers[i].suffix, &path, err));
        TRY(file_write_atomic(buf_str(&path), buf_str(&text), text.len, err));
    }
    o->written++;
    o->changed = true;
out:
    page_free(&page);
    buf_free(&path);
    buf_free(&text);
    return rc;
}

int output_page(struct output *o, int recipe, struct err *err)
{
    const struct recipe *r = &o->plan->recipes[recipe];
    char inputs[40];
    int rc = page_inputs(o, recipe, inputs, err);
    if (rc)
        return rc;
    for (int i = 0; i < o->plan->n; i++)
        o->failed += o->plan->s[i].recipe == recipe && o->plan->s[i].failed;
    if (strcmp(json_str_or(o->made, r->id, ""), inputs) == 0 && files_there(r))
        return 0;
    rc = write_page(o, recipe, err);
    if (!rc && json_object_set_new(o->made, r->id, json_string(inputs)) != 0)
        rc = err_set(err, ERR_NOMEM, "plan.json: out of memory");
    return rc;
}

static int write_index(const struct output *o, struct err *err)
{
    struct buf b = {0};
    int rc;
    buf_printf(&b,
               "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>Reproduced tables</title>\n"
               "<style>%s</style>\n<ul>\n",
               html_style);
    const char *id;
    json_t *v;
    json_object_foreach(o->made, id, v)
    {
        buf_puts(&b, "<li><a href=\"pages/");
        page_file(id, &b);
        buf_puts(&b, ".html\">");
        html_text(id, &b);
        buf_puts(&b, "</a> ");
        const json_t *item = paper_table(o->data, id);
        html_text(json_str_or(item ? item : paper_figure(o->data, id), "caption", ""), &b);
        buf_puts(&b, "\n");
    }
    buf_puts(&b, "</ul>\n");
    rc = buf_check(&b, "index", err);
    if (!rc)
        rc = file_write_atomic("../index.html", b.data, b.len, err);
    buf_free(&b);
    return rc;
}

int output_close(struct output *o, struct err *err)
{
    struct buf b = {0};
    struct jw w;
    int rc = 0;
    if (!o->changed)
        return 0;
    jw_init(&w, &b, 1);
    jw_obj(&w);
    jw_kint(&w, "plan", 1);
    jw_key(&w, "pages");
    jw_value(&w, o->made);
    jw_obj_end(&w);
    seal_put(&b, 0);
    buf_puts(&b, "\n");
    TRY(buf_check(&b, "plan.json", err));
    TRY(write_index(o, err));
    TRY(file_write_atomic("../plan.json", b.data, b.len, err));
out:
    buf_free(&b);
    return rc;
}
