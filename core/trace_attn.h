/*
 * trace_attn.h - one head of one call of a trace as an input of exact attention.
 */
#ifndef LACUNA_TRACE_ATTN_H
#define LACUNA_TRACE_ATTN_H

#include "core/attention.h"
#include "core/trace.h"

/* Fill in shape, scale, causality, reach, cap, bias and sink of a stored head; q, k and v are left
 * NULL. With sampled rows x is still the whole head: row i stands at position i, and only some rows
 * have a query (trace_rows). A reach that takes no key away is none. *rel is the storage of a
 * relative bias or one of rows and keys, which in->mods points into: the caller frees it; NULL
 * without. */
int trace_attn(const struct trace *t, int64_t call, int head, struct attn_in *in, float **rel,
               struct err *err);

#endif
