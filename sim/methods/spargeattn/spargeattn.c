/*
 * spargeattn.c - SpargeAttn: block-sparse attention with two online filters (arXiv 2502.18137).
 *
 *   Filter 1, once per head: every block of queries and keys is replaced by its mean. A query block
 *   keeps the key blocks whose coarse probabilities, largest first, sum to at most tau. A block
 *   whose tokens are not similar (s(X) <= theta) is not judged by its mean: it is always kept.
 *   Filter 2, inside the online softmax: P.V of a tile is skipped when no row comes within `pv`
 *   (log2 units) of its running maximum (tileattn.h).
 *
 * Shapes: q [nq][d], k [nk][d], v [nk][dv] of one query head; N = nq = nk when causal. O(N d) to
 * prepare, 2 n_q n_k d for the coarse map, 4 bq bk d per kept tile.
 *
 * profile=official follows the authors' code, profile=paper the printed formulas where they differ:
 * similarity, zero-block rows, scope and denominator of filter 2. Deviations from the official
 * code in both profiles: the token causal mask is always applied, ties of the coarse map go to the
 * lower block, the pooled map is float unless map_dtype=input, similarity comes from the closed
 * form in double, a row without a visible key is zero unless dead=mean.
 */
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/gpusum.h"
#include "sim/blocks/judge.h"
#include "sim/blocks/selectcost.h"
#include "sim/methods/spargeattn/spargeattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a head prepared for any theta, tau, pv -------------------------------------------------- */

/* Smoothed keys, block statistics, quantised
 * operands, and the counts that a run accumulates. O(N d). */

/* Tile, warps and exempt tail of the official kernels. */
static const struct {
    int64_t bq, bk;
    int tail;
} presets[] = {
    [SPARGE_SM80] = {128, 64, 2},
    [SPARGE_SM89] = {128, 64, 2},
    [SPARGE_SM90] = {64, 128, 1},
};

static const char *const ariths[] = {"exact", "sage1", "sage2", "auto", NULL};

void sparge_resolve(const struct sparge_params *p, int d, struct sparge_rules *r)
{
    static const enum dtype cdf[] = {DT_F32, DT_F16, DT_BF16};
    *r = (struct sparge_rules){
        .paper = p->profile == SPARGE_PAPER,
        .topk_cut = p->select == SPARGE_TOPK,
        .dense = p->dense,
        .sink = p->sink,
        .smooth_k = p->smooth_k,
        .bq = presets[p->arch].bq,
        .bk = presets[p->arch].bk,
        .theta = !p->judge          ? -1
                 : !isnan(p->theta) ? p->theta
                                    : (p->select == SPARGE_TOPK ? -0.1 : 0.6),
        .tau = p->tau,
        .topk = p->topk,
        .pv = p->dense ? INFINITY : p->pv,
        .map_input = p->map_dtype == 1,
        .cdf = cdf[p->cdf_dtype],
        .chunk = gpusum_chunk(1, 1),
        .arith = (enum sparge_arith)p->arith,
        .arch = (enum sparge_arch)p->arch,
        .v_max = p->v_max ? 2.25f : 448.0f,
        .dead_mean = p->dead == 1,
    };
    if (p->tile >= 0) {
        r->bq = p->tile ? 64 : 128;
        r->bk = p->tile ? 128 : 64;
    }
    /* Head and tile alone decide, so that results are those of any machine. */
    if (r->arith == SPARGE_AUTO)
        r->arith = d == 128 && r->bk == 128 ? SPARGE_SAGE2 : SPARGE_EXACT;
    r->tail = p->pv_tail != INT64_MIN ? (int)p->pv_tail : r->paper ? 0 : presets[p->arch].tail;
    bool warp = p->pv_scope >= 0 ? p->pv_scope == 1 : r->paper;
    int64_t warps = p->arch == SPARGE_SM80 && d > 64 ? 8 : 4;
    r->scope = warp ? r->bq / warps : r->bq;
}

struct sparge_row {
    double *score;          /* [n] */
    struct sparge_entry *e; /* [n] */
    float *p;               /* [n] sorted */
    bool *keep;             /* [n] */
};

static void sparge_row_free(struct sparge_row *w)
{
    if (!w)
        return;
    free(w->score);
    free(w->e);
    free(w->p);
    free(w->keep);
    free(w);
}

static int sparge_row_new(int64_t n, struct sparge_row **out, struct err *err)
{
    struct sparge_row *w = NULL;
    int rc = 0;
    TRY(mem_zalloc(&w, 1, sizeof *w, "block row", err));
    TRY(mem_alloc(&w->score, n, sizeof *w->score, "block scores", err));
    TRY(mem_alloc(&w->e, n, sizeof *w->e, "block row", err));
    TRY(mem_alloc(&w->p, n, sizeof *w->p, "block probabilities", err));
    TRY(mem_alloc(&w->keep, n, sizeof *w->keep, "block map", err));
    *out = w;
    return 0;
out:
    sparge_row_free(w);
    return rc;
}

/* ---- blocks --------------------------------------------------------------------------------- */

static void blocks_free(struct sparge_blocks *b)
{
    free(b->mean);
    free(b->s);
    free(b->whole);
    free(b->similar);
    memset(b, 0, sizeof *b);
}

static int blocks_make(struct sparge_blocks *b, const struct sparge_rules *r, const float *x,
                       int64_t n, int d, int64_t size, enum dtype map, struct err *err)
{
    b->n = ceil_div(n, size);
    PASS_ON(mem_alloc(&b->mean, b->n * d, sizeof *b->mean, "block means", err));
    PASS_ON(mem_alloc(&b->s, b->n, sizeof *b->s, "block similarities", err));
    PASS_ON(mem_alloc(&b->whole, b->n, sizeof *b->whole, "block flags", err));
    PASS_ON(mem_zalloc(&b->similar, b->n, sizeof *b->similar, "block flags", err));
    for (int64_t i = 0; i < b->n; i++) {
        const float *rows = x + i * size * d;
        int64_t count = MIN(n - i * size, size);
        bool zero;
        block_mean(rows, count, d, map, b->mean + i * d);
        b->s[i] = block_cosine(rows, count, d, &zero);
        b->whole[i] = count == size && !zero;
        if (r->paper)
            b->s[i] = block_mean_share(rows, count, d);
    }
    return 0;
}

static bool judge(struct sparge_blocks *b, const struct sparge_rules *r)
{
    bool changed = false;
    for (int64_t i = 0; i < b->n; i++) {
        bool similar = sparge_similar(r, b->s[i], b->whole[i]);
        changed = changed || similar != b->similar[i];
        b->similar[i] = similar;
    }
    return changed;
}

/* Set theta and decide again which blocks are similar; true if that changed any of them. */
static bool sparge_set_theta(struct sparge *s, double theta)
{
    s->rules.theta = theta;
    bool q = judge(&s->qb, &s->rules), k = judge(&s->kb, &s->rules);
    return q || k;
}

/* ---- operands ------------------------------------------------------------------------------- */

