#include "sim/registry.h"

#define METHOD_GPU(id) METHOD(id)
#define METHOD(id) extern const struct method method_##id;
#include "core/methods.def"
#undef METHOD

const struct method *const sim_methods[] = {
#define METHOD(id) &method_##id,
#include "core/methods.def"
#undef METHOD
    NULL,
};
