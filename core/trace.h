/*
 * trace.h - the trace file (HDF5): q, k, v and pooled attention maps of captured attention calls.
 * doc/trace-format.md is the contract of the layout.
 *
 * A file holds one run of one model: for text one call per layer (step 0, branch "main"), for video
 * one call per (step, branch, layer). HDF5 carries structure and metadata; the payload is
 * contiguous and is read with pread, so any number of threads can read at full speed.
 */
#pragma once

#include "core/attention.h"
#include "core/dtype.h"
#include "core/err.h"
#include "core/json.h"
#include "core/mask.h"
#include "core/rowsample.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_VERSION_MAJOR 1
#define TRACE_VERSION_MINOR 2

struct trace_meta {
    /* model */
    char name[128], architecture[64], weights_id[40]; /* weights_id "xxh3:..." or "" */
    char weight_types[128]; /* of a GGUF file, and how many tensors have each: "Q4_1 (210), F32
                             * (61)"; "" otherwise. Not part of the content id */
    int layers, heads, kv_heads, head_dim, v_dim;
    double scale;
    bool causal, positions_applied; /* position encoding is already in q and k */
    char positions[32];             /* their kind: "rope", "rope-3d", "" unknown */
    enum dtype dtype;               /* of q, k, v, out: DT_F32, DT_BF16 or DT_F16 */
    char compute[32];               /* arithmetic of the capture: "float32" */
    char head_ids[512],
        kv_head_ids[512]; /* the model's heads that are stored, as in "0,4-7"; "" = all */
    /* run */
    char source[32];       /* "capture", "import", "synthetic" */
    char prompt_id[40];    /* "xxh3:..." of the prompt text or conditioning tensor, or "" */
    char negative_id[40];  /* the same of the negative prompt, or "" */
    char computed_by[160]; /* library and kernels that made the tensors: "openblas Haswell";
                            * "" = unknown. Not part of the content id */
    int64_t n_q, n_k;      /* queries and keys of every call; equal except for some imports and for
                            * sampled rows */
    int64_t seed;
    int64_t max_positions; /* of the model, where the run is longer; 0: it is not. Not part of the
                            * content id */
    int64_t row_group; /* n_q rows are a sample, in groups of so many (trace_rows); 0: they are the
                        * last n_q of the sequence */
    int64_t decode_from;   /* P, 0 < P < n_k: the first P tokens are the prompt, the others were fed
                            * back one by one; 0: no decode phase (trace_decode) */
    int64_t question_from; /* first token of the question at the end of the prompt; 0: not known */
    char generated_by[64]; /* "greedy", "sample:...", "forced:ID of a text"; "" = unknown */
    /* video; grid_t = 0 for text */
    int64_t grid_t, grid_h, grid_w;  /* latent grid in tokens */
    int64_t frames, height, width;   /* pixels */
    int64_t text_tokens, text_valid; /* text tokens in the sequence; valid ones */
    char text_place[8];              /* "none", "front", "back" */
    char token_order[32];            /* "raster" */
    char sampler[32];
    int64_t steps;                     /* denoising steps of the run, 0 for text */
    double shift, guidance, fps;       /* 0 = unknown or none */
    int64_t vae_t, vae_h, vae_w;       /* VAE strides, 0 = no VAE */
    int64_t patch_t, patch_h, patch_w; /* patch sizes, 0 = unknown */
    /* maps */
    int64_t pool; /* cell size P of the pooled maps, 0 = no maps */
};

enum trace_causality { CAUSAL_AS_MODEL, CALL_BIDIRECTIONAL, CALL_CAUSAL };

/* What a call does to scores and to the pairs that may attend, beside scale and causality of the
 * model. Format 1.1; zeroed: nothing, and the file is one of format 1.0. */
