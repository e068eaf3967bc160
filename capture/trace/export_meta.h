/*
 * export_meta.h - "__metadata__" of an exported .safetensors file: what `lacuna import` needs to
 * make the same trace of it.
 */
#ifndef LACUNA_EXPORT_META_H
#define LACUNA_EXPORT_META_H

#include "core/json.h"
#include "core/trace.h"

/* All texts; *out is the caller's. heads and kv are the stored numbers of what is exported. */
int export_metadata(const struct trace *t, const int64_t *heads, int64_t n_heads, const int *kv,
                    int64_t n_kv, json_t **out, struct err *err);

#endif
