/*
 * mask.c - mask forms, their expansion to the canonical token form, and counts (mask.h).
 */
#include "core/mask.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

int mask_lists_init(struct mask *m, int64_t nq, int64_t nk, int64_t row0, int64_t row1, bool causal,
                    int64_t bq, int64_t bk, struct err *err)
{
    if (bq < 1 || bk < 1 || row0 < 0 || row1 > nq || row0 % bq != 0 || nk > INT32_MAX)
        return err_set(err, ERR_RUN, "mask of %lld x %lld units for rows %lld..%lld of %lld",
                       (long long)bq, (long long)bk, (long long)row0, (long long)row1,
                       (long long)nq);
    memset(m, 0, sizeof *m);
    m->form = MASK_LISTS;
    m->nq = nq;
    m->nk = nk;
    m->row0 = row0;
    m->row1 = row1;
    m->causal = causal;
    m->bq = bq;
    m->bk = bk;
    m->exec = bk > 1 ? EXEC_TILES : EXEC_GATHER;
    m->exec_bq = bk > 1 ? bq : 128;
    m->exec_bk = bk > 1 ? bk : 128;
    m->ngroups = ceil_div(row1 - row0, bq);
    return mem_zalloc(&m->ptr, m->ngroups + 1, sizeof *m->ptr, "mask groups", err);
}

/* While lists are filled, ptr[g+1] is the end of group g and groups not begun yet hold 0;
 * mask_lists_finish gives the groups that stayed empty their place. */
static int32_t *lists_room(struct mask *m, int64_t g, int64_t n, struct err *err)
{
    /* Adds come in group order, so the end of the lists is ptr[g+1] or, for a group just begun, the
     * end of the nearest earlier group. */
    int64_t end = m->ptr[g + 1];
    if (!end)
        for (int64_t e = g; e > 0 && !end; e--)
            end = m->ptr[e];
    if (mem_grow(&m->col, &m->col_cap, end + n, sizeof *m->col, "mask lists", err))
        return NULL;
    m->ptr[g + 1] = end + n;
    return m->col + end;
}

static int no_room(const struct err *err)
{
    return err && err->code < 0 ? err->code : ERR_NOMEM;
}

int mask_lists_add_run(struct mask *m, int64_t g, int32_t c0, int32_t c1, struct err *err)
{
    if (c1 <= c0)
        return 0;
    int32_t *to = lists_room(m, g, c1 - c0, err);
    if (!to)
        return no_room(err);
    for (int32_t c = c0; c < c1; c++)
        *to++ = c;
    return 0;
}

int mask_lists_add_all(struct mask *m, int64_t g, const int32_t *units, int64_t n, struct err *err)
{
    if (n <= 0)
        return 0;
    int32_t *to = lists_room(m, g, n, err);
    if (!to)
        return no_room(err);
    memcpy(to, units, (size_t)n * sizeof *to);
    return 0;
}

int mask_lists_add_bits(struct mask *m, int64_t g, const uint64_t *bits, int64_t words,
                        struct err *err)
{
    int64_t n = 0;
    for (int64_t w = 0; w < words; w++)
        n += __builtin_popcountll(bits[w]);
    if (n == 0)
        return 0;
    int32_t *to = lists_room(m, g, n, err);
    if (!to)
        return no_room(err);
    for (int64_t w = 0; w < words; w++)
        for (uint64_t b = bits[w]; b; b &= b - 1)
            *to++ = (int32_t)(w * 64 + __builtin_ctzll(b));
    return 0;
}

int mask_lists_add(struct mask *m, int64_t g, int32_t c, struct err *err)
{
    return mask_lists_add_run(m, g, c, c + 1, err);
}

void mask_lists_finish(struct mask *m)
{
    for (int64_t g = 0; g < m->ngroups; g++)
        if (m->ptr[g + 1] < m->ptr[g])
            m->ptr[g + 1] = m->ptr[g];
}

