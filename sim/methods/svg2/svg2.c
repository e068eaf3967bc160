/*
 * svg2.c - Sparse VideoGen2: queries and keys are clustered, and attention between the centroids
 * decides which key clusters a query cluster keeps.
 *
 * Sparse VideoGen2, arXiv 2505.18875 (semantic-aware permutation). Per head:
 *
 *   k-means of the queries into QC and of the keys into KC clusters, started from random tokens at
 *   first and from the last call's centroids later
 *   P_ab = n_b e^(S_ab) / sum, S_ab = scale cq_a . ck_b; per row the largest P until their sum
 *   exceeds p, and at least min_kc KC clusters
 *   exact attention of the tokens of a over the tokens of the kept b
 *
 * Text behind the video is a cluster of its own that sees and is seen by everything. Clustering
 * 2 (QC + KC) N d per iteration, map QC KC d, attention density N^2.
 *
 * The code permutes tokens so that clusters are contiguous; a mask does not need that and stays in
 * the order of the trace. Deviations: the convergence test looks at one head (the code at all heads
 * of a call together), sums of tokens are rounded once, with grouped-query attention keys are
 * clustered once per key head, padding text tokens are left out, top_p=1 keeps everything whatever
 * rounding does.
 */
#include "core/accel.h"
#include "core/gemm.h"
#include "core/mem.h"
#include "core/simd.h"
#include "core/sort.h"
#include "sim/blocks/callrng.h"
#include "sim/blocks/gpusum.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/svgcommon.h"
#include "sim/methods/svg2/svg2.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- k-means --------------------------------------------------------------------------------- */

/* Tokens whose products with all centroids exist at a time. */
#define TILE 256

int kmeans_init(struct kmeans *m, int64_t n, int64_t k, int d, enum dtype dtype, struct err *err)
{
    *m = (struct kmeans){.n = n, .k = k, .d = d, .dtype = dtype};
    PASS_ON(mem_zalloc(&m->centroids, k * d, sizeof *m->centroids, "centroids", err));
    PASS_ON(mem_zalloc(&m->labels, n, sizeof *m->labels, "cluster labels", err));
    return mem_zalloc(&m->sizes, k, sizeof *m->sizes, "cluster sizes", err);
}

void kmeans_free(struct kmeans *m)
{
    free(m->centroids);
    free(m->labels);
    free(m->sizes);
    memset(m, 0, sizeof *m);
}

struct scratch {
    float *dots;        /* [TILE][k] */
    float *token_sq;    /* [n] */
    float *centroid_sq; /* [k] */
    double *sums;       /* [k][d] */
    float *next;        /* [k][d] */
};

static void scratch_free(struct scratch *w)
{
    free(w->dots);
    free(w->token_sq);
    free(w->centroid_sq);
    free(w->sums);
    free(w->next);
}

static int scratch_init(struct scratch *w, const struct kmeans *m, struct err *err)
{
    PASS_ON(mem_alloc(&w->dots, TILE * m->k, sizeof *w->dots, "products with centroids", err));
    PASS_ON(mem_alloc(&w->token_sq, m->n, sizeof *w->token_sq, "squared tokens", err));
    PASS_ON(mem_alloc(&w->centroid_sq, m->k, sizeof *w->centroid_sq, "squared centroids", err));
    PASS_ON(mem_alloc(&w->sums, m->k * m->d, sizeof *w->sums, "sums of clusters", err));
    return mem_alloc(&w->next, m->k * m->d, sizeof *w->next, "next centroids", err);
}

/* The published code squares tokens in their own type and rounds their sum to it. */
static float token_square(const float *x, int d, bool bf16)
{
    float sum = 0;
    for (int c = 0; c < d; c++)
        sum += bf16 ? dtype_round(DT_BF16, x[c] * x[c]) : x[c] * x[c];
    return bf16 ? dtype_round(DT_BF16, sum) : sum;
}

/* c^2 + sum, rounded once. */
static float fma_bf16(float c, float sum)
{
    return dtype_round(DT_BF16, (float)((double)c * c + sum));
}

/* |c|^2 of the published kernel, whose accumulators hold the centroids: thread g of warp w has the
 * channels 16w + g and 16w + g + 8 of every 64. (Triton 3.6 on Hopper; most of the tile sizes that
 * the kernel tries have these four warps.) */
