/*
 * hash_sparse.c - pairs whose query and key fall into the same bucket of an angular hash.
 *
 *   bucket(x) = argmax of the `buckets` values [x R, -x R], the first of equal ones, with R of
 *   D x buckets/2 random unit columns that query and keys of a head share; keep (i, j) iff the
 *   buckets agree and j <= i (strict=1: j < i); i counts from the end as everywhere, and a
 *   bidirectional trace has no test of order
 *
 * Faster Causal Attention Over Large Sequences Through Sparse Flash Attention, arXiv 2306.01160,
 * section 3, and its code (epfml/dynamic-sparse-flash-attention). O(N D buckets) for the hash,
 * about N^2 / buckets pairs.
 *
 * The kernel sorts queries and keys by bucket, in time order within one, and multiplies tiles of
 * 128 x 128: for a tile of queries the tiles of keys whose range of buckets meets its own, without
 * those at the end whose keys all come after its queries. density_exec counts these tiles.
 *
 * Deviations: R comes from lacuna's generator, keyed by seed and head of the call; the code's
 * training kernel keeps j < i only, so that a token does not see itself (strict=1); the paper's
 * model attends with unit keys (normalize_k=1), here the trace's own keys are the default.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/simd.h"
#include "sim/blocks/callrng.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"
#include "sim/blocks/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TILE 128
#define BUCKETS_MOST 128
#define SALT 0x68617368737061ull /* keeps its directions apart from other methods' numbers */

enum directions { NORMAL, AXES };

struct params {
    int64_t buckets;
    bool strict, normalize_k;
    int proj_dir;
};

static const struct opt options[] = {
    OPT_INT(struct params, buckets, "16", 2, BUCKETS_MOST, "",
            "buckets of the hash, an even number: a direction and its opposite are two"),
    OPT_BOOL(struct params, strict, "0",
             "causal: a query does not see its own position, as in training"),
    OPT_BOOL(struct params, normalize_k, "0",
             "attend with keys of unit length, as the paper's model; buckets do not change"),
    OPT_ENUM(struct params, proj_dir, "normal", TEXTS("normal", "axes"),
             "directions: random, or the first unit vectors, which depend on no seed"),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("bucket_most_q", "queries in the fullest bucket"),
    OWN_METRIC("bucket_most_k", "keys in the fullest bucket"),
    {0},
};

/* Tokens in the order of their buckets. */
struct sorted {
    int64_t n;
    int32_t *bucket;                 /* [n], by token */
    int32_t *order;                  /* [n] tokens, ascending within a bucket */
    int64_t start[BUCKETS_MOST + 1]; /* of every bucket in order */
};

struct state {
    const struct params *params;
    const struct head_in *in;
    struct attn_in x;
    struct sorted q, k;
    double *dir;             /* [d][width] channels of the directions, 0 after the last one */
    int64_t width;           /* buckets / 2, rounded up */
    struct unit_keys unit;   /* with normalize_k */
    struct slice_mask given; /* the mask of a device that chose; bits NULL: none did */
    uint64_t seed, stream;   /* of the directions */
};

static void release(void *state)
{
    struct state *s = state;
    free(s->q.bucket);
    free(s->q.order);
    free(s->k.bucket);
    free(s->k.order);
    free(s->dir);
    unit_keys_free(&s->unit);
    slice_mask_free(&s->given);
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    if (p->buckets % 2)
        return err_set(err, ERR_USAGE, "buckets=%lld: expected an even number, such as %lld",
                       (long long)p->buckets, (long long)p->buckets + 1);
    return 0;
}

/* ---- the hash ------------------------------------------------------------------------------- */

#define ABREAST 8 /* directions that are summed side by side, each in the order of its channels */

/* Products of x with all directions, to value [width]. */
SIMD_CLONES static void project(const double *dir, int64_t width, const float *x, int d,
                                double *value)
{
    for (int64_t r = 0; r < width; r += ABREAST) {
        double sum[ABREAST] = {0};
        for (int c = 0; c < d; c++)
            for (int e = 0; e < ABREAST; e++)
                sum[e] += dir[c * width + r + e] * (double)x[c];
        memcpy(value + r, sum, sizeof sum);
    }
}

/* Unit columns of R. Their length does not change which value is the largest of one column, but of
 * several it does. */
