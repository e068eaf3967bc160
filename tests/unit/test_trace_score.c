/* What a call does to its scores (format 1.1): written, read, checked, packed, refused; and what
 * the replay makes of it. */
#include "tests/harness/suite.h"
#include "tests/harness/trace_fixture.h"

#include "core/h5util.h"
#include "core/method_run.h"
#include "core/rng.h"
#include "sim/headload.h"

#include <math.h>

#define CALL0 "/calls/step-000/main/layer-00"

static struct err err;

static const char *scored(struct trace_meta *m)
{
    assert_ok(fixture_write_scored(test_path("s.h5"), m, &err), &err);
    return test_path("s.h5");
}

static void check_scores(const struct trace *t, const struct trace_meta *m)
{
    float z;
    float bias[2 * 12 - 1], pairs[12 * 12];
    for (int i = 0; i < SCORED_CALLS; i++) {
        struct trace_score want = fixture_score(m, i);
        ck_assert(trace_score_equal(&trace_call(t, i)->score, &want));
    }
    for (int h = 0; h < 2; h++) {
        assert_ok(trace_read_values(t, 0, TRACE_SINKS, h, &z, &err), &err);
        ck_assert_float_eq(z, (float)rng_normal(3, 0, (uint64_t)h));
        assert_ok(trace_read_values(t, 2, TRACE_ALIBI, h, &z, &err), &err);
        ck_assert_float_eq(z, (float)rng_normal(3, 0, (uint64_t)h));
        assert_ok(trace_read_values(t, 0, TRACE_ALIBI, h, &z, &err), &err);
        ck_assert_float_eq(z, 0);
        assert_ok(trace_read_values(t, 1, TRACE_REL_BIAS, h, bias, &err), &err);
        ck_assert_float_eq(bias[22], (float)rng_normal(3, 0, (uint64_t)(h * 23 + 22)));
        assert_ok(trace_read_values(t, 3, TRACE_BIAS, h, pairs, &err), &err);
        ck_assert_float_eq(pairs[143], (float)rng_normal(3, 0, (uint64_t)(h * 144 + 143)));
    }
    ck_assert_double_eq(trace_call_scale(t, 1), 0.75);
    ck_assert_double_eq(trace_call_scale(t, 0), m->scale);
}

static int64_t minor_version(const char *path)
{
    int64_t minor = -1;
    hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_ok(h5_get_i64(f, "version_minor", &minor, &err), &err);
    H5Fclose(f);
    return minor;
}

TEST(scores_are_read_as_written)
{
    struct trace_meta m;
    struct trace *t = NULL, *packed = NULL;
    char id[64];
    assert_ok(trace_open(scored(&m), &t, &err), &err);
    check_scores(t, &m);
    snprintf(id, sizeof id, "%s", trace_id(t));
    for (enum trace_storage s = TRACE_ZSTD; s <= TRACE_GZIP; s++) {
        assert_ok(trace_pack(t, test_path("p.h5"), s, 1, true, &err), &err);
        assert_ok(trace_open(test_path("p.h5"), &packed, &err), &err);
        check_scores(packed, &m);
        ck_assert_str_eq(trace_id(packed), id);
        trace_close(&packed);
    }
    trace_close(&t);
    ck_assert_int_eq(minor_version(test_path("s.h5")), 1);
}

/* A file without any of it is one of format 1.0, as before. */
TEST(a_score_is_told_in_words)
{
    static const struct {
        struct trace_score score;
        const char *text;
    } cases[] = {
        {{.scale = 0.125, .causal = CALL_CAUSAL, .reach = {.back = 16}, .softcap = 50},
         "scale 0.125, causal, window 16, softcap 50"},
        {{.causal = CALL_BIDIRECTIONAL,
          .reach = {.back = 17, .ahead = 5, .chunk = 64, .prefix = 8}},
         "bidirectional, window_left 16, window_right 4, chunk 64, prefix 8"},
        {{.text_valid = 8, .sinks = true, .alibi = true, .rel_bias = 1, .bias = 1},
         "7 valid text tokens, sinks, ALiBi, relative bias, bias"},
        {{.scale = 0}, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[TRACE_SCORE_TEXT];
        trace_score_text(&cases[i].score, text);
        ck_assert_str_eq(text, cases[i].text);
    }
}

TEST(plain_files_stay_of_format_1_0)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 1, 12);
    assert_ok(fixture_write(test_path("t.h5"), &m, 2, &err), &err);
    ck_assert_int_eq(minor_version(test_path("t.h5")), 0);
}

