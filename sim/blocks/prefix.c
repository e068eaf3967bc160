/*
 * prefix.c - selection by mass and by count (prefix.h).
 *
 * Non-negative doubles order like their bit patterns, so the 16 leading bits (exponent and 4 bits
 * of mantissa) are a histogram bin: 1024 bins cover 64 octaves below the largest value, the last
 * bin takes everything smaller.
 */
#include "sim/blocks/prefix.h"

#include "core/attention.h"
#include "core/intmath.h"
#include "core/mem.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BINS 1024

struct entry {
    double rank, mass;
    int64_t index;
};

struct prefix_work {
    double sum[BINS];
    int64_t count[BINS];
    struct entry *entries;
    int64_t cap;
    double *values; /* of prefix_topk: m that have the k largest among them, then scratch */
    int64_t values_cap, m;
};

int prefix_work_new(struct prefix_work **out, struct err *err)
{
    return mem_zalloc(out, 1, sizeof **out, "selection scratch", err);
}

void prefix_work_free(struct prefix_work *w)
{
    if (!w)
        return;
    free(w->entries);
    free(w->values);
    free(w);
}

/* ---- by mass -------------------------------------------------------------------------------- */

static int64_t top_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return (int64_t)(u >> 48);
}

static int64_t bin_of(double rank, int64_t top)
{
    int64_t b = top - top_bits(rank);
    return b < BINS ? b : BINS - 1;
}

