/*
 * accel.h - the interface of a GPU back end: attention calls of one or more heads over masks, mask
 * selection for some methods, metrics, device times, and a description of the machine. sim and cuda
 * both include it and never each other; main.c puts the back end into struct app.
 */
#pragma once

#include "core/attention.h"
#include "core/err.h"
#include "core/json.h"
#include "core/mask.h"
#include "core/ownrule.h"
#include "core/rules.h"

#include <stdbool.h>
#include <stdint.h>

/* Side of a tile of which a mask may keep single pairs, and the 64-bit words that hold its bits.
 * One word holds the 64 scores of one kernel thread. */
#define ACCEL_TILE 128
#define ACCEL_TILE_WORDS 256

/* Word and bit of a pair, given its row and key inside the tile. */
static inline int accel_word(int row, int key)
{
    return 32 * (row / 16) + 4 * (row % 8) + key / 2 % 4;
}
static inline int accel_bit(int row, int key)
{
    return 4 * (key / 8) + 2 * (row / 8 % 2) + key % 2;
}

/* q, k and v of a head that lie on the device already: contiguous bf16 [nq][d], [nk][d], [nk][dv],
 * no |v| above 2^39. Nothing is uploaded then. The data must be complete (stream synchronised)
 * and must stay valid until the head's last call. */
struct accel_operands {
    const void *q, *k, *v;
    float *out; /* where outputs go, row r at out + r * stride, before attend_call returns; NULL: to
                 * the host */
    int64_t stride;
};

/* Do the outputs of a head stay on the device? */
static inline bool accel_keeps_output(const struct attn_in *x)
{
    return x->on_device && x->on_device->out;
}

/* A filter on P V inside the online softmax (sim/blocks/tileattn.h), over the tiles of a mask of bq
 * x bk units in ascending order. */
struct accel_filter {
    int64_t bq, bk;
    double pv;                  /* distance in log2 units, INFINITY = never skip */
    int64_t scope;              /* rows that decide together */
    int tail;                   /* last tiles of a list that are never skipped */
    bool keep_denominator;      /* skipped tiles count in the normaliser */
    struct own_quantised quant; /* arithmetic of the products; levels 0: exact */
};

/* Numbers of query heads and of KV heads; kv divides q. {0, 0} stands for {1, 1}. */
struct accel_heads {
    int q, kv;
};

/* Median and quartiles over `samples` launches, in ns of device time. */
struct accel_time {
    double median, q1, q3;
    int64_t samples;
};

/* Unit shapes of an exact map (sim/blocks/exact.h): square blocks of 16, 32, 64, 128; slices of
 * 16, 64, 128 rows x 1 key. */
#define ACCEL_UNITS 7

/* Hardware counters of one launch over the mask; NAN if not available, with the reason in `why`. */
struct accel_counters {
    double tensor_pipe_pct; /* of the cycles in which a multiprocessor worked */
    double dram_read_bytes, dram_write_bytes;
    double cycles; /* in which the multiprocessor that worked longest did */
    char why[160];
};

/* How sparse the exact map is: for each of n_c thresholds c, the number of units whose largest p is
 * below c / nk, and of their allowed pairs. Arrays are the caller's, [ACCEL_UNITS][n_c]. */
struct accel_map {
    int n_c;
    const double *c;
    bool sums; /* ask for sum_err (an exponential per pair) and, with one threshold, p_max */
    int64_t *units, *pairs;
    double p_max, sum_err;  /* the largest p; the largest |sum_j p_ij - 1| over rows that see a key.
                             * NAN if not requested and not computed anyway */
    struct accel_time time; /* of the pass, without the dense reference */
};

/* A row of tiles of such a mask: tiles with a kept pair, those of them that lack an allowed one,
 * and keys that some query of the row keeps. */
struct accel_tile_row {
    int32_t tiles, partial, keys;
};

/* Counts of a mask that stays on the device, in units of bq x bk. Only the first member is set
 * unless it does stay. */