struct trace_score {
    double scale;   /* of this call; 0: the model's */
    int64_t causal; /* enum trace_causality, where it is not the model's */
    struct reach reach;
    int64_t text_valid; /* valid text tokens + 1, where they are not the video's; 0: the video's */
    double softcap;     /* c > 0 */
    bool sinks, alibi;  /* arrays [heads]: logits z_h, slopes m_h >= 0 */
    int rel_bias;       /* heads of the array [heads][2 n_k - 1]: 0 (none), 1 (for all) or all */
    int bias;           /* the same of the array [heads][n_q][n_k] */
};

/* Extra operands that a method may need (format 1.2): q and k before the rotation, what an indexer
 * and what a gate multiplies. float32 [heads][rows][dim]; rows are those of q or of k, or their
 * own. */
enum trace_aux { AUX_Q_PRE, AUX_K_PRE, AUX_IQ, AUX_IK, AUX_IW, AUX_GATE_Q, AUX_GATE_K, AUX_COUNT };
struct aux_shape {
    int64_t heads, rows, dim; /* heads 0: there is none */
};

/* One captured attention call. */
struct trace_call {
    int step, layer;
    char branch[16];        /* letters, digits, '-', '_' */
    double timestep, sigma; /* NAN for text */
    int order;              /* call order within the run; ascends from call to call */
    char block[16];         /* "self", "double", "single"; "" = "self" */
    bool has_map, has_out, has_lse, has_col_sum;
    struct aux_shape aux[AUX_COUNT];
    struct trace_score score;
};

/* q [heads][n_q][head_dim]; k [kv_heads][n_k][head_dim]; v [kv_heads][n_k][v_dim];
 * out [heads][n_q][v_dim]: in the dtype of the trace. lse [heads][n_q][1]: float32. */
enum trace_what { TRACE_Q, TRACE_K, TRACE_V, TRACE_OUT, TRACE_LSE, TRACE_WHAT_COUNT };

/* What a call may have beside tensors: float32. Maps [heads][cells][cells]; of format 1.1 sink
 * logits and ALiBi slopes [heads], relative bias [score.rel_bias][2 n_k - 1]: b_ij = bias[j - p_i +
 * n_k - 1], bias [score.bias][n_q][n_k]; of format 1.2 col_sum [heads][decode_from]: what a key of
 * the prompt gets of the exact softmax of all rows of the prompt. */
enum {
    TRACE_MAP_SUM = TRACE_WHAT_COUNT,
    TRACE_MAP_MAX,
    TRACE_SINKS,
    TRACE_ALIBI,
    TRACE_REL_BIAS,
    TRACE_BIAS,
    TRACE_COL_SUM,
    TRACE_AUX, /* + enum trace_aux */
    CALL_ARRAYS = TRACE_AUX + AUX_COUNT,
};

/* Arrays of the run: token ids int32 [n_k], negative log-likelihoods float32 [n_k - 1]; the
 * sampler's schedule, float64: timestep and sigma of every step of the run, captured or not (sigmas
 * may have one more, the final 0); positions of sampled rows int32 [n_q]. */
enum trace_run {
    TRACE_TOKENS,
    TRACE_NLL,
    TRACE_TIMESTEPS,
    TRACE_SIGMAS,
    TRACE_ROWS,
    RUN_ARRAYS,
};

struct trace;
struct str_list; /* core/text.h */

/* Tokens [first, first + count) of every call. */
struct trace_span {
    int64_t first, count;
};

/* Padding of the text: the text tokens after the first text_valid. The tensors have rows for them,
 * but dense attention neither asks nor answers there. count 0: there is none. */
struct trace_span trace_padding(const struct trace_meta *m, const struct trace_score *s);

/* Does a call have any? */
bool trace_is_padded(const struct trace *t);

/* Causality and valid text tokens of a call. */
bool trace_causal(const struct trace_meta *m, const struct trace_score *s);
int64_t trace_text_valid(const struct trace_meta *m, const struct trace_score *s);

