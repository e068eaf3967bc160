/*
 * mapread.c - the maps of a figure as cells: which part, how many cells, from q and k or as stored.
 */
#include "plots/mapfig.h"

#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"

#include <math.h>
#include <stdlib.h>

static int parse_span(const char *text, const char *what, int64_t n, int64_t *first, int64_t *count,
                      struct err *err)
{
    char *end = NULL;
    *first = 0;
    *count = n;
    if (!text)
        return 0;
    long long a = strtoll(text, &end, 10), b = -1;
    if (end != text && *end == '-') {
        const char *rest = end + 1;
        b = strtoll(rest, &end, 10);
        b = end == rest ? -1 : b;
    }
    if (*end || a < 0 || b < a || b >= n)
        return err_set(err, ERR_USAGE,
                       "%s %s: expected FIRST-LAST within 0-%lld, the tokens of this map", what,
                       text, (long long)n - 1);
    *first = a;
    *count = b - a + 1;
    return 0;
}

int map_part(const struct figure_args *a, int64_t n_q, int64_t n_k, struct cells_span *out,
             struct err *err)
{
    int rc = parse_span(a->rows, "--rows", n_q, &out->q0, &out->n_q, err);
    return rc ? rc : parse_span(a->keys, "--keys", n_k, &out->k0, &out->n_k, err);
}

int map_stored(const struct trace *t, const struct map_panel *p, bool mean, int64_t most,
               struct cells *out, struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    int64_t rows, cols, n;
    float *map = NULL;
    int rc = 0;

    if (m->pool <= 0 || !trace_call(t, p->call)->has_map)
        FAIL(err, ERR_INPUT,
             "%s: layer %d has no pooled maps: capture or import with --maps, or let them be "
             "computed (--map computed)",
             trace_path(t), p->layer);
    rows = trace_map_cells(t, false);
    cols = trace_map_cells(t, true);
    if (!mul_ok(rows, cols, &n))
        FAIL(err, ERR_INPUT, "%s: a map of %lld x %lld cells is too large", trace_path(t),
             (long long)rows, (long long)cols);
    TRY(mem_alloc(&map, n, sizeof *map, "pooled map", err));
    TRY(trace_read_map(t, p->call, p->stored, mean ? map : NULL, mean ? NULL : map, err));
    const struct trace_score *score = &trace_call(t, p->call)->score;
    struct head_shape shape = {m->n_q, m->n_k, trace_causal(m, score), score->reach};
    TRY(cells_from_map(map, &shape, m->pool, cells_factor(rows, cols, most),
                       mean ? POOL_MEAN : POOL_MAX, out, err));
out:
    free(map);
    return rc;
}

/* Scores that are computed without asking: a minute or two on two processors. */
#define SCORES_MOST 4e10

static bool prefers_stored(const struct figure_args *a, const struct map_panel *p, int n,
                           const struct cells_span *span, int64_t most)
{
    const struct trace_meta *m = trace_meta(a->trace);
    bool whole = span->n_q == m->n_q && span->n_k == m->n_k;
    if (a->map != MAP_AUTO)
        return a->map == MAP_STORED;
    for (int i = 0; i < n; i++)
        if (m->pool <= 0 || !whole || !trace_call(a->trace, p[i].call)->has_map)
            return false;
    /* Nobody sees a quarter of the cells less; computing them takes a minute for 48 heads. */
    int64_t cells = MAX(trace_map_cells(a->trace, false), trace_map_cells(a->trace, true));
    if (4 * cells >= 3 * most || m->pool == 1)
        return true;
    if ((double)n * (double)span->n_q * (double)m->n_k < SCORES_MOST)
        return false;
    log_warn("the stored maps of %lld x %lld cells are drawn: finer ones would take minutes "
             "(--map computed)",
             (long long)trace_map_cells(a->trace, false),
             (long long)trace_map_cells(a->trace, true));
    return true;
}

/* Panels that threads work on. */
struct reading {
    const struct figure_args *a;
    const struct map_panel *p;
    const struct cells_span *span;
    int64_t most, tokens;
    struct cells *out;
    bool stored;
};

static int read_one(void *ctx, int64_t i, int worker, struct err *err)
{
    const struct reading *r = ctx;
    (void)worker;
    if (r->stored)
        return map_stored(r->a->trace, &r->p[i], r->a->mean, r->most, &r->out[i], err);
    return map_compute(r->a->trace, &r->p[i], r->span, r->tokens, r->a->mean, &r->out[i], err);
}

/* Cells of a power of two of tokens, where that leaves 512 of them. */
static int64_t round_tokens(int64_t n, int64_t factor)
{
    int64_t up = 1;
    while (up < factor)
        up *= 2;
    return n / up >= 512 ? up : factor;
}

int map_read(const struct figure_args *a, const struct map_panel *p, int n,
             const struct cells_span *span, int64_t most, struct cells *out, bool *stored,
             struct err *err)
{
    int64_t longest = MAX(span->n_q, span->n_k);
    struct reading r = {.a = a, .p = p, .span = span, .most = most, .out = out};
    const struct trace_meta *m = trace_meta(a->trace);
    r.stored = prefers_stored(a, p, n, span, most);
    if (r.stored && (span->n_q != m->n_q || span->n_k != m->n_k))
        return err_set(err, ERR_USAGE,
                       "--rows and --keys need maps that are computed: leave --map stored out");
    r.tokens = round_tokens(longest, cells_factor(span->n_q, span->n_k, most));
    *stored = r.stored;
    return pool_run(r.stored ? 1 : a->jobs, n, read_one, &r, err);
}

void map_caption(const struct figure_args *a, const struct cells *c, bool stored, struct buf *b)
{
    if (c->tokens > 1)
        buf_printf(b, "A cell of %lld x %lld tokens shows the %s. ", (long long)c->tokens,
                   (long long)c->tokens,
                   a->mean ? "mean over its allowed pairs"
                           : "largest weight of its pairs, so that a line one token wide stays "
                             "visible");
    buf_puts(b, stored ? "From the maps that the trace holds."
                       : "Computed from q and k in the cells of the picture.");
    if (trace_is_padded(a->trace))
        buf_puts(b, " Padding text is among the tokens.");
}