static void put_attr(const char *name, bool real, double x)
{
    hid_t f = H5Fopen(test_path("s.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t g = H5Gopen2(f, CALL0, H5P_DEFAULT);
    if (H5Aexists(g, name) > 0)
        H5Adelete(g, name);
    if (real)
        h5_put_f64(g, name, x, &err);
    else
        h5_put_i64(g, name, (int64_t)x, &err);
    H5Gclose(g);
    H5Fclose(f);
}

/* An attribute that was changed or added later changes the content id, and bad values have names.
 */
TEST_N(attributes_are_checked, 13)
{
    static const struct {
        const char *name;
        bool real;
        double x;
        const char *says;
    } cases[] = {
        {"window_left", false, 5, "changed after writing"},
        {"window_right", false, 5, "changed after writing"},
        {"window_left", false, -1, "'window_left' = -1 is out of range"},
        {"chunk", false, 0, "'chunk' = 0 is out of range"},
        {"chunk", false, 1e12, "out of range"},
        {"softcap", true, -2, "softcap = -2 is not a positive number"},
        {"softcap", true, INFINITY, "not a positive number"},
        {"scale", true, NAN, "not a usable softmax scale"},
        {"scale", true, 0, "'scale' = 0 is written"},
        {"causal", false, 0, "changed after writing"},
        {"causal", false, 1, "causal = 1 is that of /model"},
        {"causal", false, 2, "causal = 2 is neither 0 nor 1"},
        {"text_valid", false, 2, "text_valid = 2 of 0 text tokens"},
    };
    struct trace_meta m;
    struct trace *t = NULL;
    scored(&m);
    put_attr(cases[_i].name, cases[_i].real, cases[_i].x);
    assert_fails(trace_open(test_path("s.h5"), &t, &err), &err, ERR_INPUT, cases[_i].says);
}

TEST_N(impossible_scores_are_not_written, 11)
{
    static const struct {
        struct trace_score s;
        const char *says;
    } cases[] = {
        {{.softcap = NAN}, "softcap"},
        {{.reach = {.back = -3}}, "window_left = -4 is out of range"},
        {{.alibi = true, .rel_bias = 1}, "a score has one bias"},
        {{.rel_bias = 7}, "rel_bias of 7 heads; 1 or 2 are possible"},
        {{.bias = 7}, "bias of 7 heads; 1 or 2 are possible"},
        {{.bias = 1, .rel_bias = 1}, "both bias and rel_bias; a score has one bias"},
        {{.reach = {.prefix = 3, .back = 2}}, "prefix = 3: a prefix stands alone"},
        {{.reach = {.prefix = 13}}, "prefix = 13 is longer than the 12 keys"},
        {{.causal = CALL_CAUSAL}, "causal = 1 is that of /model"},
        {{.causal = CALL_BIDIRECTIONAL, .reach = {.prefix = 3}}, "this is bidirectional"},
        {{.text_valid = 1}, "text_valid = 0 of 0 text tokens"},
    };
    struct trace_meta m = fixture_text(DT_F32, 2, 1, 12);
    struct trace_call c = fixture_call(&m, 0);
    struct trace_writer *w = NULL;
    c.score = cases[_i].s;
    assert_ok(trace_create(test_path("w.h5"), &m, 1, true, &w, &err), &err);
    assert_fails(trace_begin_call(w, &c, &err), &err, ERR_USAGE, cases[_i].says);
    trace_abort(&w);
}

/* A bias of rows and keys is for short sequences: it has as many values as there are pairs. */
TEST(a_long_sequence_has_no_bias_of_pairs)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 1, 4097);
    struct trace_call c = fixture_call(&m, 0);
    struct trace_writer *w = NULL;
    c.score.bias = 1;
    assert_ok(trace_create(test_path("w.h5"), &m, 1, true, &w, &err), &err);
    assert_fails(trace_begin_call(w, &c, &err), &err, ERR_USAGE, "at most 2^24 pairs");
    trace_abort(&w);
}

