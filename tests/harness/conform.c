/*
 * conform.c - see conform.h. Every number is recomputed from the mask's bits and an explicit P by
 * the definitions of doc/records.md, in the plainest way.
 */
#include "tests/harness/conform.h"

#include "core/mem.h"
#include "core/rng.h"
#include "sim/headload.h"

/* ---- the list of runs ----------------------------------------------------------------------- */

void conform_text(const struct method *m, const char *params, char text[160])
{
    snprintf(text, 160, "%s%s%s", m->name, params && params[0] ? ":" : "", params ? params : "");
}

bool conform_variant(const struct method *m, int k, char text[160])
{
    const char *const *more = m->tests.variants;
    const char *full = m->tests.full && m->tests.full[0] ? m->tests.full : NULL;
    int skipped = 0;
    if (has_defaults(m) && skipped++ == k)
        return conform_text(m, NULL, text), true;
    if (full && skipped++ == k)
        return conform_text(m, full, text), true;
    for (int i = 0; more && more[i]; i++)
        if (skipped++ == k)
            return conform_text(m, more[i], text), true;
    return false;
}

const struct method *conform_method(const char *text, struct method_run **runs)
{
    *runs = run_of(text);
    return (*runs)[0].method;
}

/* ---- heads ---------------------------------------------------------------------------------- */

const char *const conform_data_names[] = {"normal", "equal keys", "huge",
                                          "tiny",   "one-hot",    "zeros"};

/* A video grid for a sequence of n tokens: boxes where n allows, else a line; odd lengths get a
 * text token at either end. */
static struct geometry grid(int64_t n)
{
    static const int64_t boxes[][5] = {{63, 7, 3, 3, 0},   {64, 4, 4, 4, 0},  {65, 4, 4, 4, 2},
                                       {127, 2, 7, 9, 1},  {129, 2, 8, 8, 2}, {200, 2, 10, 10, 0},
                                       {300, 5, 6, 10, 0}, {301, 5, 6, 10, 1}};
    for (size_t k = 0; k < sizeof boxes / sizeof *boxes; k++) {
        const int64_t *b = boxes[k];
        if (b[0] == n)
            return (struct geometry){
                .t = b[1], .h = b[2], .w = b[3], .text = b[4] != 0, .text_place = (int)b[4]};
    }
    return (struct geometry){.t = 1, .h = 1, .w = n};
}

static void set_values(enum conform_data data, float *x, int64_t n, int d, uint64_t stream)
{
    for (int64_t i = 0; i < n * d; i++) {
        float v = (float)rng_normal(77, stream, (uint64_t)i);
        switch (data) {
        case NORMAL:
        case DATA_KINDS:
            break;
        case EQUAL_KEYS:
            v = stream == 2 ? (float)rng_normal(77, 2, (uint64_t)(i % d)) : v;
            break;
        case HUGE_VALUES:
            v *= 100;
            break;
        case TINY:
            v *= 1e-20f;
            break;
        case ONE_HOT:
            v = i % d == i / d % d ? 16 : 0;
            break;
        case ZEROS:
            v = 0;
            break;
        }
        x[i] = v * (data == NORMAL && stream < 3 ? 1.5f : 1);
    }
}

static int operand(const struct head_in *in, int layer, enum trace_aux which,
                   struct aux_shape *shape, float **x, struct err *err)
{
    (void)layer;
    return drawn_operand(in, which, (in->x.nq + 63) / 64, shape, x, err);
}

/* A head of grouped-query attention: query head 5 of 8 reads kv head 1 of 2. */
void conform_head(enum conform_data data, int64_t nq, int64_t nk, bool causal, enum precision prec,
                  struct sim_head *h)
{
    enum { D = 64 };
    OWN(free_at)
    float *q = calloc((size_t)(nq * D), sizeof *q), *k = calloc((size_t)(nk * D), sizeof *k);
    OWN(free_at) float *v = calloc((size_t)(nk * D), sizeof *v);
    set_values(data, q, nq, D, 1);
    set_values(data, k, nk, D, 2);
    set_values(data, v, nk, D, 3);
    struct head_in in = {.x = {.nq = nq,
                               .nk = nk,
                               .d = D,
                               .dv = D,
                               .q = q,
                               .k = k,
                               .v = v,
                               .scale = 0.125,
                               .causal = causal},
                         .src_dtype = DT_F32,
                         .layer = 3,
                         .head = 5,
                         .kv_head = 1,
                         .n_heads = 8,
                         .n_kv_heads = 2,
                         .n_layers = 6,
                         .n_steps = causal ? 0 : 50,
                         .timestep = causal ? NAN : 900,
                         .operand = operand,
                         .branch = causal ? "main" : "cond"};
    if (!causal && nq == nk)
        in.geom = grid(nq);
    MUST(head_init(h, &in, prec, ERR));
}