void mask_full(struct mask *m, int64_t nq, int64_t nk, int64_t row0, int64_t row1, bool causal)
{
    memset(m, 0, sizeof *m);
    m->form = MASK_FULL;
    m->nq = nq;
    m->nk = nk;
    m->row0 = row0;
    m->row1 = row1;
    m->causal = causal;
    m->bq = m->bk = m->exec_bq = m->exec_bk = 64;
    m->exec = EXEC_TILES;
}

void mask_band(struct mask *m, int64_t nq, int64_t nk, int64_t row0, int64_t row1, bool causal,
               struct band band)
{
    mask_full(m, nq, nk, row0, row1, causal);
    m->form = MASK_BAND;
    m->sink = band.sink;
    m->window = band.window;
    m->dense_from = band.dense_from;
}

void mask_free(struct mask *m)
{
    free(m->ptr);
    free(m->col);
    memset(m, 0, sizeof *m);
}

/* Do the units of a group ascend, below `units`? Without a branch per unit. */
static bool group_in_order(const struct mask *m, int64_t g, int64_t units)
{
    const int32_t *col = m->col + m->ptr[g];
    int64_t n = m->ptr[g + 1] - m->ptr[g];
    int wrong = 0;
    for (int64_t e = 1; e < n; e++)
        wrong |= col[e] <= col[e - 1];
    return !wrong && (n == 0 || (col[0] >= 0 && col[n - 1] < units));
}

int mask_check(const struct mask *m, struct err *err)
{
    if (m->row0 < 0 || m->row1 > m->nq || m->row0 > m->row1 || m->bq < 1 || m->bk < 1)
        return err_set(err, ERR_RUN, "mask covers rows %lld..%lld of %lld", (long long)m->row0,
                       (long long)m->row1, (long long)m->nq);
    if (m->form != MASK_LISTS)
        return 0;
    int64_t units = ceil_div(m->nk, m->bk);
    if (m->row0 % m->bq || m->ngroups != ceil_div(m->row1 - m->row0, m->bq) || m->ptr[0] != 0)
        return err_set(err, ERR_RUN, "mask rows %lld..%lld do not start at a multiple of %lld",
                       (long long)m->row0, (long long)m->row1, (long long)m->bq);
    for (int64_t g = 0; g < m->ngroups; g++) {
        if (m->ptr[g + 1] < m->ptr[g])
            return err_set(err, ERR_RUN, "mask group %lld ends before it starts", (long long)g);
        if (group_in_order(m, g, units))
            continue;
        for (int64_t e = m->ptr[g]; e < m->ptr[g + 1]; e++) {
            if (m->col[e] < 0 || m->col[e] >= units)
                return err_set(err, ERR_RUN, "mask group %lld: unit %d is outside 0..%lld",
                               (long long)g, m->col[e], (long long)units - 1);
            if (e > m->ptr[g] && m->col[e] <= m->col[e - 1])
                return err_set(err, ERR_RUN, "mask group %lld: unit %d follows unit %d",
                               (long long)g, m->col[e], m->col[e - 1]);
        }
    }
    return 0;
}

/* ---- canonical form ------------------------------------------------------------------------- */

int64_t list_below(const int32_t *units, int64_t n, int64_t limit)
{
    int64_t lo = 0;
    while (lo < n) {
        int64_t middle = lo + (n - lo) / 2;
        if (units[middle] < limit)
            lo = middle + 1;
        else
            n = middle;
    }
    return lo;
}

/* Add [lo, hi) behind the spans written so far, merging with the last when they touch. */
static int64_t span_push(struct span *out, int64_t n, int64_t lo, int64_t hi)
{
    if (hi <= lo)
        return n;
    if (n > 0 && lo <= out[n - 1].hi) {
        if (hi > out[n - 1].hi)
            out[n - 1].hi = (int32_t)hi;
        return n;
    }
    out[n].lo = (int32_t)lo;
    out[n].hi = (int32_t)hi;
    return n + 1;
}

/* End of the run of consecutive units that starts at entry e < end. Units ascend, so entry e + k
 * is in the run iff col[e + k] = col[e] + k: doubling steps, then halving ones. Windows are long
 * runs of single keys, and going through them key by key costs as much as their products. */