/* Q on the grid of the map (the official code turns float inputs into fp16), K without its mean. */
static int smooth(struct sparge *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    s->q = x->q;
    PASS_ON(mem_alloc(&s->k, x->nk * x->d, sizeof *s->k, "smoothed keys", err));
    PASS_ON(mem_zalloc(&s->kbar, x->d, sizeof *s->kbar, "key mean", err));
    memcpy(s->k, x->k, (size_t)(x->nk * x->d) * sizeof *s->k);
    if (s->map != DT_F32 && s->in.src_dtype != s->map) {
        PASS_ON(mem_alloc(&s->q_owned, x->nq * x->d, sizeof *s->q_owned, "queries", err));
        for (int64_t i = 0; i < x->nq * x->d; i++)
            s->q_owned[i] = dtype_round(s->map, x->q[i]);
        for (int64_t i = 0; i < x->nk * x->d; i++)
            s->k[i] = dtype_round(s->map, x->k[i]);
        s->q = s->q_owned;
    }
    if (s->rules.smooth_k) {
        token_mean(s->k, x->nk, x->d, s->map, s->kbar);
        token_centre(s->k, x->nk, x->d, s->kbar, s->map, s->k);
    }
    return 0;
}

/* The narrow range of V exists for the fp16 accumulator of the sm89 kernel. */
static bool sums_in_f16(const struct sparge_rules *r)
{
    return r->arch == SPARGE_SM89 && r->v_max < 448;
}

/* The arithmetic of kept tiles that is not exact. */
static void own_rule(const struct sparge_rules *r, enum dtype map, struct own_quantised *q)
{
    q->bq = (int)r->bq;
    q->bk = (int)r->bk;
    q->levels = 127;
    q->gran = OWN_BY_BLOCK;
    q->round = OWN_RHA_EPS;
    q->smooth_k = r->smooth_k;
    q->mean_as = q->keys_as = map;
    q->values_as = DT_F16;
    q->factor = 1;
    q->sum = OWN_SUM_F16;
    if (r->arith == SPARGE_SAGE2) {
        q->e4m3 = true;
        q->offset = TILE_E4M3_OFFSET;
        q->v_top = r->v_max;
        q->sum = sums_in_f16(r) ? OWN_SUM_F16 : OWN_SUM_F32;
    }
}

static int quantise(struct sparge *s, struct err *err)
{
    struct own_quantised rule = {0};
    own_rule(&s->rules, s->map, &rule);
    s->tile.l_rounded = !rule.e4m3;
    /* The output has the dtype of q; float stays float unless the map is in the input dtype. */
    s->tile.out_dtype = s->in.src_dtype != DT_F32 ? s->in.src_dtype
                        : s->map != DT_F32        ? DT_F16
                                                  : DT_NONE;
    return tile_quantise(&s->tile, &s->operands, &rule, &s->in.x, s->q, s->k, s->kbar, err);
}

/* What follows from parameters and sizes. */
static void size_head(struct sparge *s)
{
    const struct attn_in *x = &s->in.x;
    const struct sparge_rules *r = &s->rules;
    s->map = !r->map_input ? DT_F32 : s->in.src_dtype == DT_BF16 ? DT_BF16 : DT_F16;
    s->nq_blocks = ceil_div(x->nq, r->bq);
    s->nk_blocks = ceil_div(x->nk, r->bk);
    /* The published code sums the rows of all heads of a call at once. */
    int64_t heads = s->in.n_heads > 0 ? s->in.n_heads : 1;
    s->rules.chunk = gpusum_chunk(s->nk_blocks, heads * s->nq_blocks);
    s->tile = (struct tile_attn){
        .nq = x->nq,
        .nk = x->nk,
        .d = x->d,
        .dv = x->dv,
        .causal = x->causal,
        .bq = r->bq,
        .bk = r->bk,
        .exact = s->in.exact,
        .pv = r->pv,
        .scope = r->scope,
        .tail = r->tail,
        .keep_denominator = r->paper,
        .dead_mean = r->dead_mean,
        .out_dtype = DT_NONE,
    };
}

static int sparge_make(struct sparge *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    const struct sparge_rules *r = &s->rules;
    s->ready = true;
    PASS_ON(smooth(s, err));
    PASS_ON(blocks_make(&s->qb, r, s->q, x->nq, x->d, r->bq, s->map, err));
    PASS_ON(blocks_make(&s->kb, r, s->k, x->nk, x->d, r->bk, s->map, err));
    judge(&s->qb, r);
    judge(&s->kb, r);
    if (r->arith != SPARGE_EXACT)
        PASS_ON(quantise(s, err));
    return sparge_row_new(s->nk_blocks, &s->row, err);
}

/* Parameters and sizes alone, into a zeroed state; sparge_make reads q, k, v. */
static void sparge_begin(const struct sparge_params *p, const struct head_in *in, struct sparge *s)
{
    s->in = *in;
    sparge_resolve(p, in->x.d, &s->rules);
    size_head(s);
}

int sparge_new(const struct sparge_params *p, const struct head_in *in, struct sparge **out,
               struct err *err)
{
    struct sparge *s = NULL;
    int rc = 0;
    TRY(mem_zalloc(&s, 1, sizeof *s, "spargeattn state", err));
    sparge_begin(p, in, s);
    TRY(sparge_make(s, err));
    *out = s;
    s = NULL;
out:
    sparge_free(s);
    return rc;
}

/* Flags of blocks that came. */
static int take_flags(struct sparge_blocks *b, const uint8_t *similar, int64_t n, struct err *err)
{
    b->n = n;
    PASS_ON(mem_zalloc(&b->similar, n, sizeof *b->similar, "block flags", err));
    for (int64_t i = 0; i < n; i++)
        b->similar[i] = similar[i] != 0;
    return 0;
}

static int take_numbers(struct sparge *s, int64_t bq, int64_t bk, const struct accel_own *own,
                        struct err *err)
{
    int64_t used = (int64_t)sizeof(struct sparge_own) + s->nq_blocks + s->nk_blocks;
    const uint8_t *flags = (const uint8_t *)own->data + sizeof(struct sparge_own);
    struct sparge_own numbers;
    if (own->bytes != (used + 7) / 8 * 8 || bq != s->rules.bq || bk != s->rules.bk)
        return err_set(err, ERR_RUN, "a choice of units of %lld x %lld with %lld bytes of numbers",
                       (long long)bq, (long long)bk, (long long)own->bytes);
    memcpy(&numbers, own->data, sizeof numbers);
    s->cut_mass = numbers.mass;
    s->cut_rows = numbers.rows;
    PASS_ON(take_flags(&s->qb, flags, s->nq_blocks, err));
    PASS_ON(take_flags(&s->kb, flags + s->nq_blocks, s->nk_blocks, err));
    s->ready = true;
    return 0;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct sparge *s = state;
    const struct mask *m = c->lists;
    if (!m) {
        s->kept = c->counts->units;
        s->dead_rows = c->counts->empty;
        return take_numbers(s, c->counts->bq, c->counts->bk, c->own, err);
    }
    if (m->form != MASK_LISTS)
        return err_set(err, ERR_RUN, "a choice that is no list of tiles");
    PASS_ON(take_numbers(s, m->bq, m->bk, c->own, err));
    return mask_lists_rows(m, m->row0, m->row1, &s->given, err);
}

