/*
 * minference.h - the parts of MInference (arXiv:2407.02490) behind its method table: the patterns
 * of one head with concrete sizes, the shipped per-head tables, and the offline pattern search.
 */
#pragma once

#include "core/method.h"
#include "sim/blocks/blockmap.h"
#include "sim/blocks/slicemask.h"
#include "sim/blocks/vslash.h"

#include <stdbool.h>
#include <stdint.h>

enum minf_pattern { MINF_DENSE, MINF_VS, MINF_ASHAPE, MINF_TRISHAPE, MINF_BLOCK };

/* One head's pattern; sizes are tokens or counts, clamped to the prompt when they are used. */
struct minf_config {
    enum minf_pattern pattern;
    int64_t n;
    int64_t v, s, last_q, force_cols, force_dists; /* MINF_VS */
    int64_t asked_v, asked_s;                      /* v and s before n bounded them */
    bool realised;             /* true: the kernel's lists; false: the requested pairs */
    bool bf16;                 /* logits, block means and block scores in bf16 */
    enum dtype p_dtype;        /* type to which probabilities are rounded before they are summed */
    int64_t init, local, last; /* MINF_ASHAPE, MINF_TRISHAPE */
    int64_t top, block;        /* MINF_BLOCK */
    bool force_blocks;         /* block column 0, diagonal and sub-diagonal inside `top` */
    bool both;                 /* bidirectional: distances to both sides, all blocks */
    double work;               /* above 0: sizes are searched for this share of dense work */
};

/* v = trunc(0.2 trunc(n share)), s = trunc(0.8 trunc(n share)). */
void minf_budget(int64_t n, double share, int64_t *v, int64_t *s);

/* The state of the method. */
struct minf_head {
    struct minf_config c;
    const struct head_in *in; /* the caller's */
    struct vslash lists;      /* MINF_VS */
    struct block_map map;     /* MINF_BLOCK */
    double work;              /* share of dense work that a search reached */
    bool chosen;              /* lists or map are made, or taken */
    struct slice_mask given;  /* MINF_VS: the mask that was taken, if it is here */
};

/* Prepare a head. `in` gives q, k and the exact map; the A-shape and the Tri-shape do not use it.
 * minf_begin leaves the choice to minf_select, or to a device. Release with minf_free. */
int minf_begin(struct minf_head *h, const struct minf_config *c, const struct head_in *in,
               struct err *err);
int minf_init(struct minf_head *h, const struct minf_config *c, const struct head_in *in,
              struct err *err);

/* Take the choice of a device over (struct method_device); counts with MINF_VS and MINF_BLOCK. */
int minf_take(void *head, const struct device_choice *c, struct err *err);
void minf_free(void *head); /* also of a zeroed one */
int minf_select(void *head, int64_t row0, int64_t row1, struct mask *out, struct err *err);

/* Entry of a per-head table in the published JSON layout: a list over layers of objects
 * "head": [type, v, s, score]. Absent heads leave the outputs alone. */
int minf_table_entry(const char *path, int layer, int head, enum minf_pattern *pattern, int64_t *v,
                     int64_t *s, struct err *err);

/* ---- search ----------------------------------------------------------------------------- */

enum minf_search_kind {
    MINF_SEARCH_REALISED, /* the candidates of the published code on the kernels' masks, best recall
                           */
    MINF_SEARCH_EXACT,    /* the published code's own routine: token-exact masks */
    MINF_SEARCH_PAPER,    /* the paper's candidates at equal cost, least output error */
};

#define MINF_CANDIDATES 6

struct minf_candidate {
    const char *name;
    struct minf_config c;      /* the pattern that is judged */
    enum minf_pattern pattern; /* the pattern that is written to the result */
    int64_t v, s; /* its sizes as written to the result: v, s; init, local; or top in v */
    double score, error, exec; /* mean recall of the rows from rows_from on; relative L2 error;
                                * executed over allowed pairs */
};

struct minf_search {
    enum minf_search_kind kind;
    int64_t rows_from;    /* -1: 2500, or n / 4 below 10000 tokens */
    int64_t min_v, min_s; /* smallest v and s of the kernels' masks */
    bool scale_sizes;     /* multiply sizes by n / 131072 */
};

/* Judge the candidates on n samples (score and error are means over them) and return the index of
 * the winner, or a negative code. Ties go to the earlier. *count candidates are written. */
int minf_search_run(const struct minf_search *s, const struct minf_config *base,
                    const struct head_in *samples, int n, struct minf_candidate *cand, int *count,
                    struct err *err);