static int64_t run_end(const int32_t *col, int64_t e, int64_t end)
{
    int64_t in = 1, step = 1;
    while (e + in + step <= end && col[e + in + step - 1] - col[e] == in + step - 1) {
        in += step;
        step *= 2;
    }
    for (; step; step /= 2)
        if (e + in + step <= end && col[e + in + step - 1] - col[e] == in + step - 1)
            in += step;
    return e + in;
}

/* Keys [first, limit) of the units of group g. */
static int64_t group_spans(const struct mask *m, int64_t g, int64_t first, int64_t limit,
                           struct span *out)
{
    int64_t n = 0, next;
    for (int64_t e = m->ptr[g]; e < m->ptr[g + 1]; e = next) {
        int64_t lo = m->col[e] * m->bk;
        if (lo >= limit)
            break;
        next = run_end(m->col, e, m->ptr[g + 1]);
        n = span_push(out, n, MAX(lo, first), MIN(lo + (next - e) * m->bk, limit));
    }
    return n;
}

/* Row i of a band with a reach: its two spans before they are merged; an empty one has lo >= hi. */
static void band_row(const struct mask *m, int64_t i, struct span *sink, struct span *window)
{
    int64_t p = i + m->nk - m->nq, first = mask_first(m, i), limit = mask_limit(m, i);
    bool dense = i >= m->dense_from;
    int64_t lo = dense ? first : MAX(first, p - m->window + 1);
    int64_t hi = dense ? limit : MIN(limit, m->causal ? p + 1 : p + m->window);
    *sink = (struct span){(int32_t)first, (int32_t)MIN(m->sink, limit)};
    *window = (struct span){(int32_t)lo, (int32_t)hi};
}

/* Grow *all by s, which overlaps or touches it. */
static void span_cover(struct span *all, struct span s)
{
    if (s.lo >= s.hi)
        return;
    if (all->lo >= all->hi)
        *all = s;
    all->lo = MIN(all->lo, s.lo);
    all->hi = MAX(all->hi, s.hi);
}

/* The same for rows with a reach. A row whose sink is not empty has it from its first key on, so
 * the sinks come before the windows. */
static int64_t band_spans_within(const struct mask *m, int64_t r0, int64_t r1, struct span *out)
{
    struct span sinks = {0, 0}, windows = {0, 0}, sink, window;
    for (int64_t i = r0; i < r1; i++) {
        band_row(m, i, &sink, &window);
        span_cover(&sinks, sink);
        span_cover(&windows, window);
    }
    int64_t n = span_push(out, 0, sinks.lo, sinks.hi);
    return span_push(out, n, windows.lo, windows.hi);
}

/* Window + sink for the rows [r0, r1): the union is again at most two spans, since windows of
 * neighbouring rows overlap or touch. */
static int64_t band_spans(const struct mask *m, int64_t r0, int64_t r1, struct span *out)
{
    int64_t shift = m->nk - m->nq, limit = mask_limit(m, r1 - 1);
    if (reach_any(&m->reach))
        return band_spans_within(m, r0, r1, out);
    if (r1 > m->dense_from)
        return span_push(out, 0, 0, limit);
    int64_t lo = MAX(0, r0 + shift - m->window + 1);
    int64_t hi = m->causal ? limit : MIN(m->nk, r1 - 1 + shift + m->window);
    int64_t n = span_push(out, 0, 0, MIN(m->sink, limit));
    return span_push(out, n, lo, hi);
}

int64_t mask_max_spans(const struct mask *m)
{
    if (m->form != MASK_LISTS)
        return 2;
    int64_t longest = 1;
    for (int64_t g = 0; g < m->ngroups; g++)
        longest = MAX(longest, m->ptr[g + 1] - m->ptr[g]);
    return longest;
}

