/*
 * testmethods.c - sim/registry.c with one more line.
 */
#include "tests/harness/testmethods.h"

#define METHOD_GPU(id) METHOD(id)
#define METHOD(id) extern const struct method method_##id;
#include "core/methods.def"
METHOD(meanblocks)
#undef METHOD

const struct method *const test_methods[] = {
#define METHOD(id) &method_##id,
#include "core/methods.def"
    METHOD(meanblocks)
#undef METHOD
        NULL,
};

bool has_defaults(const struct method *m)
{
    for (const struct opt *o = m->params.table; o->type != OPT_END; o++)
        if (o->flags & OPT_REQUIRED)
            return false;
    return true;
}

int n_test_methods(void)
{
    int n = 0;
    while (test_methods[n])
        n++;
    return n;
}