static float bf16_centroid_square(const float *c, int d)
{
    enum { WARPS = 4, LANES = 8, STEP = 16 * WARPS };
    float s[WARPS * LANES];
    for (int i = 0; i < WARPS * LANES; i++) {
        int e = i / LANES * 16 + i % LANES;
        float sum = e + 8 < d ? fma_bf16(c[e + 8], 0) : 0;
        sum = e < d ? fma_bf16(c[e], sum) : sum;
        for (e += STEP; e < d; e += STEP) {
            sum = fma_bf16(c[e], sum);
            sum = e + 8 < d ? fma_bf16(c[e + 8], sum) : sum;
        }
        s[i] = sum;
    }
    return gpusum_fold(s, WARPS, LANES);
}

static void centroid_squares(const struct kmeans *m, float *out)
{
    for (int64_t j = 0; j < m->k; j++) {
        const float *c = m->centroids + j * m->d;
        out[j] = m->bf16_norms ? bf16_centroid_square(c, m->d) : token_square(c, m->d, false);
    }
}

/* Lower bounds of the distances replace the products; returns the least upper bound. `slack` times
 * |x|^2 + |c|^2 covers what the order of additions inside BLAS can do to a distance. */
SIMD_CLONES
static float bound(float *dots, const float *centroid_sq, float token_sq, int64_t k, float slack)
{
    float least = INFINITY;
    for (int64_t j = 0; j < k; j++) {
        float sq = token_sq + centroid_sq[j], off = slack * sq;
        float dist = sq - 2 * dots[j];
        dist = dist > 0 ? dist : 0;
        dots[j] = dist - off;
        least = dist + off < least ? dist + off : least;
    }
    return least;
}

/* The distance that decides: additions in one order, so that it is the same on every processor. */
static float distance(const float *x, const float *c, int d, float token_sq, float centroid_sq)
{
    double dot = 0;
    for (int e = 0; e < d; e++)
        dot += (double)x[e] * c[e];
    float dist = token_sq + centroid_sq - 2 * (float)dot;
    return dist > 0 ? dist : 0;
}

/* Nearest centroid of token x, the lower of equals. BLAS only says which ones come into question:
 * the bound of a sum of d products in any order is d 2^-24 |x| |c|; the few other roundings and the
 * rounding of the squares are in the constants. */
static int32_t nearest(const struct kmeans *m, const float *x, float *dots, float token_sq,
                       const float *centroid_sq)
{
    float slack = (float)(m->d + 8) * 0x1p-23f, best = INFINITY;
    float least = bound(dots, centroid_sq, token_sq, m->k, slack);
    int32_t label = 0;
    for (int64_t j = 0; j < m->k; j++) {
        if (dots[j] > least)
            continue;
        float dist = distance(x, m->centroids + j * m->d, m->d, token_sq, centroid_sq[j]);
        if (dist < best) {
            best = dist;
            label = (int32_t)j;
        }
    }
    return label;
}

static void assign(struct kmeans *m, const float *x, struct scratch *w)
{
    centroid_squares(m, w->centroid_sq);
    memset(m->sizes, 0, (size_t)m->k * sizeof *m->sizes);
    for (int64_t i0 = 0; i0 < m->n; i0 += TILE) {
        int64_t rows = m->n - i0 < TILE ? m->n - i0 : TILE;
        gemm_nt_f32(rows, m->k, m->d, 1, x + i0 * m->d, m->d, m->centroids, m->d, 0, w->dots, m->k);
        for (int64_t r = 0; r < rows; r++) {
            int64_t i = i0 + r;
            int32_t label =
                nearest(m, x + i * m->d, w->dots + r * m->k, w->token_sq[i], w->centroid_sq);
            m->labels[i] = label;
            m->sizes[label]++;
        }
    }
}

/* New centroids into w->next; returns how far the farthest one moves. */
static double update(const struct kmeans *m, const float *x, struct scratch *w)
{
    double shift = 0;
    memset(w->sums, 0, (size_t)(m->k * m->d) * sizeof *w->sums);
    for (int64_t i = 0; i < m->n; i++)
        for (int c = 0; c < m->d; c++)
            w->sums[m->labels[i] * m->d + c] += x[i * m->d + c];
    for (int64_t j = 0; j < m->k; j++) {
        double moved = 0;
        for (int64_t c = j * m->d; c < (j + 1) * m->d; c++) {
            w->next[c] = m->sizes[j] == 0
                             ? m->centroids[c]
                             : dtype_round(m->dtype, (float)(w->sums[c] / (double)m->sizes[j]));
            moved += pow((double)w->next[c] - m->centroids[c], 2);
        }
        shift = fmax(shift, sqrt(moved));
    }
    return shift;
}