static void make_directions(struct state *s, const struct head_in *in, uint64_t seed)
{
    int64_t n = s->params->buckets / 2, d = s->x.d, width = s->width;
    uint64_t stream = head_stream(SALT, in, in->head);
    s->seed = seed;
    s->stream = stream;
    for (int64_t r = 0; r < n; r++) {
        double *g = s->dir + r, norm = 0;
        for (int64_t c = 0; c < d; c++) {
            double x = s->params->proj_dir == AXES
                           ? (double)(c == r)
                           : rng_normal(seed, stream, (uint64_t)(r * d + c));
            g[c * width] = x;
            norm += x * x;
        }
        for (int64_t c = 0; c < d; c++)
            g[c * width] /= sqrt(norm);
    }
}

static int32_t bucket_of(const struct state *s, const float *x)
{
    int64_t half = s->params->buckets / 2, best = 0;
    double value[BUCKETS_MOST / 2 + ABREAST] = {0}, most;
    project(s->dir, s->width, x, s->x.d, value);
    most = value[0];
    for (int64_t b = 1; b < 2 * half; b++) {
        double v = b < half ? value[b] : -value[b - half];
        if (v > most) {
            most = v;
            best = b;
        }
    }
    return (int32_t)best;
}

/* Hash the rows of x [n][d] and sort them, stably. */
static int sort_rows(const struct state *s, const float *x, int64_t n, struct sorted *out,
                     struct err *err)
{
    int64_t next[BUCKETS_MOST] = {0};
    out->n = n;
    PASS_ON(mem_alloc(&out->bucket, n, sizeof *out->bucket, "buckets", err));
    PASS_ON(mem_alloc(&out->order, n, sizeof *out->order, "tokens by bucket", err));
    for (int64_t i = 0; i < n; i++) {
        out->bucket[i] = bucket_of(s, x + i * s->x.d);
        out->start[out->bucket[i] + 1]++;
    }
    for (int64_t b = 0; b < s->params->buckets; b++) {
        out->start[b + 1] += out->start[b];
        next[b] = out->start[b];
    }
    for (int64_t i = 0; i < n; i++)
        out->order[next[out->bucket[i]]++] = (int32_t)i;
    return 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    if (p->proj_dir == AXES && p->buckets / 2 > in->x.d)
        return method_skip(ctx, "proj_dir=axes has no %lld unit vectors in a head of dimension %d",
                           (long long)p->buckets / 2, in->x.d);
    s->params = p;
    s->in = in;
    s->x = in->x;
    s->width = ceil_div(p->buckets / 2, ABREAST) * ABREAST;
    PASS_ON(mem_zalloc(&s->dir, s->width * in->x.d, sizeof *s->dir, "directions", err));
    make_directions(s, in, ctx->seed);
    PASS_ON(sort_rows(s, in->x.q, in->x.nq, &s->q, err));
    PASS_ON(sort_rows(s, in->x.k, in->x.nk, &s->k, err));
    if (p->normalize_k)
        return unit_keys_make(&s->unit, in, err);
    return 0;
}

/* ---- the mask ------------------------------------------------------------------------------- */

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct state *s = state;
    if (s->given.bits)
        return slice_mask_lists(&s->given, row0, row1, out, err);
    PASS_ON(mask_lists_init(out, s->x.nq, s->x.nk, row0, row1, s->x.causal, 1, 1, err));
    out->exec = EXEC_NONE; /* report counts the tiles of the sorted order */
    for (int64_t i = row0; i < row1; i++) {
        int32_t b = s->q.bucket[i];
        const int32_t *keys = s->k.order + s->k.start[b];
        int64_t limit = s->x.causal ? i + s->x.nk - s->x.nq + !s->params->strict : s->x.nk;
        int64_t n = list_below(keys, s->k.start[b + 1] - s->k.start[b], limit);
        PASS_ON(mask_lists_add_all(out, i - row0, keys, n, err));
    }
    mask_lists_finish(out);
    return 0;
}

/* ---- on a device ---------------------------------------------------------------------------- */

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    rule->of.hash = (struct hash_rule){.buckets = s->params->buckets,
                                       .strict = s->params->strict,
                                       .axes = s->params->proj_dir == AXES,
                                       .seed = s->seed,
                                       .stream = s->stream};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    return slice_mask_take(&((struct state *)state)->given, c, 1, 1, 0, err);
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    a->kind = ((const struct state *)state)->unit.k ? ARITH_CPU : ARITH_SOFTMAX;
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    const struct state *s = state;
    return attn_rows(&s->unit.ops, m, out, lse, err);
}

