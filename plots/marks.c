/*
 * marks.c - the open grey marks of --marks.
 */
#include "plots/marks.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MARK_STYLE "points pt 64 lw 1.6 ps 1.1*point_scale lc rgb '#595959'"

static int take(const char **p, char end, double *out)
{
    char *stop;
    *out = strtod(*p, &stop);
    bool good = stop > *p && isfinite(*out) && *stop == end;
    *p = stop + (end != '\0');
    return good;
}

int marks_parse(const char *text, struct marks *out, struct err *err)
{
    const char *p = text ? strchr(text, '=') : NULL;
    int rc = 0;
    memset(out, 0, sizeof *out);
    if (!text)
        return 0;
    if (!p || p == text || (size_t)(p - text) >= sizeof out->name)
        return err_set(err, ERR_USAGE,
                       "--marks: NAME=X:Y,X:Y was expected, the name below %d letters, not '%s'",
                       (int)sizeof out->name, text);
    snprintf(out->name, sizeof out->name, "%.*s", (int)(p - text), text);
    int64_t most = 1;
    for (const char *c = p; *c; c++)
        most += *c == ',';
    TRY(mem_alloc(&out->m, most, sizeof *out->m, "marks", err));
    for (bool more = true; more;) {
        struct xy_mark *m = &out->m[out->n++];
        more = strchr(++p, ',') != NULL;
        const char *point = p;
        if (!take(&p, ':', &m->x) || !take(&p, more ? ',' : '\0', &m->y))
            FAIL(err, ERR_USAGE, "--marks: X:Y, two numbers, was expected at '%s'", point);
        p -= more;
    }
out:
    return rc;
}

void marks_free(struct marks *k)
{
    free(k->m);
    memset(k, 0, sizeof *k);
}

void marks_data(const struct marks *k, struct buf *b)
{
    if (k->n)
        buf_printf(b, "# %s: x, y\n", k->name);
    for (int i = 0; i < k->n; i++)
        buf_printf(b, "%.10g %.10g\n", k->m[i].x, k->m[i].y);
    if (k->n)
        buf_puts(b, "\n\n");
}

void marks_plot(const struct marks *k, struct canvas *p, int block, double shift)
{
    if (k->n)
        canvas_plot(p, block, "using ($1-%.10g):2 with " MARK_STYLE, shift);
}

void marks_entry(const struct marks *k, struct canvas *p)
{
    if (k->n)
        canvas_entry(p, MARK_STYLE, k->name);
}