static void release(void *state)
{
    struct sparge *s = state;
    free(s->q_owned);
    free(s->k);
    free(s->kbar);
    blocks_free(&s->qb);
    blocks_free(&s->kb);
    tile_operands_free(&s->operands);
    sparge_row_free(s->row);
    mask_free(&s->given);
}

void sparge_free(struct sparge *s)
{
    if (s)
        release(s);
    free(s);
}

/* ---- filter 1 -------------------------------------------------------------------------------- */

/* Which key blocks a query block keeps (arXiv 2502.18137, section 3.3 and algorithm 1).
 *
 *   S^[i][j] = p(Q_i) . p(K'_j) scale, -inf where K'_j is not self-similar or not admissible
 *   P^[i]    = softmax over j;  kept: the largest P^, up to a sum of tau (or a fixed number)
 *   plus every key block that is not self-similar, plus whole rows whose Q_i is not
 *
 * 2 n_q n_k d for the scores, n_q n_k log n_k for sorting. */

bool sparge_similar(const struct sparge_rules *r, double s, bool whole)
{
    return r->paper ? s >= r->theta : whole && s > r->theta;
}

static int by_probability(const void *a, const void *b)
{
    const struct sparge_entry *x = a, *y = b;
    if (x->p != y->p)
        return x->p < y->p ? 1 : -1;
    return (x->j > y->j) - (x->j < y->j);
}

void sparge_sort(struct sparge_entry *e, int64_t n)
{
    qsort(e, (size_t)n, sizeof *e, by_probability);
}

/* Leading entries whose running sum stays at or below the bound. In DT_F32 the sum is carried in
 * double and compared as float, so that rounding cannot lift it above 1; in the 16-bit types it is
 * that of the GPU that the official code runs on. */
static int64_t cut_by_mass(const struct sparge_rules *r, const float *p, int64_t n)
{
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++)
        total += p[i];
    float bound = (float)(r->paper ? r->tau * total : r->tau);
    if (r->cdf != DT_F32)
        return gpusum_count(r->cdf, r->chunk, p, n, bound);
    for (int64_t i = 0; i < n; i++) {
        sum += p[i];
        if ((float)sum > bound)
            return i;
    }
    return n;
}

int64_t sparge_cut(const struct sparge_rules *r, const float *p, int64_t n, double *mass)
{
    int64_t count = r->topk_cut ? (int64_t)((float)r->topk * (float)n) : cut_by_mass(r, p, n);
    int64_t least = r->topk_cut || !r->paper ? 1 : 0;
    count = MIN(n, MAX(count, least));
    if (mass) {
        *mass = 0;
        for (int64_t i = 0; i < count; i++)
            *mass += p[i];
    }
    return count;
}

/* Scaled product of two block means on the grid of the map. */
static double coarse_score(const struct sparge *s, int64_t i, int64_t j)
{
    int d = s->in.x.d;
    const float *a = s->qb.mean + i * d, *b = s->kb.mean + j * d;
    double dot = 0;
    for (int c = 0; c < d; c++)
        dot += (double)a[c] * b[c];
    if (s->map == DT_F32)
        return dot * s->in.x.scale;
    float x = dtype_round(s->map, (float)dot);
    return dtype_round(s->map, x * (float)s->in.x.scale);
}

/* Coarse probabilities of query block i; false when no key block is judged. */
static bool coarse_row(const struct sparge *s, struct sparge_row *w, int64_t i)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < s->nk_blocks; j++) {
        bool judged = s->kb.similar[j] && sparge_admissible(&s->rules, s->in.x.causal, i, j);
        w->score[j] = judged ? coarse_score(s, i, j) : -INFINITY;
        top = fmax(top, w->score[j]);
    }
    if (top == -INFINITY)
        return false;
    for (int64_t j = 0; j < s->nk_blocks; j++) {
        w->score[j] = exp(w->score[j] - top);
        sum += w->score[j];
    }
    for (int64_t j = 0; j < s->nk_blocks; j++)
        w->e[j] =
            (struct sparge_entry){dtype_round(s->map, (float)(w->score[j] / sum)), (int32_t)j};
    return true;
}

int64_t sparge_list(const struct sparge *s, struct sparge_row *w, int64_t i, int32_t *col,
                    double *mass)
{
    int64_t n = s->nk_blocks, count = 0;
    *mass = -1;
    if (s->rules.dense || !s->qb.similar[i]) {
        memset(w->keep, 1, (size_t)n);
    } else {
        for (int64_t j = 0; j < n; j++)
            w->keep[j] = !s->kb.similar[j];
        if (coarse_row(s, w, i)) {
            sparge_sort(w->e, n);
            for (int64_t j = 0; j < n; j++)
                w->p[j] = w->e[j].p;
            int64_t taken = sparge_cut(&s->rules, w->p, n, mass);
            for (int64_t r = 0; r < taken; r++)
                w->keep[w->e[r].j] = true;
        }
    }
    if (s->rules.sink)
        w->keep[0] = true;
    for (int64_t j = 0; j < n; j++)
        if (w->keep[j] && sparge_admissible(&s->rules, s->in.x.causal, i, j))
            col[count++] = (int32_t)j;
    return count;
}

int64_t sparge_tiles(int64_t nq_blocks, int64_t nk_blocks, const struct sparge_rules *r,
                     bool causal)
{
    if (!causal)
        return nq_blocks * nk_blocks;
    int64_t n = 0;
    for (int64_t i = 0; i < nq_blocks; i++)
        n += MIN(ceil_div((i + 1) * r->bq, r->bk), nk_blocks);
    return n;
}

int64_t sparge_native_tiles(int64_t nq_blocks, int64_t nk_blocks, bool causal)
{
    return causal ? nq_blocks * ((nk_blocks + 2) / 2) : nq_blocks * nk_blocks;
}

/* Key blocks that enter the softmax of query block i. */
static int64_t judged_keys(const struct sparge *s, int64_t i)
{
    int64_t n = 0;
    for (int64_t j = 0; s->qb.similar[i] && j < s->nk_blocks; j++)
        n += s->kb.similar[j] && sparge_admissible(&s->rules, s->in.x.causal, i, j);
    return n;
}