/* Open for reading: a file, or a directory with one trace in it. Not HDF5, a newer major version, a
 * missing or inconsistent dataset, anything that this build does not know and that is not marked as
 * optional (doc/trace-format.md, section 9): ERR_INPUT naming file and object; an unfinished
 * ".part" file is refused with an explanation.
 */
int trace_open(const char *path, struct trace **out, struct err *err);

/* The traces that the arguments of a command name: of a directory all of its *.h5 files that are no
 * dumped masks or outputs, by name with numbers in order, at least one (else ERR_INPUT); of
 * anything else the path itself. Appends to *out. */
int trace_list(char *const *args, int64_t n, struct str_list *out, struct err *err);
void trace_close(struct trace **t);

const struct trace_meta *trace_meta(const struct trace *t);
const char *trace_path(const struct trace *t);
const char *trace_id(const struct trace *t); /* "xxh3:..." over identity and payload hashes */
int64_t trace_calls(const struct trace *t);
const struct trace_call *trace_call(const struct trace *t, int64_t i); /* in call order */
int64_t trace_find(const struct trace *t, int step, const char *branch, int layer); /* or -1 */

/* The model's number of a stored query or KV head. The two numbers differ where only some heads are
 * stored. Users always see the model's number; trace_read and its like take the stored one. */
int trace_head_number(const struct trace_meta *m, int head);
int trace_kv_number(const struct trace_meta *m, int kv_head);

/* The stored query head that has this number of the model's; -1: none has. */
int trace_head_find(const struct trace_meta *m, int64_t number);

/* Tokens [tok0, tok0+n) of one head of one call as float32 [n][dim]. Thread-safe (pread). Only what
 * is read as a whole is checked against its checksum: all tokens of a head, a whole map, a whole
 * array of the run. A mismatch is ERR_INPUT. */
int trace_read(const struct trace *t, int64_t call, enum trace_what what, int head, int64_t tok0,
               int64_t n, float *dst, struct err *err);

/* The same in the stored dtype (TRACE_LSE: float32), as bytes. */
int trace_read_raw(const struct trace *t, int64_t call, enum trace_what what, int head,
                   int64_t tok0, int64_t n, void *dst, struct err *err);

/* Shape of a tensor of this trace. */
struct trace_shape {
    int64_t heads, tokens, dim;
    enum dtype dtype;
};
struct trace_shape trace_shape(const struct trace_meta *m, enum trace_what what);
const char *trace_what_name(enum trace_what what); /* "q", "k", ... */

const char *trace_aux_name(enum trace_aux i); /* "q_pre", "iq", ... */

/* Whose rows an extra operand has: TRACE_Q, TRACE_K, or TRACE_WHAT_COUNT for its own. */
enum trace_what trace_aux_rows(enum trace_aux i);

double trace_call_scale(const struct trace *t, int64_t call);

/* What is stored for one head from TRACE_SINKS on: one value, a bias, sums of columns, an extra
 * operand (ERR_INPUT where the call has none). No sink and no slope are 0. */
int trace_read_values(const struct trace *t, int64_t call, int which, int head, float *x,
                      struct err *err);

/* Allowed pairs of the stored rows of a call, padding text included. */
int64_t trace_call_pairs(const struct trace *t, int64_t call);

/* The sample of query rows that the trace holds; false: it holds the last n_q rows. Views of the
 * trace. */
bool trace_rows(const struct trace *t, struct row_sample *s);

/* The decode phase of a trace: the rows of the positions [from, n_k) are its steps. Stored are
 * these and the `window` rows of the prompt before them, so that query i stands at position i + n_k
 * - n_q as ever. from 0: there is none. */
struct trace_decode {
    int64_t from, window, steps;
};
struct trace_decode trace_decode(const struct trace_meta *m);

/* "window 1024, softcap 50, sinks" for people; "" when the call has nothing of this. */
#define TRACE_SCORE_TEXT 160
void trace_score_text(const struct trace_score *s, char text[TRACE_SCORE_TEXT]);