int kmeans_run(struct kmeans *m, const float *x, int64_t most, double tol, struct err *err)
{
    OWN(scratch_free) struct scratch w = {0};
    PASS_ON(scratch_init(&w, m, err));
    for (int64_t i = 0; i < m->n; i++)
        w.token_sq[i] = token_square(x + i * m->d, m->d, m->bf16_norms);
    m->iterations = 0;
    for (bool moving = true; moving && m->iterations < most; m->iterations++) {
        assign(m, x, &w);
        m->shift = update(m, x, &w);
        moving = m->shift >= tol;
        if (moving)
            memcpy(m->centroids, w.next, (size_t)(m->k * m->d) * sizeof *w.next);
    }
    return 0;
}

#define STREAM_QUERIES 0x7376673271756572ull
#define STREAM_KEYS 0x737667326b657973ull

struct params {
    int family, preset, warm, cumsum, emulate;
    int64_t qc, kc, iter_init, iter_step;
    double top_p, min_kc, tol, dense_layers, dense_steps;
    bool share_branches, cold;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, family, "auto", svg_families,
             "model family; auto = of the preset, else from the place of the text"),
    OPT_ENUM(struct params, preset, NULL, svg_presets,
             "published settings; unset = the family's at 720p"),
    OPT_INT(struct params, qc, NULL, 1, INT_MAX, "clusters",
            "query clusters; unset = of the preset (300 for wan), else 200"),
    OPT_INT(struct params, kc, "1000", 1, INT_MAX, "clusters", "key clusters"),
    OPT_NUM(struct params, top_p, "0.9", 0, 1, "mass share",
            "mass of the map that kept clusters exceed", .flags = OPT_MIN_OPEN),
    OPT_NUM(struct params, min_kc, "0.10", 0, 1, "share of kc",
            "key clusters that are always kept, the heaviest ones"),
    OPT_INT(struct params, iter_init, "50", 1, 1e6, "iterations", "k-means from random tokens"),
    OPT_INT(struct params, iter_step, "2", 1, 1e6, "iterations",
            "k-means from the last call's centroids"),
    OPT_NUM(struct params, tol, "1e-4", 0, INFINITY, "", "stop when no centroid moves that far"),
    OPT_ENUM(struct params, warm, NULL, TEXTS("0", "1"),
             "also cluster in the dense first steps; unset = preset"),
    OPT_ENUM(struct params, cumsum, "f32", TEXTS("f32", "bf16"),
             "running sum of a row of the map; bf16 as on 16-bit tensors"),
    OPT_ENUM(struct params, emulate, "none", TEXTS("none", "bf16"),
             "bf16 reproduces the code's roundings of tensors, norms and scores, and cumsum=bf16"),
    OPT_BOOL(struct params, share_branches, "1",
             "both guidance branches move the same centroids, in call order"),
    OPT_BOOL(struct params, cold, "0",
             "where the step before is not in the trace start from random tokens; 0: skip"),
    OPT_NUM(struct params, dense_layers, NULL, 0, 1, "share of layers",
            "first layers that run dense; unset = preset"),
    OPT_NUM(struct params, dense_steps, NULL, 0, 1, "share of steps",
            "first denoising steps that run dense; unset = preset"),
    {0},
};

/* Centroids after the last call. */
struct svg2_carry {
    float *queries, *keys; /* [qc][d], [kc][d] */
    int64_t qc, kc;
    int d, step;
};

struct state {
    struct head_in in;
    const struct params *params;
    const struct svg_preset *preset;
    enum svg_family family;
    int64_t video, qc;
    bool dense, cold; /* cold: this call started from random tokens */
    bool clustered;
    struct kmeans queries, keys;
    uint8_t *map; /* [qc][kc], NULL on dense calls */

    /* The keys of query cluster a, text included, are key[first[a]] to key[first[a + 1] - 1],
     * ascending. Made by the first select; owned. */
    int64_t *first;
    int32_t *key;