struct accel_units {
    bool on_device;
    int64_t bq, bk, groups;
    int32_t *count; /* [groups] kept units of which some row may see a key; the caller's to free */
    int64_t pairs, units, kept64; /* kept pairs; the sum of count; 64 x 64 tiles with a kept pair */
    int64_t empty;                /* query rows that keep no pair */
    int64_t tiles[2]; /* 128 x 128 tiles with a kept pair; tiles after gathering kept keys, or
                       * the same if the kernels take the units as block lists */
    struct accel_tile_row *tile_rows; /* [ceil(nq / ACCEL_TILE)], the caller's to free; NULL if the
                                       * kernels take the units as block lists */
    int64_t words;
    uint32_t *map; /* [groups][words]: a bit per unit, the caller's to free; of units that are no
                    * blocks of the kernels NULL unless `fetch` */
};

/* What a device's choice gives beside the mask; core/rules.h says for each method what it is. */
struct accel_own {
    void *data; /* from malloc, the caller's */
    int64_t bytes;
};

/* ERR_RUN unless `own` holds exactly `bytes` bytes. */
static inline int accel_own_check(const struct accel_own *own, int64_t bytes, struct err *err)
{
    return own->bytes == bytes
               ? 0
               : err_set(err, ERR_RUN, "%lld bytes of numbers came with a choice, expected %lld",
                         (long long)own->bytes, (long long)bytes);
}

/* How the mask of one head is to be chosen. */
struct accel_choice {
    const char *method;            /* public name; NULL: no device choice is requested */
    const union method_rule *rule; /* core/rules.h; other bytes than its numbers are 0 */
    const void *given;             /* the head's own data for the rule (core/rules.h), or NULL */
    struct accel_own *own;         /* receives the rule's extra results; NULL: not wanted */
    struct accel_units *keep_on_device; /* the mask may stay on the device; NULL: it may not */
    bool fetch;                         /* with it: its map is wanted as well */
};

/* Answer of `select_call`: the back end does not select by this rule. */
#define ACCEL_NO_SELECT 1

/* Sums over rows of a head, of outputs divided by 2^exp (sim/metrics.h). */
struct accel_sums {
    double abs_delta, sq_delta, abs_ref, sq_ref, sq_out, dot, max_delta, min_row_cos;
    double sum_lse, max_lse;     /* |difference of the log-sum-exps|, of rows that have both */
    double rows_lse, rows_empty; /* rows with finite dense and sparse LSE; rows that keep nothing */
    int exp;
};

/* A query head of a call: what is asked for it and what came. The caller zeroes it first. */
struct accel_head {
    const struct attn_in *x;

    /* select_call. In: choice. Out: answer 0 and `mask` (the caller frees it) or
     * *choice.keep_on_device; or ACCEL_NO_SELECT and `why`. */
    struct accel_choice choice;
    int answer;
    char why[160];
    struct mask mask;

    const struct mask *masks; /* [n_masks] chunks of the mask to attend to, all rows in order
                               * (sim/accelattend.h); not with a mask that stays on the device */
    int64_t n_masks;

    /* attend_call. own_kernel or added of all heads, or a filter of all or some of them. */
    const struct accel_filter *filter; /* on P V, of the unit of the lists; NULL: none */
    bool whole; /* by its parameters the mask keeps every pair, and the filter skips nothing */
    const struct own_rule *own_kernel; /* outputs by this arithmetic; the lists say whose mass is
                                        * kept. NULL: softmax over the lists */
    const float
        *added;     /* [nq][dv] term added to the outputs but not to the log-sum-exps; or NULL */
    bool is_static; /* mask follows from parameters and sizes; totals exclude choosing it */

    /* Results. The arrays are the caller's, NULL where they are not wanted. */
    double *out; /* [nq][dv] as the device delivers it, in bf16 */
    double *lse; /* [nq], natural log, -inf for an empty row */
    char kernel[64];
    double *mass; /* [nq] sum of dense p over the kept pairs of a row; with it the device measures
                   * `sums`, against dense attention with the same operands and fp32 outputs */
    struct accel_sums sums;
    double tiles_pv; /* with a filter: a tile counts as the fraction of its scopes that
                      * computed P V */
    int64_t
        pairs_exec; /* pairs that the kernel multiplied; with a filter the mean of Q K and P V */
};