static int by_rank(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank > y->rank ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* The smallest rank of a bin. */
static double bin_edge(int64_t bin, int64_t top)
{
    uint64_t u = bin < BINS - 1 && bin < top ? (uint64_t)(top - bin) << 48 : 0;
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Sort the entries of the bins [b0, b1] and add them up from `sum`. */
static int finish(struct prefix_work *w, const double *rank, const double *mass, int64_t n,
                  int64_t top, int64_t b0, int64_t b1, double sum, double target,
                  struct prefix *out, struct err *err)
{
    int64_t k = 0;
    double low = bin_edge(b1, top), high = b0 > 0 ? bin_edge(b0 - 1, top) : INFINITY;
    PASS_ON(mem_grow(&w->entries, &w->cap, n + 1, sizeof *w->entries, "sorted row", err));
    for (int64_t j = 0; j < n; j++) {
        w->entries[k] = (struct entry){rank[j], mass[j], j};
        k += (rank[j] >= low) & ((rank[j] < high) | (b0 == 0)); /* without a branch */
    }
    qsort(w->entries, (size_t)k, sizeof *w->entries, by_rank);
    out->sum = out->before = sum;
    for (int64_t e = 0; e < k && out->sum < target; e++) {
        out->before = out->sum;
        out->sum += w->entries[e].mass;
        out->cut = w->entries[e].rank;
        out->last = w->entries[e].index;
        out->count++;
    }
    return 0;
}

static bool near(double x, double y, double tolerance)
{
    return fabs(x - y) <= tolerance;
}

int prefix_select(struct prefix_work *w, const double *rank, const double *mass, int64_t n,
                  double start, double target, struct prefix *out, struct err *err)
{
    double largest, total = start;
    int64_t above = 0, b = 0;
    int rc;

    *out = (struct prefix){INFINITY, -1, 0, start, start};
    if (start >= target)
        return 0;
    if ((largest = row_max_f64(rank, n)) < 0)
        return 0;
    int64_t top = top_bits(largest);
    memset(w->sum, 0, sizeof w->sum);
    memset(w->count, 0, sizeof w->count);
    for (int64_t j = 0; j < n; j++) {
        if (!(rank[j] >= 0))
            continue;
        int64_t at = bin_of(rank[j], top);
        w->sum[at] += mass[j];
        w->count[at]++;
    }
    for (; b < BINS - 1 && total + w->sum[b] < target; b++) {
        total += w->sum[b];
        above += w->count[b];
    }
    if ((rc = finish(w, rank, mass, n, top, b, b, total, target, out, err)) != 0)
        return rc;
    out->count += above;
    /* Sums by bins and sums in sorted order differ by rounding only; where that could move the
     * crossing, add up in sorted order from the start. */
    double tolerance = 4 * DBL_EPSILON * (double)(n + 1) * fmax(fabs(target), out->sum);
    if (near(out->sum, target, tolerance) || near(out->before, target, tolerance) ||
        near(total, target, tolerance)) {
        *out = (struct prefix){INFINITY, -1, 0, start, start};
        rc = finish(w, rank, mass, n, top, 0, BINS - 1, start, target, out, err);
    }
    if (out->sum < target) { /* not even all of them: no entry is behind the last one */
        out->cut = 0;
        out->last = n;
    }
    return rc;
}

/* ---- by count ------------------------------------------------------------------------------- */

static double median3(double a, double b, double c)
{
    return fmax(fmin(a, b), fmin(fmax(a, b), c));
}

/* Move the values above the pivot, or equal to it, to the front of x[from..to); returns their end.
 * Without a branch: it would be a coin's toss. */
static int64_t move_up(double *x, int64_t from, int64_t to, double pivot, bool equal)
{
    for (int64_t at = from; at < to; at++) {
        double v = x[at];
        x[at] = x[from];
        x[from] = v;
        from += equal ? v == pivot : v > pivot;
    }
    return from;
}

/* The value that stands at position k (from 0) of x[0..n) sorted descending; x is reordered. Equal
 * values end it at once. */
static double kth_largest(double *x, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n;
    for (;;) {
        double pivot = median3(x[lo], x[lo + (hi - lo) / 2], x[hi - 1]);
        int64_t equal, larger = move_up(x, lo, hi, pivot, false);
        if (k < larger) {
            hi = larger;
            continue;
        }
        equal = move_up(x, larger, hi, pivot, true);
        if (k < equal)
            return pivot;
        lo = equal;
    }
}

/* Copy the values of [low, high] to `to`; *above counts those that are larger. Without branches. */
static int64_t values_between(const double *x, int64_t n, double low, double high, double *to,
                              int64_t *above)
{
    int64_t m = 0, larger = 0;
    for (int64_t j = 0; j < n; j++) {
        to[m] = x[j];
        m += (x[j] >= low) & (x[j] <= high);
        larger += x[j] > high;
    }
    *above = larger;
    return m;
}

#define SAMPLE 512

/* Two values of a sample of x between which the k-th largest lies all but certainly. */
static void bracket(const double *x, int64_t n, int64_t k, double *low, double *high)
{
    double s[SAMPLE];
    int64_t m = 0;
    for (int64_t i = 0; i < SAMPLE; i++)
        if (!isnan(x[i * n / SAMPLE]))
            s[m++] = x[i * n / SAMPLE];
    double share = MIN(1, (double)k / (double)n), rank = share * (double)m;
    double margin = 4 + 4 * sqrt(rank * (1 - share)); /* four standard deviations of the rank */
    int64_t first = MAX(0, (int64_t)(rank - margin)), last = (int64_t)(rank + margin);
    *high = rank >= margin ? kth_largest(s, m, first) : INFINITY; /* which sorts larger ones out */
    *low = last < m ? kth_largest(s + first, m - first, last - first) : -INFINITY;
}

/* Copy some values of x to `to`, the *k-th largest among them (all: and all larger ones); its rank
 * there takes the place of *k. If there are fewer than *k values, copy them. */
static int64_t narrow_down(const double *x, int64_t n, bool all, int64_t *k, double *to)
{
    double low = -INFINITY, high = INFINITY;
    int64_t above, m;
    if (n >= 4 * SAMPLE)
        bracket(x, n, *k, &low, &high);
    high = all ? INFINITY : high;
    m = values_between(x, n, low, high, to, &above);
    if (*k <= above || *k > above + m) /* outside of the bracket */
        m = values_between(x, n, -INFINITY, INFINITY, to, &above);
    *k -= above;
    return m;
}

int prefix_topk(struct prefix_work *w, const double *x, int64_t n, int64_t k, struct prefix *out,
                struct err *err)
{
    PASS_ON(mem_grow(&w->values, &w->values_cap, 2 * n + 2, sizeof *w->values, "row copy", err));
    *out = (struct prefix){INFINITY, -1, 0, 0, 0};
    int64_t rank = k, m = w->m = narrow_down(x, n, true, &rank, w->values);
    if (rank > m)
        rank = k = m;
    if (k <= 0)
        return 0;
    double *v = w->values + n + 1;
    m = narrow_down(w->values, m, false, &rank, v);
    out->cut = kth_largest(v, m, rank - 1);
    out->count = k;
    for (int64_t j = 0; j < m; j++)
        rank -= v[j] > out->cut;
    for (int64_t j = 0; rank > 0; j++) {
        if (x[j] == out->cut && --rank == 0)
            out->last = j;
    }
    return 0;
}

void prefix_values(const struct prefix_work *w, const struct prefix *p, double *out)
{
    int64_t n = 0;
    for (int64_t j = 0; j < w->m; j++) {
        out[n] = w->values[j];
        n += w->values[j] > p->cut;
    }
    for (; n < p->count; n++)
        out[n] = p->cut;
}

int64_t prefix_pick(const struct prefix *p, const double *rank, int64_t n, int64_t lo, int64_t hi,
                    int32_t *at)
{
    int64_t near = 0, kept = 0;
    for (int64_t c = 0; c < n; c++) {
        at[near] = (int32_t)c;
        near += (rank[c] >= p->cut) | ((uint64_t)(c - lo) < (uint64_t)(hi - lo));
    }
    for (int64_t e = 0; e < near; e++) { /* of those that equal the last, the first */
        int32_t c = at[kept] = at[e];
        kept += ((c >= lo) & (c < hi)) | prefix_has(p, rank[c], c);
    }
    return kept;
}

const int32_t *prefix_list(struct prefix_work *w, const struct prefix *p, const double *x,
                           int64_t n, int64_t *count)
{
    int32_t *at = (int32_t *)w->values; /* 2 n + 2 of eight bytes */
    *count = prefix_pick(p, x, n, 0, 0, at);
    return at;
}