int64_t mask_row_spans(const struct mask *m, int64_t i, struct span *out)
{
    switch (m->form) {
    case MASK_FULL:
        return span_push(out, 0, mask_first(m, i), mask_limit(m, i));
    case MASK_BAND:
        return band_spans(m, i, i + 1, out);
    case MASK_LISTS:
        return group_spans(m, (i - m->row0) / m->bq, mask_first(m, i), mask_limit(m, i), out);
    }
    return 0;
}

bool mask_rows_uniform(const struct mask *m, int64_t r0, int64_t r1)
{
    if (reach_any(&m->reach))
        return false;
    if (m->form == MASK_BAND)
        return r0 >= m->dense_from || r1 - r0 == 1;
    return m->form == MASK_FULL || (r0 - m->row0) / m->bq == (r1 - 1 - m->row0) / m->bq;
}

int64_t mask_union_max(const struct mask *m, int64_t r0, int64_t r1)
{
    if (m->form != MASK_LISTS)
        return 2;
    int64_t g0 = (r0 - m->row0) / m->bq, g1 = (r1 - 1 - m->row0) / m->bq + 1;
    return MAX(1, MIN(m->ptr[g1] - m->ptr[g0], m->nk / 2 + 1));
}

void mask_mark_run(uint64_t *bits, int64_t a, int64_t b)
{
    if (a >= b)
        return;
    uint64_t first = ~0ull << (a % 64), last = ~0ull >> (63 - (b - 1) % 64);
    if (a / 64 == (b - 1) / 64) {
        bits[a / 64] |= first & last;
        return;
    }
    bits[a / 64] |= first;
    for (int64_t w = a / 64 + 1; w < (b - 1) / 64; w++)
        bits[w] = ~0ull;
    bits[(b - 1) / 64] |= last;
}

void mask_mark_units(uint64_t *bits, const int32_t *units, int64_t n)
{
    for (int64_t e = 0; e < n;) {
        int64_t some = MIN(n - e, 64), next = e + some;
        if (some == 64 && units[next - 1] - units[e] == 63) {
            next = run_end(units, e, n);
            mask_mark_run(bits, units[e], units[e] + (next - e));
        } else {
            for (int64_t i = e; i < next; i++)
                bits[units[i] / 64] |= 1ull << (units[i] % 64);
        }
        e = next;
    }
}

/* Spans of the set bits of a bitmap over the units 0..units-1 of width bk. Runs end with their word
 * and span_push joins them again. */
static int64_t bitmap_spans(const uint64_t *bits, int64_t units, int64_t bk, struct span clip,
                            struct span *out)
{
    int64_t n = 0;
    for (int64_t w = 0; w * 64 < units; w++)
        for (uint64_t b = bits[w]; b;) {
            int at = __builtin_ctzll(b);
            int64_t len = ~(b >> at) ? __builtin_ctzll(~(b >> at)) : 64, lo = (w * 64 + at) * bk;
            n = span_push(out, n, MAX(lo, clip.lo), MIN(lo + len * bk, clip.hi));
            b = at + len < 64 ? b & ~0ull << (at + len) : 0;
        }
    return n;
}

/* Whether a group of [g0, g1) sees a part of a unit of which later groups see more. */
static bool groups_end_inside(const struct mask *m, int64_t g0, int64_t g1, int64_t limit)
{
    for (int64_t g = g0; g < g1 && m->bk > 1; g++) {
        int64_t end = mask_limit(m, m->row0 + (g + 1) * m->bq - 1);
        if (end < limit && end % m->bk)
            return true;
    }
    return false;
}

int64_t mask_union_spans(const struct mask *m, int64_t r0, int64_t r1, struct span *out,
                         struct err *err)
{
    int64_t first = mask_first(m, r0), limit = mask_limit(m, r1 - 1);
    if (m->form == MASK_FULL)
        return span_push(out, 0, first, limit);
    if (m->form == MASK_BAND)
        return band_spans(m, r0, r1, out);
    int64_t g0 = (r0 - m->row0) / m->bq, g1 = (r1 - 1 - m->row0) / m->bq;
    if (g0 == g1)
        return group_spans(m, g0, first, limit, out);

