/*
 * oracle.c - the best mask of a given granularity for a given target, chosen with the exact
 * probabilities p_ij: a bound on methods, not a method.
 *
 *   topk       the k largest scores of every row
 *   topp       the shortest sorted prefix of every row with mass >= alpha: no mask with
 *              CRA >= alpha has fewer entries in any row
 *   mean       the shortest sorted prefix of the whole head with mass >= alpha N_q; with k the k
 *              largest of the head
 *   block      the same over b_q x b_k blocks, per query block (scope=qblock, by mass only) or over
 *              the head
 *   value      rows ranked by p_ij |v_j - o_i|, prefix with mass >= alpha
 *   columns    the k key columns with the largest mass in all rows, or in sampled ones, for all
 *              queries
 *   strips     the same over columns and slashes, which are pairs of equal query-key distance
 *              (SampleAttention, table 5)
 *   evict      decode phase: of each KV head the k keys of the prompt with the largest mass in all
 *              steps, and every generated key
 *
 * CRA, cumulative residual attention, is min_i of the kept mass (SampleAttention, arXiv
 * 2406.15486). Sorting is by value descending, ties to the lower key, then the lower query block.
 * Two Q K passes (head-wide kinds up to six), a few rows of N doubles.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/simd.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/prefix.h"
#include "sim/blocks/slicemask.h"
#include "sim/methods/evict/score.h"
#include "sim/methods/oracle/oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- prefixes of a head --------------------------------------------------------------------- */

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
    int shift = s->shift - 16;
    memset(s->sum, 0, BINS * sizeof *s->sum);
    memset(s->count, 0, BINS * sizeof *s->count);
    *given = 0;
    for (int64_t r = 0; r < s->rows; r++) {
        struct head_row row = {0};
        PASS_ON(s->fn(s->ctx, r, &row, err));
        *given += s->counts ? (long double)row.given_n : row.given;
        for (int64_t c = 0; c < row.n; c++) {
            if (!in_bin(s, row.v[c]))
                continue;
            uint64_t b = bits_of(row.v[c] + 0.0) >> shift & (BINS - 1);
            s->sum[b] += s->counts ? 1 : row.v[c];
            s->count[b]++;
        }
    }
    return 0;
}

/* Narrow the search to the next bin in which the running sum crosses the target; *entries is its
 * count, 0 when all entries of the current bin are taken without reaching it. */
