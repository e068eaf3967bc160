/*
 * figures.c - the registry of figures.
 */
#include "plots/figure.h"

#include "core/text.h"

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
    struct names all = {0};
    for (const struct figure *const *f = figures; *f; f++) {
        if (strcmp((*f)->listed.name, name) == 0)
            return *f;
        names_add(&all, (*f)->listed.name);
    }
    names_unknown(&all, "figure", name, err);
    return NULL;
}