    /* Set for a call that chooses: the first select does, or take. */
    bool pending;
    uint64_t seed;
    struct svg2_cut cut;
    struct svg2_given given; /* where clusters start */
    struct carry *slot;      /* that keeps the centroids; NULL: none */
    /* What the slot had before, owned: `given` points into it until a device has timed the choice.
     */
    struct svg2_carry *before;
};

static void carry_free(void *data)
{
    struct svg2_carry *c = data;
    if (!c)
        return;
    free(c->queries);
    free(c->keys);
    free(c);
}

static void release(void *state)
{
    struct state *s = state;
    kmeans_free(&s->queries);
    kmeans_free(&s->keys);
    free(s->map);
    free(s->first);
    free(s->key);
    carry_free(s->before);
}

/* ---- the map --------------------------------------------------------------------------------- */

static float score(const float *query, const float *key, int d, double scale, bool bf16)
{
    double dot = 0;
    for (int c = 0; c < d; c++)
        dot += (double)query[c] * (double)key[c];
    if (bf16)
        return dtype_round(DT_BF16, dtype_round(DT_BF16, (float)dot) * (float)scale);
    return (float)(dot * scale);
}

void svg2_weights(const float *query, const struct kmeans *keys, double scale,
                  const struct svg2_cut *cut, float *p)
{
    float top = -INFINITY;
    double sum = 0;
    for (int64_t b = 0; b < keys->k; b++) {
        p[b] = score(query, keys->centroids + b * keys->d, keys->d, scale, cut->bf16_scores);
        top = p[b] > top ? p[b] : top;
    }
    for (int64_t b = 0; b < keys->k; b++) {
        p[b] = (float)((double)keys->sizes[b] * exp((double)p[b] - (double)top));
        sum += p[b];
    }
    for (int64_t b = 0; b < keys->k; b++)
        p[b] = dtype_round(cut->dtype, (float)((double)p[b] / fmax(sum, 1e-12)));
}

/* Sums of a row that are at or below top_p. */
static int64_t sums_within(const struct svg2_cut *cut, const float *sorted, int64_t n)
{
    float sum = 0, top_p = (float)cut->top_p;
    if (cut->bf16_sums)
        return gpusum_count(DT_BF16, cut->chunk, sorted, n, dtype_round(DT_BF16, top_p));
    for (int64_t i = 0; i < n; i++)
        if ((sum += sorted[i]) > top_p)
            return i;
    return n;
}

int64_t svg2_prefix(const struct svg2_cut *cut, const float *sorted, int64_t n)
{
    int64_t least = (int64_t)(cut->min_share * (double)n);
    int64_t kept = cut->top_p >= 1 ? n : sums_within(cut, sorted, n) + 1;
    kept = kept < n ? kept : n;
    return kept > least ? kept : least;
}

int svg2_map(const struct kmeans *queries, const struct kmeans *keys, double scale,
             const struct svg2_cut *cut, uint8_t **map, struct err *err)
{
    OWN(free_at) double *weight = NULL;
    OWN(free_at) int32_t *order = NULL;
    OWN(free_at) float *p = NULL;
    OWN(free_at) uint8_t *out = NULL;
    int64_t k = keys->k;
    PASS_ON(mem_zalloc(&out, queries->k * k, 1, "cluster map", err));
    PASS_ON(mem_alloc(&weight, k, sizeof *weight, "cluster weights", err));
    PASS_ON(mem_alloc(&order, k, sizeof *order, "sorted clusters", err));
    PASS_ON(mem_alloc(&p, k, sizeof *p, "cluster weights", err));
    for (int64_t a = 0; a < queries->k; a++) {
        svg2_weights(queries->centroids + a * keys->d, keys, scale, cut, p);
        for (int64_t b = 0; b < k; b++)
            weight[b] = p[b];
        PASS_ON(order_descending(weight, k, order, err));
        for (int64_t r = 0; r < k; r++)
            p[r] = (float)weight[order[r]];
        int64_t kept = svg2_prefix(cut, p, k);
        for (int64_t r = 0; r < kept; r++)
            out[a * k + order[r]] = 1;
    }
    *map = HAND_OVER(out);
    return 0;
}

/* ---- clusters ------------------------------------------------------------------------------- */

/* Operands that lie on a device are in bf16 there (struct accel_operands), whatever they come from.
 */
