/*
 * series.c - names, labels and styles of series, and short texts that tell panels apart.
 */
#include "plots/series.h"

#include "analyze/params.h"
#include "core/json.h"
#include "core/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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
    struct line_style st = style_of(l->methods, method);
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

void series_name(const char *scope, const char *method, const char *params, bool sparse,
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
    series_name(scope, method, params, sparse, &name);
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

/* ---- short texts ---------------------------------------------------------------------------- */

void title_share(double x, int digits, char text[16])
{
    double step = 1;
    for (int i = 0; i < digits; i++)
        step /= 10;
    snprintf(text, 16, "%.*f", digits, x);
    if (x > 0 && strtod(text, NULL) == 0)
        snprintf(text, 16, "<%.*f", digits, step);
    else if (x < 1 && strtod(text, NULL) == 1)
        snprintf(text, 16, ">%.*f", digits, 1 - step);
}

void title_sentence(const char *title, struct buf *out)
{
    size_t word = strcspn(title, " ,;:");
    bool name = memchr(title, '_', word) != NULL;
    char first[2] = {(char)(name ? title[0] : toupper((unsigned char)title[0])), '\0'};
    buf_puts(out, first);
    buf_puts(out, title[0] ? title + 1 : "");
}

void title_cut(const char *text, size_t most, struct buf *out)
{
    size_t len = strlen(text), tail = most > 3 ? (most - 3) / 2 : 0;
    if (len <= most || most <= 3) {
        buf_puts(out, text);
        return;
    }
    const char *end = text + len - tail, *word = strpbrk(end, ": ");
    buf_put(out, text, most - 3 - tail);
    buf_puts(out, "...");
    buf_puts(out, word && word[1] ? word : end);
}

/* Does the text have the word? */
static bool has_word(const char *params, const char *word, size_t len)
{
    size_t n;
    for (const char *w; (w = params_next(&params, &n));)
        if (n == len && strncmp(w, word, len) == 0)
            return true;
    return false;
}

/* The words of a panel that all have, or those that not all have. */
static void put_words(const struct title_params *t, int n, int panel, bool shared, struct buf *b)
{
    const char *p = t[panel].params ? t[panel].params : "";
    size_t len;
    for (const char *w; (w = params_next(&p, &len));) {
        bool all = true;
        for (int i = 0; i < n; i++)
            all = all && has_word(t[i].params ? t[i].params : "", w, len);
        if (all != shared)
            continue;
        buf_puts(b, b->len ? ":" : "");
        buf_put(b, w, len);
    }
}

/* Do two panels that differ look the same? */
static bool look_alike(const struct title_params *t, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(t[i].text, t[k].text) == 0 && strcmp(t[i].above, t[k].above) == 0 &&
                strcmp(t[i].params ? t[i].params : "", t[k].params ? t[k].params : "") != 0)
                return true;
    return false;
}

void title_params(struct title_params *t, int n, size_t most, struct buf *shared)
{
    OWN(buf_free) struct buf own = {0}, cut = {0};
    for (int pass = 0; pass == 0 || (pass == 1 && look_alike(t, n)); pass++)
        for (int i = 0; i < n; i++) {
            buf_reset(&own);
            buf_reset(&cut);
            put_words(t, n, i, false, &own);
            title_cut(buf_str(&own), pass ? sizeof t[i].text : most, &cut);
            snprintf(t[i].text, sizeof t[i].text, "%s", buf_str(&cut));
        }
    if (n > 0 && shared)
        put_words(t, n, 0, true, shared);
}

/* ---- labels --------------------------------------------------------------------------------- */

static int set_label(struct series *s, const char *params, struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    if (s->params)
        series_name(s->scope, s->method, params, s->sparse, &text);
    else
        buf_puts(&text, s->name);
    PASS_ON(buf_check(&text, "label", err));
    free(s->label);
    s->label = copy_text(buf_str(&text), err);
    return s->label ? 0 : err->code;
}

int series_labels(struct series_list *l, int most, struct err *err)
{
    OWN(free_at) struct title_params *t = NULL;
    PASS_ON(mem_alloc(&t, l->n, sizeof *t, "labels", err));
    for (int i = 0; i < l->n; i++) {
        struct series *s = &l->s[i];
        int n = 0, own = 0;
        bool several = false;
        for (int j = 0; s->params && j < l->n; j++) {
            const struct series *o = &l->s[j];
            if (!o->params || strcmp(o->method, s->method) != 0)
                continue;
            own = j == i ? n : own;
            several |= strcmp(o->params, s->params) != 0;
            t[n++] = (struct title_params){.above = o->scope ? o->scope : "", .params = o->params};
        }
        int room = several ? most - utf8_count(s->name) + utf8_count(s->params) : 0;
        if (several)
            title_params(t, n, room > 12 ? (size_t)room : 12, NULL);
        PASS_ON(set_label(s, several ? t[own].text : s->params, err));
    }
    return 0;
}

void series_line(const struct series *s, char how[128])
{
    snprintf(how, 128, "linespoints lw 1.4 dt %d pt %d ps 1*point_scale lc rgb '%s'", s->dash,
             s->point, s->color);
}

const char *series_label(const struct series *s)
{
    return s->label ? s->label : s->name;
}

