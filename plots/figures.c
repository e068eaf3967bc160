/*
 * figures.c - the registry of figures, and what every figure begins with.
 */
#include "plots/chart.h"

#include "core/indexlist.h"
#include "core/text.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* Options that choose cells of records. */
#define CELLS "layers,heads,steps,branch,method,params"

const struct figure figures[] = {
#define FIGURE(name, summary, details, ...) {.listed = {#name, summary, details}, __VA_ARGS__},
#include "plots/figures.def"
#undef FIGURE
    {.listed = {NULL, NULL, NULL}},
};

enum {
#define FIGURE(name, ...) PLACE_##name,
#include "plots/figures.def"
#undef FIGURE
};

const struct listed *const figure_list[] = {
#define FIGURE(name, ...) &figures[PLACE_##name].listed,
#include "plots/figures.def"
#undef FIGURE
    NULL,
};

const struct figure *figure_find(const char *name, struct err *err)
{
    struct names all = {0};
    for (const struct figure *f = figures; f->listed.name; f++) {
        if (strcmp(f->listed.name, name) == 0)
            return f;
        names_add(&all, f->listed.name);
    }
    names_unknown(&all, "figure", name, err);
    return NULL;
}

int figure_draw(const struct figure *f, const struct figure_args *a, struct err *err)
{
    return f->draw(f, a, err);
}

const char *figure_powers(const char *output)
{
    enum gp_type type = GP_PNG;
    return !gp_check_name(output, &type, NULL) && type == GP_TEX ? "$10^{%T}$" : "10^{%T}";
}

static int parse(const char *text, int64_t n, const char *option, struct chosen *c, struct err *err)
{
    c->n = -1;
    return text ? index_list_parse(text, n, option, &c->at, &c->n, err) : 0;
}

int figure_cells(const struct figure_args *a, int64_t n_layers, int64_t n_heads,
                 struct figure_cells *out, struct err *err)
{
    PASS_ON(parse(a->layers, n_layers, "--layers", &out->layers, err));
    PASS_ON(parse(a->heads, n_heads, "--heads", &out->heads, err));
    return parse(a->steps, -1, "--steps", &out->steps, err);
}

bool figure_has(const struct chosen *c, int64_t number)
{
    return index_list_has(c->at, c->n, number);
}

void figure_cells_free(struct figure_cells *c)
{
    free(c->layers.at);
    free(c->heads.at);
    free(c->steps.at);
    *c = (struct figure_cells){0};
}

bool figure_takes(const struct figure_args *a, const struct record *r)
{
    const char *params = r->params ? r->params : "";
    if (a->method && !name_matches(a->method, r->method))
        return false;
    return !a->params ||
           fnmatch(strcmp(a->params, "defaults") == 0 ? "" : a->params, params, 0) == 0;
}