/* What filter 1 costs with the theta that is set: smoothing, means and similarities of all blocks,
 * and a product per pair of judged blocks. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct sparge *s = state;
    const struct attn_in *x = &s->in.x;
    double tokens = (double)(x->nq + x->nk), keys = (double)x->nk * x->d, judged = 0;
    double blocks = (double)(s->nq_blocks + s->nk_blocks);
    if (s->rules.dense)
        return true;
    for (int64_t i = 0; i < s->nq_blocks; i++)
        judged += (double)judged_keys(s, i);
    if (s->rules.smooth_k) {
        cost_sums(c, 2 * keys); /* the mean, and the difference to it */
        cost_kept(c, keys);
        cost_rows(c, &s->in, 2 * (double)x->nk, x->d);
    }
    cost_sums(c, tokens * x->d);     /* means of blocks */
    cost_products(c, tokens, x->d);  /* lengths of rows */
    cost_sums(c, 2 * tokens * x->d); /* unit rows and their sum */
    cost_products(c, blocks, x->d);  /* its length */
    cost_products(c, judged, x->d);
    cost_softmax(c, judged);
    cost_rows(c, &s->in, (double)(x->nq + (s->rules.smooth_k ? 0 : x->nk)), x->d);
    cost_kept(c, blocks * (x->d + 1) + judged);
    return true;
}

/* Filter 2 and the attention around it as a GPU does them, or false with the reason when it cannot.
 */
static bool sparge_filter(const struct sparge_rules *r, enum dtype map, struct accel_filter *f,
                          char why[160])
{
    if (r->dead_mean)
        return method_refuses(why, "no CUDA kernel for dead=mean; dead=zero has one");
    *f = (struct accel_filter){.bq = r->bq,
                               .bk = r->bk,
                               .pv = r->pv,
                               .scope = r->scope,
                               .tail = r->tail,
                               .keep_denominator = r->paper};
    if (r->arith != SPARGE_EXACT)
        own_rule(r, map, &f->quant);
    return true;
}

/* ---- theta, tau and pv of a head ------------------------------------------------------------- */

/* Search of theta, tau and pv (arXiv 2502.18137, section 3.6, in
 * the steps of the authors' tuner).
 *
 * For every captured input and theta = -1, -15/16, ..., 15/16: the smallest tau whose output stays
 * within the relative L1 bound l1 of dense attention, then the smallest pv within l2. A theta that
 * leaves less than 0.1 sparsity ends the row. Points of all inputs fall into bins of two theta
 * values; the bin with the most sparsity wins and the head takes the largest theta, tau, pv of it.
 * A head whose bin has no more than 0.1 mean sparsity is dense, for good. Not the authors': with
 * pv_min a head of which filter 2 skips too little to be worth its test goes without it.
 *
 * One evaluation costs the attention of the kept tiles; about 21 per theta and input, fewer where
 * theta does not change which blocks are similar (all theta < 0 give one and the same map). */

#define THETAS 32
#define MIN_SPARSITY 0.1
#define TAU_STEP 0.001
#define PV_STEP 0.1
#define PV_START 20.0
#define PV_WIDE 50.0

/* ---- bisection and binning ------------------------------------------------------------------ */

int sparge_bisect_tau(sparge_eval_fn *eval, void *ctx, double l1, double *tau, double *sparsity,
                      struct err *err)
{
    double lo = 0, hi = 1, t = 0.1, error;
    while (hi - lo > TAU_STEP) {
        PASS_ON(eval(ctx, t, PV_WIDE, &error, sparsity, err));
        *(error < l1 ? &hi : &lo) = t;
        t = (lo + hi) / 2;
    }
    *tau = t > 1 - TAU_STEP ? 1 : t;
    return 0;
}

int sparge_bisect_pv(sparge_eval_fn *eval, void *ctx, double l2, double tau, double *pv,
                     struct err *err)
{
    double lo = 0, hi = PV_WIDE, x = PV_START, error, sparsity;
    while (hi - lo > PV_STEP) {
        PASS_ON(eval(ctx, tau, x, &error, &sparsity, err));
        *(error < l2 ? &hi : &lo) = x;
        x = (lo + hi) / 2;
    }
    *pv = x;
    return 0;
}

/* The paper's grid search: the sparsest tau of 0.05, 0.10, ..., 1 within the bound (or 1). */
static int grid_tau(sparge_eval_fn *eval, void *ctx, double l1, double *tau, double *sparsity,
                    struct err *err)
{
    double error, s;
    *tau = 1;
    *sparsity = -1;
    for (int i = 1; i <= 20; i++) {
        PASS_ON(eval(ctx, i / 20.0, PV_WIDE, &error, &s, err));
        if ((error < l1 || i == 20) && s > *sparsity) {
            *tau = i / 20.0;
            *sparsity = s;
        }
    }
    return 0;
}

/* The smallest pv of 2.5, 5, ..., 50 within the bound (50 if none is). */
static int grid_pv(sparge_eval_fn *eval, void *ctx, double l2, double tau, double *pv,
                   struct err *err)
{
    for (int i = 1; i <= 20; i++) {
        double error, sparsity;
        PASS_ON(eval(ctx, tau, i * 2.5, &error, &sparsity, err));
        *pv = i * 2.5;
        if (error < l2)
            break;
    }
    return 0;
}

static int bin_of(double theta)
{
    return (int)floor((theta + 1) * (THETAS / 4));
}

void sparge_pick(const struct sparge_point *points, int64_t n, struct sparge_point *best)
{
    double rank = -INFINITY;
    int chosen = 0;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, count = 0;
        int bin = bin_of(points[i].theta);
        for (int64_t k = 0; k < n; k++)
            if (bin_of(points[k].theta) == bin) {
                sum += points[k].sparsity;
                count++;
            }
        if (sum > rank) {
            rank = sum;
            chosen = bin;
            *best = (struct sparge_point){-INFINITY, -INFINITY, -INFINITY, sum / count};
        }
    }
    for (int64_t i = 0; i < n; i++)
        if (bin_of(points[i].theta) == chosen) {
            best->theta = fmax(best->theta, points[i].theta);
            best->tau = fmax(best->tau, points[i].tau);
            best->pv = fmax(best->pv, points[i].pv);
        }
}

/* ---- one input ------------------------------------------------------------------------------ */

/* The calls that are judged together: the guidance branches of one step. */
struct input {
    const struct sparge_params *p;
    int n;
    struct sparge **s;       /* [n], owned */
    struct tile_work **work; /* [n], owned */
    int32_t *col;
    double *out, *lse; /* of a query block */
    double ref;        /* sum |O_ref| over all calls */
    bool judged;       /* the calls are judged by somebody else (sim/blocks/judge.h) */
    double bound;      /* of the search under way: errors beyond it are alike */
};

static void input_free(struct input *in)
{
    for (int i = 0; i < in->n; i++) {
        if (in->s)
            sparge_free(in->s[i]);
        if (in->work)
            tile_work_free(in->work[i]);
    }
    free(in->s);
    free(in->work);
    free(in->col);
    free(in->out);
    free(in->lse);
    memset(in, 0, sizeof *in);
}

/* Does somebody else judge every call, with the filter of these rules? */
static bool all_judged(const struct input *in)
{
    struct accel_filter f;
    char why[160] = "";
    for (int i = 0; i < in->n; i++) {
        const struct judge *by = judge_of(in->s[i]->in.exact);
        if (!by)
            return false;
        if (sparge_filter(&in->s[i]->rules, in->s[i]->map, &f, why) &&
            by->filters(by->self, &f, why))
            continue;
        log_warn("spargeattn: searched on the CPU: %s", why);
        return false;
    }
    return true;
}

