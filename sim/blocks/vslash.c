/*
 * vslash.c - see vslash.h. Selection: two sorts of n scores; lists: O(n_cols + n_dists) per row
 * block.
 */
#include "sim/blocks/vslash.h"

#include "core/gemm.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/attention.h"
#include "core/sort.h"
#include "sim/blocks/exact.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define B VSLASH_BLOCK

static int descending(const void *a, const void *b)
{
    return compare_i32(b, a);
}

static int64_t clamp(int64_t x, int64_t hi)
{
    return x < 0 ? 0 : x > hi ? hi : x;
}

/* Indices of the `count` best of score[0..n) with the first `force` entries at +infinity. */
static int best(const double *score, int64_t n, int64_t force, int64_t count, int32_t **out,
                struct err *err)
{
    OWN(free_at) double *s = NULL;
    OWN(free_at) int32_t *order = NULL;
    PASS_ON(mem_alloc(&s, n, sizeof *s, "scores", err));
    PASS_ON(mem_alloc(&order, n, sizeof *order, "score order", err));
    for (int64_t i = 0; i < n; i++)
        s[i] = i < force ? INFINITY : score[i];
    PASS_ON(order_descending(s, n, order, err));
    PASS_ON(mem_alloc(out, count, sizeof **out, "selected list", err));
    memcpy(*out, order, (size_t)count * sizeof **out);
    return 0;
}

int vslash_select(struct vslash *v, int64_t n, const double *col, int64_t n_cols,
                  int64_t force_cols, const double *slash, int64_t n_dists, int64_t force_dists,
                  struct err *err)
{
    *v = (struct vslash){.n = n, .n_cols = clamp(n_cols, n), .n_dists = clamp(n_dists, n)};
    PASS_ON(best(col, n, force_cols, v->n_cols, &v->cols, err));
    PASS_ON(best(slash, n, force_dists, v->n_dists, &v->dists, err));
    qsort(v->cols, (size_t)v->n_cols, sizeof *v->cols, compare_i32);
    qsort(v->dists, (size_t)v->n_dists, sizeof *v->dists, descending);
    return 0;
}

void vslash_free(struct vslash *v)
{
    free(v->cols);
    free(v->dists);
    memset(v, 0, sizeof *v);
}

static int64_t bits_set(const uint32_t *bits, int64_t words)
{
    int64_t n = 0;
    for (int64_t w = 0; w < words; w++)
        n += __builtin_popcount(bits[w]);
    return n;
}

static void numbers_of(const uint32_t *bits, int64_t words, int32_t *out)
{
    for (int64_t w = 0; w < words; w++)
        for (uint32_t b = bits[w]; b; b &= b - 1)
            *out++ = (int32_t)(w * 32 + __builtin_ctz(b));
}

int vslash_from_bits(struct vslash *v, int64_t n, const uint32_t *bits, int64_t words,
                     struct err *err)
{
    *v = (struct vslash){
        .n = n, .n_cols = bits_set(bits, words), .n_dists = bits_set(bits + words, words)};
    PASS_ON(mem_alloc(&v->cols, v->n_cols, sizeof *v->cols, "selected columns", err));
    PASS_ON(mem_alloc(&v->dists, v->n_dists, sizeof *v->dists, "selected distances", err));
    numbers_of(bits, words, v->cols);
    numbers_of(bits + words, words, v->dists);
    for (int64_t i = 0, k = v->n_dists - 1; i < k; i++, k--) {
        int32_t swap = v->dists[i];
        v->dists[i] = v->dists[k];
        v->dists[k] = swap;
    }
    return 0;
}

/* ---- lists ------------------------------------------------------------------------------ */

/* Append the open range [lo, hi) as blocks. */
static void emit(int32_t *blocks, int64_t *n, int64_t lo, int64_t hi)
{
    for (; lo < hi; lo += B)
        blocks[(*n)++] = (int32_t)lo;
}

