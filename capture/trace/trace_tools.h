/*
 * trace_tools.h - the parts of `lacuna trace`: what a trace holds, whether it is right, others made
 * of it.
 */
#pragma once

#include "core/attention.h"
#include "core/buf.h"
#include "core/json.h"
#include "core/trace.h"

int trace_info_text(const struct trace *t, struct buf *b, struct err *err);
int trace_info_json(const struct trace *t, struct jw *w, struct err *err);

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
 * are query heads; of k and v those are written that head_select_stored picks. *n counts tensors,
 * *bytes their size; nothing is written when `dry`. */
int trace_export(const struct trace *t, const struct trace_selection *s, const char *out,
                 bool force, bool dry, int64_t *n, int64_t *bytes, struct err *err);

/* ---- outputs -------------------------------------------------------------------------------- */

/* Recompute `rows` query rows of every head that has out or lse (first, last and evenly between,
 * padding text left out), in double, and compare. `bad` is called for every head that differs;
 * *n_bad counts them, *n_rows the rows compared. Bounds: out to half a unit in the last place of
 * the dtype plus 1e-5 of the largest |v| of the head (2^-8 of it when the capture computed in less
 * than float32); lse 1e-3 (2e-2). Of a decode phase with all queries of the prompt the sums of
 * columns are recomputed as well, to 1e-6. */
int trace_check_attention(const struct trace *t, int jobs, int64_t rows, trace_bad_fn *bad,
                          void *ctx, int64_t *n_bad, int64_t *n_rows, struct err *err);

/* ---- traces from traces --------------------------------------------------------------------- */

struct derive_options {
    const char *layers, *heads,
        *steps;         /* index lists, "all" = all; steps of a decode phase: "a:b" */
    const char *branch; /* "" = all */
    int64_t tokens;     /* first N tokens of a causal trace; 0 = all */
    const char *rows;   /* groups of query rows to draw, "64x128"; NULL = keep all */
    uint64_t seed;      /* of rows */
    int64_t maps;       /* cell size of maps to compute; 0 = keep what is there */
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

/* As strcmp: the order in which a run makes its calls, step, branch (uncond after cond), layer. */
int trace_call_order(const struct trace_call *x, const struct trace_call *y);

/* The pooled map of a head, with cells of `pool` tokens, into the open call. Thread-safe. */
int trace_map_head(struct trace_writer *w, int head, const struct attn_in *in, int64_t pool,
                   struct err *err);

/* A cell size with at most 1024 cells a side, 64 or a power of two above it. */
int64_t map_cell_for(int64_t n_k);

/* ---- some of the heads ---------------------------------------------------------------------- */

/* `--heads`: some of a model's query heads. A trace needs head h to read kv head h div (heads /
 * kv_heads). Where the chosen heads use every kv head that they use equally often, each of these is
 * stored once; otherwise each query head gets its kv head beside it (some are then stored more than
 * once). The trace says which heads of the model its heads are (head_ids, kv_head_ids). */

struct head_select {
    int model_heads, model_kv; /* of the model */
    int n, n_kv;               /* stored */
    int *head, *kv;            /* [n], [n_kv]: heads of the model, ascending; owned */
    bool all;
};

/* list: "all" or as in 0,4-7. */
int head_select_parse(const char *list, int heads, int kv_heads, struct head_select *s,
                      struct err *err);
void head_select_free(struct head_select *s);

/* The same of a trace that may have some of its model's heads: the list names the model's, s->head
 * and s->kv are places in the file. */
int head_select_stored(const char *list, const struct trace_meta *m, struct head_select *s,
                       struct err *err);

/* heads, kv_heads, head_ids and kv_head_ids of the metadata. */
int head_select_meta(const struct head_select *s, struct trace_meta *m, struct err *err);

/* The chosen heads' tokens [tok0, tok0 + n) of x [n][heads of the model * dim] into the trace. */
int head_select_put(const struct head_select *s, struct trace_writer *w, enum trace_what what,
                    int64_t tok0, int64_t n, const float *x, int dim, struct err *err);