/* The same as keys of the open JSON object: those that are present, named as in the file. */
void trace_score_json(const struct trace_score *s, struct jw *w);

/* Names of the fields in the file, from 0; NULL behind the last. Does the call have the field?
 * *value, unless NULL: as the file has it. */
const char *trace_score_name(int i);
bool trace_score_is_set(const struct trace_score *s, int i, double *value);

/* Write causality and valid text of a call of `from` as differences from another model `to`; with
 * from = to: drop what says the same as the model. */
void trace_score_rebase(struct trace_score *s, const struct trace_meta *from,
                        const struct trace_meta *to);

/* Set a field by its name in the file from a text, as other programs' metadata have it. 1: it is no
 * field of a call. ERR_USAGE: not a value of it. */
int trace_score_set(struct trace_score *s, const char *name, const char *value, struct err *err);

/* Are they equal in all but what arrays hold? */
bool trace_score_equal(const struct trace_score *a, const struct trace_score *b);

/* Pooled maps of a head: sum and max [cells_q][cells_k] of the exact softmax; either may be NULL.
 */
int trace_read_map(const struct trace *t, int64_t call, int head, float *sum, float *max,
                   struct err *err);
int64_t trace_map_cells(const struct trace *t, bool keys); /* ceil(n / pool) */

/* An array of the run: *out is malloc'd, of the array's type; *n = 0 when absent. */
int trace_read_run(const struct trace *t, enum trace_run which, void *out, int64_t *n,
                   struct err *err);

/* Attributes, datasets and groups of the file that this build does not know and that the file marks
 * as optional; `first` is the path of one of them. */
struct trace_ignored {
    int64_t n;
    char first[192];
};
struct trace_ignored trace_ignored(const struct trace *t);

/* Number of payload datasets and their bytes (uncompressed / in the file). */
struct trace_extent {
    int64_t objects, bytes, stored;
};
int trace_extent(const struct trace *t, struct trace_extent *out, struct err *err);

/* Check every stored checksum on several threads. `bad` is called by one at a time for each
 * mismatch (dataset path, head or -1), *n_bad is their number. Returns 0 if the check ran to its
 * end, even if it found mismatches. */
typedef void trace_bad_fn(void *ctx, const char *object, int head, const char *what);
int trace_verify(const struct trace *t, int jobs, trace_bad_fn *bad, void *ctx, int64_t *n_bad,
                 struct err *err);

/* Like trace_open, but also opens a file whose metadata or checksums do not match its content id,
 * so that trace_verify can say what is wrong. */
int trace_open_damaged(const char *path, struct trace **out, struct err *err);

/* ---- writing -------------------------------------------------------------------------------- */

struct trace_writer;

/* Bytes of a file with n_calls calls: q, k, v and maps, rounded up. trace_call_size is the size of
 * one call and includes out and lse where c stores them. INT64_MAX on overflow. */
int64_t trace_size(const struct trace_meta *m, int64_t n_calls);
int64_t trace_call_size(const struct trace_meta *m, const struct trace_call *c);

/* All metadata as JSON objects "model", "run" and, for video, "video" inside the open object of w.
 */
void trace_meta_json(const struct trace_meta *m, struct jw *w);

/* Complete and check metadata (ERR_USAGE naming the field): v_dim 0 becomes head_dim, text_place ""
 * becomes "none". Done by trace_create. */
int trace_meta_check(struct trace_meta *m, struct err *err);

/* Begin a trace (h5_part_create). An existing `path` is refused with ERR_USAGE unless force; free
 * disk space is checked against `n_calls` calls first (ERR_MACHINE with both numbers). One thread
 * writes; only trace_put_head and trace_put_map may run concurrently, for different heads. */
int trace_create(const char *path, const struct trace_meta *m, int64_t n_calls, bool force,
                 struct trace_writer **out, struct err *err);