    /* With a reach a group may begin inside of a unit, and its rows may end inside of one: one bit
     * per key then. */
    bool inside = reach_any(&m->reach) || groups_end_inside(m, g0, g1, limit);
    int64_t bk = inside ? 1 : m->bk, keys = m->bk / bk, units = ceil_div(m->nk, bk);
    OWN(free_at) uint64_t *bits = NULL;
    PASS_ON(mem_zalloc(&bits, ceil_div(units, 64), sizeof *bits, "mask union", err));
    for (int64_t g = g0; g <= g1; g++) {
        /* Inside a group the last row sees up to the last key, the first row from the first one. */
        int64_t last = MIN(r1, m->row0 + (g + 1) * m->bq) - 1, next;
        int64_t end = ceil_div(mask_limit(m, last), bk);
        int64_t begin = mask_first(m, MAX(r0, m->row0 + g * m->bq)) / bk;
        if (keys == 1 && begin == 0) {
            const int32_t *col = m->col + m->ptr[g];
            mask_mark_units(bits, col, list_below(col, m->ptr[g + 1] - m->ptr[g], end));
            continue;
        }
        for (int64_t e = m->ptr[g]; e < m->ptr[g + 1] && m->col[e] * keys < end; e = next) {
            next = run_end(m->col, e, m->ptr[g + 1]);
            int64_t a = MAX(m->col[e] * keys, begin), b = MIN((m->col[e] + next - e) * keys, end);
            mask_mark_run(bits, a, b);
        }
    }
    struct span clip = {(int32_t)first, (int32_t)limit};
    return bitmap_spans(bits, units, bk, clip, out);
}

/* ---- counts --------------------------------------------------------------------------------- */

int64_t pairs_allowed_block(int64_t nq, int64_t nk, bool causal, int64_t row0, int64_t row1,
                            int64_t k0, int64_t k1)
{
    if (row1 <= row0 || k1 <= k0)
        return 0;
    if (!causal)
        return (row1 - row0) * (k1 - k0);
    /* Row i sees i + shift - k0 of the keys: none before row a, one more per row up to row b, all
     * from there on. */
    int64_t shift = nk - nq + 1;
    int64_t a = MIN(row1, MAX(row0, k0 - shift + 1)), b = MAX(a, MIN(row1, k1 - shift));
    return (a + b - 1 + 2 * (shift - k0)) * (b - a) / 2 + (row1 - b) * (k1 - k0);
}

int64_t pairs_allowed(int64_t nq, int64_t nk, bool causal)
{
    return pairs_allowed_block(nq, nk, causal, 0, nq, 0, nk);
}

int64_t pairs_within(const struct head_shape *h, int64_t row0, int64_t row1, int64_t k0, int64_t k1)
{
    int64_t n = 0;
    if (!reach_any(&h->reach))
        return pairs_allowed_block(h->nq, h->nk, h->causal, row0, row1, k0, k1);
    for (int64_t i = row0; i < row1; i++) {
        int64_t p = i + h->nk - h->nq, lo = MAX(k0, reach_first(&h->reach, p));
        int64_t limit = reach_limit(&h->reach, p, key_limit(h->nq, h->nk, h->causal, i));
        n += MAX(0, MIN(k1, limit) - lo);
    }
    return n;
}

static struct head_shape shape_of(const struct mask *m)
{
    return (struct head_shape){m->nq, m->nk, m->causal, m->reach};
}

/* Rows of group g without a key. Without reach, rows that end before its lowest unit. */
static int64_t rows_empty(const struct mask *m, int64_t g, int64_t r0, int64_t r1)
{
    int64_t n = 0, e = m->ptr[g], end = m->ptr[g + 1];
    for (int64_t i = r0; i < r1; i++) {
        /* As first keys do not fall, units before that of one row are none for the next. */
        while (e < end && (m->col[e] + 1) * m->bk <= mask_first(m, i))
            e++;
        n += e == end || mask_limit(m, i) <= m->col[e] * m->bk;
    }
    return n;
}

