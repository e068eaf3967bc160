/*
 * facets.c - many series in one chart: a panel per method, with the others in grey behind.
 */
#include "plots/chart.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

static bool same_facet(const struct series *a, const struct series *b)
{
    return strcmp(a->method, b->method) == 0 && same_text(a->scope, b->scope);
}

/* The first series of its facet? */
static bool begins(const struct series_list *l, int i)
{
    for (int k = 0; k < i; k++)
        if (same_facet(&l->s[k], &l->s[i]))
            return false;
    return true;
}

/* Of n settings those that are drawn: all, or FACET_SERIES from the first to the last. */
static bool is_drawn(int place, int n)
{
    if (n <= FACET_SERIES)
        return true;
    for (int k = 0; k < FACET_SERIES; k++)
        if (place == k * (n - 1) / (FACET_SERIES - 1))
            return true;
    return false;
}

static void fill(const struct series_list *l, int first, struct chart_facet *f)
{
    const struct series *s = &l->s[first];
    int n = 0, place = 0;
    snprintf(f->title, sizeof f->title, "%.48s%s%.32s%s", s->scope ? s->scope : "",
             s->scope && s->scope[0] && s->method[0] ? ": " : "", s->method,
             s->sparse ? " (sparse calls)" : "");
    for (int i = first; i < l->n; i++)
        n += same_facet(&l->s[i], s);
    for (int i = first; i < l->n; i++) {
        if (!same_facet(&l->s[i], s))
            continue;
        if (is_drawn(place++, n))
            f->s[f->n++] = i;
        else
            f->hidden++;
    }
}

int chart_facets_make(const struct series_list *l, int most, struct chart_facets *out,
                      struct err *err)
{
    int rc = mem_zalloc(&out->f, l->n ? l->n : 1, sizeof *out->f, "panels", err);
    if (rc)
        return rc;
    if (l->n <= most) {
        out->n = 1;
        for (int i = 0; i < l->n; i++)
            out->f[0].s[out->f[0].n++] = i;
    } else
        for (int i = 0; i < l->n; i++)
            if (begins(l, i))
                fill(l, i, &out->f[out->n++]);
    for (int i = 0; i < out->n; i++) {
        out->most = out->f[i].n > out->most ? out->f[i].n : out->most;
        for (int k = 0; k < out->f[i].n; k++) {
            int chars = utf8_count(chart_facet_label(out, &l->s[out->f[i].s[k]]));
            out->longest = chars > out->longest ? chars : out->longest;
        }
    }
    return 0;
}

void chart_facets_free(struct chart_facets *f)
{
    free(f->f);
    *f = (struct chart_facets){0};
}

const char *chart_facet_label(const struct chart_facets *f, const struct series *s)
{
    size_t scope = s->scope ? strlen(s->scope) : 0;
    if (f->n > 1 && !s->method[0] && scope && strncmp(series_label(s), s->scope, scope) == 0)
        return series_label(s) + scope + (series_label(s)[scope] == ' ');
    const char *label = series_label(s), *method = s->method[0] ? strstr(label, s->method) : NULL;
    if (f->n == 1 || !method)
        return label;
    method += strlen(s->method);
    while (*method == ' ')
        method++;
    return !*method || *method == '(' ? "defaults" : method;
}

void chart_facets_note(const struct chart_facets *f, const struct series_list *l, bool grey,
                       struct buf *b)
{
    if (f->n > 1)
        buf_printf(b, " One panel per method, %d settings in all%s.", l->n,
                   grey ? "; grey: those of the other panels" : "");
    for (int i = 0; i < f->n; i++)
        if (f->f[i].hidden) {
            int all = f->f[i].n + f->f[i].hidden;
            log_warn("%d of %d settings of %s are drawn: choose with --params, --where or --layers",
                     f->f[i].n, all, f->f[i].title);
            buf_printf(b,
                       " %d of %d settings of %s are drawn; --params, --where and --layers choose "
                       "others.",
                       f->f[i].n, all, f->f[i].title);
        }
}