/* ---- a run and its mask --------------------------------------------------------------------- */

static int capture(void *ctx, const struct mask *m, const double *out, const double *lse,
                   struct err *err)
{
    struct conform_result *res = ctx;
    PASS_ON(mask_check(m, err));
    memcpy(res->out + m->row0 * res->dv, out,
           (size_t)((m->row1 - m->row0) * res->dv) * sizeof *out);
    memcpy(res->lse + m->row0, lse, (size_t)(m->row1 - m->row0) * sizeof *lse);
    return sink_bits(res->bits, m, out, lse, err);
}

void conform_run(const char *text, const struct head_in *in, struct carry *carry, uint64_t seed,
                 struct conform_result *res)
{
    res->nq = in->x.nq;
    res->nk = in->x.nk;
    res->dv = in->x.dv;
    res->bits = calloc((size_t)(res->nq * res->nk), 1);
    res->out = calloc((size_t)(res->nq * res->dv), sizeof *res->out);
    res->lse = calloc((size_t)res->nq, sizeof *res->lse);
    run_text_carry(text, in, carry, seed, capture, res, &res->r);
}

void conform_result_free(struct conform_result *res)
{
    record_free(&res->r);
    free(res->bits);
    free(res->out);
    free(res->lse);
}

/* The head in the order in which the method saw it. */
bool conform_reordered(const char *text, const struct head_in *in, uint64_t seed,
                       struct sim_head *h)
{
    struct method_run *runs;
    const struct method *m = conform_method(text, &runs);
    const char *order = m->params.order ? m->params.order(runs[0].params) : NULL;
    bool other = order && strcmp(order, "none") != 0;
    if (other)
        MUST(sim_head_reorder(in, order, seed, h, ERR));
    method_runs_free(runs, 1);
    return other;
}

/* ---- what a run must satisfy ---------------------------------------------------------------- */

static void assert_near(const char *where, const char *what, double x, double want, double tol)
{
    expect(fabs(x - want) <= tol * fmax(1, fabs(want)), "%s is %.17g, recomputed %.17g", what, x,
           want);
}

void conform_finite(const char *where, const struct conform_result *res)
{
    for (int64_t k = 0; k < res->nq * res->dv; k++)
        expect(isfinite(res->out[k]), "output %lld is %g", (long long)k, res->out[k]);
    for (int64_t k = 0; k < record_metrics(&res->r); k++)
        expect(isfinite(res->r.values[k]), "%s is %g", res->r.names->name[k], res->r.values[k]);
}

/* Counts, by the definitions of doc/records.md, from the mask's bits. */
static void check_counts(const char *where, const struct conform_result *res, bool causal)
{
    int64_t kept = 0, allowed = 0, empty = 0, tiles = 0, tiles_allowed = 0, nk = res->nk;
    for (int64_t i = 0; i < res->nq; i++) {
        int64_t limit = causal ? i + nk - res->nq + 1 : nk, row = 0;
        for (int64_t j = 0; j < nk; j++) {
            expect(!res->bits[i * nk + j] || j < limit, "row %lld sees the later key %lld",
                   (long long)i, (long long)j);
            row += res->bits[i * nk + j];
        }
        kept += row;
        allowed += limit < 0 ? 0 : limit;
        empty += row == 0;
    }
    for (int64_t r = 0; r < res->nq; r += 64)
        for (int64_t k = 0; k < nk; k += 64) {
            bool has = false, may = false;
            for (int64_t i = r; i < r + 64 && i < res->nq; i++)
                for (int64_t j = k; j < k + 64 && j < nk; j++) {
                    has = has || res->bits[i * nk + j];
                    may = may || !causal || j <= i + nk - res->nq;
                }
            tiles += has;
            tiles_allowed += may;
        }
    const struct record *r = &res->r;
    assert_near(where, "pairs_kept", record_get(r, "pairs_kept"), (double)kept, 0);
    assert_near(where, "pairs_allowed", record_get(r, "pairs_allowed"), (double)allowed, 0);
    assert_near(where, "rows_empty", record_get(r, "rows_empty"), (double)empty, 0);
    assert_near(where, "density_elem", record_get(r, "density_elem"),
                (double)kept / (double)allowed, 1e-12);
    assert_near(where, "density_rect", record_get(r, "density_rect"),
                (double)kept / (double)(res->nq * nk), 1e-12);
    assert_near(where, "density_tile@64x64", record_get(r, "density_tile@64x64"),
                (double)tiles / (double)tiles_allowed, 1e-12);
}

