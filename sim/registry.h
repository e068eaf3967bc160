/* registry.h - all methods of core/methods.def, NULL-terminated. */
#pragma once

#include "core/method.h"

extern const struct method *const sim_methods[];