/* ---- what the kernel multiplies ------------------------------------------------------------- */

/* A tile of the sorted order: its buckets, and its first and last token in time. */
struct tile {
    int32_t low, high, first, last;
};

static struct tile tile_at(const struct sorted *t, int64_t at)
{
    int64_t end = at + TILE < t->n ? at + TILE : t->n;
    struct tile out = {t->bucket[t->order[at]], t->bucket[t->order[end - 1]], INT32_MAX, 0};
    for (int64_t e = at; e < end; e++) {
        out.first = t->order[e] < out.first ? t->order[e] : out.first;
        out.last = t->order[e] > out.last ? t->order[e] : out.last;
    }
    return out;
}

/* Tiles of keys that meet one tile of queries; they follow one another. */
static int64_t tiles_met(const struct state *s, struct tile q, const struct tile *k, int64_t n)
{
    int64_t from = 0, to = n, position = q.last + s->x.nk - s->x.nq;
    while (from < n && k[from].high < q.low)
        from++;
    while (to > from && k[to - 1].low > q.high)
        to--;
    while (s->x.causal && to > from && k[to - 1].first > position)
        to--;
    return to - from;
}

static int count_tiles(const struct state *s, int64_t *tiles, struct err *err)
{
    int64_t n = ceil_div(s->k.n, TILE);
    OWN(free_at) struct tile *k = NULL;
    PASS_ON(mem_alloc(&k, n, sizeof *k, "tiles of keys", err));
    for (int64_t t = 0; t < n; t++)
        k[t] = tile_at(&s->k, t * TILE);
    *tiles = 0;
    for (int64_t at = 0; at < s->q.n; at += TILE)
        *tiles += tiles_met(s, tile_at(&s->q, at), k, n);
    return 0;
}

/* The fullest bucket; the note lists all: "buckets_q=72 114 102 96". */
static int64_t note_buckets(const struct sorted *t, int64_t n, const char *name, struct record *r)
{
    OWN(buf_free) struct buf text = {0};
    int64_t most = 0;
    for (int64_t b = 0; b < n; b++) {
        int64_t size = t->start[b + 1] - t->start[b];
        most = size > most ? size : most;
        buf_printf(&text, "%s%lld", b ? " " : "", (long long)size);
    }
    record_note(r, "%s=%s", name, buf_str(&text));
    return most;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    int64_t n = s->params->buckets, tiles;
    PASS_ON(count_tiles(s, &tiles, err));
    double exec = (double)tiles * TILE * TILE;
    PASS_ON(RECORD_ALL(r, err, {"pairs_exec", exec},
                       {"density_exec", exec / record_get(r, "pairs_allowed")}));
    int64_t most_q = note_buckets(&s->q, n, "buckets_q", r);
    int64_t most_k = note_buckets(&s->k, n, "buckets_k", r);
    return RECORD_ALL(r, err, {"bucket_most_q", most_q}, {"bucket_most_k", most_k});
}

/* Every token meets every direction; its bucket is kept. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double tokens = (double)(s->q.n + s->k.n);
    cost_products(c, tokens * (double)(s->params->buckets / 2), s->x.d);
    cost_rows(c, s->in, tokens, s->x.d);
    cost_kept(c, tokens);
    return true;
}

const struct method method_hash_sparse = {
    .name = "hash-sparse",
    .summary = "pairs of equal bucket under an angular hash of queries and keys",
    .paper = "Pagliardini et al., Faster Causal Attention Over Large Sequences Through Sparse "
             "Flash Attention, arXiv 2306.01160",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_RANDOM,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "buckets", .falls = true, .lo = 2,
                                                 .hi = BUCKETS_MOST, .step = 2)),
               .validate = validate,
               /* A query's bucket may hold no key, or later ones only. */
               .may_be_empty = method_always},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .arith = {.kind = ARITH_CPU, .how = how, .attend = attend},
    .tests = {.variants = TEXTS("buckets=2", "buckets=8:strict=1", "buckets=4:normalize_k=1",
                                "buckets=128:proj_dir=axes")},
};