/* Start the next call (layer of a step). Datasets are laid out at once. */
int trace_begin_call(struct trace_writer *w, const struct trace_call *c, struct err *err);

/* Tokens [tok0, tok0+n) of all heads from x[n][heads*dim] (row stride `ld` floats): converted to
 * the trace's dtype and stored as [head][token][dim]. Ranges of a head come in ascending order
 * without gaps. */
int trace_put(struct trace_writer *w, enum trace_what what, int64_t tok0, int64_t n, const float *x,
              int64_t ld, struct err *err);

/* The same for one head from x[n][dim]. */
int trace_put_head(struct trace_writer *w, enum trace_what what, int head, int64_t tok0, int64_t n,
                   const float *x, struct err *err);

/* An array from TRACE_SINKS on, of all heads. */
int trace_put_values(struct trace_writer *w, int which, const float *x, struct err *err);

/* Most values of one head's bias of rows and keys. */
#define TRACE_BIAS_MOST (1 << 24)

/* Maps of one head. */
int trace_put_map(struct trace_writer *w, int head, const float *sum, const float *max,
                  struct err *err);

/* Finish the call: write hashes, flush. Every announced row must have been put. */
int trace_end_call(struct trace_writer *w, struct err *err);

/* An array of the run; n = 0: none. */
int trace_put_run(struct trace_writer *w, enum trace_run which, int64_t n, const void *data,
                  struct err *err);

/* Close, fsync, rename to the final name, or remove the unfinished file. */
int trace_commit(struct trace_writer **w, struct err *err);
void trace_abort(struct trace_writer **w); /* accepts NULL */

/* ---- packing -------------------------------------------------------------------------------- */

enum trace_storage {
    TRACE_CONTIGUOUS, /* pread, mmap */
    TRACE_ZSTD,       /* chunks of one head x 1024 tokens, byte shuffle + zstd */
    TRACE_GZIP,       /* the same with deflate, which every HDF5 has */
};

enum trace_storage trace_storage(const struct trace *t);
const char *trace_storage_name(enum trace_storage s);

/* A copy of the trace whose keys and values have the values of e4m3 (fp8), times a power of two per
 * head, in the trace's own dtype: what a cache of 8 bits holds. Packed, a value takes a byte or
 * less. Another content: outputs, lse and maps are left out, and `compute` says "kv e4m3".
 * ERR_INPUT for values that are not finite. */
int trace_pack_fp8(const struct trace *t, const char *path, enum trace_storage s, int jobs,
                   bool force, struct err *err);

/* Copy a trace into another storage form; both have the same trace_id. Payload that does not match
 * its checksum is refused. */
int trace_pack(const struct trace *t, const char *path, enum trace_storage s, int jobs, bool force,
               struct err *err);

/* Fill in shape, scale, causality, reach, cap, bias and sink of a stored head; q, k and v are left
 * NULL. With sampled rows x is still the whole head: row i stands at position i, and only some rows
 * have a query (trace_rows). A reach that takes no key away is none. *rel is the storage of a
 * relative bias or one of rows and keys, which in->mods points into: the caller frees it; NULL
 * without. */
int trace_attn(const struct trace *t, int64_t call, int head, struct attn_in *in, float **rel,
               struct err *err);

/* ---- names of tensors that belong to a call ----------------------------------------------------
 *
 * Words between dots, "step-12" or "step12", "layer-5" or "layer5", and at most one other word, the
 * branch. That is how `lacuna trace export` names tensors. */

#define CALL_BRANCH 16

/* What a name says; what it does not say stays as it was. */
struct call_name {
    int step, layer;
    char branch[CALL_BRANCH];
};

/* Parse text[0..len), which may end with a dot. With `head` (may be NULL) a word "head-3" is a
 * number too. NULL, or the first word that is none of these, with its length in *word_len. */
const char *call_name_parse(const char *text, size_t len, struct call_name *c, int *head,
                            size_t *word_len);