static void count_group(const struct mask *m, int64_t g, struct mask_counts *c)
{
    int64_t r0 = m->row0 + g * m->bq, r1 = MIN(r0 + m->bq, m->row1), rows = r1 - r0;
    int64_t first = mask_first(m, r0), limit = mask_limit(m, r1 - 1), kept = 0;
    struct head_shape shape = shape_of(m);
    int64_t e = m->ptr[g];
    if (!reach_any(&m->reach)) { /* units that all rows see whole */
        kept = list_below(m->col + e, m->ptr[g + 1] - e, mask_limit(m, r0) / m->bk);
        c->pairs_kept += kept * rows * m->bk;
        e += kept;
    }
    for (; e < m->ptr[g + 1]; e++) {
        int64_t lo = m->col[e] * m->bk;
        if (lo >= limit)
            break;
        if (lo + m->bk <= first)
            continue;
        c->pairs_kept += pairs_within(&shape, r0, r1, lo, MIN(lo + m->bk, m->nk));
        kept++;
    }
    /* A gathering kernel fetches what is listed, unless the head's reach takes it away. */
    int64_t cnt = reach_any(&m->reach) ? kept : m->ptr[g + 1] - m->ptr[g];
    c->tiles_kept += kept;
    c->tiles_allowed += limit > first ? ceil_div(limit, m->bk) - first / m->bk : 0;
    c->tiles_rect += ceil_div(m->nk, m->bk);
    if (m->exec == EXEC_TILES)
        c->pairs_exec += kept * m->bq * m->bk;
    else if (m->exec == EXEC_GATHER)
        c->pairs_exec += ceil_div(rows, m->exec_bq) * m->exec_bq *
                         ceil_div(cnt * m->bk, m->exec_bk) * m->exec_bk;
    c->rows_empty += rows_empty(m, g, r0, r1);
}

static int count_rows(const struct mask *m, struct mask_counts *c, struct err *err)
{
    struct span s[2];
    for (int64_t i = m->row0; i < m->row1; i++) {
        int64_t n = mask_row_spans(m, i, s);
        for (int64_t k = 0; k < n; k++)
            c->pairs_kept += s[k].hi - s[k].lo;
        c->rows_empty += n == 0;
    }
    int rc = mask_tiles_kept(m, m->bq, m->bk, &c->tiles_kept, &c->tiles_allowed, err);
    c->tiles_rect = ceil_div(m->row1 - m->row0, m->bq) * ceil_div(m->nk, m->bk);
    c->pairs_exec = c->tiles_kept * m->bq * m->bk;
    return rc;
}

int mask_count(const struct mask *m, struct mask_counts *c, struct err *err)
{
    memset(c, 0, sizeof *c);
    struct head_shape shape = shape_of(m);
    c->pairs_allowed = pairs_within(&shape, m->row0, m->row1, 0, m->nk);
    int rc = 0;
    if (m->form == MASK_LISTS)
        for (int64_t g = 0; g < m->ngroups; g++)
            count_group(m, g, c);
    else
        rc = count_rows(m, c, err);
    if (m->exec == EXEC_NONE)
        c->pairs_exec = -1;
    return rc;
}

/* Number of bk-wide tiles that the sorted spans touch. */
static int64_t tiles_touched(const struct span *s, int64_t n, int64_t bk)
{
    int64_t count = 0, last = -1;
    for (int64_t k = 0; k < n; k++) {
        int64_t a = MAX(last + 1, s[k].lo / bk), b = (s[k].hi - 1) / bk;
        if (b >= a) {
            count += b - a + 1;
            last = b;
        }
    }
    return count;
}

/* How many of n units from the first of a tile on are below its end: a few one by one, windows at
 * once, as they are as many as the tile can have. */
static int64_t units_of_tile(const int32_t *col, int64_t n, int64_t past)
{
    int64_t most = MIN(n, past - col[0]), few = MIN(most, 8), k = 1;
    while (k < few && col[k] < past)
        k++;
    if (k < few || k == most)
        return k;
    return col[most - 1] < past ? most : k + list_below(col + k, most - k, past);
}