static int input_init(struct input *in, const struct sparge_params *p,
                      const struct head_in *samples, int n, struct err *err)
{
    int rc = 0;
    const double *dense;
    struct sparge_params open = *p;
    memset(in, 0, sizeof *in);
    open.sink = false;
    open.dense = false;
    open.pv = PV_WIDE;
    in->p = p;
    in->n = n;
    TRY(mem_zalloc(&in->s, n, sizeof *in->s, "calibration input", err));
    TRY(mem_zalloc(&in->work, n, sizeof *in->work, "calibration input", err));
    int64_t blocks = 1, bq = 1, dv = 1;
    for (int i = 0; i < n; i++) {
        const struct head_in *h = &samples[i];
        TRY(sparge_new(&open, h, &in->s[i], err));
        TRY(tile_work_new(&in->s[i]->tile, &in->work[i], err));
        blocks = MAX(blocks, in->s[i]->nk_blocks);
        bq = in->s[i]->rules.bq;
        TRY(exact_out(h->exact, 0, h->x.nq, &dense, err));
        for (int64_t k = 0; k < h->x.nq * h->x.dv; k++)
            in->ref += fabs(dense[k]);
        dv = MAX(dv, h->x.dv);
    }
    in->judged = all_judged(in);
    TRY(mem_alloc(&in->col, blocks, sizeof *in->col, "block list", err));
    TRY(mem_alloc(&in->out, bq * dv, sizeof *in->out, "output tile", err));
    TRY(mem_alloc(&in->lse, bq, sizeof *in->lse, "log-sum-exp tile", err));
out:
    if (rc)
        input_free(in);
    return rc;
}

struct sums {
    double delta, kept, pv, native, tiles;
};

/* The official metric rounds to 4 digits. */
static double relative_l1(const struct input *in, double delta)
{
    double x = in->ref > 0 ? delta / in->ref : delta > 0 ? INFINITY : 0;
    return in->p->profile == SPARGE_PAPER ? x : round(x * 1e4) / 1e4;
}

/* One call. The error only grows from block to block: once it has reached the bound the setting has
 * failed, and the official sparsity needs no more than the lists of the blocks that are left. */
static int run_call(struct input *in, int c, struct sums *t, struct err *err)
{
    bool lists_suffice = in->p->profile != SPARGE_PAPER;
    struct sparge *s = in->s[c];
    const struct attn_in *x = &s->in.x;
    const double *ref;
    double mass;
    for (int64_t i = 0; i < s->nq_blocks; i++) {
        int64_t row0 = i * s->rules.bq, rows = MIN(x->nq - row0, s->rules.bq);
        int64_t n = sparge_list(s, s->row, i, in->col, &mass);
        t->kept += (double)n;
        if (lists_suffice && relative_l1(in, t->delta) >= in->bound)
            continue;
        tile_attn_block(&s->tile, in->work[c], row0, rows, in->col, n, in->out, in->lse, &t->pv);
        PASS_ON(exact_out(s->in.exact, row0, row0 + rows, &ref, err));
        for (int64_t k = 0; k < rows * x->dv; k++)
            t->delta += fabs(in->out[k] - ref[k]);
    }
    return 0;
}

static void add_tiles(const struct sparge *s, struct sums *t)
{
    bool causal = s->in.x.causal;
    t->native += (double)sparge_native_tiles(s->nq_blocks, s->nk_blocks, causal);
    t->tiles += (double)sparge_tiles(s->nq_blocks, s->nk_blocks, &s->rules, causal);
}

/* The lists of all query blocks, while threads make them. */
struct lists {
    const struct sparge *s;
    struct sparge_row **rows; /* [jobs], owned: per thread */
    int32_t *col;             /* [nq_blocks][nk_blocks], owned */
    int64_t *n;               /* [nq_blocks], owned */
    int jobs;
};

static void lists_free(struct lists *l)
{
    for (int i = 0; l->rows && i < l->jobs; i++)
        sparge_row_free(l->rows[i]);
    free(l->rows);
    free(l->col);
    free(l->n);
}

static int list_block(void *lists, int64_t i, int worker, struct err *err)
{
    struct lists *l = lists;
    double mass;
    (void)err;
    l->n[i] = sparge_list(l->s, l->rows[worker], i, l->col + i * l->s->nk_blocks, &mass);
    return 0;
}

/* The mask of the whole head. Few blocks are not worth the start of threads. */
static int make_mask(const struct sparge *s, int jobs, struct mask *m, struct err *err)
{
    enum { FEW = 1 << 15 };
    const struct attn_in *x = &s->in.x;
    OWN(lists_free) struct lists l = {.s = s, .jobs = s->nq_blocks * s->nk_blocks > FEW ? jobs : 1};
    PASS_ON(mem_zalloc(&l.rows, l.jobs, sizeof *l.rows, "block rows", err));
    for (int i = 0; i < l.jobs; i++)
        PASS_ON(sparge_row_new(s->nk_blocks, l.rows + i, err));
    PASS_ON(mem_alloc(&l.col, s->nq_blocks * s->nk_blocks, sizeof *l.col, "block lists", err));
    PASS_ON(mem_alloc(&l.n, s->nq_blocks, sizeof *l.n, "block lists", err));
    PASS_ON(pool_run(l.jobs, s->nq_blocks, list_block, &l, err));
    PASS_ON(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, s->rules.bq, s->rules.bk, err));
    for (int64_t i = 0; i < s->nq_blocks; i++)
        PASS_ON(mask_lists_add_all(m, i, l.col + i * s->nk_blocks, l.n[i], err));
    mask_lists_finish(m);
    return 0;
}

/* One call by somebody else: all blocks at once, whatever the bound. */
static int run_judged(struct input *in, int c, struct sums *t, struct err *err)
{
    const struct sparge *s = in->s[c];
    struct judging j;
    struct mask m = {0};
    struct accel_filter f;
    char why[160];
    int rc = 0;
    judge_begin(&j, s->in.exact, NULL);
    TRY(make_mask(s, judge_of(s->in.exact)->jobs, &m, err));
    t->kept += (double)m.ptr[m.ngroups];
    TRY(judge_add(&j, &m, err));
    if (!sparge_filter(&s->rules, s->map, &f, why))
        FAIL(err, ERR_RUN, "%s", why);
    TRY(judge_end(&j, &f, err));
    t->delta += j.sum.abs_delta;
    t->pv += j.sum.tiles_pv;
out:
    mask_free(&m);
    judge_free(&j);
    return rc;
}

/* All calls of the input with a setting, added to *t. */
static int run_input(struct input *in, double tau, double pv, struct sums *t, struct err *err)
{
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "calibration interrupted");
    for (int c = 0; c < in->n; c++) {
        in->s[c]->rules.tau = tau;
        in->s[c]->rules.pv = in->s[c]->tile.pv = pv;
        PASS_ON((in->judged ? run_judged : run_call)(in, c, t, err));
        add_tiles(in->s[c], t);
    }
    return 0;
}