static enum dtype tensor_dtype(const struct params *p, const struct head_in *in)
{
    if (p->emulate || in->x.on_device)
        return DT_BF16;
    return in->src_dtype == DT_BF16 || in->src_dtype == DT_F16 ? in->src_dtype : DT_F32;
}

/* Centroids of the call before: the step before, or the other branch of this step. */
static const struct svg2_carry *last_call(const struct state *s, const struct carry *slot)
{
    const struct svg2_carry *c = slot ? slot->data : NULL;
    bool same_step = s->params->share_branches && c && c->step == s->in.step;
    bool fits = c && c->qc == s->qc && c->kc == s->params->kc && c->d == s->in.x.d;
    return fits && (same_step || c->step == s->in.step - 1) ? c : NULL;
}

static void random_tokens(struct kmeans *m, const float *x, uint64_t seed, uint64_t stream)
{
    for (int64_t j = 0; j < m->k; j++) {
        uint64_t i = rng_below(seed, stream, (uint64_t)j, (uint64_t)m->n);
        memcpy(m->centroids + j * m->d, x + (int64_t)i * m->d, (size_t)m->d * sizeof *x);
    }
}

static int keep_centroids(struct state *s, struct carry *slot, struct err *err)
{
    struct svg2_carry *c = NULL;
    int64_t nq = s->queries.k * s->queries.d, nk = s->keys.k * s->keys.d;
    int rc = 0;
    TRY(mem_zalloc(&c, 1, sizeof *c, "state between steps", err));
    TRY(mem_alloc(&c->queries, nq, sizeof *c->queries, "query centroids", err));
    TRY(mem_alloc(&c->keys, nk, sizeof *c->keys, "key centroids", err));
    memcpy(c->queries, s->queries.centroids, (size_t)nq * sizeof *c->queries);
    memcpy(c->keys, s->keys.centroids, (size_t)nk * sizeof *c->keys);
    c->qc = s->queries.k;
    c->kc = s->keys.k;
    c->d = s->queries.d;
    c->step = s->in.step;
    s->before = slot->data;
    slot->data = c;
    slot->free = carry_free;
    c = NULL;
out:
    carry_free(c);
    return rc;
}

/* Cluster the video tokens x into k clusters; `side` is that of s->given. */
static int cluster_side(const struct state *s, const float *x, int64_t k, int side,
                        struct kmeans *m, struct err *err)
{
    const float *start = s->given.centroids[side];
    const struct params *p = s->params;
    enum dtype t = tensor_dtype(p, &s->in);
    int d = s->in.x.d;
    OWN(free_at) float *own = NULL;
    PASS_ON(kmeans_init(m, s->video, k, d, t, err));
    m->bf16_norms = p->emulate == 1;
    if (s->in.src_dtype != t) {
        PASS_ON(mem_alloc(&own, s->video * d, sizeof *own, "tokens in bf16", err));
        for (int64_t i = 0; i < s->video * d; i++)
            own[i] = dtype_round(t, x[i]);
        x = own;
    }
    if (start)
        memcpy(m->centroids, start, (size_t)(k * d) * sizeof *x);
    else
        random_tokens(m, x, s->seed, s->given.stream[side]);
    return kmeans_run(m, x, start ? p->iter_step : p->iter_init, p->tol, err);
}

static int cluster(struct state *s, struct err *err)
{
    const struct head_in *in = &s->in;
    PASS_ON(cluster_side(s, in->x.q, s->qc, 0, &s->queries, err));
    PASS_ON(cluster_side(s, in->x.k, s->params->kc, 1, &s->keys, err));
    s->clustered = true;
    if (s->slot)
        return keep_centroids(s, s->slot, err);
    return 0;
}

static int choose(struct state *s, struct err *err)
{
    s->pending = false;
    PASS_ON(cluster(s, err));
    return svg2_map(&s->queries, &s->keys, s->in.x.scale, &s->cut, &s->map, err);
}

/* ---- prepare -------------------------------------------------------------------------------- */

static int check_clusters(struct method_ctx *ctx, const struct state *s)
{
    if (s->family == SVG_COG)
        return method_skip(ctx, "has no rule for text in front of the video");
    if (s->qc > s->video || s->params->kc > s->video)
        return method_skip(
            ctx, "%s=%lld clusters of %lld tokens; give fewer", s->qc > s->video ? "qc" : "kc",
            (long long)(s->qc > s->video ? s->qc : s->params->kc), (long long)s->video);
    return 0;
}

