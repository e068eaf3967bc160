#include "sim/registry.h"

#define METHOD(id) extern const struct method method_##id;
#include "sim/methods.def"
#undef METHOD

const struct method *const sim_methods[] = {
#define METHOD(id) &method_##id,
#include "sim/methods.def"
#undef METHOD
    NULL,
};