/* L1 over all calls of the input (at least the bound where it is not below it), sparsity. */
static int evaluate(void *ctx, double tau, double pv, double *l1, double *sparsity, struct err *err)
{
    struct input *in = ctx;
    struct sums t = {0};
    PASS_ON(run_input(in, tau, pv, &t, err));
    *l1 = relative_l1(in, t.delta);
    *sparsity = in->p->profile == SPARGE_PAPER ? 1 - (t.kept + t.pv) / (2 * t.tiles)
                                               : 1 - t.kept / t.native;
    return 0;
}

static int search_theta(struct input *in, struct sparge_point *point, struct err *err)
{
    const struct sparge_params *p = in->p;
    bool grid = p->search == SPARGE_GRID;
    in->bound = p->l1;
    if (grid)
        PASS_ON(grid_tau(evaluate, in, p->l1, &point->tau, &point->sparsity, err));
    else
        PASS_ON(sparge_bisect_tau(evaluate, in, p->l1, &point->tau, &point->sparsity, err));
    point->pv = PV_START;
    in->bound = p->l2;
    if (p->tune_pv && grid)
        return grid_pv(evaluate, in, p->l2, point->tau, &point->pv, err);
    else if (p->tune_pv)
        return sparge_bisect_pv(evaluate, in, p->l2, point->tau, &point->pv, err);
    return 0;
}

/* Points of one input in ascending theta; *n of them. */
static int search_input(struct input *in, struct sparge_point points[THETAS], int64_t *n,
                        struct err *err)
{
    for (int i = 0; i < THETAS; i++) {
        double theta = -1 + i * (2.0 / THETAS);
        bool changed = i == 0;
        for (int c = 0; c < in->n; c++)
            changed = sparge_set_theta(in->s[c], theta) || changed;
        if (changed)
            PASS_ON(search_theta(in, &points[i], err));
        else
            points[i] = points[i - 1];
        points[i].theta = theta;
        *n = i + 1;
        if (points[i].sparsity < MIN_SPARSITY)
            break;
    }
    return 0;
}

/* ---- a head --------------------------------------------------------------------------------- */

int sparge_input_size(const struct head_in *samples, int n, int first)
{
    int k = first + 1;
    for (; k < n && samples[k].step == samples[first].step; k++)
        for (int e = first; e < k; e++)
            if (!strcmp(samples[e].branch, samples[k].branch))
                return k - first;
    return k - first;
}

/* All inputs in order; *head gets the final parameters. */
static int search_head(const struct sparge_params *p, const struct head_in *samples, int n,
                       struct sparge_point *head, bool *sparse, struct err *err)
{
    struct sparge_point *all = NULL, fresh[THETAS] = {0};
    int64_t n_all = 0, n_fresh = 0;
    struct input in = {0};
    int rc = 0;
    *sparse = true;
    TRY(mem_alloc(&all, (int64_t)n * THETAS, sizeof *all, "calibration points", err));
    for (int first = 0, size; first < n && *sparse; first += size) {
        size = sparge_input_size(samples, n, first);
        TRY(input_init(&in, p, samples + first, size, err));
        TRY(search_input(&in, fresh, &n_fresh, err));
        input_free(&in);
        /* New points come before earlier ones: the order decides ties between bins. */
        memmove(all + n_fresh, all, (size_t)n_all * sizeof *all);
        memcpy(all, fresh, (size_t)n_fresh * sizeof *all);
        n_all += n_fresh;
        sparge_pick(all, n_all, head);
        *sparse = head->sparsity > MIN_SPARSITY;
    }
out:
    input_free(&in);
    free(all);
    return rc;
}

/* Does filter 2 skip P V of pv_min of the tiles that the head keeps in a replay of all inputs? */
static int filter_pays(const struct sparge_params *p, const struct head_in *samples, int n,
                       const struct sparge_point *head, bool *pays, struct err *err)
{
    struct sums t = {0};
    *pays = true;
    for (int first = 0, size; first < n && p->pv_min > 0; first += size) {
        OWN(input_free) struct input in = {0};
        size = sparge_input_size(samples, n, first);
        PASS_ON(input_init(&in, p, samples + first, size, err));
        in.bound = INFINITY;
        for (int c = 0; c < in.n; c++) {
            sparge_set_theta(in.s[c], head->theta);
            in.s[c]->rules.sink = p->profile == SPARGE_OFFICIAL;
        }
        PASS_ON(run_input(&in, head->tau, head->pv, &t, err));
    }
    *pays = t.kept - t.pv >= p->pv_min * t.kept;
    return 0;
}

static int check_shape(struct method_ctx *ctx, const struct sparge_params *p,
                       const struct attn_in *x)
{
    struct sparge_rules r;
    sparge_resolve(p, x->d, &r);
    if (x->causal && x->nq != x->nk)
        return method_skip(ctx, "causal needs nq == nk");
    if (x->d > BLOCKPOOL_MAX_D)
        return method_skip(ctx, "head dimension %d is above %d", x->d, BLOCKPOOL_MAX_D);
    if (r.arith != SPARGE_EXACT && x->d > TILE_MAX_D)
        return method_skip(ctx, "head dimension %d is above %d, where integer products are exact",
                           x->d, TILE_MAX_D);
    return 0;
}

int sparge_calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct sparge_params *p = params;
    struct sparge_point head = {0};
    bool sparse, pays = true;
    if (p->select == SPARGE_TOPK)
        return err_set(err, ERR_USAGE, "calibrate searches tau: it needs select=cdf");
    if (!p->judge)
        return err_set(err, ERR_USAGE, "calibrate searches theta: it needs judge=1");
    for (int i = 0; i < n; i++)
        PASS_ON(check_shape(ctx, p, &samples[i].x));
    PASS_ON(search_head(p, samples, n, &head, &sparse, err));
    if (sparse)
        PASS_ON(filter_pays(p, samples, n, &head, &pays, err));
    jw_knum(w, "theta", sparse ? head.theta : 1);
    jw_knum(w, "tau", sparse ? head.tau : 1);
    if (pays)
        jw_knum(w, "pv", head.pv);
    else
        jw_kstr(w, "pv", "off");
    jw_kbool(w, "dense", !sparse);
    /* The official module tunes without the sink block and runs with it. */
    if (p->profile == SPARGE_OFFICIAL)
        jw_kbool(w, "sink", true);
    return 0;
}

static const char *const orders[] = {"none", "random", "row", "column", "time", "hilbert", NULL};

/* Bounds that the paper prints per model (arXiv 2502.18137, section 4.1). */
static const char *const bounds_of[] = {"none",           "llama3.1", "cogvideox", "mochi",
                                        "open-sora-plan", "flux",     "sd3.5",     NULL};
static const double bounds_values[][2] = {{0, 0},        {0.08, 0.09}, {0.05, 0.06}, {0.05, 0.06},
                                          {0.03, 0.035}, {0.07, 0.08}, {0.07, 0.08}};

