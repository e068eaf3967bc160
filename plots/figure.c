/*
 * figure.c - what every figure begins with: its file, and the records that it takes.
 */
#include "plots/figure.h"

#include "analyze/group.h"

#include <fnmatch.h>
#include <string.h>

int figure_open(const struct figure_args *a, int width, int height, struct gp *g, struct err *err)
{
    int rc =
        gp_open(g, a->output, a->width ? a->width : width, a->height ? a->height : height, err);
    g->inputs = a->inputs;
    if (!rc && a->made_by)
        buf_puts(&g->made_by, a->made_by);
    return rc;
}

bool figure_takes(const struct figure_args *a, const struct record *r)
{
    const char *params = r->params ? r->params : "";
    if (a->method && !name_matches(a->method, r->method))
        return false;
    return !a->params ||
           fnmatch(strcmp(a->params, "defaults") == 0 ? "" : a->params, params, 0) == 0;
}