/* First key after the blocks that distance d needs in a row block that ends at e. */
static int64_t reach(int64_t e, int64_t d)
{
    return e - d > B ? e - d : B;
}

/* The lists of a bidirectional head. `covered` ends the blocks so far. */
static void block_both(const struct vslash *v, int64_t m, int32_t *blocks, int64_t *n_blocks,
                       int32_t *columns, int64_t *n_columns)
{
    int64_t end = m + B < v->n ? m + B : v->n, covered = 0, c = 0, b = 0;
    int64_t zero = v->n_dists && v->dists[v->n_dists - 1] == 0; /* stands for one side only */
    *n_blocks = *n_columns = 0;
    for (int64_t s = 0; s < 2 * v->n_dists - zero; s++) {
        int64_t e = s < v->n_dists ? s : 2 * v->n_dists - zero - 1 - s; /* its place in dists */
        int64_t shift = s < v->n_dists ? -v->dists[e] : v->dists[e];
        int64_t lo = m + shift > 0 ? m + shift : 0, hi = end + shift;
        if (hi > v->n)
            hi = v->n;
        for (lo = lo > covered ? lo : covered; lo < hi; lo += B) {
            blocks[(*n_blocks)++] = (int32_t)lo;
            covered = lo + B;
        }
    }
    for (; c < v->n_cols; c++) {
        while (b < *n_blocks && blocks[b] + B <= v->cols[c])
            b++;
        if (b == *n_blocks || v->cols[c] < blocks[b])
            columns[(*n_columns)++] = v->cols[c];
    }
}

void vslash_block(const struct vslash *v, int64_t m, int32_t *blocks, int64_t *n_blocks,
                  int32_t *columns, int64_t *n_columns)
{
    if (v->both) {
        block_both(v, m, blocks, n_blocks, columns, n_columns);
        return;
    }
    int64_t e = m + B, c = 0, s = 0;
    *n_blocks = *n_columns = 0;
    while (s < v->n_dists && v->dists[s] >= e)
        s++;
    if (s == v->n_dists) {
        for (; c < v->n_cols && v->cols[c] < e; c++)
            columns[(*n_columns)++] = v->cols[c];
        return;
    }
    int64_t hi = reach(e, v->dists[s++]), lo = hi - B;
    for (;;) {
        if (c < v->n_cols && v->cols[c] < hi) {
            if (v->cols[c] < lo)
                columns[(*n_columns)++] = v->cols[c];
            c++;
        } else if (s == v->n_dists) {
            emit(blocks, n_blocks, lo, hi);
            return;
        } else {
            int64_t x = reach(e, v->dists[s++]);
            if (x > hi + B) {
                emit(blocks, n_blocks, lo, hi);
                hi = x;
                lo = x - B;
            } else if (x > hi) {
                hi += B; /* a whole block, even if x needs less */
            }
        }
    }
}

/* A column has n queries, a distance above 0 twice n - d pairs; they meet where c + d or c - d is a
 * query. */
static int64_t requested_both(const struct vslash *v)
{
    int64_t sum = v->n * v->n_cols;
    for (int64_t i = 0; i < v->n_dists; i++) {
        int64_t d = v->dists[i], before = 0, behind = 0;
        while (before < v->n_cols && v->cols[before] + d < v->n)
            before++;
        while (behind < v->n_cols && v->cols[behind] < d)
            behind++;
        sum += d ? 2 * (v->n - d) - before - (v->n_cols - behind) : v->n - before;
    }
    return sum;
}

int64_t vslash_requested(const struct vslash *v)
{
    if (v->both)
        return requested_both(v);
    /* Column c is seen by n - c rows, distance d by n - d; they meet once in row c + d < n. */
    int64_t sum = 0, meet = 0, c = 0;
    for (int64_t i = 0; i < v->n_cols; i++)
        sum += v->n - v->cols[i];
    for (int64_t i = 0; i < v->n_dists; i++) {
        sum += v->n - v->dists[i];
        while (c < v->n_cols && v->cols[c] + v->dists[i] < v->n)
            c++;
        meet += c;
    }
    return sum - meet;
}

