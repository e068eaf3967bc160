/*
 * longnet.c - dilated attention: segments of growing length at growing stride, mixed by their
 * softmax denominators.
 *
 * Branch b cuts the sequence into segments of w = min(w_b, N) tokens; head h takes the positions
 * with (position in segment) mod r_b = h div ceil(H/r_b), both as queries and as keys, causal by
 * position. The outputs of the branches are mixed with weights softmax_b(LSE_b). LongNet, arXiv
 * 2307.02486, equations 6-10, and its code in torchscale. With W_ij = number of branches that hold
 * the pair:
 *
 *   o_i = sum_j W_ij e^{s_ij} v_j / sum_j W_ij e^{s_ij}
 *
 * so this is a mask with multiplicities: the mask is the support {W > 0}, attend mixes the branches
 * (each segment of each is a dense problem on gathered rows), and density_exec counts a pair once
 * per branch. O(N sum_b w_b / r_b^2) pairs.
 *
 * Deviations: the code pads sequence and segments with zero keys, which take part in the softmax
 * when not causal (official_pad=1 does that; default off); a query that no branch selects is an
 * empty row; the code's replacement of an LSE of exactly 0 is not imitated.
 */
#include "core/intmath.h"
#include "core/method.h"
#include "core/mem.h"
#include "sim/blocks/slicemask.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/numlist.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BRANCHES_MOST OWN_BRANCHES

struct params {
    char *segments, *ratios;
    bool official_pad;
};

static const struct opt options[] = {
    OPT_STR(struct params, segments, "2048+4096+8192+16384+32768", NULL,
            "segment length of every branch, a+b+c", .unit = "tokens"),
    OPT_STR(struct params, ratios, "1+2+4+6+12", NULL, "dilation of every branch, a+b+c",
            .unit = "tokens"),
    OPT_BOOL(struct params, official_pad, "0",
             "zero keys of the padding enter the softmax when not causal, as in the code"),
    {0},
};

/* One branch's problem on a segment: gathered operands, its output and log-sum-exps. */
struct branch_buf {
    float *q, *k, *v;
    double *out, *lse;
    int64_t q_cap, k_cap, v_cap, out_cap, lse_cap;
};

struct state {
    const struct params *params;
    struct head_in in;
    int n;
    struct own_branch b[BRANCHES_MOST];
    struct {
        int64_t sum, max; /* over the pairs of the mask; atomic adds, several ranges at a time */
    } weights;            /* of a pair: the branches that hold it */
    struct branch_buf buf;
    double est_mean, est_m2; /* of e^(LSE' - LSE), running (Welford) */
    int64_t rows;
};

static void release(void *state)
{
    struct state *s = state;
    free(s->buf.q);
    free(s->buf.k);
    free(s->buf.v);
    free(s->buf.out);
    free(s->buf.lse);
}

static int parse_branches(const struct params *p, int64_t *w, int64_t *r, int *n, struct err *err)
{
    int m = 0;
    PASS_ON(int_list_parse(p->segments, "segments", 0, w, BRANCHES_MOST, n, err));
    PASS_ON(int_list_parse(p->ratios, "ratios", 0, r, BRANCHES_MOST, &m, err));
    if (m != *n)
        return err_set(err, ERR_USAGE, "%d segments and %d ratios: every branch needs one of each",
                       *n, m);
    return 0;
}

static int validate(void *params, struct err *err)
{
    int64_t w[BRANCHES_MOST], r[BRANCHES_MOST];
    int n;
    return parse_branches(params, w, r, &n, err);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    if (in->some_heads)
        return method_skip(ctx, "the trace holds some of the model's heads: the places of a head "
                                "follow from its number among all of them");
    struct state *s = state;
    int64_t w[BRANCHES_MOST], r[BRANCHES_MOST];

    s->params = params;
    s->in = *in;
    PASS_ON(parse_branches(s->params, w, r, &s->n, err));
    for (int b = 0; b < s->n; b++) {
        int64_t per_phase = ceil_div(in->n_heads, r[b]);
        s->b[b] = (struct own_branch){MIN(w[b], in->x.nk), r[b], in->head / per_phase};
    }
    return 0;
}

