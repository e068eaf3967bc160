/*
 * test_rowsample.c - samples of query rows: which are drawn, what methods choose for them, what the
 * metrics of a sample estimate and how far off they may be.
 */
#include "tests/harness/suite.h"
#include "core/rowsample.h"
#include "core/rng.h"
#include "sim/metrics.h"
#include "tests/harness/conform.h"
#include "tests/harness/trace_fixture.h"

enum { N = 768, GROUPS = 4 };

static const int64_t picked[GROUPS] = {1, 2, 3, 5};

/* Peaks in the softmax, so that methods leave much out: blocks of keys that lie along one direction
 * which some queries share. */
static void sharpen(struct sim_head *h)
{
    int d = h->in.x.d;
    for (int64_t i = 0; i < N; i++)
        for (int c = 0; c < d; c++) {
            uint64_t of_k = rng_below(5, 1, (uint64_t)(i / 64), 4);
            uint64_t of_q = rng_below(5, 2, (uint64_t)(i / 128), 4);
            h->k[i * d + c] += 2 * (float)rng_normal(6, of_k, (uint64_t)c);
            h->q[i * d + c] += 2 * (float)rng_normal(6, of_q, (uint64_t)c);
        }
}

/* A head and the same with the queries of four groups alone. */
static void make_pair(struct sim_head *all, struct sim_head *part, int32_t *at)
{
    int64_t n = 0;
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < ROW_GROUP; i++)
            at[n++] = (int32_t)(picked[g] * ROW_GROUP + i);
    conform_head(NORMAL, N, N, true, PREC_F64, all);
    conform_head(NORMAL, N, N, true, PREC_F64, part);
    part->sample = (struct row_sample){.at = at, .n = n, .group = ROW_GROUP};
    part->in.rows = &part->sample;
    exact_sampled(&part->exact, part->in.rows);
    sharpen(all);
    sharpen(part);
    for (int64_t i = 0; i < N; i++)
        if (!row_sample_has(&part->sample, i))
            memset(part->q + i * part->in.x.d, 0, (size_t)part->in.x.d * sizeof *part->q);
}

/* The number of sampled rows whose mask or output differs from that of the whole head. */
static int64_t rows_off(const struct conform_result *a, const struct conform_result *b,
                        const struct row_sample *s)
{
    int64_t off = 0;
    for (int64_t i = 0; i < s->n; i++) {
        int64_t p = s->at[i];
        bool same = memcmp(a->bits + p * N, b->bits + p * N, N) == 0 &&
                    (a->lse[p] == b->lse[p] || fabs(a->lse[p] - b->lse[p]) < 1e-12);
        for (int64_t c = 0; same && c < a->dv; c++)
            same = fabs(a->out[p * a->dv + c] - b->out[p * a->dv + c]) < 1e-12;
        off += !same;
    }
    return off;
}

TEST_N(masks_of_sampled_rows_are_those_of_the_whole_head, test_methods_count())
{
    const struct method *m = test_methods[_i];
    int32_t at[GROUPS * ROW_GROUP];
    int ran = 0, whole = 0;

    char text[160];
    for (int k = 0; conform_variant(m, k, text); k++) {
        OWN(sim_head_free) struct sim_head all, part;
        struct conform_result a, b;
        struct carry ca = {0}, cb = {0};
        make_pair(&all, &part, at);
        conform_run(text, &part.in, &cb, 9, &b);
        if (b.r.status == RECORD_SKIP && !(m->flags & METHOD_ROWS) && strstr(b.r.reason, "row")) {
            conform_result_free(&b); /* refused as it should be, whatever the whole head gives */
            continue;
        }
        conform_run(text, &all.in, &ca, 9, &a);
        whole += a.r.status == RECORD_OK;
        if (a.r.status == RECORD_OK && b.r.status == RECORD_OK) {
            int64_t off = rows_off(&a, &b, &part.sample);
            ck_assert_msg(off == 0, "%s: %lld sampled rows differ", text, (long long)off);
            ran++;
        } else if (a.r.status == RECORD_OK) {
            ck_assert_msg(b.r.reason[0] && strstr(b.r.reason, "row"), "%s: '%s'", text, b.r.reason);
        }
        conform_result_free(&a);
        conform_result_free(&b);
        carry_end(&ca);
        carry_end(&cb);
    }
    /* A plan without a file chooses for no head (tests/cli/trace/rows_methods.sh has one). */
    ck_assert_msg(!(m->flags & METHOD_ROWS) || ran > 0 || whole == 0,
                  "%s never chose for sampled rows", m->name);
}

