/*
 * trace_tools.h - the parts of `lacuna trace`.
 */
#ifndef LACUNA_TRACE_TOOLS_H
#define LACUNA_TRACE_TOOLS_H

#include "core/buf.h"
#include "core/json.h"
#include "core/trace.h"

int trace_info_text(const struct trace *t, struct buf *b, struct err *err);
int trace_info_json(const struct trace *t, struct jw *w, struct err *err);

/* A table of the trace's tensors: bytes as they are and in the file, per token and head, per layer
 * (call) and per head of one; as a key "tensors" of the open JSON object. */
int trace_sizes_text(const struct trace *t, struct buf *b, struct err *err);
int trace_sizes_json(const struct trace *t, struct jw *w, struct err *err);

/* Which tensors to export; NULL lists mean all. */
struct trace_selection {
    const char *layers, *heads, *steps; /* index lists */
    const char *branch;                 /* one branch, NULL or "" = all */
    const char *tensors;                /* "q,k,v" of q k v out lse map_sum map_max */
};

/* Write the selected tensors to `out`: a name that ends in .safetensors is one file with tensors
 * "step-000.main.layer-05.q"; one that ends in .npy a file with the only tensor; anything else a
 * directory with one .npy each. Shapes are
 * [head][token][dim] (lse [head][token], maps [head][cell][cell]) in the trace's own dtype. `heads`
 * are query heads; of k and v those kv heads are written that serve them. *n counts tensors, *bytes
 * their size; nothing is written when `dry`. */
int trace_export(const struct trace *t, const struct trace_selection *s, const char *out,
                 bool force, bool dry, int64_t *n, int64_t *bytes, struct err *err);

#endif
