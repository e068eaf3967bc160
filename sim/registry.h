/* registry.h - all methods of core/methods.def, NULL-terminated. */
#ifndef LACUNA_REGISTRY_H
#define LACUNA_REGISTRY_H

#include "core/method.h"

extern const struct method *const sim_methods[];

#endif