/* Recall of rows from an explicit P, and what the output should be for exact softmax. */
static void check_recall(const char *where, const struct conform_result *res,
                         const struct head_in *in, bool exact)
{
    double lowest = INFINITY, sum = 0, *all = NULL, top = 0;
    int64_t nk = res->nk;
    MUST(mem_alloc(&all, res->nq * nk, sizeof *all, "probabilities", ERR));
    MUST(exact_probs(in->exact, 0, res->nq, all, ERR));
    for (int64_t j = 0; j < nk * res->dv; j++)
        top = fmax(top, fabs(in->x.v[j]));
    for (int64_t i = 0; i < res->nq; i++) {
        const double *p = all + i * nk;
        double recall = 0;
        for (int64_t j = 0; j < nk; j++)
            recall += res->bits[i * nk + j] ? p[j] : 0;
        lowest = fmin(lowest, recall);
        sum += recall;
        for (int64_t c = 0; exact && c < res->dv; c += 9) { /* one channel is like another */
            double o = 0;
            for (int64_t j = 0; j < nk; j++)
                o += res->bits[i * nk + j] ? p[j] * in->x.v[j * res->dv + c] : 0;
            /* Below 1e-100 the probabilities themselves have underflowed. */
            if (recall > 1e-100)
                expect(fabs(res->out[i * res->dv + c] - o / recall) <= 1e-8 * fmax(1e-300, top),
                       "row %lld channel %lld is %g, masked softmax gives %g", (long long)i,
                       (long long)c, res->out[i * res->dv + c], o / recall);
        }
    }
    free(all);
    assert_near(where, "cra_min", record_get(&res->r, "cra_min"), lowest, 1e-9);
    assert_near(where, "cra_mean", record_get(&res->r, "cra_mean"), sum / (double)res->nq, 1e-9);
}

static void check_errors(const char *where, const struct conform_result *res,
                         const struct head_in *in)
{
    const double *dense = head_out(in);
    double delta = 0, ref = 0, worst = 0;
    for (int64_t k = 0; k < res->nq * res->dv; k++) {
        double d = fabs(res->out[k] - dense[k]);
        delta += d;
        ref += fabs(dense[k]);
        worst = fmax(worst, d);
    }
    if (ref > 0)
        assert_near(where, "err_l1_rel", record_get(&res->r, "err_l1_rel"), delta / ref, 1e-9);
    assert_near(where, "err_max", record_get(&res->r, "err_max"), worst, 1e-9);
}

static void check_result(const char *text, const char *where, const struct conform_result *res,
                         const struct head_in *in, uint64_t seed)
{
    struct method_run *runs;
    const struct method *m = conform_method(text, &runs);
    OWN(sim_head_free) struct sim_head other = {0};
    unsigned need = in->x.causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL;
    bool may_be_empty = m->params.may_be_empty && m->params.may_be_empty(runs[0].params);

    method_runs_free(runs, 1);
    if (res->r.status == RECORD_SKIP) {
        expect(res->r.reason[0], "skipped without a reason");
        return;
    }
    expect(res->r.status == RECORD_OK, "status %d: %s", res->r.status, res->r.reason);
    expect(m->flags & need, "ran although its flags exclude this trace");
    conform_finite(where, res);
    check_counts(where, res, in->x.causal);
    if (!may_be_empty)
        expect(record_get(&res->r, "rows_empty") == 0, "%g rows have no key",
               record_get(&res->r, "rows_empty"));
    const struct head_in *seen = conform_reordered(text, in, seed, &other) ? &other.in : in;
    check_recall(where, res, seen, m->arith.attend == NULL);
    check_errors(where, res, seen);
}

/* Run a variant on a head, over two steps when the method keeps state, and check each. */
void conform_check(const char *text, struct sim_head *h, const char *what)
{
    struct method_run *runs;
    bool steps = conform_method(text, &runs)->flags & METHOD_NEEDS_STEPS;
    struct carry carry = {0};
    char where[320];

    method_runs_free(runs, 1);
    for (int t = 0; t < (steps ? 3 : 1); t++) {
        OWN(conform_result_free) struct conform_result res;
        snprintf(where, sizeof where, "%s on %s, %lld x %lld %s, step %d", text, what,
                 (long long)h->in.x.nq, (long long)h->in.x.nk,
                 h->in.x.causal ? "causal" : "bidirectional", t);
        h->in.step = t;
        conform_run(text, &h->in, steps ? &carry : NULL, 5, &res);
        check_result(text, where, &res, &h->in, 5);
    }
    carry_end(&carry);
}