TEST(the_sample_has_a_group_of_every_stratum_and_the_last)
{
    int32_t *at;
    int64_t n, seen[10] = {0};
    for (uint64_t seed = 0; seed < 200; seed++) {
        MUST(row_sample_draw(10 * ROW_GROUP - 5, 4, ROW_GROUP, seed, &at, &n, ERR));
        struct row_sample s = {.at = at, .n = n, .group = ROW_GROUP};
        ck_assert_int_eq(n, 4 * ROW_GROUP - 5);
        MUST(row_sample_check(&s, 10 * ROW_GROUP - 5, ERR_INPUT, ERR));
        for (int g = 0; g < 4; g++) {
            int64_t block = row_sample_span(&s, g).pos / ROW_GROUP;
            ck_assert_int_ge(block, g * 10 / 4);
            ck_assert_int_lt(block, (g + 1) * 10 / 4);
            seen[block]++;
        }
        ck_assert_int_eq(at[n - 1], 10 * ROW_GROUP - 6);
        free(at);
    }
    for (int b = 0; b < 7; b++)
        ck_assert_int_gt(seen[b], 30);
    ck_assert_int_eq(seen[9], 200);
    FAILS(row_sample_draw(4 * ROW_GROUP, 4, ROW_GROUP, 0, &at, &n, ERR), ERR_USAGE,
          "leave the sampling out");
}

TEST(what_is_no_sample_is_refused)
{
    enum { G = ROW_GROUP };
    struct err err = {0};
    int32_t at[3 * G];
    struct row_sample s = {.at = at, .n = 2 * G, .group = G};
    for (int i = 0; i < G; i++) {
        at[i] = G + i;
        at[G + i] = 3 * G + i;
    }
    ck_assert_int_eq(row_sample_check(&s, 4 * G, ERR_INPUT, &err), 0);
    at[3] = G + 4;
    assert_fails(row_sample_check(&s, 4 * G, ERR_INPUT, &err), &err, ERR_INPUT, "position 132");
    at[3] = G + 3;
    assert_fails(row_sample_check(&s, 4 * G - 1, ERR_INPUT, &err), &err, ERR_INPUT, "position 511");
    s.n = 2 * G - 1;
    assert_fails(row_sample_check(&s, 4 * G, ERR_INPUT, &err), &err, ERR_INPUT, "127 of 128");
    ck_assert_int_eq(row_sample_check(&s, 4 * G - 1, ERR_INPUT, &err), 0);
    s.group = 64;
    assert_fails(row_sample_check(&s, 4 * G, ERR_INPUT, &err), &err, ERR_INPUT, "multiples of 128");
}

TEST(options_of_rows)
{
    static const char *const wrong[] = {"", "3", "0", "-2", "4x", "4x100", "4x0", "x128", "4x128x"};
    int64_t groups, group;
    MUST(row_sample_parse("64", "--rows", &groups, &group, ERR));
    ck_assert_int_eq(groups, 64);
    ck_assert_int_eq(group, 128);
    MUST(row_sample_parse("2x256", "--rows", &groups, &group, ERR));
    ck_assert_int_eq(groups, 2);
    ck_assert_int_eq(group, 256);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        FAILS(row_sample_parse(wrong[i], "--rows", &groups, &group, ERR), ERR_USAGE, "--rows");
}