/* Does the branch take part in position p? */
static bool takes(const struct own_branch *b, int64_t p)
{
    return p % b->w % b->r == b->phase;
}

/* Number of places that the branch selects among the first x of a segment. */
static int64_t places_below(const struct own_branch *b, int64_t x)
{
    return x > b->phase ? ceil_div(x - b->phase, b->r) : 0;
}

/* ---- the support ---------------------------------------------------------------------------- */

/* The keys that the rows of the same branches and segments keep, as far as they see them. */
struct pattern {
    uint32_t takes;                /* branches that take part: a bit each */
    int64_t start[BRANCHES_MOST];  /* of their segments */
    int64_t n, cap_keys, cap_sums; /* arrays are owned */
    int32_t *keys;                 /* [n] */
    struct {
        int64_t sum, max; /* of the weights of the keys up to this one */
    } * upto;             /* [n] */
};

/* A range of rows while its mask is made. */
struct rows {
    uint8_t *weight; /* [nk] branches that hold the key; 0 between patterns; owned */
    struct pattern known[16];
    int n, next; /* next: to be replaced when all are in use */
};

static void rows_free(struct rows *w)
{
    for (int i = 0; w && i < w->n; i++) {
        free(w->known[i].keys);
        free(w->known[i].upto);
    }
    free(w ? w->weight : NULL);
    free(w);
}
OWN_AT(rows_free, struct rows *)

/* Fill in the keys of a pattern, whose branches and segments are set. */
static int fill_pattern(const struct state *s, struct pattern *p, uint8_t *weight, struct err *err)
{
    int64_t nk = s->in.x.nk, lo = nk, hi = 0, sum = 0, max = 0;
    p->n = 0;
    for (int b = 0; b < s->n; b++) {
        const struct own_branch *br = s->b + b;
        int64_t end = MIN(nk, p->start[b] + br->w);
        if (!(p->takes >> b & 1))
            continue;
        lo = MIN(lo, p->start[b]);
        hi = MAX(hi, end);
        for (int64_t j = p->start[b] + br->phase; j < end; j += br->r)
            p->n += weight[j]++ == 0;
    }
    PASS_ON(mem_grow(&p->keys, &p->cap_keys, p->n, sizeof *p->keys, "keys of branches", err));
    PASS_ON(mem_grow(&p->upto, &p->cap_sums, p->n, sizeof *p->upto, "keys of branches", err));
    for (int64_t j = lo, i = 0; j < hi; j++)
        if (weight[j]) {
            sum += weight[j];
            max = MAX(max, weight[j]);
            p->keys[i] = (int32_t)j;
            p->upto[i].sum = sum;
            p->upto[i++].max = max;
            weight[j] = 0;
        }
    return 0;
}

static bool same_pattern(const struct pattern *a, const struct pattern *b, int n)
{
    bool same = a->takes == b->takes;
    for (int i = 0; i < n && same; i++)
        same = !(a->takes >> i & 1) || a->start[i] == b->start[i];
    return same;
}

/* The pattern of the row at position p. */
static int pattern_of(const struct state *s, struct rows *w, int64_t p, const struct pattern **out,
                      struct err *err)
{
    int most = (int)(sizeof w->known / sizeof *w->known), i = 0;
    struct pattern want = {0};
    for (int b = 0; b < s->n; b++) {
        want.takes |= (uint32_t)takes(s->b + b, p) << b;
        want.start[b] = p / s->b[b].w * s->b[b].w;
    }
    while (i < w->n && !same_pattern(w->known + i, &want, s->n))
        i++;
    *out = w->known + i;
    if (i < w->n)
        return 0;
    if (i == most) {
        i = w->next;
        w->next = (w->next + 1) % most;
    } else {
        w->n++;
    }
    struct pattern *to = w->known + i;
    to->takes = want.takes;
    memcpy(to->start, want.start, sizeof want.start);
    *out = to;
    return fill_pattern(s, to, w->weight, err);
}

