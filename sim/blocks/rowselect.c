/*
 * rowselect.c - see rowselect.h.
 */
#include "sim/blocks/rowselect.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/simd.h"
#include "sim/blocks/numlist.h"
#include "sim/blocks/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ABREAST ROW_LANES /* sums side by side, added in one order */

static double sum_of(const double *part)
{
    return ((part[0] + part[1]) + (part[2] + part[3])) +
           ((part[4] + part[5]) + (part[6] + part[7]));
}

SIMD_CLONES static void extent(const float *x, int64_t n, float *low, float *high)
{
    float lo[ABREAST], hi[ABREAST];
    int64_t c = 0;
    for (int e = 0; e < ABREAST; e++)
        lo[e] = hi[e] = x[0];
    for (; c + ABREAST <= n; c += ABREAST)
        for (int e = 0; e < ABREAST; e++) {
            lo[e] = x[c + e] < lo[e] ? x[c + e] : lo[e];
            hi[e] = x[c + e] > hi[e] ? x[c + e] : hi[e];
        }
    *low = *high = x[0];
    for (; c < n; c++) {
        *low = x[c] < *low ? x[c] : *low;
        *high = x[c] > *high ? x[c] : *high;
    }
    for (int e = 0; e < ABREAST; e++) {
        *low = lo[e] < *low ? lo[e] : *low;
        *high = hi[e] > *high ? hi[e] : *high;
    }
}