/* The tiles of rows [r0, r1), bk keys wide, that lists of units no wider than them touch, without
 * reach. seen: a byte a tile, zeroed before and after. */
static int64_t tiles_listed(const struct mask *m, int64_t r0, int64_t r1, int64_t bk, uint8_t *seen)
{
    int64_t g0 = (r0 - m->row0) / m->bq, g1 = (r1 - 1 - m->row0) / m->bq, count = 0;
    int64_t tiles = ceil_div(m->nk, bk), per = bk / m->bk;
    for (int64_t g = g0; g <= g1; g++) {
        int64_t last = MIN(r1, m->row0 + (g + 1) * m->bq) - 1;
        int64_t units = ceil_div(mask_limit(m, last), m->bk);
        int64_t e = m->ptr[g], end = e + list_below(m->col + e, m->ptr[g + 1] - e, units);
        while (e < end) {
            int64_t tile = m->col[e] / per;
            seen[tile] = 1;
            e += units_of_tile(m->col + e, end - e, (tile + 1) * per);
        }
    }
    for (int64_t t = 0; t < tiles; t++) {
        count += seen[t];
        seen[t] = 0;
    }
    return count;
}

int mask_tiles_kept(const struct mask *m, int64_t bq, int64_t bk, int64_t *kept, int64_t *allowed,
                    struct err *err)
{
    bool listed = m->form == MASK_LISTS && bk % m->bk == 0 && !reach_any(&m->reach);
    OWN(free_at) struct span *s = NULL;
    OWN(free_at) uint8_t *seen = NULL;
    int64_t cap = 0;
    *kept = *allowed = 0;
    if (m->row0 % bq)
        return err_set(err, ERR_RUN, "tiles of %lld rows in a mask that starts at row %lld",
                       (long long)bq, (long long)m->row0);
    if (listed)
        PASS_ON(mem_zalloc(&seen, ceil_div(m->nk, bk), 1, "tiles of a mask", err));
    for (int64_t r0 = m->row0; r0 < m->row1; r0 += bq) {
        int64_t r1 = MIN(r0 + bq, m->row1);
        if (listed) {
            *kept += tiles_listed(m, r0, r1, bk, seen);
        } else {
            PASS_ON(mem_grow(&s, &cap, mask_union_max(m, r0, r1), sizeof *s, "mask spans", err));
            int64_t n = mask_union_spans(m, r0, r1, s, err);
            if (n < 0)
                return (int)n;
            *kept += tiles_touched(s, n, bk);
        }
        int64_t first = mask_first(m, r0), limit = mask_limit(m, r1 - 1);
        *allowed += limit > first ? ceil_div(limit, bk) - first / bk : 0;
    }
    return 0;
}

/* ---- parts of lists, and how far two masks differ -------------------------------------------- */

int mask_lists_rows(const struct mask *m, int64_t row0, int64_t row1, struct mask *out,
                    struct err *err)
{
    int64_t g0 = (row0 - m->row0) / m->bq;
    PASS_ON(mask_lists_init(out, m->nq, m->nk, row0, row1, m->causal, m->bq, m->bk, err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t from = m->ptr[g0 + g];
        PASS_ON(mask_lists_add_all(out, g, m->col + from, m->ptr[g0 + g + 1] - from, err));
    }
    mask_lists_finish(out);
    return 0;
}

int64_t list_differ(const int32_t *a, int64_t na, const int32_t *b, int64_t nb)
{
    int64_t i = 0, j = 0, both = 0;
    while (i < na && j < nb) {
        int32_t x = a[i], y = b[j];
        both += x == y;
        i += x <= y;
        j += y <= x;
    }
    return na + nb - 2 * both;
}

int64_t mask_lists_differ(const struct mask *a, const struct mask *b)
{
    int64_t n = 0;
    for (int64_t g = 0; g < a->ngroups; g++)
        n += list_differ(a->col + a->ptr[g], a->ptr[g + 1] - a->ptr[g], b->col + b->ptr[g],
                         b->ptr[g + 1] - b->ptr[g]);
    return n;
}