static void plan_clusters(struct state *s, const struct method_ctx *ctx,
                          const struct svg2_carry *before)
{
    const struct params *p = s->params;
    const struct head_in *in = &s->in;
    int64_t heads = in->n_heads > 0 ? in->n_heads : 1;
    s->seed = ctx->seed;
    s->cold = !before;
    s->given = (struct svg2_given){
        {head_stream(STREAM_QUERIES, in, in->head), head_stream(STREAM_KEYS, in, in->kv_head)},
        {before ? before->queries : NULL, before ? before->keys : NULL}};
    s->cut = (struct svg2_cut){.top_p = p->top_p,
                               .min_share = p->min_kc,
                               .dtype = tensor_dtype(p, in),
                               .bf16_scores = p->emulate == 1,
                               .bf16_sums = p->emulate == 1 || p->cumsum == 1,
                               .chunk = gpusum_chunk(p->kc, heads * s->qc)};
}

/* `first` is the first step that clusters. A dense step never fails for a step that is missing. */
static int prepare_clusters(struct state *s, struct method_ctx *ctx, int64_t first, struct err *err)
{
    const struct svg2_carry *before;
    s->slot = s->params->share_branches && ctx->shared ? ctx->shared : ctx->carry;
    before = last_call(s, s->slot);
    if (!before && s->in.step != first && !s->params->cold) {
        if (s->dense)
            return 0;
        return method_skip(ctx, "no clusters of step %d in trace; cold=1 starts from random tokens",
                           s->in.step - 1);
    }
    plan_clusters(s, ctx, before);
    s->pending = !s->dense;
    return s->dense ? cluster(s, err) : 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    struct svg_warmup w;
    s->in = *in;
    s->params = p;
    s->family = svg_family(p->family, p->preset, in);
    s->preset = svg_preset(p->preset, s->family);
    s->video = in->geom.t * in->geom.h * in->geom.w;
    s->qc = p->qc != INT64_MIN ? p->qc : s->preset->qc ? s->preset->qc : 200;
    PASS_ON(svg_check_head(ctx, s->family, in));
    PASS_ON(check_clusters(ctx, s));
    PASS_ON(svg_warmup(ctx, s->family,
                       isnan(p->dense_layers) ? s->preset->dense_layers : p->dense_layers,
                       isnan(p->dense_steps) ? s->preset->dense_steps : p->dense_steps, in, &w));
    bool warm = p->warm < 0 ? s->preset->warm : p->warm == 1;
    bool dense_layer = in->layer < w.layers;
    s->dense = dense_layer || in->step < w.steps;
    if (!dense_layer && (!s->dense || warm))
        PASS_ON(prepare_clusters(s, ctx, warm ? 0 : w.steps, err));
    return 0;
}

/* ---- masks ---------------------------------------------------------------------------------- */

/* All rows of a query cluster keep the same keys. */
static int list_keys(struct state *s, struct err *err)
{
    int64_t n = s->in.x.nk, kc = s->keys.k, total = 0;
    PASS_ON(mem_alloc(&s->first, s->qc + 1, sizeof *s->first, "keys of clusters", err));
    for (int64_t a = 0; a < s->qc; a++) {
        s->first[a] = total;
        total += n - s->video;
        for (int64_t b = 0; b < kc; b++)
            total += s->map[a * kc + b] ? s->keys.sizes[b] : 0;
    }
    s->first[s->qc] = total;
    PASS_ON(mem_alloc(&s->key, total, sizeof *s->key, "keys of clusters", err));
    int32_t *to = s->key;
    for (int64_t a = 0; a < s->qc; a++)
        for (int64_t j = 0; j < n; j++)
            if (j >= s->video || s->map[a * kc + s->keys.labels[j]])
                *to++ = (int32_t)j;
    return 0;
}

