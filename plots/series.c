/*
 * series.c - names, labels and styles of series.
 */
#include "plots/series.h"

#include "analyze/params.h"
#include "core/buf.h"
#include "core/mem.h"
#include "core/opt.h"
#include "plots/palette.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int series_of(struct series_list *l, const char *name, const char *method, struct err *err)
{
    int most = l->most ? l->most : SERIES_MOST;
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->s[i].name, name) == 0)
            return i;
    if (l->n == most) {
        err_set(err, ERR_USAGE, "more than %d series: choose with --method and --params", most);
        return -1;
    }
    if (mem_grow(&l->s, &l->cap, l->n + 1, sizeof *l->s, "series", err))
        return -1;
    struct line_style st = style_of(method);
    struct series *s = &l->s[l->n];
    *s = (struct series){.name = strdup(name), .point = st.point, .dash = st.dash};
    if (!s->name) {
        err_set(err, ERR_NOMEM, "series: out of memory");
        return -1;
    }
    snprintf(s->method, sizeof s->method, "%s", method);
    snprintf(s->color, sizeof s->color, "%s", st.color);
    return l->n++;
}

/* "code-lm n_q=2048: sale tau=0.02 (sparse calls)" */
static void full_name(const char *scope, const char *method, const char *params, bool sparse,
                      struct buf *b)
{
    if (scope && scope[0])
        buf_printf(b, "%s: ", scope);
    buf_puts(b, method);
    if (params && params[0])
        buf_printf(b, " %s", params);
    if (sparse)
        buf_puts(b, " (sparse calls)");
}

static char *copy_text(const char *text, struct err *err)
{
    char *s = strdup(text);
    if (!s)
        err_set(err, ERR_NOMEM, "series: out of memory");
    return s;
}

int series_of_setting(struct series_list *l, const char *scope, const char *method,
                      const char *params, bool sparse, struct err *err)
{
    struct buf name = {0};
    int had = l->n, i = -1;
    full_name(scope, method, params, sparse, &name);
    if (!buf_check(&name, "series", err))
        i = series_of(l, buf_str(&name), method, err);
    buf_free(&name);
    if (i < 0 || l->n == had)
        return i;
    struct series *s = &l->s[i];
    s->sparse = sparse;
    if (scope && !(s->scope = copy_text(scope, err)))
        return -1;
    if (params && !(s->params = copy_text(params, err)))
        return -1;
    return i;
}

void series_free(struct series_list *l)
{
    for (int i = 0; i < l->n; i++) {
        free(l->s[i].name);
        free(l->s[i].label);
        free(l->s[i].scope);
        free(l->s[i].params);
    }
    free(l->s);
    *l = (struct series_list){0};
}

/* ---- labels -------------------------------------------------------------------------------- */

static bool same_method(const struct series *a, const struct series *b)
{
    return a->params && b->params && strcmp(a->method, b->method) == 0;
}

static bool has_part(const char *params, const char *part, size_t len)
{
    for (const char *p = params; *p;) {
        size_t n = strcspn(p, ":");
        if (n == len && memcmp(p, part, len) == 0)
            return true;
        p += n + (p[n] == ':');
    }
    return false;
}

/* Is "tau=0.9" set alike in all settings of the method, of which there are several? */
static bool is_shared(const struct series_list *l, const struct series *s, const char *part,
                      size_t len)
{
    bool several = false;
    for (int i = 0; i < l->n; i++) {
        if (!same_method(&l->s[i], s))
            continue;
        if (!has_part(l->s[i].params, part, len))
            return false;
        several |= strcmp(l->s[i].params, s->params) != 0;
    }
    return several;
}

static void own_params(const struct series_list *l, const struct series *s, struct buf *b)
{
    for (const char *p = s->params; *p;) {
        size_t len = strcspn(p, ":");
        if (!is_shared(l, s, p, len)) {
            buf_puts(b, b->len ? ":" : "");
            buf_put(b, p, len);
        }
        p += len + (p[len] == ':');
    }
}

