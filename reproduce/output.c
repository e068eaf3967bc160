/*
 * output.c - writing what changed, and nothing else.
 */
#include "reproduce/page.h"

#include "analyze/format.h"
#include "core/fileio.h"

#include <string.h>
#include <unistd.h>

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
    page_file(id, path);
    buf_printf(path, ".%s", suffix);
    return buf_check(path, "path", err);
}

/* Write a file unless it has this content. */
static int write_changed(const char *path, const struct buf *text, bool *changed, struct err *err)
{
    struct buf old = {0};
    struct err ignored = {0};
    bool same = access(path, F_OK) == 0 &&
                buf_read_file(&old, path, (size_t)1 << 30, &ignored) == 0 && old.len == text->len &&
                memcmp(buf_str(&old), buf_str(text), old.len) == 0;
    int rc = buf_check(text, path, err);
    if (!rc && !same)
        rc = file_write_atomic(path, buf_str(text), text->len, err);
    *changed = *changed || !same;
    buf_free(&old);
    return rc;
}

static int copy_figures(const struct plan *p, int recipe, bool *changed, struct err *err)
{
    static const char *const suffixes[] = {"png", "pdf"};
    struct buf from = {0}, to = {0}, content = {0};
    int rc = 0;
    for (const struct step *s = NULL; (s = next_step(p, recipe, s));)
        for (int k = 0; k < 2 && s->done && step_job(p, s)->kind == DO_DRAW; k++) {
            buf_reset(&from);
            buf_reset(&content);
            buf_printf(&from, "%s/figure.%s", s->id, suffixes[k]);
            TRY(make_path("figures", p->recipes[recipe].id, suffixes[k], &to, err));
            TRY(make_dirs("../figures", err));
            TRY(buf_read_file(&content, buf_str(&from), (size_t)64 << 20, err));
            TRY(write_changed(buf_str(&to), &content, changed, err));
        }
out:
    buf_free(&from);
    buf_free(&to);
    buf_free(&content);
    return rc;
}

int output_page(const struct plan *p, int recipe, const struct paper_data *d, bool *changed,
                struct err *err)
{
    struct page page = {0};
    struct buf path = {0}, text = {0};
    int rc = 0;
    TRY(make_dirs("../pages", err));
    TRY(page_make(p, recipe, d, &page, err));
    TRY(copy_figures(p, recipe, changed, err));
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        buf_reset(&text);
        TRY(writers[i].write(&page, &text, err));
        TRY(make_path("pages", page.recipe->id, writers[i].suffix, &path, err));
        TRY(write_changed(buf_str(&path), &text, changed, err));
    }
out:
    page_free(&page);
    buf_free(&path);
    buf_free(&text);
    return rc;
}

int output_index(const struct paper_data *d, struct err *err)
{
    const json_t *item;
    struct buf b = {0}, path = {0};
    bool changed = false;
    int rc = 0;
    buf_printf(&b,
               "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>Reproduced tables</title>\n"
               "<style>%s</style>\n<ul>\n",
               html_style);
    for (size_t i = 0; (item = paper_item_at(d, i)); i++) {
        const char *id = json_str_or(item, "id", "");
        TRY(make_path("pages", id, "html", &path, err));
        if (access(buf_str(&path), F_OK) != 0)
            continue;
        buf_printf(&b, "<li><a href=\"%s\">", buf_str(&path) + strlen("../"));
        html_text(id, &b);
        buf_puts(&b, "</a> ");
        html_text(json_str_or(item, "caption", ""), &b);
        buf_puts(&b, "\n");
    }
    buf_puts(&b, "</ul>\n");
    TRY(write_changed("../index.html", &b, &changed, err));
out:
    buf_free(&b);
    buf_free(&path);
    return rc;
}