int64_t vslash_exec(const struct vslash *v)
{
    return B * B * v->blocks + B * v->columns;
}

/* ---- masks ------------------------------------------------------------------------------ */

/* Merge the ascending, disjoint blocks and columns of a row block into group g, keys below `limit`.
 */
static int add_lists(struct mask *out, int64_t g, const int32_t *blocks, int64_t n_blocks,
                     const int32_t *columns, int64_t n_columns, int64_t limit, struct err *err)
{
    for (int64_t b = 0, c = 0; b < n_blocks || c < n_columns;) {
        bool column = c < n_columns && (b == n_blocks || columns[c] < blocks[b]);
        int64_t lo = column ? columns[c++] : blocks[b++], hi = column ? lo + 1 : lo + B;
        PASS_ON(mask_lists_add_run(out, g, (int32_t)lo, (int32_t)(hi < limit ? hi : limit), err));
    }
    return 0;
}

/* Room for the lists of a row block. */
static int block_room(const struct vslash *v, int32_t **blocks, int32_t **columns, struct err *err)
{
    PASS_ON(mem_alloc(blocks, 2 * (v->n_dists + 1 + v->n / B), sizeof **blocks, "block list", err));
    return mem_alloc(columns, v->n_cols, sizeof **columns, "column list", err);
}

int vslash_add_all(struct vslash *v, struct err *err)
{
    OWN(free_at) int32_t *blocks = NULL, *columns = NULL;
    int64_t nb, nc;
    PASS_ON(block_room(v, &blocks, &columns, err));
    for (int64_t m = 0; m < v->n; m += B) {
        vslash_block(v, m, blocks, &nb, columns, &nc);
        v->blocks += nb;
        v->columns += nc;
    }
    return 0;
}

static int realised_mask(struct vslash *v, int64_t row0, int64_t row1, struct mask *out,
                         struct err *err)
{
    OWN(free_at) int32_t *blocks = NULL, *columns = NULL;
    int64_t nb, nc;
    PASS_ON(block_room(v, &blocks, &columns, err));
    PASS_ON(mask_lists_init(out, v->n, v->n, row0, row1, !v->both, B, 1, err));
    out->exec = EXEC_GATHER;
    out->exec_bq = B;
    out->exec_bk = 1;
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t m = row0 + g * B, end = m + B < v->n && !v->both ? m + B : v->n;
        vslash_block(v, m, blocks, &nb, columns, &nc);
        v->blocks += nb;
        v->columns += nc;
        PASS_ON(add_lists(out, g, blocks, nb, columns, nc, end, err));
    }
    mask_lists_finish(out);
    return 0;
}

/* List of a query: columns merged with query - distance and, bidirectional, query + distance. */
static int requested_row(const struct vslash *v, struct mask *out, int64_t q, struct err *err)
{
    int64_t limit = v->both ? v->n : q + 1, c = 0, s = 0, u = v->both ? v->n_dists - 1 : -1;
    int rc = 0;
    while (s < v->n_dists && v->dists[s] > q)
        s++;
    while (u >= 0 && v->dists[u] == 0)
        u--; /* the query's own key is among those before */
    while (!rc) {
        bool behind = s == v->n_dists && u >= 0 && q + v->dists[u] < v->n;
        int64_t a = c < v->n_cols && v->cols[c] < limit ? v->cols[c] : INT64_MAX;
        int64_t b = s < v->n_dists ? q - v->dists[s] : behind ? q + v->dists[u] : INT64_MAX;
        int64_t k = a < b ? a : b;
        if (k == INT64_MAX)
            break;
        c += a == k;
        s += b == k && !behind;
        u -= b == k && behind;
        rc = mask_lists_add(out, q - out->row0, (int32_t)k, err);
    }
    return rc;
}

