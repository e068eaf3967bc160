/*
 * spargeattn_head.c - one head prepared for SpargeAttn: smoothed keys, block statistics, quantised
 * operands, and the counts that a run accumulates. O(N d).
 */
#include "core/accel.h"
#include "core/mem.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/gpusum.h"
#include "sim/blocks/selectcost.h"
#include "sim/methods/spargeattn/spargeattn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOG2E 1.4426950408889634074
#define E4M3_OFFSET 8.807f /* 2^8.807 = 447.89 is the largest P */

/* Tile, warps and exempt tail of the official kernels. */
static const struct {
    int64_t bq, bk;
    int tail;
} presets[] = {
    [SPARGE_SM80] = {128, 64, 2},
    [SPARGE_SM89] = {128, 64, 2},
    [SPARGE_SM90] = {64, 128, 1},
};

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
    r->tail = p->pv_tail != INT64_MIN ? (int)p->pv_tail : r->paper ? 0 : presets[p->arch].tail;
    bool warp = p->pv_scope >= 0 ? p->pv_scope == 1 : r->paper;
    int64_t warps = p->arch == SPARGE_SM80 && d > 64 ? 8 : 4;
    r->scope = warp ? r->bq / warps : r->bq;
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
    int rc = 0;
    b->n = (n + size - 1) / size;
    TRY(mem_alloc(&b->mean, b->n * d, sizeof *b->mean, "block means", err));
    TRY(mem_alloc(&b->s, b->n, sizeof *b->s, "block similarities", err));
    TRY(mem_alloc(&b->whole, b->n, sizeof *b->whole, "block flags", err));
    TRY(mem_zalloc(&b->similar, b->n, sizeof *b->similar, "block flags", err));
    for (int64_t i = 0; i < b->n; i++) {
        const float *rows = x + i * size * d;
        int64_t count = n - i * size < size ? n - i * size : size;
        bool zero;
        block_mean(rows, count, d, map, b->mean + i * d);
        b->s[i] = block_cosine(rows, count, d, &zero);
        b->whole[i] = count == size && !zero;
        if (r->paper)
            b->s[i] = block_mean_share(rows, count, d);
    }
out:
    return rc;
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

bool sparge_set_theta(struct sparge *s, double theta)
{
    s->rules.theta = theta;
    bool q = judge(&s->qb, &s->rules), k = judge(&s->kb, &s->rules);
    return q || k;
}

void sparge_set_tau(struct sparge *s, double tau)
{
    s->rules.tau = tau;
}

void sparge_set_pv(struct sparge *s, double pv)
{
    s->rules.pv = s->tile.pv = pv;
}

/* ---- operands ------------------------------------------------------------------------------- */