static int make_label(const struct series_list *l, struct series *s, struct err *err)
{
    struct buf own = {0}, text = {0};
    int rc = 0;
    if (s->params) {
        own_params(l, s, &own);
        full_name(s->scope, s->method, buf_str(&own), s->sparse, &text);
    } else {
        buf_puts(&text, s->name);
    }
    TRY(buf_check(&own, "label", err));
    TRY(buf_check(&text, "label", err));
    free(s->label);
    s->label = copy_text(buf_str(&text), err);
    rc = s->label ? 0 : err->code;
out:
    buf_free(&own);
    buf_free(&text);
    return rc;
}

/* Characters of UTF-8. */
static int characters(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static bool is_seam(const char *p)
{
    return *p == ':' || *p == ' ';
}

/* "method a=1:...:z=9": at most `head` bytes before and `tail` bytes after the ellipsis. Both end
 * at a seam between parameters; where the tail has none, it is left out. */
static void cut(const char *text, size_t head, size_t tail, struct buf *b)
{
    size_t len = strlen(text), h = head, t = len - tail;
    while (h > 0 && !is_seam(text + h))
        h--;
    while (t < len && !is_seam(text + t))
        t++;
    h = h > 0 ? h : head;
    while (h > 0 && ((unsigned char)text[h] & 0xc0) == 0x80)
        h--;
    buf_put(b, text, h);
    buf_puts(b, text[h] == ':' ? ":..." : " ...");
    buf_puts(b, text + t);
}

/* Labels as they are after a cut behind `head` bytes; `most` as for series_labels. */
static void cut_labels(const struct series_list *l, int most, int head, struct str_list *out)
{
    struct buf b = {0};
    for (int i = 0; i < l->n; i++) {
        buf_reset(&b);
        if (characters(l->s[i].label) <= most)
            buf_puts(&b, l->s[i].label);
        else
            cut(l->s[i].label, (size_t)head, (size_t)(most - 4 - head), &b);
        str_list_add(out, buf_str(&b));
    }
    buf_free(&b);
}

static bool all_differ(const struct str_list *l)
{
    for (int64_t i = 0; i < l->n; i++)
        for (int64_t k = 0; k < i; k++)
            if (strcmp(l->items[i], l->items[k]) == 0)
                return false;
    return true;
}

/* One place for all, nearest to the middle, so that what differs is seen in each of them; where
 * none will do, the labels stay long. */
static void shorten(struct series_list *l, int most)
{
    bool good = false;
    for (int i = 0; !good && i < most - 16; i++) {
        struct str_list tried = {0};
        int off = (i + 1) / 2;
        cut_labels(l, most, most / 2 + (i % 2 ? -off : off), &tried);
        good = !tried.failed && all_differ(&tried);
        for (int k = 0; good && k < l->n; k++) {
            char *text = l->s[k].label;
            l->s[k].label = tried.items[k];
            tried.items[k] = text;
        }
        str_list_free(&tried);
    }
}

int series_labels(struct series_list *l, int most, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < l->n; i++)
        TRY(make_label(l, &l->s[i], err));
    if (series_longest(l) > most)
        shorten(l, most);
out:
    return rc;
}

const char *series_label(const struct series *s)
{
    return s->label ? s->label : s->name;
}

int series_longest(const struct series_list *l)
{
    int longest = 0;
    for (int i = 0; i < l->n; i++) {
        int n = characters(series_label(&l->s[i]));
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* ---- styles -------------------------------------------------------------------------------- */

void series_shade(struct series_list *l, enum series_tell tell)
{
    for (int i = 0; i < l->n; i++) {
        struct series *s = &l->s[i];
        int k = 0, n = 0;
        for (int j = 0; j < l->n; j++)
            if (strcmp(l->s[j].method, s->method) == 0) {
                k += j < i;
                n++;
            }
        /* Beside dashes shades need not tell alone: none fades towards the paper. */
        style_shade(style_of(s->method), k, n, tell == TELL_SHADE ? 0.6 : 0.45, s->color);
        s->dash = tell == TELL_SHADE ? 1 : n > 1 ? 1 + k % 5 : s->dash;
        if (tell == TELL_DASH_POINT && k / 5 % 2)
            s->point--; /* the hollow one */
    }
}