/* Row lists. */
static int requested_mask(const struct vslash *v, int64_t row0, int64_t row1, struct mask *out,
                          struct err *err)
{
    PASS_ON(mask_lists_init(out, v->n, v->n, row0, row1, !v->both, 1, 1, err));
    out->exec = EXEC_NONE; /* no kernel runs it */
    for (int64_t q = row0; q < row1; q++)
        PASS_ON(requested_row(v, out, q, err));
    mask_lists_finish(out);
    return 0;
}

int vslash_mask(struct vslash *v, bool realised, int64_t row0, int64_t row1, struct mask *out,
                struct err *err)
{
    return realised ? realised_mask(v, row0, row1, out, err)
                    : requested_mask(v, row0, row1, out, err);
}

/* ---- equal rows ----------------------------------------------------------------------------- */

struct hashed {
    uint64_t hash;
    int32_t row;
};

static int by_hash(const void *a, const void *b)
{
    const struct hashed *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* h is sorted; rows of a hash stand together, the lowest in front. Returns whether any two rows
 * are equal. */
static bool pair_up(const struct hashed *h, const float *x, int64_t n, int64_t d, int32_t *first)
{
    bool any = false;
    int64_t lead = 0;
    for (int64_t i = 0; i < n; i++) {
        lead = h[i].hash == h[lead].hash ? lead : i;
        const float *a = x + h[lead].row * d, *b = x + h[i].row * d;
        bool same = i != lead && memcmp(a, b, (size_t)d * sizeof *x) == 0;
        first[h[i].row] = same ? h[lead].row : h[i].row;
        any = any || same;
    }
    return any;
}

int twins_find(struct twins *t, const float *x, int64_t n, int64_t d, struct err *err)
{
    OWN(free_at) struct hashed *h = NULL;
    *t = (struct twins){.n = n};
    PASS_ON(mem_alloc(&h, n, sizeof *h, "hashed rows", err));
    PASS_ON(mem_alloc(&t->first, n, sizeof *t->first, "equal rows", err));
    for (int64_t i = 0; i < n; i++)
        h[i] = (struct hashed){hash_bytes(x + i * d, (size_t)d * sizeof *x).lo, (int32_t)i};
    qsort(h, (size_t)n, sizeof *h, by_hash);
    if (!pair_up(h, x, n, d, t->first)) {
        free(t->first);
        t->first = NULL;
    }
    return 0;
}

void twins_free(struct twins *t)
{
    free(t->first);
    memset(t, 0, sizeof *t);
}

void twins_level_f32(const struct twins *t, float *v, int64_t n)
{
    for (int64_t i = 0; t->first && i < n; i++)
        v[i] = v[t->first[i]];
}

void twins_level_f64(const struct twins *t, double *v, int64_t n)
{
    for (int64_t i = 0; t->first && i < n; i++)
        v[i] = v[t->first[i]];
}

/* ---- mass per key and distance -------------------------------------------------------------- */

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
    int64_t n = in->x.nk;
    OWN(free_at) double *p = NULL;
    OWN(bf16_free) struct bf16_rows b = {0};
    OWN(twins_free) struct twins equal = {0};
    memset(col, 0, (size_t)n * sizeof *col);
    memset(slash, 0, (size_t)n * sizeof *slash);
    PASS_ON(mem_alloc(&p, PIECE * n, sizeof *p, "sampled rows", err));
    PASS_ON(twins_find(&equal, in->x.k, n, in->x.d, err));
    if (logits != TOK_EXACT) {
        PASS_ON(mem_alloc(&b.q, PIECE * in->x.d, sizeof *b.q, "sampled queries", err));
        PASS_ON(mem_alloc(&b.k, KEYS * in->x.d, sizeof *b.k, "sampled keys", err));
        PASS_ON(mem_alloc(&b.s, PIECE * KEYS, sizeof *b.s, "sampled logits", err));
    }
    for (int64_t r0 = n - rows; r0 < n; r0 += PIECE) {
        int64_t piece = n - r0 < PIECE ? n - r0 : PIECE;
        PASS_ON(piece_probs(in, logits, r0, piece, &b, p, err));
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
    return 0;
}
