/*
 * cuptilib.h - libcupti, opened at run time.
 */
#ifndef LACUNA_CUPTILIB_H
#define LACUNA_CUPTILIB_H

#include <stdbool.h>
#include <stddef.h>

/* The library. It is opened once and never closed, because it has threads. NULL with the reason in
 * `why`. */
void *cupti_library(char *why, size_t size);

/* Look up a function of the library; false with the reason in `why`. */
bool cupti_symbol(void *lib, const char *name, void *function, char *why, size_t size);

#endif