static const struct opt options[] = {
    OPT_ENUM(struct sparge_params, profile, "official", TEXTS("official", "paper"),
             "Rule set: the authors' code or the paper's formulas."),
    OPT_ENUM(struct sparge_params, arch, "sm80", TEXTS("sm80", "sm89", "sm90"),
             "Official preset: tile, filter scope, exempt tail, P.V type."),
    OPT_ENUM(struct sparge_params, tile, NULL, TEXTS("128x64", "64x128"),
             "Query x key tile; unset = from arch."),
    OPT_ENUM(struct sparge_params, select, "cdf", TEXTS("cdf", "topk"),
             "Cut of filter 1: by coarse mass or by number of blocks."),
    OPT_NUM(struct sparge_params, theta, NULL, -1, 1, "cosine",
            "A block is self-similar above it, below 0 all are; unset = 0.6 (cdf), -0.1 (topk)."),
    OPT_BOOL(struct sparge_params, judge, "1",
             "Judge self-similarity; 0 = theta is -1, that of a calibration file too."),
    OPT_NUM(struct sparge_params, tau, "0.98", 0, 1, "probability",
            "Coarse mass that filter 1 keeps at most."),
    OPT_NUM(struct sparge_params, topk, "0.5", 0, 1, "share of key blocks",
            "Blocks kept per row with select=topk.", .flags = OPT_MIN_OPEN),
    OPT_NUM(
        struct sparge_params, pv, "50", 0, INFINITY, "log2",
        "Filter 2 skips P.V of tiles that stay this far below the running maximum; off = never.",
        .flags = OPT_OFF),
    OPT_NUM(struct sparge_params, lambda, NULL, -INFINITY, 0, "nat",
            "The paper's form of pv: pv = -lambda log2(e).", .flags = OPT_MAX_OPEN | OPT_MIN_OPEN),
    OPT_ENUM(struct sparge_params, pv_scope, NULL, TEXTS("cta", "warp"),
             "Rows that agree before P.V is skipped; unset = cta (official), warp (paper)."),
    OPT_INT(struct sparge_params, pv_tail, NULL, 0, 2, "tiles",
            "Last kept tiles that filter 2 never skips; unset = from arch (official), 0 (paper)."),
    OPT_BOOL(struct sparge_params, sink, "0", "Always keep key block 0."),
    OPT_BOOL(struct sparge_params, smooth_k, "1",
             "Subtract the token mean of K before pooling, similarity and quantisation."),
    OPT_ENUM(struct sparge_params, map_dtype, "f32", TEXTS("f32", "input"),
             "Grid of pooled vectors, scores and probabilities."),
    OPT_ENUM(struct sparge_params, cdf_dtype, "f32", TEXTS("f32", "f16", "bf16"),
             "Type of the running sum that tau cuts."),
    OPT_ENUM(struct sparge_params, arith, "exact", ariths,
             "Arithmetic on kept tiles: exact, INT8 + fp16 (sage1), INT8 + e4m3 (sage2); auto = "
             "sage2 with tiles of 64x128 and a head dimension of 128, else exact."),
    OPT_ENUM(struct sparge_params, v_max, "448", TEXTS("448", "2.25"),
             "Largest quantised |V| with arith=sage2."),
    OPT_ENUM(struct sparge_params, dead, "zero", TEXTS("zero", "mean"),
             "Output of a row that sees no key of its kept tiles."),
    OPT_ENUM(struct sparge_params, permute, "none", orders, "Token order of a video trace."),
    OPT_BOOL(struct sparge_params, dense, "0",
             "Keep every block and skip nothing: set per head by calibration."),
    OPT_ENUM(struct sparge_params, search, "bisect", TEXTS("bisect", "grid"),
             "calibrate: how tau and pv are searched.", .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct sparge_params, l1, "0.07", 0, 1, "relative L1",
            "calibrate: error bound while theta and tau are searched.",
            .flags = OPT_IDENTITY_NOT | OPT_MIN_OPEN),
    OPT_NUM(struct sparge_params, l2, "0.08", 0, 1, "relative L1",
            "calibrate: error bound while pv is searched; above l1.",
            .flags = OPT_IDENTITY_NOT | OPT_MIN_OPEN),
    OPT_ENUM(struct sparge_params, bounds, "none", bounds_of,
             "calibrate: l1 and l2 that the paper used for this model.",
             .flags = OPT_IDENTITY_NOT | OPT_CALIB_FIXED),
    OPT_BOOL(struct sparge_params, tune_pv, "1", "calibrate: search pv; otherwise 20.",
             .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct sparge_params, pv_min, "0", 0, 1, "share of kept tiles",
            "calibrate: pv=off for heads in which filter 2 skips P.V of fewer tiles.",
            .flags = OPT_IDENTITY_NOT),
    {0},
};

static int validate(void *params, struct err *err)
{
    struct sparge_params *p = params;
    if (!isnan(p->lambda)) {
        if (p->pv != 50)
            return err_set(err, ERR_USAGE,
                           "pv and lambda are two ways to give one number; leave one out");
        p->pv = -p->lambda * M_LOG2E;
        p->lambda = NAN;
    }
    if (p->bounds) {
        if (p->l1 != 0.07 || p->l2 != 0.08)
            return err_set(err, ERR_USAGE, "bounds=%s sets l1 and l2; leave these out",
                           bounds_of[p->bounds]);
        p->l1 = bounds_values[p->bounds][0];
        p->l2 = bounds_values[p->bounds][1];
        p->bounds = 0;
    }
    if (p->l2 <= p->l1)
        return err_set(err, ERR_USAGE, "l2 (%g) must be larger than l1 (%g)", p->l2, p->l1);
    return 0;
}

static const char *token_order(const void *params)
{
    return orders[((const struct sparge_params *)params)->permute];
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct sparge *s = state;
    PASS_ON(check_shape(ctx, params, &in->x));
    sparge_begin(params, in, s);
    ctx->unit_rows = s->rules.bq;
    return 0;
}

/* Rows of query block i that see no key of the first kept tile (so of none). */
static int64_t dead_rows(const struct sparge *s, int64_t i, const int32_t *col, int64_t n)
{
    int64_t row0 = i * s->rules.bq, rows = MIN(s->in.x.nq - row0, s->rules.bq);
    if (n == 0)
        return rows;
    int64_t first = s->in.x.causal ? col[0] * s->rules.bk - row0 : 0;
    return first < 0 ? 0 : first < rows ? first : rows;
}

/* The list of query block i. */
static void count_list(struct sparge *s, int64_t i, const int32_t *col, int64_t n)
{
    s->kept += n;
    s->dead_rows += dead_rows(s, i, col, n);
}

