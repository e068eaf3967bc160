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
 * so this is a mask with multiplicities: the mask is the support {W > 0}, attend applies W, and
 * density_exec counts a pair once per branch. O(N sum_b w_b / r_b^2) pairs.
 *
 * Deviations: the code pads sequence and segments with zero keys, which take part in the softmax
 * when not causal (official_pad=1 does that; default off); a query that no branch selects is an
 * empty row; the code's replacement of an LSE of exactly 0 is not imitated.
 */
#include "core/method.h"
#include "core/mem.h"
#include "core/simd.h"
#include "sim/numlist.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define BRANCHES_MOST 32

struct longnet_params {
    char *segments, *ratios;
    bool official_pad;
};

#define P(field) offsetof(struct longnet_params, field)
/* clang-format off */
static const struct opt longnet_opts[] = {
    {.name = "segments", .type = OPT_STR, .offset = P(segments),
     .def = "2048+4096+8192+16384+32768", .unit = "tokens",
     .help = "segment length of every branch, a+b+c"},
    {.name = "ratios", .type = OPT_STR, .offset = P(ratios), .def = "1+2+4+6+12", .unit = "tokens",
     .help = "dilation of every branch, a+b+c"},
    {.name = "official_pad", .type = OPT_BOOL, .offset = P(official_pad), .def = "0",
     .help = "zero keys of the padding enter the softmax when not causal, as in the code"},
    {0},
};
/* clang-format on */

struct branch {
    int64_t w, r, phase;
};

struct longnet_state {
    const struct longnet_params *params;
    struct head_in in;
    int n;
    struct branch b[BRANCHES_MOST];
    double weight_sum; /* over the pairs of the mask */
    int64_t weight_max;
    double *score;           /* [nk] scratch of attend */
    double est_mean, est_m2; /* of e^(LSE' - LSE), running (Welford) */
    int64_t rows;
};

static void longnet_release(void *state)
{
    struct longnet_state *s = state;
    if (!s)
        return;
    free(s->score);
    free(s);
}

static int parse_branches(const struct longnet_params *p, int64_t *w, int64_t *r, int *n,
                          struct err *err)
{
    int m = 0, rc = int_list_parse(p->segments, "segments", 0, w, BRANCHES_MOST, n, err);
    if (!rc)
        rc = int_list_parse(p->ratios, "ratios", 0, r, BRANCHES_MOST, &m, err);
    if (!rc && m != *n)
        return err_set(err, ERR_USAGE, "%d segments and %d ratios: every branch needs one of each",
                       *n, m);
    return rc;
}

static int longnet_validate(void *params, struct err *err)
{
    int64_t w[BRANCHES_MOST], r[BRANCHES_MOST];
    int n;
    return parse_branches(params, w, r, &n, err);
}

static int longnet_prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                           void **state, struct err *err)
{
    struct longnet_state *s = NULL;
    int64_t w[BRANCHES_MOST], r[BRANCHES_MOST];
    int rc = 0;

    TRY(mem_zalloc(&s, 1, sizeof *s, "longnet state", err));
    s->params = params;
    s->in = *in;
    TRY(parse_branches(s->params, w, r, &s->n, err));
    for (int b = 0; b < s->n; b++) {
        int64_t per_phase = (in->n_heads + r[b] - 1) / r[b];
        s->b[b] = (struct branch){MIN(w[b], in->x.nk), r[b], in->head / per_phase};
    }
    TRY(mem_alloc(&s->score, in->x.nk, sizeof *s->score, "scores of a row", err));
    *state = s;
    s = NULL;
out:
    longnet_release(s);
    return rc;
}

/* Does the branch take part in position p? */
static bool takes(const struct branch *b, int64_t p)
{
    return p % b->w % b->r == b->phase;
}

/* ---- the support ---------------------------------------------------------------------------- */

/* Keys of the row at position p below `limit`: the branches' sequences merged. */
static int longnet_row(struct longnet_state *s, struct mask *m, int64_t g, int64_t p, int64_t limit,
                       struct err *err)
{
    int64_t next[BRANCHES_MOST], end[BRANCHES_MOST];
    int rc = 0;
    for (int b = 0; b < s->n; b++) {
        const struct branch *br = &s->b[b];
        int64_t start = p / br->w * br->w;
        next[b] = takes(br, p) ? start + br->phase : limit;
        end[b] = MIN(limit, start + br->w);
    }
    for (;;) {
        int64_t j = limit, weight = 0;
        for (int b = 0; b < s->n; b++)
            if (next[b] < end[b])
                j = MIN(j, next[b]);
        if (j == limit)
            break;
        for (int b = 0; b < s->n; b++)
            if (next[b] == j && j < end[b]) {
                next[b] += s->b[b].r;
                weight++;
            }
        s->weight_sum += (double)weight;
        s->weight_max = MAX(s->weight_max, weight);
        TRY(mask_lists_add(m, g, (int32_t)j, err));
    }
out:
    return rc;
}

static int longnet_select(void *state, int64_t row0, int64_t row1, struct mask *out,
                          struct err *err)
{
    struct longnet_state *s = state;
    const struct attn_in *x = &s->in.x;
    int rc = 0;