static int narrow(struct search *s, int64_t *entries, struct err *err)
{
    long double given, total = s->above;
    PASS_ON(histogram(s, &given, err));
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
    OWN(free_at) struct entry *e = NULL;
    int64_t k = 0;

    PASS_ON(mem_alloc(&e, n, sizeof *e, "entries at the threshold", err));
    for (int64_t r = 0; r < s->rows; r++) {
        struct head_row row = {0};
        PASS_ON(s->fn(s->ctx, r, &row, err));
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
    return 0;
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
    OWN(free_at) int64_t *per_col = NULL;
    int64_t left, r;

    memcpy(&v, &s->prefix, sizeof v);
    *out = (struct head_prefix){v, -1, -1, s->count_above, s->above, s->above};
    left = equal_needed(s->counts ? 1 : v, n, s->target, &out->sum, &out->before);
    out->count += left;
    PASS_ON(mem_zalloc(&per_col, s->cols, sizeof *per_col, "entries per column", err));
    for (r = 0; r < s->rows; r++) {
        struct head_row row = {0};
        PASS_ON(s->fn(s->ctx, r, &row, err));
        for (int64_t c = 0; c < row.n; c++)
            per_col[c] += row.v[c] == v;
    }
    out->col = 0;
    while (left > per_col[out->col])
        left -= per_col[out->col++];
    for (r = 0; r < s->rows && left > 0; r++) {
        struct head_row row = {0};
        PASS_ON(s->fn(s->ctx, r, &row, err));
        if (out->col < row.n && row.v[out->col] == v) {
            out->row = r;
            left--;
        }
    }
    return 0;
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

#define COLUMN_ROWS 128 /* query rows that share a list of columns */

/* Entries that a head-wide prefix may sort at once (24 bytes each). */
#define HEAD_BUFFER ((int64_t)1 << 21)

/* ---- parameters ----------------------------------------------------------------------------- */

enum kind {
    KIND_TOPK,
    KIND_TOPP,
    KIND_MEAN,
    KIND_BLOCK,
    KIND_VALUE,
    KIND_COLUMNS,
    KIND_STRIPS,
    KIND_EVICT
};
enum scope { SCOPE_QBLOCK, SCOPE_HEAD };
enum forced { FORCED_NONE, FORCED_DIAG, FORCED_SINK, FORCED_WINDOW };

struct params {
    int kind, scope;
    int64_t chunks;
    struct share k, rows;
    double alpha;
    char *unit, *forced;
};

static const char *const kinds[] = {"topk",    "topp",   "mean",  "block", "value",
                                    "columns", "strips", "evict", NULL};

static const struct opt options[] = {
    OPT_ENUM(struct params, kind, "topp", kinds, "what is kept together and what is guaranteed"),
    OPT_SHARE(
        struct params, k, NULL, 1, 1e9, "keys",
        "topk: keys kept per row, a share of those that it sees; columns, strips: a share of all; "
        "evict: keys of the prompt that stay, a share of them; "
        "mean, and block with scope=head: units of the head that are kept, in place of alpha"),
    OPT_NUM(struct params, alpha, "0.95", 0, 1, "mass share", "probability mass to be reached",
            .flags = OPT_MIN_OPEN),
    OPT_STR(struct params, unit, "1x1", NULL,
            "block: query rows x keys of a unit, such as 128x1 or 64x64", .unit = "tokens"),
    OPT_ENUM(struct params, scope, "qblock", TEXTS("qblock", "head"),
             "block: the target holds per query block or over the head"),
    OPT_SHARE(struct params, rows, "100%", 1, 1e9, "queries",
              "columns, strips: rows whose mass ranks them, the last ones of each chunk"),
    OPT_INT(struct params, chunks, "1", 1, 1e6, "", "columns, strips: equal parts of the rows"),
    OPT_STR(struct params, forced, "none", NULL,
            "entries kept in advance that count towards the target: none, diag, sink-N, window-N"),
    {0},
};

struct parsed {
    int64_t bq, bk;
    enum forced forced;
    int64_t forced_n;
};

static int parse_params(const struct params *p, struct parsed *out, struct err *err)
{
    long long a, b;
    int end = 0;
    char sep[2];

    *out = (struct parsed){1, 1, FORCED_NONE, 0};
    if (sscanf(p->unit, "%9lldx%9lld%n", &a, &b, &end) != 2 || p->unit[end] || a < 1 || b < 1)
        return err_set(err, ERR_USAGE, "unit: '%s' is not ROWSxKEYS, such as 128x1", p->unit);
    out->bq = a;
    out->bk = b;
    if (strcmp(p->forced, "diag") == 0) {
        out->forced = FORCED_DIAG;
    } else if (strcmp(p->forced, "none") != 0) {
        bool sink = strncmp(p->forced, "sink", 4) == 0,
             window = strncmp(p->forced, "window", 6) == 0;
        const char *rest = p->forced + (sink ? 4 : window ? 6 : 0);
        end = 0;
        if ((!sink && !window) || sscanf(rest, "%1[-:]%9lld%n", sep, &a, &end) != 2 || rest[end] ||
            a < 1)
            return err_set(err, ERR_USAGE, "forced: '%s': expected none, diag, sink-N or window-N",
                           p->forced);
        out->forced = sink ? FORCED_SINK : FORCED_WINDOW;
        out->forced_n = a;
    }
    return 0;
}

static int validate(void *params, struct err *err)
{
    struct params *p = params;
    struct parsed parsed;
    PASS_ON(parse_params(p, &parsed, err));
    bool strips = p->kind == KIND_COLUMNS || p->kind == KIND_STRIPS;
    if ((p->kind == KIND_TOPK || p->kind == KIND_EVICT || strips) && isnan(p->k.value))
        return err_set(err, ERR_USAGE, "kind=%s needs k, a count or a share such as k=10%%",
                       kinds[p->kind]);
    if (!isnan(p->k.value) && p->alpha != 0.95)
        return err_set(err, ERR_USAGE,
                       "k and alpha are two ways to say how much is kept: leave one out");
    if (p->kind == KIND_BLOCK && p->scope != SCOPE_HEAD && !isnan(p->k.value))
        return err_set(err, ERR_USAGE,
                       "k counts blocks of the whole head: give scope=head as well");
    if (p->kind != KIND_BLOCK && (parsed.bq != 1 || parsed.bk != 1))
        return err_set(err, ERR_USAGE,
                       "unit=%s: kind=%s selects single entries; kind=block takes units", p->unit,
                       kinds[p->kind]);
    return 0;
}

/* ---- state ---------------------------------------------------------------------------------- */

struct state {
    const struct params *params;
    struct parsed unit;
    struct head_in in;
    enum kind kind;
    bool head_wide, pending; /* pending: the first select chooses for the head */
    struct map_rows rows;
    struct prefix_work *work;
    double *rank, *mass; /* [nk] */
    int32_t *unit_list;  /* [nk] */
    struct head_prefix head;
    int64_t ties, row_min, row_max;
    struct slice_mask given; /* the mask of a device that chose; bits NULL: none did, or it stays */
    uint8_t *strips;         /* [nk columns, then nq + nk - 1 slashes] kept? */
    int64_t kept[2], ranked_by; /* columns and slashes; rows that ranked them */
};

static void release(void *state)
{
    struct state *s = state;
    map_rows_free(&s->rows);
    prefix_work_free(s->work);
    free(s->rank);
    free(s->mass);
    free(s->unit_list);
    free(s->strips);
    slice_mask_free(&s->given);
}

/* Units [lo, hi) of the query block [r0, r1) that are kept in advance: those with a forced entry.
 * The forced keys of neighbouring rows overlap or touch, so their union is one interval. */
static void forced_units(const struct state *s, int64_t r0, int64_t r1, int64_t *lo, int64_t *hi)
{
    const struct attn_in *x = &s->in.x;
    int64_t shift = x->nk - x->nq, n = s->unit.forced_n, limit = attn_limit(x, r1 - 1);
    int64_t a = 0, b = 0;
    switch (s->unit.forced) {
    case FORCED_NONE:
        break;
    case FORCED_DIAG:
        a = r0 + shift;
        b = r1 + shift;
        break;
    case FORCED_SINK:
        b = n;
        break;
    case FORCED_WINDOW:
        a = r0 + shift - n + 1;
        b = r1 + shift + (x->causal ? 0 : n - 1);
        break;
    }
    a = MAX(a, attn_first(x, r0));
    b = MIN(b, limit);
    *lo = a < b ? a / s->unit.bk : 0;
    *hi = a < b ? ceil_div(b, s->unit.bk) : 0;
}

/* Take the units [lo, hi) out of rank (-1) and return their mass, added up in ascending order. */
static double take_out(double *rank, const double *mass, int64_t lo, int64_t hi)
{
    double sum = 0;
    for (int64_t c = lo; c < hi; c++) {
        sum += mass[c];
        rank[c] = -1;
    }
    return sum;
}

/* Append the units c of [0, n) with keep, without a branch. */
#define EMIT(m, g, n, keep, rc, err)                                                               \
    do {                                                                                           \
        int64_t kept = 0;                                                                          \
        for (int64_t c = 0; c < (n); c++) {                                                        \
            s->unit_list[kept] = (int32_t)c;                                                       \
            kept += (keep);                                                                        \
        }                                                                                          \
        (rc) = mask_lists_add_all((m), (g), s->unit_list, kept, (err));                            \
    } while (0)

/* ---- masses of units ------------------------------------------------------------------------ */

/* The first unit with a key that the row r0 sees, and one past the last of the row r1 - 1. */
static int64_t units_first(const struct state *s, int64_t r0)
{
    return attn_first(&s->in.x, r0) / s->unit.bk;
}

static int64_t units_visible(const struct state *s, int64_t r1)
{
    return ceil_div(attn_limit(&s->in.x, r1 - 1), s->unit.bk);
}

SIMD_CLONES
static void add_row(const double *p, int64_t n, double *sum)
{
    for (int64_t j = 0; j < n; j++)
        sum[j] += p[j];
}

/* mass[c] = sum over the rows [r0, r1) and the keys of unit c of p; *n units are visible. */
static int unit_masses(struct state *s, int64_t r0, int64_t r1, double *mass, int64_t *n,
                       struct err *err)
{
    *n = units_visible(s, r1);
    if (r1 == r0 + 1 && s->unit.bk == 1) {
        const double *p;
        PASS_ON(map_rows_get(&s->rows, r0, &p, err));
        memcpy(mass, p, (size_t)*n * sizeof *mass);
        return 0;
    }
    memset(mass, 0, (size_t)*n * sizeof *mass);
    for (int64_t i = r0; i < r1; i++) {
        const double *p;
        int64_t limit = attn_limit(&s->in.x, i);
        PASS_ON(map_rows_get(&s->rows, i, &p, err));
        if (s->unit.bk == 1) {
            add_row(p, limit, mass);
            continue;
        }
        for (int64_t c = 0, j = 0; j < limit; c++) {
            double sum = 0;
            int64_t end = MIN(limit, j + s->unit.bk);
            for (; j < end; j++)
                sum += p[j];
            mass[c] += sum;
        }
    }
    return 0;
}

/* Query block r of the head as a row of the matrix of unit masses. */
static int head_row(void *ctx, int64_t r, struct head_row *row, struct err *err)
{
    struct state *s = ctx;
    int64_t r0 = r * s->unit.bq, r1 = MIN(r0 + s->unit.bq, s->in.x.nq), lo, hi;
    PASS_ON(unit_masses(s, r0, r1, s->mass, &row->n, err));
    forced_units(s, r0, r1, &lo, &hi);
    row->given = take_out(s->mass, s->mass, lo, hi);
    row->given_n = hi - lo;
    take_out(s->mass, s->mass, 0, units_first(s, r0));
    row->v = s->mass;
    return 0;
}

/* ---- selection of one group ----------------------------------------------------------------- */

static void tally(struct state *s, const struct prefix *p, double target, int64_t kept)
{
    s->ties += fabs(p->sum - target) < ORACLE_TIE || fabs(p->before - target) < ORACLE_TIE;
    s->row_min = MIN(s->row_min, kept);
    s->row_max = MAX(s->row_max, kept);
}

/* rank_j = p_j |v_j - o|. */
SIMD_CLONES
static void value_ranks(const double *p, const float *v, const double *o, int64_t n, int dv,
                        double *rank)
{
    for (int64_t j = 0; j < n; j++) {
        double sq = 0;
        for (int c = 0; c < dv; c++) {
            double d = v[j * dv + c] - o[c];
            sq += d * d;
        }
        rank[j] = p[j] * sqrt(sq);
    }
}

/* topp, value, block by query block: the shortest prefix with mass alpha. */
static int group_by_mass(struct state *s, struct mask *m, int64_t g, int64_t r0, int64_t r1,
                         struct err *err)
{
    const struct attn_in *x = &s->in.x;
    double alpha = s->params->alpha, given, *rank = s->mass;
    const double *o;
    int64_t n, lo, hi;
    struct prefix p;

    PASS_ON(unit_masses(s, r0, r1, s->mass, &n, err));
    for (int64_t c = 0; r1 - r0 > 1 && c < n; c++)
        s->mass[c] /= (double)(r1 - r0);
    if (s->kind == KIND_VALUE) {
        PASS_ON(exact_out(s->in.exact, r0, r0 + 1, &o, err));
        value_ranks(s->mass, x->v, o, n, x->dv, rank = s->rank);
    }
    forced_units(s, r0, r1, &lo, &hi);
    given = take_out(rank, s->mass, lo, hi);
    take_out(rank, s->mass, 0, units_first(s, r0));
    PASS_ON(prefix_select(s->work, rank, s->mass, n, given, alpha, &p, err));
    tally(s, &p, alpha, p.count + hi - lo);
    int64_t kept = prefix_pick(&p, rank, n, lo, hi, s->unit_list);
    return mask_lists_add_all(m, g, s->unit_list, kept, err);
}

static int group_topk(struct state *s, struct mask *m, int64_t g, int64_t i, struct err *err)
{
    const double *score;
    int64_t first = attn_first(&s->in.x, i), n = attn_limit(&s->in.x, i), lo, hi;
    struct prefix p;

    PASS_ON(map_rows_get(&s->rows, i, &score, err));
    memcpy(s->rank, score, (size_t)n * sizeof *s->rank);
    forced_units(s, i, i + 1, &lo, &hi);
    for (int64_t j = lo; j < hi; j++)
        s->rank[j] = NAN;
    for (int64_t j = 0; j < first; j++)
        s->rank[j] = NAN;
    int64_t k = MIN(n - first, share_resolve(s->params->k, n - first));
    PASS_ON(prefix_topk(s->work, s->rank, n, MAX(0, k - (hi - lo)), &p, err));
    s->row_min = MIN(s->row_min, p.count + hi - lo);
    s->row_max = MAX(s->row_max, p.count + hi - lo);
    int64_t kept = prefix_pick(&p, s->rank, n, lo, hi, s->unit_list);
    return mask_lists_add_all(m, g, s->unit_list, kept, err);
}

static int group_of_head(struct state *s, struct mask *m, int64_t g, int64_t r0, int64_t r1,
                         struct err *err)
{
    struct head_row row = {0};
    int64_t lo, hi, r = r0 / s->unit.bq;
    int rc = 0;

    TRY(head_row(s, r, &row, err));
    forced_units(s, r0, r1, &lo, &hi);
    EMIT(m, g, row.n, (c >= lo && c < hi) || head_prefix_has(&s->head, row.v[c], r, c), rc, err);
out:
    return rc;
}

/* ---- columns and slashes -------------------------------------------------------------------- */

void ranking_rows(int64_t n, int64_t rows, int64_t chunks, int64_t i, int64_t *row0, int64_t *row1)
{
    int64_t before = i * n / chunks;
    *row1 = (i + 1) * n / chunks;
    *row0 = MAX(before, *row1 - ceil_div(rows, chunks));
}

/* Slash of key j in row i: its place behind the columns. */
static int64_t slash_of(const struct attn_in *x, int64_t i, int64_t j)
{
    return x->nk + i + x->nk - 1 - j;
}

/* Add the rows that rank to the masses of columns and, of strips, slashes. */
static int strip_masses(struct state *s, double *mass, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    int64_t rows = MIN(share_resolve(s->params->rows, x->nq), x->nq), chunks = s->params->chunks;
    for (int64_t c = 0; c < chunks; c++) {
        int64_t row0, row1;
        ranking_rows(x->nq, rows, chunks, c, &row0, &row1);
        s->ranked_by += row1 - row0;
        for (int64_t i = row0; i < row1; i++) {
            const double *p;
            PASS_ON(map_rows_get(&s->rows, i, &p, err));
            add_row(p, x->nk, mass);
            for (int64_t j = 0; j < x->nk && s->kind == KIND_STRIPS; j++)
                mass[slash_of(x, i, j)] += p[j];
        }
    }
    return 0;
}

/* The k strips of largest mass; of equal ones columns before slashes, then the lower key or the
 * smaller distance. */
static int choose_strips(struct state *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    bool slashes = s->kind == KIND_STRIPS;
    int64_t n = slashes ? 2 * x->nk + x->nq - 1 : x->nk;
    int64_t ahead = slashes && x->causal ? x->nq - 1 : 0; /* slashes behind the diagonal */
    OWN(free_at) double *mass = NULL;
    struct prefix top;

    PASS_ON(mem_zalloc(&mass, n, sizeof *mass, "mass of columns and slashes", err));
    PASS_ON(mem_alloc(&s->strips, n, sizeof *s->strips, "kept columns and slashes", err));
    PASS_ON(strip_masses(s, mass, err));
    for (int64_t e = 0; e < ahead; e++)
        mass[x->nk + e] = NAN;
    PASS_ON(prefix_topk(s->work, mass, n, share_resolve(s->params->k, n - ahead), &top, err));
    for (int64_t e = 0; e < n; e++) {
        s->strips[e] = prefix_has(&top, mass[e], e);
        s->kept[e >= x->nk] += s->strips[e];
    }
    return 0;
}

static int group_of_strips(struct state *s, struct mask *m, int64_t g, int64_t r0, int64_t r1,
                           struct err *err)
{
    const struct attn_in *x = &s->in.x;
    bool slashes = s->kind == KIND_STRIPS;
    int rc = 0;
    EMIT(m, g, attn_limit(x, r1 - 1), s->strips[c] || (slashes && s->strips[slash_of(x, r0, c)]),
         rc, err);
    return rc;
}

/* ---- callbacks ------------------------------------------------------------------------------ */

static int prepare_storage(struct state *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;

    s->unit.bq = MIN(s->unit.bq, x->nq);
    PASS_ON(
        map_rows_init(&s->rows, s->in.exact, s->kind == KIND_TOPK ? MAP_SCORES : MAP_PROBS, err));
    PASS_ON(prefix_work_new(&s->work, err));
    PASS_ON(mem_alloc(&s->rank, x->nk, sizeof(double), "ranks of keys", err));
    PASS_ON(mem_alloc(&s->mass, x->nk, sizeof(double), "masses of units", err));
    return mem_alloc(&s->unit_list, x->nk, sizeof *s->unit_list, "kept units", err);
}

/* Units with an allowed pair. */
static int64_t units_of_head(const struct state *s)
{
    int64_t n = 0, nq = s->in.x.nq;
    for (int64_t r0 = 0; r0 < nq; r0 += s->unit.bq)
        n += units_visible(s, MIN(r0 + s->unit.bq, nq)) - units_first(s, r0);
    return n;
}

/* The prefix of all units of the head that holds the mass alpha, or k units. */
static int choose_head(struct state *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    bool counts = !isnan(s->params->k.value);
    int64_t seeing = x->causal ? MIN(x->nq, x->nk) : x->nq; /* rows that see a key */
    double target = counts ? (double)share_resolve(s->params->k, units_of_head(s))
                           : s->params->alpha * (double)seeing;
    return head_prefix_select(head_row, s, ceil_div(x->nq, s->unit.bq), x->nk,
                              counts ? HEAD_BY_COUNT : HEAD_BY_SUM, target, HEAD_BUFFER, &s->head,
                              err);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;

    s->params = params;
    s->in = *in;
    s->kind = (enum kind)s->params->kind;
    if (s->kind == KIND_EVICT)
        return method_skip(ctx, "kind=evict is of the decode phase: --phase decode");
    bool strips = s->kind == KIND_COLUMNS || s->kind == KIND_STRIPS;
    if (s->kind == KIND_VALUE)
        exact_expect_out(in->exact);
    s->row_min = INT64_MAX;
    s->head_wide =
        s->kind == KIND_MEAN || (s->kind == KIND_BLOCK && s->params->scope == SCOPE_HEAD);
    if (s->head_wide || strips)
        PASS_ON(method_all_rows(ctx, in, "a choice for the whole head"));
    PASS_ON(parse_params(s->params, &s->unit, err));
    PASS_ON(prepare_storage(s, err));
    s->pending = s->head_wide;
    if (s->kind == KIND_COLUMNS) /* all queries share them: taller groups keep the lists short */
        s->unit.bq = MIN(COLUMN_ROWS, in->x.nq);
    if (strips)
        PASS_ON(choose_strips(s, err));
    ctx->unit_rows = s->unit.bq;
    return 0;
}

static int select_group(struct state *s, struct mask *m, int64_t g, int64_t r0, int64_t r1,
                        struct err *err)
{
    if (attn_limit(&s->in.x, r1 - 1) == 0)
        return 0;
    if (s->strips)
        return group_of_strips(s, m, g, r0, r1, err);
    if (s->head_wide)
        return group_of_head(s, m, g, r0, r1, err);
    if (s->kind == KIND_TOPK)
        return group_topk(s, m, g, r0, err);
    return group_by_mass(s, m, g, r0, r1, err);
}

/* A query block that the device chose for. */
static void note_given(struct state *s, int64_t r1, int64_t kept)
{
    if (attn_limit(&s->in.x, r1 - 1) == 0)
        return;
    s->row_min = MIN(s->row_min, kept);
    s->row_max = MAX(s->row_max, kept);
}

/* The rows of a device's mask. */
static int select_given(struct state *s, int64_t row0, int64_t row1, struct mask *out,
                        struct err *err)
{
    PASS_ON(slice_mask_lists(&s->given, row0, row1, out, err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t r0 = row0 + g * s->unit.bq, r1 = MIN(r0 + s->unit.bq, row1);
        note_given(s, r1, out->ptr[g + 1] - out->ptr[g]);
    }
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    const struct attn_in *x = &s->in.x;

    if (s->given.bits)
        return select_given(s, row0, row1, out, err);
    if (s->pending)
        PASS_ON(choose_head(s, err));
    s->pending = false;
    PASS_ON(mask_lists_init(out, x->nq, x->nk, row0, row1, x->causal, s->unit.bq, s->unit.bk, err));
    out->exec = EXEC_NONE; /* nobody runs an oracle */
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t r0 = row0 + g * s->unit.bq;
        PASS_ON(select_group(s, out, g, r0, MIN(r0 + s->unit.bq, row1), err));
    }
    mask_lists_finish(out);
    return 0;
}

/* ---- on a device ---------------------------------------------------------------------------- */

static bool rule(const void *state, struct rule *rule, char why[160])
{
    static const enum oracle_forced forced[] = {ORACLE_FORCED_NONE, ORACLE_DIAG, ORACLE_SINK,
                                                ORACLE_WINDOW};
    const struct state *s = state;
    const struct params *p = s->params;
    bool by_count = s->kind == KIND_TOPK || (s->head_wide && !isnan(p->k.value));
    if (s->kind != KIND_TOPK && s->kind != KIND_TOPP && s->kind != KIND_BLOCK &&
        s->kind != KIND_MEAN)
        return method_refuses(why, "the GPU side has the kinds topk, topp, mean and block");
    rule->of.oracle = (struct oracle_rule){.by = by_count ? ORACLE_TOPK : ORACLE_MASS,
                                           .head_wide = s->head_wide,
                                           .bq = s->unit.bq,
                                           .bk = s->unit.bk,
                                           .alpha = p->alpha,
                                           .k = p->k.value,
                                           .k_share = p->k.is_share,
                                           .forced = forced[s->unit.forced],
                                           .forced_n = s->unit.forced_n};
    return true;
}

/* Are ties counted, those of each query block? */
static bool counts_ties(const struct state *s)
{
    return s->kind != KIND_TOPK && !s->head_wide;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    const struct accel_units *u = c->counts;
    int32_t ties = 0;
    if (counts_ties(s)) {
        PASS_ON(accel_own_check(c->own, sizeof ties, err));
        memcpy(&ties, c->own->data, sizeof ties);
    }
    s->ties = ties;
    for (int64_t g = 0; u && g < u->groups; g++)
        note_given(s, MIN((g + 1) * u->bq, s->in.x.nq), u->count[g]);
    return slice_mask_take(&s->given, c, s->unit.bq, s->unit.bk, 0, err);
}

/* ---- the decode phase ----------------------------------------------------------------------- */

static bool evicts(const void *params)
{
    return ((const struct params *)params)->kind == KIND_EVICT;
}

static bool each_row(const void *params)
{
    const struct params *p = params;
    return p->kind == KIND_TOPK || p->kind == KIND_TOPP || p->kind == KIND_VALUE;
}

/* The best fixed set of each cache, with knowledge of all steps. */
static int begin(struct method_ctx *ctx, const struct decode_layer *layer, void *state,
                 struct err *err)
{
    struct evict_rule rule = {.by = BY_FUTURE, .unit = UNIT_GROUP, .safe = 1};
    OWN(evict_work_free) struct evict_work work = {.nk = 0};
    OWN(free_at) struct evict_size *size = NULL;
    (void)state;
    PASS_ON(evict_work_init(&work, &rule, layer, ctx, err));
    PASS_ON(mem_zalloc(&size, layer->n, sizeof *size, "sizes of caches", err));
    for (int h = 0; h < layer->n; h++) {
        const struct params *p = layer->params[h];
        size[h / layer->share].keys = p ? share_resolve(p->k, layer->prompt) : -1;
    }
    return evict_apply(&work, layer->from - 1, NULL, size, err);
}

/* ---- reports -------------------------------------------------------------------------------- */

static int report_sd(const struct state *s, struct record *r, struct err *err)
{
    char tri[32] = "sd_tri", sq[32] = "sd_sq";
    double alpha = s->params->alpha;
    if (alpha != metric_level(tri)) {
        snprintf(tri, sizeof tri, "sd_tri@%g", alpha);
        snprintf(sq, sizeof sq, "sd_sq@%g", alpha);
    }
    PASS_ON(record_metric(r, tri, 1 - record_get(r, "density_elem"), err));
    return record_metric(r, sq, 1 - record_get(r, "density_rect"), err);
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;

    if (s->strips) {
        record_note(r, "columns=%lld;slashes=%lld;rows=%lld", (long long)s->kept[0],
                    (long long)s->kept[1], (long long)s->ranked_by);
        return 0;
    }
    if (counts_ties(s))
        PASS_ON(record_metric(r, "ties", (double)s->ties, err));
    if (!s->head_wide && s->row_min <= s->row_max) {
        PASS_ON(RECORD_ALL(r, err, {"row_units_min", s->row_min}, {"row_units_max", s->row_max}));
    }
    if (s->kind == KIND_TOPP && s->unit.forced == FORCED_NONE)
        return report_sd(s, r, err);
    return 0;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("row_units_min", "fewest units kept by a group of rows"),
    OWN_METRIC("row_units_max", "most units kept by a group of rows"),
    {0},
};

/* Oracles that serve the head as a whole or query blocks on average leave rows without a key, and
 * columns may all lie after a query. */
static bool may_be_empty(const void *params)
{
    const struct params *p = params;
    return p->kind == KIND_MEAN || p->kind == KIND_BLOCK || p->kind == KIND_COLUMNS ||
           p->kind == KIND_STRIPS;
}

const struct method method_oracle = {
    .name = "oracle",
    .summary = "best mask of a granularity for a target, from the exact probabilities (a bound)",
    .paper = "CRA: Zhu et al., SampleAttention, arXiv 2406.15486; the oracles are lacuna's own",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_BOUND | METHOD_ANY_SCORE |
             METHOD_PREFIX,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes =
                   PARAM_SCOPES({"k", "kind=topk|columns|strips|mean|block|evict"},
                                {"rows", "kind=columns|strips"}, {"chunks", "kind=columns|strips"},
                                {"forced", "kind=topk|topp|mean|block|value"},
                                {"alpha", "kind=topp|mean|block|value"}, {"scope", "kind=block"}),
               .budget = BUDGET_PARAMS(
                   BUDGET_BY(BUDGET_LIN, "k", .only = "kind=topk|columns|strips|mean", .lo = 1e-6,
                             .hi = 1),
                   BUDGET_BY(BUDGET_LIN, "k", .only = "kind=block scope=head", .lo = 1e-6, .hi = 1),
                   BUDGET_BY(BUDGET_COMPLEMENT, "alpha")),
               .validate = validate,
               .may_be_empty = may_be_empty},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .decode = {.each_row = each_row, .applies = evicts, .begin = begin},
    .tests = {.full = "kind=topk:k=100%",
              .variants = TEXTS(
                  "alpha=0.5", "alpha=1", "kind=topk:k=5", "kind=topk:k=10%:forced=diag",
                  "kind=mean:alpha=0.6", "kind=mean:k=15%", "kind=value:forced=sink-2",
                  "kind=block:unit=16x16", "kind=block:unit=128x1:scope=head",
                  "kind=block:unit=16x16:scope=head:k=25%:forced=diag", "kind=block:unit=500x500",
                  "kind=columns:k=10%", "kind=columns:k=30:rows=50%:chunks=2", "kind=strips:k=10%",
                  "kind=strips:k=30:rows=9"),
              .budgets = METHOD_BUDGETS(
                  {"alpha=%s", {"0.1", "0.5", "0.9", "0.99", "1"}},
                  {"kind=topk:k=%s", {"1", "10", "60", "50%", "100%"}},
                  {"kind=mean:alpha=%s", {"0.1", "0.5", "0.9", "0.99", "1"}},
                  {"kind=mean:k=%s", {"1%", "10%", "50%", "90%", "100%"}},
                  {"kind=block:unit=16x8:scope=head:k=%s", {"1%", "10%", "50%", "90%", "100%"}},
                  {"kind=block:unit=16x8:alpha=%s", {"0.2", "0.5", "0.8", "0.95", "1"}},
                  {"kind=columns:k=%s", {"1", "2.5%", "20%", "80%", "100%"}},
                  {"kind=strips:k=%s", {"1", "2.5%", "20%", "80%", "100%"}})},
};
