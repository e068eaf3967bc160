/*
 * kernel.h - what a GPU back end offers to the rest: attention of one head over a block mask, the
 * selection of some methods, device times, and what the machine is. sim and cuda both see this
 * header and never each other; core/main.c puts the back end into struct app.
 */
#ifndef LACUNA_KERNEL_H
#define LACUNA_KERNEL_H

#include "core/attention.h"
#include "core/err.h"
#include "core/json.h"
#include "core/mask.h"
#include "core/opt.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows and keys of a block that may hold only some of its pairs, and the words of its bits: a thread
 * of a kernel finds its 64 scores in one word. */
#define ACCEL_TILE 128
#define ACCEL_TILE_WORDS 256

/* Word and bit of a pair: row and key inside the block. */
static inline int accel_word(int row, int key)
{
    return 32 * (row / 16) + 4 * (row % 8) + key / 2 % 4;
}
static inline int accel_bit(int row, int key)
{
    return 4 * (key / 8) + 2 * (row / 8 % 2) + key % 2;
}

/* A filter on P V inside the online softmax (sim/tileattn.h), over the tiles of a mask of bq x bk
 * units in ascending order. */
struct accel_filter {
    int64_t bq, bk;
    double pv;     /* distance in log2 units, INFINITY = never skip */
    int64_t scope; /* rows that decide together */
    int tail;      /* last tiles of a list that are never skipped */
    bool keep_denominator; /* skipped tiles count in the normaliser */
};

/* Query heads, and heads of keys and values of which each serves as many of them. Of a call in the
 * trace: for accel_options.copies; 0, 0 is as 1, 1. Of a launch: copies of one head and of its keys
 * and values. */
struct accel_heads {
    int q, kv;
};

/* Attention of one head. A block list has, for each group of bq query rows, the blocks
 * col[ptr[g] .. ptr[g + 1]) of bk keys, ascending, unique and each with an allowed pair; ptr NULL =
 * every allowed pair. With `bits`, blocks are of ACCEL_TILE x ACCEL_TILE pairs, and of block i only
 * those whose bit is set in words[bits[i] * ACCEL_TILE_WORDS ..] are kept; bits[i] = -1: all that
 * are allowed. Bits of pairs that are not allowed are 0.
 * With `keys`, a block is not of keys that follow each other: block i has the keys
 * keys[i * ACCEL_TILE ..], ascending, -1 after the last, and bits[i] = -1 says that every row may
 * see all of them; col is NULL. */
struct accel_head {
    const struct attn_in *x;
    uint64_t data; /* calls in a row with the same number, not 0, have the same q, k, v */
    struct accel_heads call;
    int bq, bk;
    const int64_t *ptr;
    const int32_t *col;
    const int32_t *bits; /* NULL: whole blocks */
    const uint64_t *words;
    int64_t n_bits; /* blocks that `words` holds */
    const int32_t *keys;
    const struct accel_filter *filter; /* NULL: none. Blocks are of its unit */
};

/* Medians and quartiles over `samples` launches, in ns of device time; of attention and selections
 * the share of one copy of the head (accel_options.copies). */
struct accel_time {
    double median, q1, q3;
    int64_t samples;
};

/* Of one row, over the channels of a method's output as delivered and of the dense reference. */
struct accel_row {
    float abs_delta, sq_delta, abs_ref, sq_ref, sq_out, dot, max_delta;
};

/* Blocks of 16, 32, 64, 128, slices of 16, 64, 128 rows, as in sim/basemap.h. */
#define ACCEL_UNITS 7

/* Hardware counters of one launch over the mask; NAN with the reason in `why` without them. */
struct accel_counters {
    double tensor_pipe_pct; /* of the cycles in which a multiprocessor worked */
    double dram_read_bytes, dram_write_bytes;
    char why[160];
};

/* Arrays are the caller's. */
struct accel_result {
    double *out; /* [nq][dv] or NULL: as the device delivers it, in bf16 */
    double *lse; /* [nq], natural log, -inf for an empty row */

    /* NULL together: the metrics of the head, measured on the device against dense attention with
     * the same operands and fp32 outputs. mass = sum of dense p over the kept pairs of a row. */
    struct accel_row *rows;   /* [nq] */
    double *mass, *dense_lse; /* [nq] */