/* Query heads of one attention call, on the device together; a head alone is a call of one. They
 * have one shape and scale. Heads [g * group, (g + 1) * group) share the k and v of the first of
 * them; group divides n. */
struct accel_call {
    int n, group;
    struct accel_head *heads; /* [n] */
    uint64_t data; /* not 0: calls with one number have the same q, k, v. Head i alone: data + i */
    int copies; /* 0 or n - 1: heads [0, copies) repeat head n - 1, only to fill the GPU while it is
                 * timed. They get no mask choice, metrics or outputs */
    bool unmeasured; /* attend_call will not be asked for metrics */
};

/* Do the masks stay on the device? Then those of all heads do. */
static inline bool accel_on_device(const struct accel_call *call)
{
    return call->heads->choice.keep_on_device && call->heads->choice.keep_on_device->on_device;
}

/* Kept blocks of heads [first, first + count) of a call: all heads, or a section of whole groups
 * where the lists of all would take too much memory. The section that begins with head 0 is timed
 * together with the choice of all masks and with dense attention.
 *
 * Row (h - first) * groups + g of the lists is group g of bq query rows of head h:
 * - It has the blocks col[ptr[row] .. ptr[row + 1]) of bk keys. They ascend, are unique, and each
 *   has an allowed pair. ptr NULL: every allowed pair of every head.
 * - With `bits`, blocks are ACCEL_TILE x ACCEL_TILE. Block i keeps the pairs whose bit is set in
 *   words[bits[i] * ACCEL_TILE_WORDS ..]; bits[i] = -1 keeps every allowed pair. Bits of pairs that
 *   are not allowed are 0.
 * - With `keys`, block i has the keys from keys[i * ACCEL_TILE] on, ascending. The last is repeated
 *   up to a whole block, without bits. There bits[i] = -1 says that every row may see all of them,
 *   and col is NULL. */
struct accel_lists {
    int first, count;
    int bq, bk;
    const int64_t *ptr; /* [count * groups + 1] */
    const int32_t *col, *bits, *keys;
    const uint64_t *words;
    int64_t n_bits; /* blocks that `words` holds */
    /* Not ACCEL_HOST_LISTS: the device makes lists of blocks, or tiles, of the masks that
     * select_call left there, and only bq and bk are set. */
    enum accel_made { ACCEL_HOST_LISTS, ACCEL_LISTS, ACCEL_TILES, ACCEL_GATHERED_TILES } made;
    uint64_t static_id; /* not 0: id of static masks (they follow from parameters and sizes alone).
                         * Every call with this id has these lists, whatever its q, k, v; `first`
                         * and `count` cover the whole call. The device may cache them; while it has
                         * them the caller sets only bq and bk */
    bool untimed;       /* for the outputs alone: nothing is timed or counted */
};

/* Times and other numbers of a whole call. */
struct accel_result {
    struct accel_time select, build, attend,
        dense; /* kernels are sampled alternately; NAN where no mask is chosen, built */
    struct accel_time
        plan; /* the device turns its masks into lists or tiles and orders the work. NAN if the host
               * made the lists, or if masks are static (then `build` includes it) */
    struct accel_time quant; /* own arithmetic: operands from q, k, v; no samples: it makes none */
    struct accel_time total; /* select + quant + plan + attend of the same sample */
    double host_plan_ns;     /* wall time on the host to plan the launches from the lists */
    double balance; /* largest over launches of (planned time of the busiest SM / mean over SMs) */
    int launches;   /* of attention: more than 1 for sections, for heads with a filter, without and
                     * dense ones, and for filters that differ in more than the threshold pv */
    int selections; /* in `select`, one after the other: more than 1 where the method's kernels do
                     * not take the heads' settings together */
    int sections;   /* the caller's: in how many the call was attended to */
    int kv;         /* heads of keys and values */
    struct accel_counters counters;
    char kernel[128]; /* of the launches, joined by + */
    char dense_kernel[64];
};

struct accel_options {
    int local_rank; /* picks the GPU */
    int samples;    /* timed launches of each kernel; 0 = none */
    int copies;     /* override of accel.copies; 0: ask it */
    bool l2_cold;   /* overwrite L2 before every sample */
    bool events;    /* time with CUDA events even if CUPTI is available */
    bool counters;  /* read hardware counters instead of timing */
};

