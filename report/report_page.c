/*
 * report_page.c - the page: its head, the parts in their order, style, data and script in one file.
 *
 * The script is the only one that may run: the policy names its hash. The data are of a type that
 * browsers do not run. Without the script everything but the explorer is there.
 */
#include "report/report.h"

#include "analyze/tables.h"
#include "analyze/format.h"
#include "analyze/group.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/version.h"
#include "plots/gp.h"

#include <stdio.h>

/* Made from report/page.css and page.js by the Makefile. */
static const char page_css[] =
#include "report/page_css.inc"
    ;
static const char page_js[] =
#include "report/page_js.inc"
    ;
static const char page_js_sha256[] =
#include "report/page_js_sha256.inc"
    ; /* 64 hex digits */

void base64(const void *data, size_t len, struct buf *b)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i += 3) {
        unsigned n = (unsigned)p[i] << 16;
        n |= i + 1 < len ? (unsigned)p[i + 1] << 8 : 0;
        n |= i + 2 < len ? (unsigned)p[i + 2] : 0;
        char out[4] = {digits[n >> 18], digits[n >> 12 & 63], digits[n >> 6 & 63], digits[n & 63]};
        if (i + 2 >= len)
            out[3] = '=';
        if (i + 1 >= len)
            out[2] = '=';
        buf_put(b, out, 4);
    }
}

/* These characters stand only inside of JSON's texts, where \u003c means the same as "<". */
void json_in_html(const struct buf *json, struct buf *b)
{
    for (const char *p = buf_str(json); *p; p++)
        if (*p == '<' || *p == '>' || *p == '&')
            buf_printf(b, "\\u%04x", (unsigned)*p);
        else
            buf_put(b, p, 1);
    b->failed |= json->failed;
}

void report_command(const struct report *r, const char *command, struct buf *b)
{
    buf_printf(b, "lacuna %s", command);
    for (int64_t i = 0; i < r->records.n; i++) {
        buf_puts(b, " ");
        shell_word(r->records.items[i], b);
    }
}

/* ---- head ----------------------------------------------------------------------------------- */

static void put_policy(struct buf *b)
{
    unsigned char hash[32];
    for (size_t i = 0; i < sizeof hash; i++) {
        unsigned x = 0;
        sscanf(page_js_sha256 + 2 * i, "%2x", &x);
        hash[i] = (unsigned char)x;
    }
    buf_puts(b, "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                "img-src data:; style-src 'unsafe-inline'; script-src 'sha256-");
    base64(hash, sizeof hash, b);
    buf_puts(b, "'\">\n");
}

/* "code-lm, 4096 tokens, ...; 12 methods, 29 settings; 1392 cells: ..." */
static void put_facts(const struct report *r, struct buf *b)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    const struct recset *s = &r->set;
    OWN(buf_free) struct buf text = {0};
    struct grouping g;
    recset_caption(s, &text);
    for (int n = 1; n <= 2; n++)
        if (grouping_make(s, keys, n, 0, NULL, NULL, &g, NULL) == 0) {
            buf_printf(&text, "%s%lld %s%s", n == 1 ? " \u00b7 " : ", ", (long long)g.n,
                       n == 1 ? "method" : "setting", g.n == 1 ? "" : "s");
            grouping_free(&g);
        }
    buf_puts(b, "<p class=\"facts\">");
    html_text(buf_str(&text), b);
    buf_printf(b,
               " &middot; %lld cells: %lld ok, %lld skipped, %lld failed &middot; lacuna %s</p>\n",
               (long long)s->n, (long long)s->n_ok, (long long)s->n_skip, (long long)s->n_error,
               lacuna_version());
    b->failed |= text.failed;
}

static void put_header(const struct report *r, struct buf *b)
{
    static const char *const parts[][2] = {
        {"findings", "Findings"}, {"explore", "Explore"},         {"figures", "Figures"},
        {"tables", "Tables"},     {"definitions", "Definitions"}, {"manifest", "Commands"}};
    buf_puts(b, "<header>\n<div id=\"buttons\" class=\"tools\"></div>\n<h1>");
    html_text(r->title, b);
    buf_puts(b, "</h1>\n");
    put_facts(r, b);
    buf_puts(b, "<nav>");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool is_there = i == 1 ? r->explorer.len > 0 : i == 2 ? r->pictures.len > 0 : true;
        if (is_there)
            buf_printf(b, "<a href=\"#%s\">%s</a>", parts[i][0], parts[i][1]);
    }
    buf_puts(b, "</nav>\n</header>\n");
}

/* ---- page ----------------------------------------------------------------------------------- */

int report_write(struct report *r, struct err *err)
{
    const struct buf *parts[] = {&r->findings, &r->explorer, &r->pictures, &r->tables, &r->about};
    OWN(buf_free) struct buf b = {0}, path = {0};
    buf_puts(&b, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n");
    put_policy(&b);
    buf_puts(&b, "<title>");
    html_text(r->title, &b);
    buf_printf(&b, "</title>\n<style>%s</style></head><body>\n", page_css);
    put_header(r, &b);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        buf_put(&b, buf_str(parts[i]), parts[i]->len);
        b.failed |= parts[i]->failed;
    }
    buf_printf(&b, "<script>%s</script>\n</body></html>\n", page_js);
    PASS_ON(buf_check(&b, "report", err));
    buf_printf(&path, "%s/index.html", r->dir);
    PASS_ON(buf_check(&path, "path", err));
    return file_write_atomic(buf_str(&path), b.data, b.len, err);
}