/* A missing array is a row that was not put. */
TEST(arrays_that_were_announced_must_come)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 1, 2);
    struct trace_call c = fixture_call(&m, 0);
    struct trace_writer *w = NULL;
    float x[16] = {0};
    c.has_out = c.has_lse = false;
    c.score.sinks = true;
    assert_ok(trace_create(test_path("w.h5"), &m, 1, true, &w, &err), &err);
    assert_ok(trace_begin_call(w, &c, &err), &err);
    for (int what = 0; what <= TRACE_V; what++)
        for (int h = 0; h < (what == TRACE_Q ? 2 : 1); h++)
            assert_ok(trace_put_head(w, (enum trace_what)what, h, 0, 2, x, &err), &err);
    assert_fails(trace_end_call(w, &err), &err, ERR_RUN, "'sinks' head 0 has 0 rows of 1");
    trace_abort(&w);
}

TEST(heads_come_with_their_scores)
{
    struct trace_meta m;
    OWN(trace_close) struct trace *t = NULL;
    struct sim_head h;
    struct head_load how = {.precision = PREC_F64};
    assert_ok(trace_open(scored(&m), &t, &err), &err);
    assert_ok(head_load(t, 0, 1, &how, &h, &err), &err);
    ck_assert_int_eq(h.in.x.reach.back, 5);
    ck_assert(h.in.x.mods.has_sink && h.in.x.mods.softcap == 3);
    ck_assert_int_eq(attn_pairs(&h.in.x), 12 * 5 - 10);
    sim_head_free(&h);
    assert_ok(head_load(t, 1, 1, &how, &h, &err), &err);
    ck_assert_double_eq(h.in.x.scale, 0.75);
    ck_assert_float_eq(h.in.x.mods.rel[-11], (float)rng_normal(3, 0, 23));
    sim_head_free(&h);
    assert_ok(head_load(t, 2, 1, &how, &h, &err), &err);
    ck_assert_int_eq(attn_pairs(&h.in.x), 12 * 13 / 2 + 6 * 5 / 2);
    sim_head_free(&h);
    assert_ok(head_load(t, 3, 1, &how, &h, &err), &err);
    ck_assert_double_eq(pair_bias_at(&h.in.x.mods.pair, 2, 5), (float)rng_normal(3, 0, 144 + 29));
    sim_head_free(&h);
}

/* A window at least as long as the sequence takes nothing away, and every method can do it. */
TEST(a_window_that_does_nothing_is_none)
{
    struct trace_meta m = fixture_text(DT_F32, 1, 1, 4);
    struct trace_call c = fixture_call(&m, 0);
    struct trace_writer *w = NULL;
    OWN(trace_close) struct trace *t = NULL;
    OWN(sim_head_free) struct sim_head h;
    struct head_load how = {.precision = PREC_F64};
    float x[32] = {0};
    c.has_out = c.has_lse = false;
    c.score.reach.back = 4;
    assert_ok(trace_create(test_path("w.h5"), &m, 1, true, &w, &err), &err);
    assert_ok(trace_begin_call(w, &c, &err), &err);
    for (int what = 0; what <= TRACE_V; what++)
        assert_ok(trace_put_head(w, (enum trace_what)what, 0, 0, 4, x, &err), &err);
    assert_ok(trace_end_call(w, &err), &err);
    assert_ok(trace_commit(&w, &err), &err);
    assert_ok(trace_open(test_path("w.h5"), &t, &err), &err);
    assert_ok(head_load(t, 0, 0, &how, &h, &err), &err);
    ck_assert(attn_is_plain(&h.in.x));
}

TEST(what_a_method_cannot_combine_has_a_name)
{
    const struct method plain = {.name = "m", .flags = METHOD_SINK};
    struct attn_in x = {.nq = 4, .nk = 4};
    char why[128] = "";
    ck_assert(method_combines(&plain, &x, why));
    x.mods.has_sink = true;
    ck_assert(method_combines(&plain, &x, why));
    x.mods.softcap = 2;
    ck_assert(!method_combines(&plain, &x, why));
    ck_assert_str_eq(why, "cannot combine soft-capped scores");
    x.reach.chunk = 2;
    ck_assert(!method_combines(&plain, &x, why));
    ck_assert_str_eq(why, "cannot combine chunked attention");
}

/* Methods that know windows take rows to see no key after them. */
TEST(a_prefix_needs_a_flag_of_its_own)
{
    struct method m = {.name = "m", .flags = METHOD_ANY_SCORE};
    struct attn_in x = {.nq = 4, .nk = 4, .causal = true, .reach = {.prefix = 2}};
    char why[128] = "";
    ck_assert(!method_combines(&m, &x, why));
    ck_assert_str_eq(why, "cannot combine a prefix that sees itself");
    m.flags |= METHOD_PREFIX;
    ck_assert(method_combines(&m, &x, why));
}