/* Groups with known counts: the standard errors by hand. */
TEST(standard_errors_are_those_of_neighbouring_groups)
{
    static const double recall[4] = {0.5, 0.7, 0.4, 0.8};
    static const int64_t kept[4] = {10, 30, 20, 60}, allowed[4] = {100, 200, 300, 400};
    struct metrics_acc all, part[4];
    struct record r;
    record_init(&r);
    MUST(metrics_init(&all, 8, 1, ERR));
    for (int g = 0; g < 4; g++) {
        MUST(metrics_init(&part[g], 2, 1, ERR));
        part[g].recall[0] = part[g].recall[1] = recall[g];
        part[g].tally.counts.pairs_kept = kept[g];
        part[g].tally.counts.pairs_allowed = allowed[g];
        part[g].tally.counts.tiles_kept = part[g].tally.counts.tiles_allowed =
            part[g].tally.counts.tiles_rect = 1;
    }
    metrics_merge(&all, part, 4);
    MUST(metrics_errors(&all, part, 4, true, &r, ERR));
    MUST(metrics_finish(&all, 8, 100, true, &r, ERR));
    ck_assert_double_eq_tol(record_get(&r, "cra_mean"), 0.6, 1e-15);
    ck_assert_double_eq_tol(record_get(&r, "cra_mean~se"), sqrt(0.04 + 0.16) / 4, 1e-12);
    ck_assert_double_eq_tol(record_get(&r, "density_elem"), 0.12, 1e-15);
    /* replicates 110/900, 90/800, 100/700, 60/600 */
    double a = 3 * (110 / 900.0 - 90 / 800.0), b = 3 * (100 / 700.0 - 60 / 600.0);
    ck_assert_double_eq_tol(record_get(&r, "density_elem~se"), sqrt(a * a + b * b) / 4, 1e-12);
    ck_assert_double_eq_tol(record_get(&r, "density_tile~se"), 0, 1e-12);
    ck_assert_double_eq(record_get(&r, "cra_min~"), 0.4);
    ck_assert(isnan(record_get(&r, "cra_min")));
    record_free(&r);
    metrics_free(&all);
    for (int g = 0; g < 4; g++)
        metrics_free(&part[g]);
}

/* A trace of sampled rows: written, read, packed, cut to its id. */
TEST(a_trace_holds_a_sample)
{
    struct trace_meta m = fixture_sampled(DT_F32);
    struct trace *t = NULL, *packed = NULL;
    struct row_sample s;
    char path[300], other[320];
    snprintf(path, sizeof path, "%s/rows.h5", test_tmpdir());
    snprintf(other, sizeof other, "%s.z", path);
    MUST(fixture_write(path, &m, 2, ERR));
    MUST(trace_open(path, &t, ERR));
    ck_assert(trace_rows(t, &s));
    ck_assert_int_eq(s.n, 172);
    ck_assert_int_eq(s.at[s.n - 1], 299);
    ck_assert_int_eq(row_sample_groups(&s), 2);
    int64_t pairs = 0;
    for (int64_t i = 0; i < s.n; i++)
        pairs += s.at[i] + 1;
    ck_assert_int_eq(trace_call_pairs(t, 0), pairs);
    MUST(trace_pack(t, other, TRACE_ZSTD, 1, true, ERR));
    MUST(trace_open(other, &packed, ERR));
    ck_assert_str_eq(trace_id(packed), trace_id(t));
    trace_close(&packed);
    trace_close(&t);
    m.causal = false;
    FAILS(fixture_write(path, &m, 1, ERR), ERR_USAGE, "of a causal run");
    m.causal = true;
    m.row_group = 64;
    FAILS(fixture_write(path, &m, 1, ERR), ERR_USAGE, "multiples of 128");
}