static int choose_rows(struct sparge *s, struct mask *out, struct err *err)
{
    OWN(free_at) int32_t *col = NULL;
    PASS_ON(mem_alloc(&col, s->nk_blocks, sizeof *col, "block list", err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        double mass;
        int64_t i = out->row0 / s->rules.bq + g, n = sparge_list(s, s->row, i, col, &mass);
        PASS_ON(mask_lists_add_all(out, g, col, n, err));
        count_list(s, i, col, n);
        if (mass >= 0) {
            s->cut_mass += mass;
            s->cut_rows++;
        }
    }
    mask_lists_finish(out);
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct sparge *s = state;
    if (!s->ready)
        PASS_ON(sparge_make(s, err));
    if (s->given.ptr) {
        PASS_ON(mask_lists_rows(&s->given, row0, row1, out, err));
        for (int64_t g = 0; g < out->ngroups; g++)
            count_list(s, row0 / s->rules.bq + g, out->col + out->ptr[g],
                       out->ptr[g + 1] - out->ptr[g]);
        return 0;
    }
    PASS_ON(mask_lists_init(out, s->in.x.nq, s->in.x.nk, row0, row1, s->in.x.causal, s->rules.bq,
                            s->rules.bk, err));
    return choose_rows(s, out, err);
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct sparge *s = state;
    const struct sparge_rules *r = &s->rules;
    int64_t top = (int64_t)((float)r->topk * (float)s->nk_blocks);
    if (r->map_input || r->cdf != DT_F32)
        return method_refuses(why, "the GPU side has map_dtype=f32 and cdf_dtype=f32");
    rule->of.sparge = (struct sparge_rule){.bq = r->bq,
                                           .bk = r->bk,
                                           .paper = r->paper,
                                           .by_count = r->topk_cut,
                                           .sink = r->sink,
                                           .smooth_k = r->smooth_k,
                                           .dense = r->dense,
                                           .theta = r->theta,
                                           .tau = r->tau,
                                           .top = MAX(1, MIN(top, s->nk_blocks))};
    return true;
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct sparge *s = state;
    *tiles_pv = 0;
    int rc = tile_attn_rows(&s->tile, m, out, lse, tiles_pv, err);
    s->tiles_pv += *tiles_pv;
    return rc;
}

static bool is_softmax(const struct sparge_rules *r)
{
    return r->arith == SPARGE_EXACT && r->pv == INFINITY && !r->dead_mean;
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct sparge *s = state;
    const struct sparge_rules *r = &s->rules;
    bool filter = sparge_filter(r, s->map, &a->filter, why);
    a->kind = is_softmax(r) ? ARITH_SOFTMAX : filter ? ARITH_FILTER : ARITH_CPU;
    a->whole = r->dense;
}

static bool judges(const void *params, char why[160])
{
    struct sparge_rules r;
    struct accel_filter f;
    sparge_resolve(params, 64, &r); /* the filter's kernel is looked for with the real one */
    return sparge_filter(&r, DT_F32, &f, why);
}

static int done(void *state, double tiles_pv, const double *lse, struct err *err)
{
    ((struct sparge *)state)->tiles_pv += tiles_pv;
    return 0;
}

static double share_similar(const struct sparge_blocks *b)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++)
        n += b->similar[i];
    return (double)n / (double)b->n;
}

static bool why_full(const void *state, char why[160])
{
    const struct sparge *s = state;
    if (s->rules.dense)
        snprintf(why, 160, "dense=1");
    else if (share_similar(&s->qb) == 0)
        snprintf(why, 160,
                 "no block of queries is self-similar enough to be judged by its mean, theta %g - "
                 "theta=-1 judges all",
                 s->rules.theta);
    else if (share_similar(&s->kb) == 0)
        snprintf(why, 160,
                 "no block of keys is self-similar enough to be left out, theta %g - theta=-1 "
                 "judges all",
                 s->rules.theta);
    else
        return false;
    return true;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct sparge *s = state;
    bool causal = s->in.x.causal;
    double kept = (double)s->kept, pv = is_softmax(&s->rules) ? kept : s->tiles_pv;
    double tiles_all = (double)sparge_tiles(s->nq_blocks, s->nk_blocks, &s->rules, causal);
    double native = s->rules.paper
                        ? (kept + pv) / (2 * tiles_all)
                        : kept / (double)sparge_native_tiles(s->nq_blocks, s->nk_blocks, causal);
    PASS_ON(RECORD_ALL(r, err, {"density_native", native}, {"dead_rows", s->dead_rows},
                       {"judged_q", share_similar(&s->qb)}, {"judged_k", share_similar(&s->kb)}));
    if (s->cut_rows)
        PASS_ON(record_metric(r, "coarse_mass", s->cut_mass / (double)s->cut_rows, err));
    record_note(r, "tile=%lldx%lld", (long long)s->rules.bq, (long long)s->rules.bk);
    record_note(r, "cdf_dtype=%s", dtype_name(s->rules.cdf));
    record_note(r, "tile_arith=%s", ariths[s->rules.arith]);
    if (s->tile.out_dtype != DT_NONE)
        record_note(r, "out_dtype=%s", dtype_name(s->tile.out_dtype));
    return 0;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("dead_rows", "rows that see no key of their kept tiles", .better = BETTER_LOWER),
    OWN_METRIC("judged_q", "query blocks similar enough to be judged by their mean / blocks",
               .axis = AXIS_SHARE),
    OWN_METRIC("judged_k", "key blocks similar enough to be judged by their mean / blocks",
               .axis = AXIS_SHARE),
    OWN_METRIC("coarse_mass",
               "coarse probability of the kept blocks, mean over judged query blocks",
               .axis = AXIS_SHARE, .noise = NOISE_ROUNDING),
    {0},
};

/* The printed rule keeps blocks while their sum stays below a bound: a first block above it leaves
 * none. */
static bool may_be_empty(const void *params)
{
    const struct sparge_params *p = params;
    return p->profile == SPARGE_PAPER;
}

const struct method method_spargeattn = {
    .name = "spargeattn",
    .alias = "sparge",
    .summary = "block means choose key blocks, an online filter skips P.V products",
    .paper = "Zhang et al., SpargeAttention, arXiv 2502.18137",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_RANDOM | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct sparge_params),
               .scopes = PARAM_SCOPES({"tau", "select=cdf"}, {"topk", "select=topk"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COMPLEMENT, "tau", .only = "select=cdf"),
                                       BUDGET_BY(BUDGET_LIN, "topk", .only = "select=topk")),
               .validate = validate,
               .order = token_order,
               .may_be_empty = may_be_empty},
    .state_size = sizeof(struct sparge),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .arith = {.kind = ARITH_FILTER, .how = how, .attend = attend, .done = done},
    .search = {.calibrate = sparge_calibrate, .passes = 8, .on_device = judges},
    .tests = {.full = "theta=1:pv=off",
              .variants =
                  TEXTS("tau=0.6", "profile=paper:tau=0.7:lambda=-4", "select=topk:topk=0.3:sink=1",
                        "arch=sm90:tau=0.8:pv=10:arith=sage2", "tau=0.5:permute=time"),
              .budgets = METHOD_BUDGETS({"pv=off:tau=%s", {"0.3", "0.6", "0.9", "1"}},
                                        {"pv=off:select=topk:topk=%s", {"0.2", "0.5", "1"}})},
};