static int select_row(const struct state *s, int64_t i, struct mask *m, struct err *err)
{
    int64_t g = i - m->row0;
    if (i >= s->video)
        return mask_lists_add_run(m, g, 0, (int32_t)s->in.x.nk, err);
    int64_t a = s->queries.labels[i], from = s->first[a];
    return mask_lists_add_all(m, g, s->key + from, s->first[a + 1] - from, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (s->pending)
        PASS_ON(choose(s, err));
    if (s->dense) {
        mask_full(out, s->in.x.nq, s->in.x.nk, row0, row1, false);
        return 0;
    }
    if (!s->first)
        PASS_ON(list_keys(s, err));
    PASS_ON(mask_lists_init(out, s->in.x.nq, s->in.x.nk, row0, row1, false, 1, 1, err));
    for (int64_t i = row0; i < row1; i++)
        PASS_ON(select_row(s, i, out, err));
    mask_lists_finish(out);
    return 0;
}

/* ---- numbers -------------------------------------------------------------------------------- */

static int64_t tiles(int64_t n)
{
    return (n + 127) / 128 * 128;
}

static int64_t empty_clusters(const struct kmeans *m)
{
    int64_t n = 0;
    for (int64_t j = 0; j < m->k; j++)
        n += m->sizes[j] == 0;
    return n;
}

/* Kept pairs between tokens and between non-empty clusters; what a kernel multiplies that gathers
 * the keys of a query cluster into tiles of 128 x 128. */
struct totals {
    int64_t pairs, cluster_pairs, exec;
};

static struct totals totals_of(const struct state *s)
{
    int64_t text = s->in.x.nk - s->video, n = s->in.x.nk;
    struct totals t = {.pairs = text * n, .exec = tiles(text) * tiles(n)};
    for (int64_t a = 0; a < s->qc; a++) {
        int64_t keys = text;
        for (int64_t b = 0; b < s->keys.k; b++)
            if (s->map[a * s->keys.k + b] && s->keys.sizes[b] > 0) {
                keys += s->keys.sizes[b];
                t.cluster_pairs += s->queries.sizes[a] > 0;
            }
        t.pairs += s->queries.sizes[a] * keys;
        t.exec += tiles(s->queries.sizes[a]) * tiles(keys);
    }
    return t;
}

static int report_map(const struct state *s, struct record *r, struct err *err)
{
    struct totals t = totals_of(s);
    double padding = (double)s->in.n_padding, all = (double)s->in.x.nk + padding;
    double q = (double)(s->qc - empty_clusters(&s->queries));
    double k = (double)(s->keys.k - empty_clusters(&s->keys));
    return RECORD_ALL(r, err,
                      {"density_native", ((double)t.pairs + padding * padding) / (all * all)},
                      {"map_density", (double)t.cluster_pairs / (q * k)}, {"pairs_exec", t.exec},
                      {"density_exec", (double)t.exec / record_get(r, "pairs_allowed")});
}

static struct mask_origin origin(void *state)
{
    const struct state *s = state;
    return (struct mask_origin){.source = s->dense ? SOURCE_STATIC : SOURCE_OWN};
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct params *p = s->params;
    bool warm = s->given.centroids[0] != NULL;
    if (s->dense)
        return method_refuses(why, "a dense call has nothing to choose");
    if (s->cut.bf16_sums || s->cut.dtype != DT_BF16)
        return method_refuses(why,
                              "the GPU side has traces of bf16 with emulate=none and cumsum=f32");
    rule->data = &s->given;
    rule->of.svg2 = (struct svg2_rule){.video = s->video,
                                       .qc = s->qc,
                                       .kc = p->kc,
                                       .iterations = warm ? p->iter_step : p->iter_init,
                                       .tol = p->tol,
                                       .top_p = p->top_p,
                                       .least = (int64_t)(p->min_kc * (double)p->kc),
                                       .seed = s->seed};
    return true;
}

/* Clusters of one side as a device made them. */
static int take_side(const struct state *s, int64_t k, int64_t iterations, const float *centroids,
                     const int32_t *labels, struct kmeans *m, struct err *err)
{
    PASS_ON(kmeans_init(m, s->video, k, s->in.x.d, DT_BF16, err));
    memcpy(m->centroids, centroids, (size_t)(k * m->d) * sizeof *centroids);
    memcpy(m->labels, labels, (size_t)m->n * sizeof *labels);
    m->iterations = iterations;
    for (int64_t i = 0; i < m->n; i++) {
        if (labels[i] < 0 || labels[i] >= k)
            return err_set(err, ERR_RUN, "the device put a token into cluster %d of %lld",
                           (int)labels[i], (long long)k);
        m->sizes[labels[i]]++;
    }
    return 0;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    const struct accel_own *own = c->own;
    int64_t d = s->in.x.d, kc = s->params->kc, map = s->qc * kc;
    const struct svg2_own *head = own->data;
    int64_t bytes = (int64_t)sizeof *head + (s->qc + kc) * d * 4 + 2 * s->video * 4 + map;
    if (own->bytes < bytes)
        return err_set(err, ERR_RUN, "the device gave %lld bytes of clusters, expected %lld",
                       (long long)own->bytes, (long long)bytes);
    const float *centroids = (const float *)(head + 1);
    const int32_t *labels = (const int32_t *)(centroids + (s->qc + kc) * d);
    PASS_ON(take_side(s, s->qc, head->iterations[0], centroids, labels, &s->queries, err));
    PASS_ON(take_side(s, kc, head->iterations[1], centroids + s->qc * d, labels + s->video,
                      &s->keys, err));
    PASS_ON(mem_alloc(&s->map, map, 1, "cluster map", err));
    memcpy(s->map, labels + 2 * s->video, (size_t)map);
    s->clustered = true;
    s->pending = false;
    if (s->slot)
        return keep_centroids(s, s->slot, err);
    return 0;
}

/* A step of k-means is a product per token and centroid, and a sum per token. */
static void cluster_cost(const struct state *s, const struct kmeans *m, struct select_cost *c)
{
    double n = (double)m->n, k = (double)m->k, steps = (double)m->iterations;
    cost_products(c, n, m->d); /* squares of tokens */
    cost_products(c, steps * (n * k + k), m->d);
    cost_sums(c, steps * n * m->d);
    cost_rows(c, &s->in, (1 + 2 * steps) * n, m->d);
    cost_kept(c, steps * (k * m->d + n));
}

static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double pairs = (double)s->queries.k * (double)s->keys.k;
    cluster_cost(s, &s->queries, c);
    cluster_cost(s, &s->keys, c);
    cost_products(c, pairs, s->in.x.d);
    cost_softmax(c, pairs);
    cost_kept(c, pairs);
    return true;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    record_note(r, "family=%s", svg_families[s->family]);
    record_note(r, "preset=%s", svg_preset_name(s->preset));
    PASS_ON(record_metric(r, "dense_call", s->dense, err));
    if (s->clustered) {
        PASS_ON(RECORD_ALL(r, err, {"cold_start", s->cold},
                           {"kmeans_iter_q", s->queries.iterations},
                           {"kmeans_iter_k", s->keys.iterations},
                           {"clusters_empty_q", empty_clusters(&s->queries)},
                           {"clusters_empty_k", empty_clusters(&s->keys)}));
    }
    if (s->dense)
        return record_metric(r, "density_native", 1, err);
    return report_map(s, r, err);
}

