/*
 * trace_derive.h - traces made from traces: some calls, heads or tokens of one, the calls of
 * several, pooled maps afterwards. Every head that is read is checked against its checksum.
 */
#ifndef LACUNA_TRACE_DERIVE_H
#define LACUNA_TRACE_DERIVE_H

#include "core/trace.h"

struct derive_options {
    const char *layers, *heads, *steps; /* index lists, "all" = all */
    const char *branch;                 /* "" = all */
    int64_t tokens;                     /* first N tokens of a causal trace; 0 = all */
    const char *rows; /* groups of query rows to draw, "64x128"; NULL = keep all */
    uint64_t seed;    /* of rows */
    int64_t maps;     /* cell size of maps to compute; 0 = keep what is there */
    int jobs;
    bool force, dry;
};

/* What came of it. */
struct derived {
    struct trace_meta meta;
    int64_t calls, bytes;
};

/* Write the selected calls and heads of the traces t[0..n) as one. Several must be of one model and
 * run (ERR_USAGE names the field that differs) and have no call in common. */
int trace_derive(struct trace *const *t, int64_t n, const struct derive_options *o,
                 const char *path, struct derived *out, struct err *err);

/* A cell size with at most 1024 cells a side, 64 or a power of two above it. */
int64_t map_cell_for(int64_t n_k);

#endif
