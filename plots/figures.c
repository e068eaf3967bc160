/*
 * figures.c - the registry of figures.
 */
#include "plots/figure.h"

#include "analyze/group.h"

#include <fnmatch.h>
#include <string.h>

#define FIGURE(id) extern const struct figure figure_##id;
#include "plots/figures.def"
#undef FIGURE

const struct figure *const figures[] = {
#define FIGURE(id) &figure_##id,
#include "plots/figures.def"
#undef FIGURE
    NULL,
};

const struct listed *const figure_list[] = {
#define FIGURE(id) &figure_##id.listed,
#include "plots/figures.def"
#undef FIGURE
    NULL,
};

const struct figure *figure_find(const char *name, struct err *err)
{
    const char *names[64];
    struct buf all = {0};
    int n = 0;
    for (; figures[n]; n++) {
        names[n] = figures[n]->listed.name;
        if (strcmp(names[n], name) == 0) {
            buf_free(&all);
            return figures[n];
        }
        buf_printf(&all, "%s%s", n ? ", " : "", names[n]);
    }
    names[n] = NULL;
    const char *near = nearest_name(name, names);
    err_set(err, ERR_USAGE, "unknown figure '%s'%s%s%s; the figures are %s", name,
            near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "", buf_str(&all));
    buf_free(&all);
    return NULL;
}

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
