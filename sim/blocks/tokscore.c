/*
 * tokscore.c - see tokscore.h. rows exact softmax rows, a few at a time: 2 rows N d FLOP, memory
 * linear in N.
 */
#include "sim/blocks/tokscore.h"

#include "core/gemm.h"
#include "core/mem.h"
#include "core/attention.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/twins.h"

#include <stdlib.h>
#include <string.h>

#define PIECE 16
#define KEYS 512

void token_scores_add(const double *p, int64_t pos, double *col, double *slash)
{
    for (int64_t k = 0; k <= pos; k++) {
        col[k] += p[k];
        slash[pos - k] += p[k];
    }
}

struct bf16_rows {
    float *q, *k, *s; /* [PIECE][d], [KEYS][d], [PIECE][KEYS], owned */
};

static void bf16_free(struct bf16_rows *b)
{
    free(b->q);
    free(b->k);
    free(b->s);
}

static float bf16(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}

/* Logits of the rows [r0, r0 + n) against all keys into z [n][nk], as 16-bit code forms them. */
static void bf16_logits(const struct attn_in *x, enum tok_logits how, int64_t r0, int64_t n,
                        struct bf16_rows *b, double *z)
{
    float scale = (float)x->scale;
    for (int64_t i = 0; i < n * x->d; i++) {
        float q = bf16(x->q[r0 * x->d + i]);
        b->q[i] = how == TOK_BF16_QUERY ? bf16(q * scale) : q;
    }
    for (int64_t k0 = 0; k0 < x->nk; k0 += KEYS) {
        int64_t keys = x->nk - k0 < KEYS ? x->nk - k0 : KEYS;
        for (int64_t i = 0; i < keys * x->d; i++)
            b->k[i] = bf16(x->k[k0 * x->d + i]);
        gemm_nt_f32(n, keys, x->d, 1, b->q, x->d, b->k, x->d, 0, b->s, KEYS);
        for (int64_t r = 0; r < n; r++)
            for (int64_t k = 0; k < keys; k++) {
                float s = bf16(b->s[r * KEYS + k]);
                z[r * x->nk + k0 + k] = how == TOK_BF16_QUERY ? s : bf16(s * scale);
            }
    }
}

/* Probabilities of the rows [r0, r0 + n) into p [n][nk]. */
static int piece_probs(const struct head_in *in, enum tok_logits how, int64_t r0, int64_t n,
                       struct bf16_rows *b, double *p, struct err *err)
{
    if (how == TOK_EXACT)
        return exact_probs(in->exact, r0, r0 + n, p, err);
    bf16_logits(&in->x, how, r0, n, b, p);
    for (int64_t r = 0; r < n; r++)
        softmax_f64(p + r * in->x.nk, attn_limit(&in->x, r0 + r));
    return 0;
}

/* One row whose query also sees the keys behind it: a distance stands for both sides. */
static void add_both(const double *p, int64_t pos, int64_t n, double *col, double *slash)
{
    token_scores_add(p, pos, col, slash);
    for (int64_t k = pos + 1; k < n; k++) {
        col[k] += p[k];
        slash[k - pos] += p[k];
    }
}

int token_scores(const struct head_in *in, int64_t rows, enum tok_logits logits, enum dtype p_dtype,
                 double *col, double *slash, struct err *err)
{
    int rc = 0;
    int64_t n = in->x.nk;
    double *p = NULL;
    struct bf16_rows b = {0};
    struct twins equal = {0};
    memset(col, 0, (size_t)n * sizeof *col);
    memset(slash, 0, (size_t)n * sizeof *slash);
    TRY(mem_alloc(&p, PIECE * n, sizeof *p, "sampled rows", err));
    TRY(twins_find(&equal, in->x.k, n, in->x.d, err));
    if (logits != TOK_EXACT) {
        TRY(mem_alloc(&b.q, PIECE * in->x.d, sizeof *b.q, "sampled queries", err));
        TRY(mem_alloc(&b.k, KEYS * in->x.d, sizeof *b.k, "sampled keys", err));
        TRY(mem_alloc(&b.s, PIECE * KEYS, sizeof *b.s, "sampled logits", err));
    }
    for (int64_t r0 = n - rows; r0 < n; r0 += PIECE) {
        int64_t piece = n - r0 < PIECE ? n - r0 : PIECE;
        TRY(piece_probs(in, logits, r0, piece, &b, p, err));
        for (int64_t r = 0; r < piece; r++) {
            double *row = p + r * n;
            int64_t limit = attn_limit(&in->x, r0 + r);
            twins_level_f64(&equal, row, limit);
            for (int64_t k = 0; k < limit; k++)
                row[k] = dtype_round(p_dtype, (float)row[k]);
            if (in->x.causal)
                token_scores_add(row, r0 + r, col, slash);
            else
                add_both(row, r0 + r, n, col, slash);
        }
    }
out:
    bf16_free(&b);
    twins_free(&equal);
    free(p);
    return rc;
}

struct ranked {
    double value;
    int32_t index;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

int order_descending(const double *v, int64_t n, int32_t *order, struct err *err)
{
    struct ranked *r = NULL;
    int rc = mem_alloc(&r, n, sizeof *r, "sorted scores", err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < n; i++)
        r[i] = (struct ranked){v[i], (int32_t)i};
    qsort(r, (size_t)n, sizeof *r, by_rank);
    for (int64_t i = 0; i < n; i++)
        order[i] = r[i].index;
    free(r);
    return 0;
}
