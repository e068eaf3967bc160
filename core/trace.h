/*
 * trace.h - the trace file (HDF5): q, k, v and pooled attention maps of captured attention calls.
 * doc/trace-format.md is the contract of the layout.
 *
 * A file holds one run of one model: for text one call per layer (step 0, branch "main"), for video
 * one call per (step, branch, layer). HDF5 carries structure and metadata; the payload is
 * contiguous and is read with pread, so any number of threads can read at full speed.
 */
#ifndef LACUNA_TRACE_H
#define LACUNA_TRACE_H

#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define TRACE_VERSION_MAJOR 1
#define TRACE_VERSION_MINOR 0

struct trace_meta {
    /* model */
    char    name[128], architecture[64], weights_id[40]; /* weights_id "xxh3:..." or "" */
    int     layers, heads, kv_heads, head_dim, v_dim;
    double  scale;
    bool    causal, positions_applied;
    enum dtype dtype;            /* of q, k, v */
    char    compute[32];         /* arithmetic of the capture: "float32" */
    /* run */
    char    source[32];          /* "capture", "import", "synthetic" */
    char    prompt_id[40];       /* "xxh3:..." of the prompt text, or "" */
    int64_t n_q, n_k;            /* tokens of every call; n_q == n_k except for imports */
    int64_t seed;
    /* video; grid_t = 0 for text */
    int64_t grid_t, grid_h, grid_w;     /* latent grid in tokens */
    int64_t frames, height, width;      /* pixels */
    int64_t text_tokens, text_valid;    /* text tokens in the sequence; valid ones */
    char    text_place[8];              /* "none", "front", "back" */
    char    token_order[32];            /* "raster" */
    char    sampler[32];
    int64_t steps;                      /* denoising steps of the run, 0 for text */
    double  shift, guidance;
    /* maps */
    int64_t pool;                       /* cell size P of the pooled maps, 0 = no maps */
};

/* One captured attention call. */
struct trace_call {
    int     step, layer;
    char    branch[16];
    double  timestep, sigma; /* NAN for text */
    int     order;           /* call order within the run */
    bool    has_map, has_out;
};

enum trace_what { TRACE_Q, TRACE_K, TRACE_V, TRACE_OUT, TRACE_WHAT_COUNT };

struct trace;

/* Open for reading. Not HDF5, a newer major version, a missing or inconsistent dataset: ERR_INPUT
 * naming file and object; an unfinished ".part" file is refused with an explanation. */
int  trace_open(const char *path, struct trace **out, struct err *err);
void trace_close(struct trace **t);

const struct trace_meta *trace_meta(const struct trace *t);
const char              *trace_path(const struct trace *t);
const char              *trace_id(const struct trace *t); /* "xxh3:..." over identity and payload hashes */
int64_t                  trace_calls(const struct trace *t);
const struct trace_call *trace_call(const struct trace *t, int64_t i); /* in call order */

/* Tokens [tok0, tok0+n) of one head of one call as float32 [n][dim]. Thread-safe (pread). */
int trace_read(const struct trace *t, int64_t call, enum trace_what what, int head, int64_t tok0,
               int64_t n, float *dst, struct err *err);

/* Where a head's payload lies in the file: for pread or mmap by the user. Fails for packed files. */
int trace_locate(const struct trace *t, int64_t call, enum trace_what what, int head,
                 int64_t *offset, int64_t *bytes, struct err *err);

/* Pooled maps of a head: sum and max [cells_q][cells_k] of the exact softmax; either may be NULL. */
int     trace_read_map(const struct trace *t, int64_t call, int head, float *sum, float *max,
                       struct err *err);
int64_t trace_map_cells(const struct trace *t, bool keys); /* ceil(n / pool) */

/* Token ids [n_k] and negative log-likelihoods [n_k - 1]; *n = 0 when absent. Arrays are malloc'd. */
int trace_tokens(const struct trace *t, int32_t **ids, int64_t *n, struct err *err);
int trace_nll(const struct trace *t, float **nll, int64_t *n, struct err *err);

/* Check every stored checksum. `bad` is called for each mismatch (dataset path, head or -1);
 * *n_bad counts. Returns 0 when the check ran, whatever it found. */
typedef void trace_bad_fn(void *ctx, const char *object, int head, const char *what);
int trace_verify(const struct trace *t, trace_bad_fn *bad, void *ctx, int64_t *n_bad,
                 struct err *err);

/* ---- writing -------------------------------------------------------------------------------- */

struct trace_writer;

/* Bytes that a file with these calls will have (payload and maps, rounded up). */
int64_t trace_size(const struct trace_meta *m, int64_t n_calls);

/* Create path.part. An existing `path` is refused with ERR_USAGE unless force; free disk space is
 * checked against `n_calls` calls first (ERR_MACHINE with both numbers). */
int trace_create(const char *path, const struct trace_meta *m, int64_t n_calls, bool force,
                 struct trace_writer **out, struct err *err);

/* Start the next call (layer of a step). Datasets are laid out at once. */
int trace_begin_call(struct trace_writer *w, const struct trace_call *c, struct err *err);

/* Tokens [tok0, tok0+n) of all heads from x[n][heads*dim] (row stride `ld` floats): converted to the
 * trace's dtype and stored as [head][token][dim]. Ranges come in ascending order without gaps. */
int trace_put(struct trace_writer *w, enum trace_what what, int64_t tok0, int64_t n, const float *x,
              int64_t ld, struct err *err);

/* The same for one head from x[n][dim]. */
int trace_put_head(struct trace_writer *w, enum trace_what what, int head, int64_t tok0, int64_t n,
                   const float *x, struct err *err);

/* Maps of one head. */
int trace_put_map(struct trace_writer *w, int head, const float *sum, const float *max,
                  struct err *err);

/* Finish the call: write hashes, flush. Every announced row must have been put. */
int trace_end_call(struct trace_writer *w, struct err *err);

int trace_put_tokens(struct trace_writer *w, const int32_t *ids, int64_t n, struct err *err);
int trace_put_nll(struct trace_writer *w, const float *nll, int64_t n, struct err *err);

/* Close, fsync, rename to the final name. On failure the .part file is removed. */
int  trace_commit(struct trace_writer **w, struct err *err);
void trace_abort(struct trace_writer **w); /* removes the .part file; accepts NULL */

#endif