    struct accel_time metrics;       /* dense reference, errors, and a filter that leaves tiles out
                                      * of the normaliser once more with them in it; with rows */
    struct accel_time attend, dense; /* of the mask and of dense attention, interleaved */
    double tiles_pv;                 /* with a filter: tiles whose P V was computed, in shares of
                                      * scopes */
    int64_t pairs_exec;              /* pairs that the kernel multiplied; with a filter the mean of
                                      * those in Q K and those in P V */
    double host_plan_ns;             /* wall time on the host of planning the launch from the lists,
                                      * a copy's share */
    struct accel_counters counters;  /* with accel_options.counters */
    struct accel_heads copies;       /* of the head in a launch of `attend` and `dense` */
    char kernel[64], dense_kernel[64];
};

/* How sparse the exact map is: units (order of sim/basemap.h) whose largest p is below c / nk, and
 * their allowed pairs, for n_c thresholds. Arrays are the caller's, [ACCEL_UNITS][n_c]. */
struct accel_map {
    uint64_t data; /* as in accel_head */
    int n_c;
    const double *c;
    const double *lse; /* [nq], dense_lse of an attend on the same operands; NULL: measured first */
    bool sums;         /* wanted: sum_err, an exponential per pair, and of one threshold p_max */
    int64_t *units, *pairs;
    double p_max;           /* NAN where it was not wanted and did not arise, as sum_err */
    double sum_err;         /* largest |sum_j p_ij - 1| over rows that see a key */
    struct accel_time time; /* of the pass, without the dense reference */
};

/* A method with its parameters, for one head. */
struct accel_choice {
    const char *method;        /* public name */
    const struct opt *options; /* the method's table over params */
    const void *params;
    uint64_t seed;
    const struct attn_in *x;
    uint64_t data;            /* as in accel_head */
    struct accel_heads call;  /* as in accel_head */
    const struct mask *shape; /* the reference's mask over the whole head where it is a band */
};

/* Answer of `select`: the back end does not select for this method with these parameters. */
#define ACCEL_NO_SELECT 1

struct accel_options {
    int local_rank; /* picks the GPU */
    int samples;    /* timed launches of each kernel; 0 = none */
    int copies;     /* of the head in a timed launch of attention or of a selection; 0 = as many as
                     * its call has heads, but no more than keep the GPU busy. As many of them share
                     * keys and values as of the call's heads, or fewer where that does not divide
                     * them */
    bool l2_cold;   /* overwrite L2 before every sample */
    bool events;    /* CUDA events although CUPTI is there */
    bool counters;  /* read hardware counters; nothing is timed then */
};

struct accel_session;

struct accel {
    const char *name; /* of the record's backend: "cuda" */

    /* Take a GPU. No GPU, no driver, too old a driver: ERR_MACHINE. Before the first other use of
     * the GPU in the process, because of the timer. */
    int (*open)(const struct accel_options *o, struct accel_session **out, struct err *err);
    void (*close)(struct accel_session **s); /* accepts NULL inside */

    /* The block geometry in which the device takes masks of bq x bk units: *bq and *bk are replaced
     * by divisors of them, or where no list is that fine, by ACCEL_TILE: then with `bits`. False
     * with a reason when the device cannot attend to x at all. */
    bool (*supports)(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                     int64_t *bk, char why[160]);

    /* Is there a kernel with this filter? If not, why. NULL: never. */
    bool (*filters)(const struct accel_session *s, const struct attn_in *x,
                    const struct accel_filter *f, char why[160]);

    /* Thread-safe; one head at a time is on the device. Operands are rounded to bf16. */
    int (*attend)(struct accel_session *s, const struct accel_head *h, struct accel_result *r,
                  struct err *err);

    /* What the method keeps, chosen on the device from q and k rounded to bf16: lists over the
     * whole head (*m is released by the caller with mask_free), and the device time of choosing
     * them. Of a band that follows from the method's parameters: the 128 x 128 tiles that it touches.
     * MASK_FULL in no time where parameters and sizes leave nothing to choose. Returns
     * ACCEL_NO_SELECT with a reason. Thread-safe. NULL: never. */
    int (*select)(struct accel_session *s, const struct accel_choice *c, struct mask *m,
                  struct accel_time *time, char why[160], struct err *err);

    /* One pass over the exact map. The same sizes as `attend`. Thread-safe. */
    int (*map)(struct accel_session *s, const struct attn_in *x, struct accel_map *m,
               struct err *err);

    /* Most device memory held at a time so far. */
    int64_t (*bytes_peak)(const struct accel_session *s);

    /* GPU, driver, timer, ceilings measured in this session: members of the open object of w. */
    int (*describe)(struct accel_session *s, struct jw *w, struct err *err);
};

#endif