static const struct metric_def metrics[] = {
    OWN_METRIC("map_density", "kept pairs of clusters / all pairs, empty clusters left out",
               .better = BETTER_LOWER, .axis = AXIS_SHARE),
    OWN_METRIC("cold_start", "1 where clustering started from random tokens"),
    OWN_METRIC("kmeans_iter_q", "k-means iterations on the queries"),
    OWN_METRIC("kmeans_iter_k", "k-means iterations on the keys"),
    OWN_METRIC("clusters_empty_q", "query clusters without a token"),
    OWN_METRIC("clusters_empty_k", "key clusters without a token"),
    {0},
};

const struct method method_svg2 = {
    .name = "svg2",
    .summary = "video: clusters of queries and keys, the heaviest key clusters per query cluster",
    .paper = "Sparse VideoGen2: Accelerate Video Generation with Sparse Attention via "
             "Semantic-Aware Permutation, arXiv 2505.18875",
    .flags = METHOD_BIDIRECTIONAL | METHOD_NEEDS_STEPS | METHOD_RANDOM,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COMPLEMENT, "top_p"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .reuse = {.shares_branches = true, .of = origin},
    .tests = {.full = "top_p=1:qc=1:kc=1:dense_steps=0",
              .variants =
                  TEXTS("preset=none:qc=3:kc=9:top_p=0.5",
                        "dense_steps=0:qc=1:kc=20:top_p=0.7:min_kc=0:cumsum=bf16:iter_init=3",
                        "qc=2:kc=2:warm=1:share_branches=0"),
              .budgets = METHOD_BUDGETS(
                  {"preset=none:qc=5:kc=20:top_p=%s", {"0.1", "0.5", "0.9", "0.99", "1"}})},
};