struct accel_session;

/* All functions of a session are thread-safe. */
struct accel {
    const char *name; /* the record's backend: "cuda" */

    /* Take a GPU, before any other use of it in the process, because the timer has to start first.
     * No GPU, no driver or too old a driver: ERR_MACHINE. *s of close may be NULL. */
    int (*open)(const struct accel_options *o, struct accel_session **out, struct err *err);
    void (*close)(struct accel_session **s);

    /* The block geometry in which the device takes masks of bq x bk units. Replaces *bq and *bk by
     * divisors of them, or by ACCEL_TILE where no kernel has lists that fine: such masks need
     * `bits`. False with a reason when the device cannot attend to x at all. */
    bool (*supports)(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                     int64_t *bk, char why[160]);

    /* Are there kernels for the head's filter, or its own arithmetic? If not, why. NULL: neither.
     */
    bool (*can_attend)(const struct accel_session *s, const struct accel_head *h, char why[160]);

    /* Size of the launch that times a single head taken from a call of `call` heads: that head and
     * its copies. Returns query and KV heads. GQA groups are as large as the call's, or smaller if
     * that size does not divide the number of heads. NULL: 1 head. */
    struct accel_heads (*copies)(const struct accel_session *s, const struct attn_in *x,
                                 struct accel_heads call);

    /* Put a call onto the device, where it stays until another takes its place. Operands are
     * rounded to bf16. The functions below call put_call themselves if needed. */
    int (*put_call)(struct accel_session *s, const struct accel_call *call, struct err *err);

    /* Choose on the device what the methods of heads[i].choice keep, from q and k rounded to bf16.
     * A mask is lists over the whole head, or MASK_FULL where rule and sizes leave nothing to
     * choose. Heads with equal rules are chosen for in one launch. Nothing is timed. NULL: never.
     *
     * Where all heads have choice.keep_on_device and are answered with masks of one unit, the masks
     * stay on the device, for attend_call until something else is put there: each *keep_on_device
     * is filled instead of `mask`, and the metrics of attend_call have to be the device's. */
    int (*select_call)(struct accel_session *s, const struct accel_call *call, struct err *err);

    /* Attention of a call, one launch over the lists of all heads, with times, metrics and
     * counters. `supports` must have agreed. */
    int (*attend_call)(struct accel_session *s, const struct accel_call *call,
                       const struct accel_lists *l, struct accel_result *r, struct err *err);

    /* Has the device cached the lists with this accel_lists.static_id? The answer is valid until
     * the next attend_call returns. NULL: it caches nothing. */
    bool (*has_cached)(struct accel_session *s, uint64_t static_id);

    /* Dense attention of the head with the number `data`, of the call that is on the device or a
     * call of one: lse [nq] (natural log, -inf for a row that sees no key) and, unless NULL, out
     * [nq][dv], sums in fp32. Methods use it through sim/blocks/exact.h. NULL: not offered. */
    int (*reference)(struct accel_session *s, const struct attn_in *x, uint64_t data, double *out,
                     double *lse, struct err *err);

    /* One pass over the exact map of the same head as in `reference`, for the sizes that
     * `attend_call` takes. */
    int (*map)(struct accel_session *s, const struct attn_in *x, uint64_t data, struct accel_map *m,
               struct err *err);

    int64_t (*bytes_peak)(const struct accel_session *s); /* of device memory held so far */

    /* GPU, driver, timer, settings: members of the open object of w. uuid, cuda_driver and
     * cuda_runtime identify the GPU that a measurement came from. */
    int (*describe)(struct accel_session *s, struct jw *w, struct err *err);

    /* Measure the best rates of the GPU, which takes some tenths of a second and 8 GB for a moment:
     * matmul_8192_tflops and copy_tb_per_s in the open object of w, or, where they cannot be
     * measured, `ceilings` with the reason. NULL: none. */
    int (*ceilings)(struct accel_session *s, struct jw *w, struct err *err);

    /* Seconds since `open` spent on device requests, including the host's work for them (operands,
     * plans, results). NULL: not known. */
    double (*used_s)(struct accel_session *s);
};