SIMD_CLONES void token_quantise(const float *x, int64_t n, int bits, float *out)
{
    float low, high, levels = (float)((1 << MIN(bits, 16)) - 1);
    extent(x, n, &low, &high);
    float step = (high - low) / levels;
    if (bits >= 16 || !(step > 0) || !isfinite(step)) {
        memcpy(out, x, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t c = 0; c < n; c++) {
        float code = rintf((x[c] - low) / step);
        code = code > 0 ? code : 0;
        out[c] = low + (code < levels ? code : levels) * step;
    }
}

/* ---- units of keys by rank ------------------------------------------------------------------ */

int ranked_init(struct ranked *r, int64_t units, struct err *err)
{
    PASS_ON(mem_alloc(&r->score, units, sizeof *r->score, "scores of a row", err));
    return prefix_work_new(&r->work, err);
}

void ranked_free(struct ranked *r)
{
    free(r->score);
    prefix_work_free(r->work);
    memset(r, 0, sizeof *r);
}

int ranked_add(struct ranked *r, const double *score, int64_t n, int64_t best, int64_t end,
               struct mask *m, int64_t g, struct err *err)
{
    struct prefix top;
    int64_t kept = 0, from = best < n ? n : 0; /* all of [from, end) stay */

    if (best < n) {
        PASS_ON(prefix_topk(r->work, score, n, best, &top, err));
        const int32_t *unit = prefix_list(r->work, &top, score, n, &kept);
        PASS_ON(mask_lists_add_all(m, g, unit, kept, err));
    }
    if (from < end)
        PASS_ON(mask_lists_add_run(m, g, (int32_t)from, (int32_t)end, err));
    r->kept += kept + end - from;
    r->seen += end;
    return 0;
}

/* ---- pages of keys -------------------------------------------------------------------------- */

/* Extremes of the keys [from, to) as those of page j. */
static void extremes(struct key_pages *p, int64_t j, int64_t from, int64_t to)
{
    int d = p->x->d;
    float *low = p->low + j * d, *high = p->high + j * d;
    memcpy(low, p->x->k + from * d, (size_t)d * sizeof *low);
    memcpy(high, low, (size_t)d * sizeof *high);
    for (int64_t t = from + 1; t < to; t++)
        for (int c = 0; c < d; c++) {
            float k = p->x->k[t * d + c];
            low[c] = k < low[c] ? k : low[c];
            high[c] = k > high[c] ? k : high[c];
        }
    for (int c = 0; p->half && c < d; c++) {
        low[c] = f16_round(low[c]);
        high[c] = f16_round(high[c]);
    }
}

int key_pages_init(struct key_pages *p, const struct attn_in *x, int64_t page, bool half,
                   struct err *err)
{
    *p = (struct key_pages){.x = x, .page = page, .whole = x->nk / page, .half = half};
    PASS_ON(mem_alloc(&p->low, (p->whole + 1) * x->d, sizeof *p->low, "pages of keys", err));
    PASS_ON(mem_alloc(&p->high, (p->whole + 1) * x->d, sizeof *p->high, "pages of keys", err));
    PASS_ON(mem_alloc(&p->bound, p->whole + 1, sizeof *p->bound, "bounds of pages", err));
    for (int64_t j = 0; j < p->whole; j++)
        extremes(p, j, j * page, (j + 1) * page);
    return 0;
}

void key_pages_free(struct key_pages *p)
{
    free(p->low);
    free(p->high);
    free(p->bound);
    memset(p, 0, sizeof *p);
}

SIMD_CLONES static double bound_of(const float *q, const float *low, const float *high, int d)
{
    double part[ABREAST] = {0};
    int c = 0;
    for (; c + ABREAST <= d; c += ABREAST)
        for (int e = 0; e < ABREAST; e++) {
            double a = (double)q[c + e] * (double)low[c + e];
            double b = (double)q[c + e] * (double)high[c + e];
            part[e] += a > b ? a : b;
        }
    for (; c < d; c++) {
        double a = (double)q[c] * (double)low[c], b = (double)q[c] * (double)high[c];
        part[0] += a > b ? a : b;
    }
    return sum_of(part);
}

int64_t key_pages_bounds(struct key_pages *p, const float *q, int64_t limit)
{
    int64_t n = limit / p->page, d = p->x->d;
    for (int64_t j = 0; j < n; j++)
        p->bound[j] = bound_of(q, p->low + j * d, p->high + j * d, (int)d);
    if (limit % p->page == 0)
        return n;
    extremes(p, p->whole, n * p->page, limit);
    p->bound[n] = bound_of(q, p->low + p->whole * d, p->high + p->whole * d, (int)d);
    return n + 1;
}

/* ---- tokens by few channels ----------------------------------------------------------------- */

int64_t channel_products(const struct attn_in *x, double *sum)
{
    int64_t first = MAX(0, x->nq - x->nk);
    for (int64_t i = first; i < x->nq; i++) {
        const float *q = x->q + i * x->d, *k = x->k + (i + x->nk - x->nq) * x->d;
        for (int c = 0; c < x->d; c++)
            sum[c] += fabs((double)q[c] * (double)k[c]);
    }
    return x->nq - first;
}

void channels_of(const double *sum, int d, int n, int64_t *channel)
{
    int at = 0;
    for (int c = 0; c < d; c++) {
        int before = 0;
        for (int e = 0; e < d; e++)
            before += sum[e] > sum[c] || (sum[e] == sum[c] && e < c);
        if (before < n)
            channel[at++] = c;
    }
}

/* The channels of the labels: given, or those of the head. */
static int find_channels(struct key_labels *l, struct method_ctx *ctx, const struct head_in *in,
                         const char *list, int64_t factor, struct err *err)
{
    int d = in->x.d;
    double sum[CHANNELS_MOST] = {0};

    if (d > CHANNELS_MOST)
        return method_skip(ctx, "labels are of at most %d channels", CHANNELS_MOST);
    if (list) {
        PASS_ON(int_list_parse(list, "channels", -1, l->channel, CHANNELS_MOST, &l->n, err));
        for (int c = 0; c < l->n; c++)
            if (l->channel[c] >= d)
                return method_skip(ctx, "channel %lld of a head of dimension %d",
                                   (long long)l->channel[c], d);
        return 0;
    }
    PASS_ON(method_all_rows(ctx, in, "choosing its channels"));
    l->n = (int)MAX(1, d / factor);
    channel_products(&in->x, sum);
    channels_of(sum, d, l->n, l->channel);
    return 0;
}

int key_labels_init(struct key_labels *l, struct method_ctx *ctx, const struct head_in *in,
                    const char *list, int64_t factor, int bits, struct err *err)
{
    int64_t nk = in->x.nk, d = in->x.d;

    *l = (struct key_labels){.x = &in->x};
    PASS_ON(find_channels(l, ctx, in, list, factor, err));
    PASS_ON(mem_alloc(&l->label, nk * l->n, sizeof *l->label, "labels", err));
    PASS_ON(mem_alloc(&l->score, LABEL_ROWS * nk, sizeof *l->score, "scores of labels", err));
    for (int64_t j = 0; j < nk; j++) {
        float k[CHANNELS_MOST] = {0}, label[CHANNELS_MOST];
        for (int c = 0; c < l->n; c++)
            k[c] = in->x.k[j * d + l->channel[c]];
        token_quantise(k, l->n, bits, label);
        for (int c = 0; c < l->n; c++)
            l->label[c * nk + j] = label[c];
    }
    return 0;
}

void key_labels_free(struct key_labels *l)
{
    free(l->label);
    free(l->score);
    memset(l, 0, sizeof *l);
}

#define SCORES 512 /* that stay in the cache while channels are added */

/* Add v[r] a + w[r] b to score row r, [LABEL_ROWS][ld], for n keys. */
SIMD_CLONES EXACT_PRODUCTS static void add_labels(const double *v, const float *a, const double *w,
                                                  const float *b, int64_t n, int64_t ld,
                                                  double *score)
{
    double *s0 = score, *s1 = s0 + ld, *s2 = s1 + ld, *s3 = s2 + ld;
    double v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3], w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    for (int64_t j = 0; j < n; j++) {
        double x = a[j], y = b[j];
        s0[j] = (s0[j] + v0 * x) + w0 * y;
        s1[j] = (s1[j] + v1 * x) + w1 * y;
        s2[j] = (s2[j] + v2 * x) + w2 * y;
        s3[j] = (s3[j] + v3 * x) + w3 * y;
    }
}

