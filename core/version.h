/* version.h - version and build of this binary. */
#pragma once

const char *lacuna_version(void);  /* "0.1.0" */
const char *lacuna_build_id(void); /* git describe at build time, compiler and flags */
