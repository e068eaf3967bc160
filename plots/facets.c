/*
 * facets.c - many series in one chart: a panel per method, with the others in grey behind.
 */
#include "plots/chart.h"
#include "plots/marks.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GREY "#d9d9d9"

/* Marks on a line of steps: enough to follow it, few enough to see it. */
#define MARKS 6

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

int chart_facets_make(const struct series_list *l, bool split, struct chart_facets *out,
                      struct err *err)
{
    int rc = mem_zalloc(&out->f, l->n ? l->n : 1, sizeof *out->f, "panels", err);
    if (rc)
        return rc;
    if (l->n <= FACET_SERIES && !split) {
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
            log_warn("%d of %d settings of %s are drawn: choose with --params, --where or --layer",
                     f->f[i].n, all, f->f[i].title);
            buf_printf(b,
                       " %d of %d settings of %s are drawn; --params, --where and --layer choose "
                       "others.",
                       f->f[i].n, all, f->f[i].title);
        }
}

void chart_facets_room(const struct chart_facets *f, struct chart_layout *out)
{
    out->legend = (int)(72 + 7.4 * f->longest);
    out->lines = f->most;
    if (f->n == 1)
        return;
    out->panels = f->n;
    out->each = out->heads = true;
    out->width = 250;
    out->height = 190;
}

/* ---- lines --------------------------------------------------------------------------------- */

static void one_line(struct chart *c, const struct chart_lines *d, int i, bool grey)
{
    const struct series *k = &d->l->s[i];
    struct buf *s = &c->gp.script;
    bool steps = strcmp(d->with, "steps") == 0;
    gp_data_name(&c->gp, "dat");
    buf_printf(s, " index %d using 1:2 with %s", i, steps ? "steps" : grey ? "lines" : d->with);
    if (grey) {
        buf_puts(s, " lw 0.8 dt 1 lc rgb '" GREY "' notitle");
        return;
    }
    buf_printf(s, " lw 1.4 dt %d", k->dash);
    if (!steps)
        buf_printf(s, " pt %d ps 1*point_scale", k->point);
    buf_printf(s, " lc rgb '%s' notitle", k->color);
    if (!steps)
        return;
    /* Marks of different lines start at different rows: lines that run together show theirs. */
    long long every = (long long)(d->rows[i] / MARKS + 1);
    buf_puts(s, ", ");
    gp_data_name(&c->gp, "dat");
    buf_printf(s,
               " index %d every %lld::%lld using 1:2 with points pt %d ps 0.9*point_scale lc "
               "rgb '%s' notitle",
               i, every, i % every, k->point, k->color);
}

static bool in_facet(const struct chart_facet *f, int i)
{
    for (int k = 0; k < f->n; k++)
        if (f->s[k] == i)
            return true;
    return false;
}

static void draw_facet(struct chart *c, const struct chart_lines *d, const struct chart_facets *f,
                       int i)
{
    const struct chart_facet *own = &f->f[i];
    const char *before = "plot ";
    chart_panel(c, i, d->x_label, i % c->cols == 0 ? d->y_label : "");
    if (f->n > 1) {
        chart_head(c, i, own->title);
        chart_key(c, i);
    }
    buf_puts(&c->gp.script, d->axes);
    for (int k = 0; f->n > 1 && !d->split && k < d->l->n; k++)
        if (!in_facet(own, k)) {
            buf_puts(&c->gp.script, before);
            one_line(c, d, k, true);
            before = ", ";
        }
    for (int k = 0; k < own->n; k++) {
        buf_puts(&c->gp.script, before);
        one_line(c, d, own->s[k], false);
        before = ", ";
    }
    if (d->marks)
        marks_plot(d->marks, c, d->l->n, 0);
    for (int k = 0; k < own->n; k++) {
        const char *label = chart_facet_label(f, &d->l->s[own->s[k]]);
        /* A line through many values of a parameter needs no name of its own. */
        if (!d->through || f->n == 1 || own->n > 1 || strcmp(label, "defaults") != 0)
            chart_entry(c, &d->l->s[own->s[k]], label);
    }
    if (d->marks)
        marks_entry(d->marks, c);
    chart_end(c);
}

int chart_draw_lines(const struct figure_args *a, struct chart_layout *layout,
                     const struct chart_lines *d, const struct buf *data, struct err *err)
{
    struct chart c = {0};
    struct chart_facets f = {0};
    struct buf note = {0};
    int rc = 0;

    TRY(chart_facets_make(d->l, d->split, &f, err));
    layout->panels = 1;
    if (d->marks && d->marks->n) {
        int name = (int)strlen(d->marks->name);
        f.longest = name > f.longest ? name : f.longest;
        f.most++;
    }
    chart_facets_room(&f, layout);
    buf_puts(&note, layout->caption ? layout->caption : "");
    chart_facets_note(&f, d->l, !d->split, &note);
    if (d->marks && d->marks->n)
        buf_printf(&note, " Grey marks: %s.", d->marks->name);
    TRY(buf_check(&note, "caption", err));
    layout->caption = buf_str(&note);
    TRY(chart_open(a, layout, &c, err));
    for (int i = 0; i < f.n; i++)
        draw_facet(&c, d, &f, i);
    TRY(chart_finish(&c, data, err));
out:
    chart_free(&c);
    chart_facets_free(&f);
    buf_free(&note);
    return rc;
}