int series_longest(const struct series_list *l)
{
    int longest = 0;
    for (int i = 0; i < l->n; i++) {
        int n = utf8_count(series_label(&l->s[i]));
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* ---- styles --------------------------------------------------------------------------------- */

/* The first series of this name. */
static int first_of(const struct series_list *l, int i)
{
    int at = 0;
    while (strcmp(l->s[at].method, l->s[i].method) != 0)
        at++;
    return at;
}

/* Variants of a method have names of their own ("SALE w/o calibration"): how many come before. */
static int variants_before(const struct series_list *l, int i, const char *own)
{
    int n = 0;
    for (int j = 0; j < first_of(l, i); j++)
        n += first_of(l, j) == j && strcmp(style_method(l->methods, l->s[j].method), own) == 0;
    return n;
}

void series_shade(struct series_list *l, enum series_tell tell)
{
    for (int i = 0; i < l->n; i++) {
        struct series *s = &l->s[i];
        const char *own = style_method(l->methods, s->method);
        int k = 0, n = 0;
        for (int j = 0; j < l->n; j++)
            if (strcmp(style_method(l->methods, l->s[j].method), own) == 0) {
                k += j < i;
                n++;
            }
        /* Beside dashes shades need not tell alone: none fades towards the paper. */
        style_shade(style_of(l->methods, s->method), k, n, tell == TELL_SHADE ? 0.6 : 0.3,
                    s->color);
        s->dash = tell == TELL_SHADE ? 1 : n > 1 ? 1 + k % 5 : s->dash;
        s->point = 5 + (s->point - 5 + 2 * variants_before(l, i, own)) % 12; /* filled ones */
        if (tell == TELL_DASH_POINT && k / 5 % 2)
            s->point--; /* the hollow one */
    }
}

/* ---- colours -------------------------------------------------------------------------------- */

void palette_viridis(struct buf *script)
{
    buf_puts(script, "set palette defined (0 '#440154', 1 '#482878', 2 '#3e4a89', 3 '#31688e', "
                     "4 '#26828e', 5 '#1f9e89', 6 '#35b779', 7 '#6ece58', 8 '#fde725')\n");
}

void palette_diverging(struct buf *script)
{
    buf_puts(script, "set palette defined (0 '#2166ac', 1 '#67a9cf', 2 '#d1e5f0', 3 '#f7f7f7', "
                     "4 '#fddbc7', 5 '#ef8a62', 6 '#b2182b')\n");
}

void palette_grade(bool low_is_good, struct buf *script)
{
    /* Lightness rises all the way, for grey print and for eyes that take red for green. */
    static const char *const colors[] = {"#de2d26", "#fb6a4a", "#fdae6b", "#f3dc8c", "#d9f0d3"};
    enum { N = sizeof colors / sizeof *colors };
    for (int i = 0; i < N; i++)
        buf_printf(script, "%s%d '%s'", i ? ", " : "set palette defined (", i,
                   colors[low_is_good ? N - 1 - i : i]);
    buf_puts(script, ")\n");
}

static const struct {
    const char *method;
    struct line_style style;
} styles[] = {
#define STYLE(method, color, point, dash) {method, {color, point, dash}},
#include "plots/styles.def"
#undef STYLE
};

#define N_STYLES (sizeof styles / sizeof *styles)

static const struct line_style *find_style(const char *method)
{
    for (size_t i = 0; i < N_STYLES; i++)
        if (strcmp(styles[i].method, method) == 0)
            return &styles[i].style;
    return NULL;
}

/* ---- styles of methods ---------------------------------------------------------------------- */

/* Length of an id at the beginning of a name, as a word or as a part of "LikeThis"; 0: it is none.
 */
static size_t begins(const char *name, const char *id)
{
    size_t n = id ? strlen(id) : 0;
    char next = n && strncasecmp(name, id, n) == 0 ? name[n] : 'a';
    return islower((unsigned char)next) || isdigit((unsigned char)next) ? 0 : n;
}

const char *style_method(const struct method *const *methods, const char *name)
{
    const char *found = name;
    size_t longest = 0;
    for (int i = 0; methods && methods[i]; i++) {
        size_t n = begins(name, methods[i]->name), alias = begins(name, methods[i]->alias);
        n = alias > n ? alias : n;
        if (n > longest) {
            longest = n;
            found = methods[i]->name;
        }
    }
    return found;
}

struct line_style style_of(const struct method *const *methods, const char *method)
{
    unsigned hash = 2166136261u;
    const struct line_style *listed = find_style(method);
    if (listed)
        return *listed;
    const char *own = style_method(methods, method);
    if (strcmp(own, method) != 0)
        return style_of(methods, own);
    for (const char *p = method; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    struct line_style s = styles[hash % N_STYLES].style;
    s.dash = 5; /* tells it from the method whose colour it shares */
    return s;
}

void style_shade(struct line_style s, int k, int n, double most, char color[8])
{
    long rgb = strtol(s.color + 1, NULL, 16);
    double mix = n > 1 ? most * k / (n - 1) : 0; /* share of white */
    int part[3];
    for (int i = 0; i < 3; i++) {
        int c = (int)(rgb >> (16 - 8 * i)) & 255;
        part[i] = (int)(c + mix * (255 - c) + 0.5);
    }
    snprintf(color, 8, "#%02x%02x%02x", part[0] & 255, part[1] & 255, part[2] & 255);
}
