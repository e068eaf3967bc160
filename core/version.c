/*
 * version.c - version and build id. The build id comes from the Makefile and changes with every
 * commit, so only this object depends on it.
 */
#include "core/version.h"

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