const double *key_labels_scores(struct key_labels *l, int64_t i, int64_t end)
{
    const struct attn_in *x = l->x;
    if (i < l->row0 || i >= l->row1) {
        l->row0 = i;
        l->row1 = MIN(i + LABEL_ROWS, end);
        int64_t limit = attn_limit(x, l->row1 - 1);
        memset(l->score, 0, (size_t)(LABEL_ROWS * x->nk) * sizeof *l->score);
        for (int64_t at = 0; at < limit; at += SCORES)
            for (int c = 0; c < l->n; c += 2) {
                double v[LABEL_ROWS], w[LABEL_ROWS];
                int odd = c + 1 == l->n, next = odd ? c : c + 1;
                for (int r = 0; r < LABEL_ROWS; r++) {
                    const float *q = x->q + MIN(i + r, l->row1 - 1) * x->d;
                    v[r] = q[l->channel[c]];
                    w[r] = odd ? 0 : q[l->channel[next]];
                }
                add_labels(v, l->label + c * x->nk + at, w, l->label + next * x->nk + at,
                           MIN(SCORES, limit - at), x->nk, l->score + at);
            }
    }
    return l->score + (i - l->row0) * x->nk;
}

/* ---- the threshold of a mass ---------------------------------------------------------------- */

struct tally {
    double above, next, last; /* mass above mid; least one above low; largest one up to high */
};

SIMD_CLONES static struct tally tally_masses(const double *mass, int64_t n, double low, double mid,
                                             double high)
{
    double above[ABREAST] = {0}, next[ABREAST], last[ABREAST];
    for (int e = 0; e < ABREAST; e++) {
        next[e] = high;
        last[e] = low;
    }
    for (int64_t j = 0; j < n; j += ABREAST)
        for (int e = 0; e < ABREAST; e++) {
            double m = mass[j + e];
            above[e] += m > mid ? m : 0;
            next[e] = m > low && m < next[e] ? m : next[e];
            last[e] = m <= high && m > last[e] ? m : last[e];
        }
    struct tally t = {sum_of(above), next[0], last[0]};
    for (int e = 1; e < ABREAST; e++) {
        t.next = next[e] < t.next ? next[e] : t.next;
        t.last = last[e] > t.last ? last[e] : t.last;
    }
    return t;
}

double bisected_threshold(double *mass, int64_t n, double first, double want)
{
    float low = 0, high = (float)first;
    struct tally t;

    for (int e = 0; e < ABREAST; e++)
        mass[n + e] = -1;
    do {
        float mid = (low + high) / 2;
        t = tally_masses(mass, n, low, mid, high);
        if (t.above >= want)
            low = mid;
        else
            high = fminf(mid, (float)t.last);
    } while (t.last - t.next > (double)1e-5f);
    return low;
}

/* ---- layers and rows that are dense --------------------------------------------------------- */

bool head_left_dense(const struct head_in *in, int64_t layers, int64_t steps, int rows,
                     char why[160])
{
    why[0] = '\0';
    if (in->layer < layers)
        snprintf(why, 160, "layer %d is one of the first %lld, which dense_layers leaves dense",
                 in->layer, (long long)layers);
    else if (in->step < steps)
        snprintf(why, 160, "step %d is one of the first %lld, which dense_steps leaves dense",
                 in->step, (long long)steps);
    else if (rows == ROWS_DECODE && in->x.nq == in->x.nk && in->x.nk > 1)
        snprintf(why, 160, "rows=decode leaves a whole prompt dense; rows=all takes its rows too");
    return why[0] != '\0';
}

bool budget_is_all(const char *name, int64_t budget, int64_t unit, int64_t keys, char why[160])
{
    const char *of = unit > 1 ? " times the unit" : "";
    snprintf(why, 160, "%s=%lld%s is not less than the sequence's %lld keys", name,
             (long long)budget, of, (long long)keys);
    return true;
}

int row_lists(const struct attn_in *x, bool dense, int64_t unit, row_fn *fn, void *state,
              int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    if (dense) {
        attn_full_mask(x, row0, row1, out);
        return 0;
    }
    PASS_ON(mask_lists_init(out, x->nq, x->nk, row0, row1, x->causal, 1, unit, err));
    out->exec_bq = 1;
    out->exec_bk = unit;
    for (int64_t i = row0; i < row1; i++)
        PASS_ON(fn(state, i, out, err));
    mask_lists_finish(out);
    return 0;
}

int units_record(const struct attn_in *x, int64_t unit, int64_t most, struct record *r,
                 struct err *err)
{
    double kept = 0, seen = 0;
    for (int64_t i = MAX(0, x->nq - x->nk); i < x->nq; i++) {
        int64_t n = (i + x->nk - x->nq) / unit + 1;
        kept += (double)MIN(n, most);
        seen += (double)n;
    }
    return seen > 0 ? record_metric(r, "density_native", kept / seen, err) : 0;
}
