/*
 * opt_impl.h - shared by opt.c and optvalue.c only.
 */
#ifndef LACUNA_OPT_IMPL_H
#define LACUNA_OPT_IMPL_H

#include "core/opt.h"

/* One field of any type, to hold a default for comparison. */
union opt_value {
    bool b;
    int64_t i;
    double x;
    int e;
    char *s;
    struct share share;
    struct str_list list;
};

static inline void *opt_field(const struct opt *o, void *obj)
{
    return (char *)obj + o->offset;
}

static inline const void *opt_cfield(const struct opt *o, const void *obj)
{
    return (const char *)obj + o->offset;
}

static inline bool opt_has_range(const struct opt *o)
{
    return o->min != 0 || o->max != 0;
}

#endif