/* Q on the grid of the map (the official code turns float inputs into fp16), K without its mean. */
static int smooth(struct sparge *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    int rc = 0;

    s->q = x->q;
    TRY(mem_alloc(&s->k, x->nk * x->d, sizeof *s->k, "smoothed keys", err));
    TRY(mem_zalloc(&s->kbar, x->d, sizeof *s->kbar, "key mean", err));
    memcpy(s->k, x->k, (size_t)(x->nk * x->d) * sizeof *s->k);
    if (s->map != DT_F32 && s->in.src_dtype != s->map) {
        TRY(mem_alloc(&s->q_owned, x->nq * x->d, sizeof *s->q_owned, "queries", err));
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
out:
    return rc;
}

static int quantise(struct sparge *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    struct tile_attn *t = &s->tile;
    struct quant_groups gq = {QUANT_BLOCK, false, s->rules.bq, 0};
    struct quant_groups gk = {QUANT_BLOCK, true, s->rules.bk, 0};
    int rc = 0;

    TRY(quant_int(&s->qi, s->q, x->nq, x->d, &gq, 127, QUANT_RHA_EPS, err));
    TRY(quant_int(&s->ki, s->k, x->nk, x->d, &gk, 127, QUANT_RHA_EPS, err));
    TRY(mem_alloc(&s->v, x->nk * x->dv, sizeof *s->v, "quantised values", err));
    TRY(mem_alloc(&s->v_scale, x->dv, sizeof *s->v_scale, "value scales", err));
    for (int64_t i = 0; i < x->nk * x->dv; i++)
        s->v[i] = f16_round(x->v[i]);
    t->q = &s->qi;
    t->k = &s->ki;
    t->v = s->v;
    t->score_scale = (float)(x->scale * LOG2E);
    t->kbar = s->rules.smooth_k ? s->kbar : NULL;
    t->p_factor = 1;
    t->p_type = TILE_P_F16;
    t->l_rounded = true;
    t->acc = TILE_ACC_F16;
    t->mma_keys = 16;
    if (s->rules.arith == SPARGE_SAGE2) {
        quant_channels_e4m3(s->v, x->nk, x->dv, s->rules.v_max, s->v, s->v_scale);
        t->v_scale = s->v_scale;
        t->p_type = TILE_P_E4M3;
        t->p_offset = E4M3_OFFSET;
        t->l_rounded = false;
        /* The narrow range of V exists for the fp16 accumulator of the sm89 kernel. */
        bool f16 = s->rules.arch == SPARGE_SM89 && s->rules.v_max < 448;
        t->acc = f16 ? TILE_ACC_F16 : TILE_ACC_F32;
        t->mma_keys = 32;
    }
    /* The output has the dtype of q; float stays float unless the map is in the input dtype. */
    t->out_dtype = s->in.src_dtype != DT_F32 ? s->in.src_dtype
                   : s->map != DT_F32        ? DT_F16
                                             : DT_NONE;
out:
    return rc;
}

/* What follows from parameters and sizes. */
static void size_head(struct sparge *s)
{
    const struct attn_in *x = &s->in.x;
    const struct sparge_rules *r = &s->rules;

    s->map = !r->map_input ? DT_F32 : s->in.src_dtype == DT_BF16 ? DT_BF16 : DT_F16;
    s->nq_blocks = (x->nq + r->bq - 1) / r->bq;
    s->nk_blocks = (x->nk + r->bk - 1) / r->bk;
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

int sparge_make(struct sparge *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    const struct sparge_rules *r = &s->rules;
    int rc = 0;

    s->ready = true;
    TRY(smooth(s, err));
    TRY(blocks_make(&s->qb, r, s->q, x->nq, x->d, r->bq, s->map, err));
    TRY(blocks_make(&s->kb, r, s->k, x->nk, x->d, r->bk, s->map, err));
    judge(&s->qb, r);
    judge(&s->kb, r);
    if (r->arith != SPARGE_EXACT)
        TRY(quantise(s, err));
    TRY(sparge_row_new(s->nk_blocks, &s->row, err));
out:
    return rc;
}

void sparge_begin(const struct sparge_params *p, const struct head_in *in, struct sparge *s)
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
    int rc = 0;
    b->n = n;
    TRY(mem_zalloc(&b->similar, n, sizeof *b->similar, "block flags", err));
    for (int64_t i = 0; i < n; i++)
        b->similar[i] = similar[i] != 0;
out:
    return rc;
}

static int take_numbers(struct sparge *s, int64_t bq, int64_t bk, const struct accel_own *own,
                        struct err *err)
{
    int64_t used = (int64_t)sizeof(struct sparge_own) + s->nq_blocks + s->nk_blocks;
    const uint8_t *flags = (const uint8_t *)own->data + sizeof(struct sparge_own);
    struct sparge_own numbers;
    int rc = 0;
    if (own->bytes != (used + 7) / 8 * 8 || bq != s->rules.bq || bk != s->rules.bk)
        FAIL(err, ERR_RUN, "a choice of units of %lld x %lld with %lld bytes of numbers",
             (long long)bq, (long long)bk, (long long)own->bytes);
    memcpy(&numbers, own->data, sizeof numbers);
    s->cut_mass = numbers.mass;
    s->cut_rows = numbers.rows;
    TRY(take_flags(&s->qb, flags, s->nq_blocks, err));
    TRY(take_flags(&s->kb, flags + s->nq_blocks, s->nk_blocks, err));
    s->ready = true;
out:
    return rc;
}

int sparge_take(struct sparge *s, const struct device_choice *c, struct err *err)
{
    const struct mask *m = c->lists;
    int rc = 0;
    if (!m) {
        s->kept = c->counts->units;
        s->dead_rows = c->counts->empty;
        return take_numbers(s, c->counts->bq, c->counts->bk, c->own, err);
    }
    if (m->form != MASK_LISTS)
        FAIL(err, ERR_RUN, "a choice that is no list of tiles");
    TRY(take_numbers(s, m->bq, m->bk, c->own, err));
    TRY(mask_lists_rows(m, m->row0, m->row1, &s->given, err));
out:
    return rc;
}

void sparge_clear(struct sparge *s)
{
    free(s->q_owned);
    free(s->k);
    free(s->kbar);
    blocks_free(&s->qb);
    blocks_free(&s->kb);
    quant_free(&s->qi);
    quant_free(&s->ki);
    free(s->v);
    free(s->v_scale);
    sparge_row_free(s->row);
    mask_free(&s->given);
}

void sparge_free(struct sparge *s)
{
    if (s)
        sparge_clear(s);
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

struct sparge_row {
    double *score;          /* [n] */
    struct sparge_entry *e; /* [n] */
    float *p;               /* [n] sorted */
    bool *keep;             /* [n] */
};

int sparge_row_new(int64_t n, struct sparge_row **out, struct err *err)
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

void sparge_row_free(struct sparge_row *w)
{
    if (!w)
        return;
    free(w->score);
    free(w->e);
    free(w->p);
    free(w->keep);
    free(w);
}

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
    int64_t count;
    if (r->topk_cut)
        count = (int64_t)((float)r->topk * (float)n);
    else
        count = cut_by_mass(r, p, n);
    if (count < 1 && (r->topk_cut || !r->paper))
        count = 1;
    count = count > n ? n : count;
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
    for (int64_t i = 0; i < nq_blocks; i++) {
        int64_t row = ((i + 1) * r->bq + r->bk - 1) / r->bk;
        n += row < nk_blocks ? row : nk_blocks;
    }
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

void sparge_cost(const struct sparge *s, struct select_cost *c)
{
    const struct attn_in *x = &s->in.x;
    double tokens = (double)(x->nq + x->nk), keys = (double)x->nk * x->d, judged = 0;
    double blocks = (double)(s->nq_blocks + s->nk_blocks);
    if (s->rules.dense)
        return;
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
}
