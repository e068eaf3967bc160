/*
 * import.h - q, k, v from .npy or .safetensors files into a trace.
 */
#pragma once

#include "core/json.h"
#include "core/npy.h"
#include "core/safetensors.h"
#include "core/trace.h"

/* ---- one tensor ------------------------------------------------------------------------------ */

/* A tensor [heads][tokens][dim] of a file, read head by head where the layout allows it. */
struct source {
    struct npy *npy;          /* owned, or */
    const struct st_file *st; /* borrowed, with */
    const struct st_tensor *tensor;
    char name[300]; /* for messages: file or file: tensor */
    enum dtype dtype;
    int64_t heads, tokens, dim;
    bool token_major; /* stored [tokens][heads][dim] */
    float *whole;     /* owned: all elements, where heads are not contiguous */
};

enum source_layout { LAYOUT_HND, LAYOUT_NHD };

/* Shapes [H][N][D], [1][H][N][D] and [N][D] (one head), or with LAYOUT_NHD [N][H][D], [1][N][H][D]
 * and [N][D]. Anything else is ERR_INPUT with the shape found. */
int source_npy(struct source *s, const char *path, enum source_layout layout, struct err *err);
int source_st(struct source *s, const struct st_file *f, const char *path,
              const struct st_tensor *t, enum source_layout layout, struct err *err);

/* ---- a trace --------------------------------------------------------------------------------- */

/* The tensors of one attention call. out is optional (heads 0 = none). */
struct import_call {
    struct trace_call call;
    struct source q, k, v, out;
    float *sinks, *alibi, *rel_bias, *bias, *col_sum, *aux[AUX_COUNT]; /* owned, as call says */
};

struct import_job {
    struct trace_meta meta; /* shapes and dtype are filled in by import_shapes */
    struct import_call *calls;
    int64_t n_calls, cap_calls;
    int32_t *tokens;            /* [n_k] or NULL, owned */
    int32_t *rows;              /* positions of sampled query rows [n_q] or NULL, owned */
    float *nll;                 /* [n_k - 1] or NULL, owned */
    double *timesteps, *sigmas; /* owned, or NULL */
    int64_t n_timesteps, n_sigmas;
    bool allow_nonfinite;
    json_t *facts, *unread; /* texts that the command gives, and which nothing has read; owned */
};

/* Check the tensors of all calls against each other and fill in heads, dims, tokens, and the dtype
 * unless `dtype` says which (DT_NONE = that of the files). */
int import_shapes(struct import_job *j, enum dtype dtype, struct err *err);

/* Find calls in a .safetensors file: tensors "q", "k", "v" (and "out") with a common prefix such as
 * "step-000.cond.layer-05."; and, without prefix, tokens, nll, timesteps, sigmas. */
int import_safetensors(struct import_job *j, const struct st_file *f, const char *path,
                       enum source_layout layout, const struct trace_call *defaults,
                       struct err *err);

/* Facts about the model, the run and the calls under the keys of a file's "__metadata__", which
 * they win over: a JSON object, as text or the path of a file, or NULL for none. */
int import_facts(struct import_job *j, const char *text, struct err *err);
int import_fact(struct import_job *j, const char *key, const char *value, struct err *err);

/* ERR_USAGE naming a given fact that nothing has read. */
int import_facts_read(const struct import_job *j, struct err *err);

/* What facts, metadata of the file (NULL: none) and defaults say about model and run. */
int import_metadata(struct import_job *j, const struct st_file *f, struct err *err);

/* Step, branch and layer of a call whose tensors do not say it. */
int import_call_defaults(struct import_job *j, struct trace_call *c, struct err *err);

/* What a call whose tensors begin with `prefix` does to its scores; its q and k are open. f may be
 * NULL. */
int import_call_score(struct import_job *j, const struct st_file *f, const char *prefix, size_t len,
                      struct import_call *c, struct err *err);

int import_write(struct import_job *j, const char *path, int jobs, bool force, struct err *err);
void import_free(struct import_job *j);