static int longnet_row(const struct state *s, struct rows *w, struct mask *m, int64_t i,
                       int64_t *sum, int64_t *max, struct err *err)
{
    const struct pattern *p = NULL;
    int64_t n;
    PASS_ON(pattern_of(s, w, i + s->in.x.nk - s->in.x.nq, &p, err));
    n = list_below(p->keys, p->n, mask_limit(m, i));
    if (n == 0)
        return 0;
    *sum += p->upto[n - 1].sum;
    *max = MAX(*max, p->upto[n - 1].max);
    return mask_lists_add_all(m, i - m->row0, p->keys, n, err);
}

static void add_weights(struct state *s, int64_t sum, int64_t max)
{
    int64_t most = __atomic_load_n(&s->weights.max, __ATOMIC_RELAXED);
    __atomic_add_fetch(&s->weights.sum, sum, __ATOMIC_RELAXED);
    while (most < max && !__atomic_compare_exchange_n(&s->weights.max, &most, max, true,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    const struct attn_in *x = &s->in.x;
    OWN(rows_free_at) struct rows *w = NULL;
    int64_t sum = 0, max = 0;
    PASS_ON(mask_lists_init(out, x->nq, x->nk, row0, row1, x->causal, 1, 1, err));
    out->exec_bq = out->exec_bk = 1;
    PASS_ON(mem_zalloc(&w, 1, sizeof *w, "branches of rows", err));
    PASS_ON(mem_zalloc(&w->weight, x->nk, sizeof *w->weight, "branches of rows", err));
    for (int64_t i = MAX(row0, x->nq - x->nk); i < row1; i++)
        PASS_ON(longnet_row(s, w, out, i, &sum, &max, err));
    mask_lists_finish(out);
    add_weights(s, sum, max);
    return 0;
}

/* The branches' phases are those of the head's number. */
static struct mask_origin origin(void *state)
{
    struct state *s = state;
    return (struct mask_origin){.which = (uint64_t)s->in.head,
                                .any_order = true,
                                .counted = &s->weights,
                                .bytes = sizeof s->weights};
}

/* ---- on a device ---------------------------------------------------------------------------- */

static void describe(const struct state *s, struct own_dilated *d)
{
    d->n = s->n;
    d->padded = s->params->official_pad && !s->in.x.causal;
    memcpy(d->b, s->b, (size_t)s->n * sizeof *s->b);
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    (void)why;
    describe(state, &rule->of.dilated);
    return true;
}

/* Pairs of a branch's queries from position p0 on. */
static int64_t branch_pairs(const struct state *s, const struct own_branch *b, int64_t p0)
{
    int64_t nk = s->in.x.nk, sum = 0;
    for (int64_t start = p0 / b->w * b->w; start < nk; start += b->w) {
        int64_t t0 = places_below(b, p0 - start), t1 = places_below(b, MIN(b->w, nk - start));
        sum += s->in.x.causal ? (t1 * (t1 + 1) - t0 * (t0 + 1)) / 2 : (t1 - t0) * t1;
    }
    return sum;
}

/* The weights of all pairs, from the branches alone. No pair has more of them than its query paired
 * with itself. */
static void weigh(struct state *s)
{
    const struct attn_in *x = &s->in.x;
    int64_t p0 = MAX(0, x->nk - x->nq), sum = 0, max = 0;
    for (int b = 0; b < s->n; b++)
        sum += branch_pairs(s, s->b + b, p0);
    for (int64_t p = p0; p < x->nk; p++) {
        int64_t held = 0;
        for (int b = 0; b < s->n; b++)
            held += takes(s->b + b, p);
        max = MAX(max, held);
    }
    add_weights(s, sum, max);
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    if (!c->lists)
        weigh(state);
    return pairs_take(state, c, err);
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Zero keys that the code's padding gives the queries of the segment at `start`. */
static int64_t padding_of(const struct state *s, const struct own_branch *b, int64_t start)
{
    int64_t valid = MIN(b->w, s->in.x.nk - start), padded = ceil_div(b->w, b->r) * b->r;
    if (!s->params->official_pad || s->in.x.causal)
        return 0;
    return places_below(b, padded) - places_below(b, valid);
}

/* Rows x[first + step t], t = 0..n-1, in place or gathered into *buf. */
static int strided_rows(const float *x, int d, int64_t first, int64_t step, int64_t n, float **buf,
                        int64_t *cap, const float **rows, struct err *err)
{
    if (step == 1) {
        *rows = x + first * d;
        return 0;
    }
    PASS_ON(mem_grow(buf, cap, n * d, sizeof **buf, "rows of a branch", err));
    for (int64_t t = 0; t < n; t++)
        memcpy(*buf + t * d, x + (first + step * t) * d, (size_t)d * sizeof **buf);
    *rows = *buf;
    return 0;
}

/* The union of two sets of keys (a key of both counts twice): `out` with the log-sum-exp *lse
 * becomes the softmax average over its own keys and those of `more`, lse_more. more NULL: values of
 * 0. */
static void merge(double *out, double *lse, const double *more, double lse_more, int dv)
{
    double top = MAX(*lse, lse_more);
    if (lse_more == -INFINITY)
        return;
    double a = exp(*lse - top), b = exp(lse_more - top), sum = a + b;
    for (int c = 0; c < dv; c++)
        out[c] = (a * out[c] + (more ? b * more[c] : 0)) / sum;
    *lse = top + log(sum);
}

/* Queries of places [t0, t1) of the segment at `start` and the keys that they see are a dense
 * problem of their own, t1 - t0 rows standing at the end of n keys when causal. */
static int attend_places(struct state *s, const struct own_branch *b, int64_t start, int64_t t0,
                         int64_t t1, int64_t n, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    struct branch_buf *w = &s->buf;
    struct attn_in in = *x;
    OWN(attn_release) struct attn_ops ops = {0};
    struct mask full;
    int64_t first = start + b->phase, shift = x->nk - x->nq;
    in.nq = t1 - t0;
    in.nk = n;
    PASS_ON(strided_rows(x->q, x->d, first + b->r * t0 - shift, b->r, in.nq, &w->q, &w->q_cap,
                         &in.q, err));
    PASS_ON(strided_rows(x->k, x->d, first, b->r, n, &w->k, &w->k_cap, &in.k, err));
    PASS_ON(strided_rows(x->v, x->dv, first, b->r, n, &w->v, &w->v_cap, &in.v, err));
    PASS_ON(
        mem_grow(&w->out, &w->out_cap, in.nq * x->dv, sizeof *w->out, "output of a branch", err));
    PASS_ON(mem_grow(&w->lse, &w->lse_cap, in.nq, sizeof *w->lse, "log-sum-exp of a branch", err));
    PASS_ON(attn_prepare(&ops, &in, s->in.exact->prec, err));
    mask_full(&full, in.nq, n, 0, in.nq, x->causal);
    return attn_rows(&ops, &full, w->out, w->lse, err);
}

/* Merge what branch b gives the queries at positions [p0, p1), all of the segment at `start`, into
 * the rows from row0 on. */
static int attend_segment(struct state *s, const struct own_branch *b, int64_t start, int64_t p0,
                          int64_t p1, int64_t row0, double *out, double *lse, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    int64_t t0 = places_below(b, p0 - start), t1 = places_below(b, p1 - start);
    int64_t n = x->causal ? t1 : places_below(b, MIN(b->w, x->nk - start));
    int64_t zeros = padding_of(s, b, start);
    if (t1 == t0)
        return 0;
    PASS_ON(attend_places(s, b, start, t0, t1, n, err));
    for (int64_t t = t0; t < t1; t++) {
        int64_t r = start + b->phase + b->r * t - (x->nk - x->nq) - row0;
        merge(out + r * x->dv, lse + r, s->buf.out + (t - t0) * x->dv, s->buf.lse[t - t0], x->dv);
        if (zeros)
            merge(out + r * x->dv, lse + r, NULL, log((double)zeros), x->dv);
    }
    return 0;
}

/* Softmax sums of rows [row0, row1) beside the dense ones, running over the rows. */
static int count_estimates(struct state *s, int64_t row0, int64_t row1, const double *lse,
                           struct err *err)
{
    const double *dense;
    PASS_ON(exact_lse(s->in.exact, row0, row1, &dense, err));
    for (int64_t i = 0; i < row1 - row0; i++) {
        double est = lse[i] == -INFINITY ? 0 : exp(lse[i] - dense[i]);
        double delta = est - s->est_mean;
        s->rows++;
        s->est_mean += delta / (double)s->rows;
        s->est_m2 += delta * (est - s->est_mean);
    }
    return 0;
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct state *s = state;
    const struct attn_in *x = &s->in.x;
    int64_t p0 = MAX(0, m->row0 + x->nk - x->nq), p1 = m->row1 + x->nk - x->nq;
    memset(out, 0, (size_t)((m->row1 - m->row0) * x->dv) * sizeof *out);
    for (int64_t r = 0; r < m->row1 - m->row0; r++)
        lse[r] = -INFINITY;
    for (int b = 0; b < s->n; b++) {
        int64_t w = s->b[b].w;
        for (int64_t start = p0 / w * w; start < p1; start += w)
            PASS_ON(attend_segment(s, &s->b[b], start, MAX(p0, start), MIN(p1, start + w), m->row0,
                                   out, lse, err));
    }
    return count_estimates(s, m->row0, m->row1, lse, err);
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    (void)why;
    a->kind = ARITH_KERNEL;
    a->own = (struct own_rule){.kind = OWN_DILATED};
    describe(state, &a->own.of.dilated);
}

static int done(void *state, double tiles_pv, const double *lse, struct err *err)
{
    struct state *s = state;
    (void)tiles_pv;
    return count_estimates(s, 0, s->in.x.nq, lse, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    const struct attn_in *x = &s->in.x;
    double allowed = (double)pairs_allowed(x->nq, x->nk, x->causal);
    double sd = s->rows > 1 ? sqrt(s->est_m2 / (double)(s->rows - 1)) : 0;
    return RECORD_ALL(
        r, err, {"pairs_exec", s->weights.sum}, {"density_exec", (double)s->weights.sum / allowed},
        {"weight_max", s->weights.max}, {"mass_est_mean", s->est_mean}, {"mass_est_sd", sd});
}

static const struct metric_def metrics[] = {
    OWN_METRIC("weight_max", "largest number of branches that hold a pair"),
    {0},
};

/* A branch of ratio 1 holds every position; dilation alone leaves some out. */
static bool may_be_empty(const void *params)
{
    int64_t w[BRANCHES_MOST], r[BRANCHES_MOST], least = INT64_MAX;
    struct err err = {0};
    int n = 0;
    if (parse_branches(params, w, r, &n, &err))
        return false;
    for (int b = 0; b < n; b++)
        least = MIN(least, r[b]);
    return least > 1;
}

const struct method method_longnet = {
    .name = "longnet",
    .summary = "dilated segments of growing length, mixed by their softmax denominators",
    .paper = "Ding et al., LongNet: Scaling Transformers to 1,000,000,000 Tokens, arXiv 2307.02486",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL,
    .params = {.table = options,
               .size = sizeof(struct params),
               .validate = validate,
               .may_be_empty = may_be_empty},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .arith = {.kind = ARITH_KERNEL, .how = how, .attend = attend, .done = done},
    .reuse = {.always_static = true, .of = origin},
    .tests = {.full = "segments=1000000000:ratios=1",
              .variants =
                  TEXTS("segments=32+128:ratios=1+3", "segments=40+300:ratios=2+4:official_pad=1")},
};
