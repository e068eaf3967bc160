/*
 * cuptilib.c - where libcupti is looked for (cuptilib.h).
 */
#include "cuda/cuptilib.h"

#include <dlfcn.h>
#include <stdio.h>

void *cupti_library(char *why, size_t size)
{
    static const char *const names[] = {"libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
                                        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        snprintf(why, size, "libcupti.so.13 was not found");
    return lib;
}

bool cupti_symbol(void *lib, const char *name, void *function, char *why, size_t size)
{
    void *f = dlsym(lib, name);
    if (!f)
        snprintf(why, size, "libcupti has no %s", name);
    *(void **)function = f;
    return f != NULL;
}
