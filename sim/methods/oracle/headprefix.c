/*
 * headprefix.c - see oracle.h.
 */
#include "sim/methods/oracle/oracle.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BINS 65536

struct entry {
    double value;
    int64_t col, row;
};

/* The bin being narrowed down: values whose bits above `shift` equal `prefix`. */
struct search {
    head_row_fn *fn;
    void *ctx;
    int64_t rows, cols;
    bool counts; /* the target is a number of entries */
    double target;
    int shift;
    uint64_t prefix;
    double above; /* mass of everything larger, with the mass given in advance */
    int64_t count_above;
    long double *sum; /* [BINS] */
    int64_t *count;   /* [BINS] */
};

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Is v in the bin of bits >> shift == prefix? Everything is for shift 64. */
static bool in_bin(const struct search *s, double v)
{
    return v >= 0 && (s->shift == 64 || bits_of(v + 0.0) >> s->shift == s->prefix);
}

/* Histogram of the current bin by its next 16 bits; *given = mass given in advance. */
static int histogram(struct search *s, long double *given, struct err *err)
{
    int rc = 0, shift = s->shift - 16;
    memset(s->sum, 0, BINS * sizeof *s->sum);
    memset(s->count, 0, BINS * sizeof *s->count);
    *given = 0;
    for (int64_t r = 0; r < s->rows; r++) {
        struct head_row row = {0};
        TRY(s->fn(s->ctx, r, &row, err));
        *given += s->counts ? (long double)row.given_n : row.given;
        for (int64_t c = 0; c < row.n; c++) {
            if (!in_bin(s, row.v[c]))
                continue;
            uint64_t b = bits_of(row.v[c] + 0.0) >> shift & (BINS - 1);
            s->sum[b] += s->counts ? 1 : row.v[c];
            s->count[b]++;
        }
    }
out:
    return rc;
}

/* Narrow the search to the next bin in which the running sum crosses the target; *entries is its
 * count, 0 when all entries of the current bin are taken without reaching it. */
static int narrow(struct search *s, int64_t *entries, struct err *err)
{
    long double given, total = s->above;
    int rc = histogram(s, &given, err);
    if (rc)
        return rc;
    if (s->shift == 64)
        total += given;
    *entries = 0;
    for (int64_t b = BINS - 1; b >= 0; b--) {
        if (!s->count[b])
            continue;
        if ((double)(total + s->sum[b]) >= s->target) {
            s->shift -= 16;
            s->prefix = (s->shift == 48 ? 0 : s->prefix << 16) | (uint64_t)b;
            *entries = s->count[b];
            break;
        }
        total += s->sum[b];
        s->count_above += s->count[b];
    }
    s->above = (double)total;
    return 0;
}

/* The whole of the current bin is the end of the prefix. */
static void take_all(const struct search *s, struct head_prefix *out)
{
    double lowest = 0;
    uint64_t bits = s->shift == 64 ? 0 : s->prefix << s->shift;
    memcpy(&lowest, &bits, sizeof lowest);
    *out = (struct head_prefix){lowest, s->cols, -1, s->count_above, s->above, s->above};
}

static int by_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->value != y->value)
        return x->value > y->value ? -1 : 1;
    if (x->col != y->col)
        return x->col < y->col ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static int collect(const struct search *s, int64_t n, struct head_prefix *out, struct err *err)
{
    struct entry *e = NULL;
    int64_t k = 0;
    int rc = 0;

    TRY(mem_alloc(&e, n, sizeof *e, "entries at the threshold", err));
    for (int64_t r = 0; r < s->rows; r++) {
        struct head_row row = {0};
        TRY(s->fn(s->ctx, r, &row, err));
        for (int64_t c = 0; c < row.n && k < n; c++)
            if (in_bin(s, row.v[c]))
                e[k++] = (struct entry){row.v[c], c, r};
    }
    qsort(e, (size_t)k, sizeof *e, by_order);
    *out = (struct head_prefix){INFINITY, -1, -1, s->count_above, s->above, s->above};
    for (int64_t i = 0; i < k && out->sum < s->target; i++) {
        out->before = out->sum;
        out->sum += s->counts ? 1 : e[i].value;
        out->cut = e[i].value;
        out->col = e[i].col;
        out->row = e[i].row;
        out->count++;
    }
out:
    free(e);
    return rc;
}

/* Adding up term by term is what sorted order means; beyond this many equal terms it only costs. */
#define ADD_MOST ((int64_t)1 << 26)

/* Number of the n equal values v that are needed from `sum` on. */
static int64_t equal_needed(double v, int64_t n, double target, double *sum, double *before)
{
    int64_t k = 0;
    if (n > ADD_MOST && v > 0) {
        double want = ceil((target - *sum) / v);
        k = want < 1 ? 1 : want > (double)n ? n : (int64_t)want;
        *before = *sum + (double)(k - 1) * v;
        *sum += (double)k * v;
        return k;
    }
    for (; k < n && *sum < target; k++) {
        *before = *sum;
        *sum += v;
    }
    return k;
}

/* All n entries of the bin have the same value: find the column, then the row, of the last one. */
static int cut_equal(const struct search *s, int64_t n, struct head_prefix *out, struct err *err)
{
    double v;
    int64_t *per_col = NULL, left, r;
    int rc = 0;

    memcpy(&v, &s->prefix, sizeof v);
    *out = (struct head_prefix){v, -1, -1, s->count_above, s->above, s->above};
    left = equal_needed(s->counts ? 1 : v, n, s->target, &out->sum, &out->before);
    out->count += left;
    TRY(mem_zalloc(&per_col, s->cols, sizeof *per_col, "entries per column", err));
    for (r = 0; r < s->rows; r++) {
        struct head_row row = {0};
        TRY(s->fn(s->ctx, r, &row, err));
        for (int64_t c = 0; c < row.n; c++)
            per_col[c] += row.v[c] == v;
    }
    out->col = 0;
    while (left > per_col[out->col])
        left -= per_col[out->col++];
    for (r = 0; r < s->rows && left > 0; r++) {
        struct head_row row = {0};
        TRY(s->fn(s->ctx, r, &row, err));
        if (out->col < row.n && row.v[out->col] == v) {
            out->row = r;
            left--;
        }
    }
out:
    free(per_col);
    return rc;
}

int head_prefix_select(head_row_fn *fn, void *ctx, int64_t rows, int64_t cols, enum head_measure by,
                       double target, int64_t buffer, struct head_prefix *out, struct err *err)
{
    struct search s = {.fn = fn,
                       .ctx = ctx,
                       .rows = rows,
                       .cols = cols,
                       .counts = by == HEAD_BY_COUNT,
                       .target = target,
                       .shift = 64};
    int64_t n;
    int rc = 0;

    TRY(mem_alloc(&s.sum, BINS, sizeof *s.sum, "histogram", err));
    TRY(mem_alloc(&s.count, BINS, sizeof *s.count, "histogram", err));
    do
        TRY(narrow(&s, &n, err));
    while (n > buffer && s.shift > 0);
    if (n == 0)
        take_all(&s, out);
    else if (n <= buffer)
        TRY(collect(&s, n, out, err));
    else
        TRY(cut_equal(&s, n, out, err));
out:
    free(s.sum);
    free(s.count);
    return rc;
}