    TRY(mask_lists_init(out, x->nq, x->nk, row0, row1, x->causal, 1, 1, err));
    out->exec_bq = out->exec_bk = 1;
    for (int64_t i = row0; i < row1; i++) {
        int64_t p = i + x->nk - x->nq;
        if (p >= 0)
            TRY(longnet_row(s, out, i - row0, p, mask_limit(out, i), err));
    }
    mask_lists_finish(out);
out:
    return rc;
}

/* ---- weighted softmax ----------------------------------------------------------------------- */

static int64_t weight_of(const struct longnet_state *s, int64_t p, int64_t j)
{
    int64_t n = 0;
    for (int b = 0; b < s->n; b++) {
        const struct branch *br = &s->b[b];
        n += p / br->w == j / br->w && takes(br, p) && takes(br, j);
    }
    return n;
}

/* Zero keys that the code's padding gives the row at position p. */
static int64_t padding_of(const struct longnet_state *s, int64_t p)
{
    int64_t count = 0;
    if (!s->params->official_pad || s->in.x.causal)
        return 0;
    for (int b = 0; b < s->n; b++) {
        const struct branch *br = &s->b[b];
        int64_t valid = MIN(br->w, s->in.x.nk - p / br->w * br->w);
        int64_t padded = (br->w + br->r - 1) / br->r * br->r;
        if (!takes(br, p))
            continue;
        for (int64_t t = valid; t < padded; t++)
            count += t % br->r == br->phase;
    }
    return count;
}

SIMD_CLONES
static double dot(const float *a, const float *b, int d)
{
    double lane[16] = {0}, sum = 0;
    int c = 0;
    for (; c + 16 <= d; c += 16)
        for (int k = 0; k < 16; k++)
            lane[k] += (double)a[c + k] * b[c + k];
    for (; c < d; c++)
        sum += (double)a[c] * b[c];
    for (int k = 0; k < 16; k++)
        sum += lane[k];
    return sum;
}

/* One row over the keys col[0..n): out [dv], returns LSE' (-inf without keys). */
static double attend_row(const struct longnet_state *s, int64_t i, const int32_t *col, int64_t n,
                         double *out)
{
    const struct attn_in *x = &s->in.x;
    int64_t p = i + x->nk - x->nq, zeros = n ? padding_of(s, p) : 0;
    double top = zeros ? 0 : -INFINITY, sum;

    memset(out, 0, (size_t)x->dv * sizeof *out);
    if (n == 0)
        return -INFINITY;
    for (int64_t e = 0; e < n; e++) {
        s->score[e] = x->scale * dot(x->q + i * x->d, x->k + (int64_t)col[e] * x->d, x->d);
        top = MAX(top, s->score[e]);
    }
    sum = zeros ? (double)zeros * exp(-top) : 0;
    for (int64_t e = 0; e < n; e++) {
        double w = (double)weight_of(s, p, col[e]) * exp(s->score[e] - top);
        const float *v = x->v + (int64_t)col[e] * x->dv;
        sum += w;
        for (int c = 0; c < x->dv; c++)
            out[c] += w * v[c];
    }
    for (int c = 0; c < x->dv; c++)
        out[c] /= sum;
    return top + log(sum);
}

static int longnet_attend(void *state, const struct mask *m, double *out, double *lse,
                          struct attend_stats *stats, struct err *err)
{
    struct longnet_state *s = state;
    for (int64_t i = m->row0; i < m->row1; i++) {
        int64_t r = i - m->row0;
        lse[r] =
            attend_row(s, i, m->col + m->ptr[r], m->ptr[r + 1] - m->ptr[r], out + r * s->in.x.dv);
        double est = lse[r] == -INFINITY ? 0 : exp(lse[r] - s->in.lse[i]);
        double delta = est - s->est_mean;
        s->rows++;
        s->est_mean += delta / (double)s->rows;
        s->est_m2 += delta * (est - s->est_mean);
    }
    return 0;
}

static int longnet_report(void *state, struct record *r, struct err *err)
{
    const struct longnet_state *s = state;
    const struct attn_in *x = &s->in.x;
    double allowed = (double)pairs_allowed(x->nq, x->nk, x->causal);
    double sd = s->rows > 1 ? sqrt(s->est_m2 / (double)(s->rows - 1)) : 0;
    int rc = 0;

    TRY(record_metric(r, "pairs_exec", s->weight_sum, err));
    TRY(record_metric(r, "density_exec", s->weight_sum / allowed, err));
    TRY(record_metric(r, "weight_max", (double)s->weight_max, err));
    TRY(record_metric(r, "mass_est_mean", s->est_mean, err));
    TRY(record_metric(r, "mass_est_sd", sd, err));
out:
    return rc;
}

const struct method method_longnet = {
    .name = "longnet",
    .summary = "dilated segments of growing length, mixed by their softmax denominators",
    .paper = "Ding et al., LongNet: Scaling Transformers to 1,000,000,000 Tokens, arXiv 2307.02486",
    .abi = METHOD_ABI,
    .flags = METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_CHANGES_MATH,
    .params_size = sizeof(struct longnet_params),
    .params = longnet_opts,
    .budget_full = "segments=1000000000:ratios=1",
    .validate = longnet_validate,
    .prepare = longnet_prepare,
    .select = longnet_select,
    .attend = longnet_attend,
    .report = longnet_report,
    .release = longnet_release,
};
