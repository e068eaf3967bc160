/*
 * version.c - what this binary is. The build id comes from the Makefile and changes with every
 * commit, so it stays in this one object.
 */
#include "core/manifest.h"

#ifndef BUILD_ID
#define BUILD_ID "unversioned"
#endif
#ifndef BUILD_FLAGS
#define BUILD_FLAGS "unknown flags"
#endif

const char *lacuna_version(void)
{
    return "0.1.0";
}

const char *lacuna_build_id(void)
{
    return BUILD_ID " (" BUILD_FLAGS ")";
}
