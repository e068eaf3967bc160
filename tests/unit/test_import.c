/* Import and export of tensors, and the comparison of stored outputs with q, k, v. */
#include "tests/harness/suite.h"

#include "capture/import.h"
#include "capture/trace/trace_tools.h"
#include "core/attention.h"
#include "core/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float value(int tensor, int64_t head, int64_t token, int64_t dim)
{
    return (float)rng_normal(5, (uint64_t)(tensor * 64 + head), (uint64_t)(token * 512 + dim));
}

/* A tensor of `value` as .npy in a layout: "hnd", "bhnd", "nd", "nhd". */
static const char *save(const char *name, int tensor, enum dtype t, const char *layout, int64_t h,
                        int64_t n, int64_t d)
{
    bool token_major = strcmp(layout, "nhd") == 0;
    int64_t shape[4] = {1, token_major ? n : h, token_major ? h : n, d};
    int skip = strcmp(layout, "bhnd") == 0 ? 0 : strcmp(layout, "nd") == 0 ? 2 : 1;
    OWN(free_at) float *x = malloc(sizeof *x * (size_t)(h * n * d));
    OWN(free_at) void *raw = malloc(dtype_size(t) * (size_t)(h * n * d));
    const char *path = test_path(name);
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t k = 0; k < d; k++)
                x[((token_major ? j * h + i : i * n + j)) * d + k] = value(tensor, i, j, k);
    dtype_from_f32(t, x, raw, h * n * d);
    MUST(npy_write(path, t, 4 - skip, shape + skip, raw, ERR));
    return path;
}

struct inputs {
    const char *q, *k, *v, *out; /* paths, out may be NULL */
    enum source_layout layout;
};

static int import_npy(struct import_job *j, const struct inputs *in, enum dtype dtype,
                      const char *trace, struct err *err)
{
    int rc = 0;
    j->calls = calloc(1, sizeof *j->calls);
    j->n_calls = 1;
    j->calls[0].call = (struct trace_call){.branch = "main", .timestep = NAN, .sigma = NAN};
    j->meta.layers = 1;
    TRY(source_npy(&j->calls[0].q, in->q, in->layout, err));
    TRY(source_npy(&j->calls[0].k, in->k, in->layout, err));
    TRY(source_npy(&j->calls[0].v, in->v, in->layout, err));
    if (in->out)
        TRY(source_npy(&j->calls[0].out, in->out, in->layout, err));
    TRY(import_shapes(j, dtype, err));
    TRY(import_write(j, trace, 2, true, err));
out:
    import_free(j);
    return rc;
}

static void check_tensor(const struct trace *t, enum trace_what what, int tensor, enum dtype from)
{
    struct trace_shape s = trace_shape(trace_meta(t), what);
    OWN(free_at) float *x = malloc(sizeof *x * (size_t)(s.tokens * s.dim));
    for (int64_t h = 0; h < s.heads; h++) {
        MUST(trace_read(t, 0, what, (int)h, 0, s.tokens, x, ERR));
        for (int64_t i = 0; i < s.tokens * s.dim; i++)
            ck_assert_float_eq(
                x[i],
                dtype_round(s.dtype, dtype_round(from, value(tensor, h, i / s.dim, i % s.dim))));
    }
}

static const struct {
    const char *layout;
    enum dtype file, want, stored;
    int64_t heads, kv_heads;
} cases[] = {
    {"hnd", DT_F32, DT_NONE, DT_F32, 4, 2},  {"bhnd", DT_BF16, DT_NONE, DT_BF16, 4, 4},
    {"nd", DT_F16, DT_NONE, DT_F16, 1, 1},   {"nhd", DT_F32, DT_NONE, DT_F32, 6, 2},
    {"hnd", DT_F64, DT_BF16, DT_BF16, 2, 1}, {"nhd", DT_BF16, DT_F16, DT_F16, 2, 2},
};

TEST_EACH(npy_files_become_a_trace, cases)
{
    enum dtype t = cases[_i].file;
    const char *l = cases[_i].layout;
    struct inputs in = {save("q.npy", 0, t, l, cases[_i].heads, 70, 16),
                        save("k.npy", 1, t, l, cases[_i].kv_heads, 70, 16),
                        save("v.npy", 2, t, l, cases[_i].kv_heads, 70, 24), NULL,
                        strcmp(l, "nhd") == 0 ? LAYOUT_NHD : LAYOUT_HND};
    struct import_job j = {.meta = {.causal = true}};
    OWN(trace_close) struct trace *trace = NULL;
    MUST(import_npy(&j, &in, cases[_i].want, test_path("t.h5"), ERR));
    MUST(trace_open(test_path("t.h5"), &trace, ERR));
    const struct trace_meta *m = trace_meta(trace);
    ck_assert_int_eq(m->heads, cases[_i].heads);
    ck_assert_int_eq(m->kv_heads, cases[_i].kv_heads);
    ck_assert(m->dtype == cases[_i].stored && m->n_q == 70 && m->v_dim == 24 && m->scale == 0.25);
    check_tensor(trace, TRACE_Q, 0, t == DT_F64 ? DT_F32 : t);
    check_tensor(trace, TRACE_K, 1, t == DT_F64 ? DT_F32 : t);
    check_tensor(trace, TRACE_V, 2, t == DT_F64 ? DT_F32 : t);
}

TEST(shapes_that_do_not_fit_are_refused)
{
    struct err err = {0};
    struct source s;
    int64_t shape[4] = {2, 3, 4, 5};
    float x[120] = {0};
    const char *q = save("q.npy", 0, DT_F32, "hnd", 4, 20, 8);
    static const struct {
        int64_t kh, kn, kd, vh, vn;
        enum dtype t;
        const char *text;
    } bad[] = {
        {3, 20, 8, 3, 20, DT_F32, "not a multiple of the 3 kv heads"},
        {2, 20, 16, 2, 20, DT_F32, "k.npy has 16 dims, expected 8 as q"},
        {2, 20, 8, 4, 20, DT_F32, "v.npy has 4 heads, expected 2 as k"},
        {2, 20, 8, 2, 21, DT_F32, "v.npy has 21 tokens, expected 20 as k"},
        {2, 20, 8, 2, 20, DT_F16, "--dtype"},
        {2, 19, 8, 2, 19, DT_F32, "causal"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct import_job j = {.meta = {.causal = true}};
        struct inputs in = {q, save("k.npy", 1, bad[i].t, "hnd", bad[i].kh, bad[i].kn, bad[i].kd),
                            save("v.npy", 2, DT_F32, "hnd", bad[i].vh, bad[i].vn, 8), NULL,
                            LAYOUT_HND};
        int rc = import_npy(&j, &in, DT_NONE, test_path("refused.h5"), &err);
        ck_assert_msg((rc == ERR_INPUT || rc == ERR_USAGE) && strstr(err.msg, bad[i].text) != NULL,
                      "%d %s", rc, err.msg);
        err_clear(&err);
        ck_assert(test_absent("refused.h5"));
    }
    assert_ok(npy_write(test_path("b.npy"), DT_F32, 4, shape, x, &err), &err);
    assert_fails(source_npy(&s, test_path("b.npy"), LAYOUT_HND, &err), &err, ERR_INPUT,
                 "a batch of 2");
    assert_ok(npy_write(test_path("b.npy"), DT_F32, 1, shape, x, &err), &err);
    assert_fails(source_npy(&s, test_path("b.npy"), LAYOUT_HND, &err), &err, ERR_INPUT,
                 "shape (2)");
    shape[1] = 0;
    assert_ok(npy_write(test_path("b.npy"), DT_F32, 3, shape, x, &err), &err);
    assert_fails(source_npy(&s, test_path("b.npy"), LAYOUT_HND, &err), &err, ERR_INPUT, "empty");
}

TEST(nonfinite_values_are_named_counted_and_refused)
{
    struct import_job j = {0};
    int64_t shape[3] = {2, 10, 4};
    float x[80] = {0};
    struct inputs in = {test_path("q.npy"), save("k.npy", 1, DT_F32, "hnd", 2, 10, 4),
                        save("v.npy", 2, DT_F32, "hnd", 2, 10, 4), NULL, LAYOUT_HND};
    struct trace *t = NULL;
    x[40 + 3 * 4 + 1] = NAN;
    x[79] = INFINITY;
    MUST(npy_write(test_path("q.npy"), DT_F32, 3, shape, x, ERR));
    FAILS(import_npy(&j, &in, DT_NONE, test_path("n.h5"), ERR), ERR_INPUT,
          "q.npy: 2 values are NaN or infinite as float32, the first at head 1, token 3, "
          "dim 1");
    ck_assert(test_absent("n.h5"));
    j.allow_nonfinite = true;
    MUST(import_npy(&j, &in, DT_NONE, test_path("n.h5"), ERR));
    MUST(trace_open(test_path("n.h5"), &t, ERR));
    MUST(trace_read(t, 0, TRACE_Q, 1, 0, 10, x, ERR));
    ck_assert(isnan(x[13]) && isinf(x[39]));
    trace_close(&t);
    /* finite in the file, infinite as float16 */
    memset(x, 0, sizeof x);
    x[5] = 70000;
    MUST(npy_write(test_path("q.npy"), DT_F32, 3, shape, x, ERR));
    j.allow_nonfinite = false;
    FAILS(import_npy(&j, &in, DT_F16, test_path("m.h5"), ERR), ERR_INPUT,
          "1 values are NaN or infinite as float16");
}

TEST(maps_are_those_of_the_stored_values)
{
    struct import_job j = {.meta = {.causal = true, .pool = 16}};
    struct inputs in = {save("q.npy", 0, DT_F32, "hnd", 4, 50, 8),
                        save("k.npy", 1, DT_F32, "hnd", 2, 50, 8),
                        save("v.npy", 2, DT_F32, "hnd", 2, 50, 8), NULL, LAYOUT_HND};
    OWN(trace_close) struct trace *t = NULL;
    float q[400], k[400], sum[16], max[16], want_sum[16], want_max[16];
    double lse[50];
    MUST(import_npy(&j, &in, DT_BF16, test_path("t.h5"), ERR));
    MUST(trace_open(test_path("t.h5"), &t, ERR));
    for (int h = 0; h < 4; h++) {
        OWN(attn_release) struct attn_ops ops;
        struct mask full;
        MUST(trace_read(t, 0, TRACE_Q, h, 0, 50, q, ERR));
        MUST(trace_read(t, 0, TRACE_K, h / 2, 0, 50, k, ERR));
        struct attn_in a = {.nq = 50,
                            .nk = 50,
                            .d = 8,
                            .dv = 8,
                            .q = q,
                            .k = k,
                            .scale = 1 / sqrt(8),
                            .causal = true};
        MUST(attn_prepare(&ops, &a, PREC_F64, ERR));
        mask_full(&full, 50, 50, 0, 50, true);
        MUST(attn_rows(&ops, &full, NULL, lse, ERR));
        MUST(pool_map(&ops, lse, 16, want_sum, want_max, ERR));
        MUST(trace_read_map(t, 0, h, sum, max, ERR));
        for (int i = 0; i < 16; i++) {
            ck_assert_float_eq_tol(sum[i], want_sum[i], 1e-5f);
            ck_assert_float_eq_tol(max[i], want_max[i], 1e-5f);
        }
    }
}

/* Dense attention of the stored q, k, v in double, slowly, rounded to the dtype. */
static void dense_out(const struct trace *t, int head, float *out)
{
    const struct trace_meta *m = trace_meta(t);
    int64_t n = m->n_k, d = m->head_dim, dv = m->v_dim;
    OWN(free_at)
    float *q = malloc(sizeof *q * (size_t)(n * d)), *k = malloc(sizeof *k * (size_t)(n * d));
    OWN(free_at) float *v = malloc(sizeof *v * (size_t)(n * dv));
    int kv = head / (m->heads / m->kv_heads);

    MUST(trace_read(t, 0, TRACE_Q, head, 0, n, q, ERR));
    MUST(trace_read(t, 0, TRACE_K, kv, 0, n, k, ERR));
    MUST(trace_read(t, 0, TRACE_V, kv, 0, n, v, ERR));
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < dv; c++) {
            double num = 0, den = 0;
            for (int64_t j = 0; j < (m->causal ? i + 1 : n); j++) {
                double s = 0;
                for (int64_t e = 0; e < d; e++)
                    s += (double)q[i * d + e] * k[j * d + e];
                double p = exp(s * m->scale);
                num += p * v[j * dv + c];
                den += p;
            }
            out[i * dv + c] = dtype_round(m->dtype, (float)(num / den));
        }
}

static void count_difference(void *ctx, const char *object, int head, const char *what)
{
    ck_assert_str_eq(object, "/calls/step-000/main/layer-00");
    ck_assert_msg(strstr(what, "out of query 39, dim 3,") != NULL, "head %d: %s", head, what);
    *(int *)ctx += 1 << head;
}

TEST_N(stored_outputs_are_compared_with_dense_attention, 2)
{
    struct import_job j = {.meta = {.causal = _i == 0, .compute = "float32"}};
    struct inputs in = {save("q.npy", 0, DT_F32, "hnd", 4, 40, 8),
                        save("k.npy", 1, DT_F32, "hnd", 2, 40, 8),
                        save("v.npy", 2, DT_F32, "hnd", 2, 40, 8), NULL, LAYOUT_HND};
    struct trace *t = NULL;
    static float out[4 * 40 * 8];
    int64_t shape[3] = {4, 40, 8}, bad = -1, rows = -1;
    int heads = 0;
    MUST(import_npy(&j, &in, DT_BF16, test_path("t.h5"), ERR));
    MUST(trace_open(test_path("t.h5"), &t, ERR));
    for (int h = 0; h < 4; h++)
        dense_out(t, h, out + h * 320);
    trace_close(&t);
    in.out = test_path("o.npy");
    for (int wrong = 0; wrong < 2; wrong++) {
        if (wrong) /* two units in the last place of bfloat16 */
            out[2 * 320 + 39 * 8 + 3] *= 1 + 0x1p-6f;
        MUST(npy_write(in.out, DT_F32, 3, shape, out, ERR));
        j = (struct import_job){.meta = {.causal = _i == 0, .compute = "float32"}};
        MUST(import_npy(&j, &in, DT_BF16, test_path("t.h5"), ERR));
        MUST(trace_open(test_path("t.h5"), &t, ERR));
        MUST(trace_check_attention(t, 2, 7, count_difference, &heads, &bad, &rows, ERR));
        ck_assert_int_eq(rows, 28);
        ck_assert_int_eq(bad, wrong);
        ck_assert_int_eq(heads, wrong ? 4 : 0);
        MUST(trace_check_attention(t, 2, 0, count_difference, &heads, &bad, &rows, ERR));
        ck_assert(rows == 0 && bad == 0);
        trace_close(&t);
    }
}

/* Text of a video, of which the last `n - valid` tokens are padding. */
static const struct padded_text {
    const char *place;
    int64_t n, valid;
} padded[] = {{"back", 6, 4}, {"front", 6, 4}, {"back", 6, 6}, {"back", 1, 0}};

/* Dense attention of a head with n tokens from which [first, first + count) are left out; rows of
 * these are NaN: nothing may look at them. */
static void attention_without(int64_t n, int d, int64_t first, int64_t count, int head, float *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < d; c++) {
            double num = 0, den = 0;
            for (int64_t j = 0; j < n; j++) {
                double s = 0;
                if (j >= first && j < first + count)
                    continue;
                for (int e = 0; e < d; e++)
                    s += (double)value(0, head, i, e) * value(1, head, j, e);
                den += exp(s / sqrt(d));
                num += exp(s / sqrt(d)) * value(2, head, j, c);
            }
            out[i * d + c] = i >= first && i < first + count ? NAN : (float)(num / den);
        }
}

static void say_difference(void *ctx, const char *object, int head, const char *what)
{
    ck_abort_msg("%s head %d: %s", object, head, what);
    (void)ctx;
}

/* Padding is no key of the stored outputs, and its own rows mean nothing. */
TEST_EACH(padding_text_is_left_out_of_the_comparison, padded)
{
    const struct padded_text *text = padded + _i;
    const int64_t video = 2 * 3 * 4, n = video + text->n, shape[3] = {2, n, 8};
    int64_t first = (strcmp(text->place, "back") == 0 ? video : 0) + text->valid, bad, rows;
    struct inputs in = {save("q.npy", 0, DT_F32, "hnd", 2, n, 8),
                        save("k.npy", 1, DT_F32, "hnd", 2, n, 8),
                        save("v.npy", 2, DT_F32, "hnd", 2, n, 8), test_path("o.npy"), LAYOUT_HND};
    struct import_job j = {.allow_nonfinite = true,
                           .meta = {.compute = "float32",
                                    .grid_t = 2,
                                    .grid_h = 3,
                                    .grid_w = 4,
                                    .text_tokens = text->n,
                                    .text_valid = text->valid}};
    OWN(trace_close) struct trace *t = NULL;
    OWN(free_at) float *out = malloc(sizeof *out * (size_t)(2 * n * 8));
    strcpy(j.meta.text_place, text->place);
    for (int h = 0; h < 2; h++)
        attention_without(n, 8, first, text->n - text->valid, h, out + h * n * 8);
    MUST(npy_write(in.out, DT_F32, 3, shape, out, ERR));
    MUST(import_npy(&j, &in, DT_NONE, test_path("t.h5"), ERR));
    MUST(trace_open(test_path("t.h5"), &t, ERR));
    struct trace_span padding = trace_padding(trace_meta(t), &trace_call(t, 0)->score);
    ck_assert_int_eq(padding.first, first);
    ck_assert_int_eq(padding.count, text->n - text->valid);
    MUST(trace_check_attention(t, 2, 64, say_difference, NULL, &bad, &rows, ERR));
    ck_assert(bad == 0 && rows == 2 * (n - padding.count));
}

/* A trace with two steps, two branches, two layers, from safetensors with export's names. */
TEST(an_export_imports_as_the_same_tensors)
{
    static const char *const names[] = {"step-000.cond.layer-01.", "step-002.cond.layer-01.",
                                        "step-002.uncond.layer-00.", "step-000.uncond.layer-00."};
    struct trace_call defaults = {.branch = "main", .timestep = NAN, .sigma = NAN};
    struct trace_selection all = {"all", "all", "all", "", "q,k,v"}, some = all;
    struct st_file *f = NULL;
    OWN(trace_close) struct trace *t = NULL, *u = NULL;
    struct st_out out[14];
    char text[12][64];
    static float data[4 * 24 * 8];
    double sigmas[4] = {1, 0.75, 0.25, 0};
    int64_t n, bytes;
    for (int i = 0; i < 4 * 24 * 8; i++)
        data[i] = (float)i;
    for (int i = 0; i < 12; i++) {
        snprintf(text[i], sizeof text[i], "%s%c", names[i / 3], "qkv"[i % 3]);
        out[i] = (struct st_out){text[i], DT_F32, 3, {i % 3 ? 2 : 4, 24, 8}, data};
    }
    out[12] = (struct st_out){"sigmas", DT_F64, 1, {4}, sigmas};
    MUST(st_write(test_path("a.safetensors"), out, 13, ERR));
    for (int round = 0; round < 2; round++) {
        struct import_job j = {.meta = {.grid_t = 2, .grid_h = 3, .grid_w = 4}};
        MUST(st_open(test_path(round ? "b.safetensors" : "a.safetensors"), &f, ERR));
        MUST(import_safetensors(&j, f, "a", LAYOUT_HND, &defaults, ERR));
        MUST(import_shapes(&j, DT_NONE, ERR));
        MUST(import_write(&j, test_path(round ? "b.h5" : "a.h5"), 1, true, ERR));
        import_free(&j);
        st_close(&f);
        if (round == 0) {
            MUST(trace_open(test_path("a.h5"), &t, ERR));
            MUST(trace_export(t, &all, test_path("b.safetensors"), true, false, &n, &bytes, ERR));
            ck_assert(n == 12 && bytes == 4 * 4 * 24 * 8 * (4 + 2 + 2));
        }
    }
    ck_assert_int_eq(trace_calls(t), 4);
    const struct trace_call *c = trace_call(t, 3);
    ck_assert(c->step == 2 && c->layer == 0 && c->sigma == 0.25 && trace_meta(t)->steps == 3);
    ck_assert_str_eq(c->branch, "uncond");
    MUST(trace_open(test_path("b.h5"), &u, ERR));
    float a[24 * 8], b[24 * 8];
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < 4; h++) {
            MUST(trace_read(t, i, TRACE_Q, h, 0, 24, a, ERR));
            MUST(trace_read(u, i, TRACE_Q, h, 0, 24, b, ERR));
            ck_assert_mem_eq(a, b, sizeof a);
        }
    /* heads 2 and 3 are served by kv head 1 */
    some.heads = "2,3";
    some.branch = "cond";
    some.steps = "2";
    some.tensors = "k,q";
    MUST(trace_export(t, &some, test_path("dir/sub"), true, false, &n, &bytes, ERR));
    ck_assert(n == 2 && bytes == 4 * 24 * 8 * 3);
    struct npy *a_npy = NULL;
    MUST(npy_open(test_path("dir/sub/step-002.cond.layer-01.k.npy"), true, &a_npy, ERR));
    ck_assert(a_npy->shape[0] == 1 && a_npy->shape[1] == 24);
    MUST(npy_read_f32(a_npy, a, ERR));
    ck_assert_float_eq(a[0], 24 * 8);
    npy_close(&a_npy);
    some.tensors = "out";
    FAILS(trace_export(t, &some, test_path("x"), true, false, &n, &bytes, ERR), ERR_USAGE,
          "nothing to export");
    some.tensors = "q,w";
    FAILS(trace_export(t, &some, test_path("x"), true, false, &n, &bytes, ERR), ERR_USAGE,
          "'w' is none of");
    FAILS(trace_export(t, &all, test_path("b.safetensors"), false, false, &n, &bytes, ERR),
          ERR_USAGE, "--force");
    FAILS(trace_export(t, &all, test_path("b.npy"), false, false, &n, &bytes, ERR), ERR_USAGE,
          "cannot hold 12 tensors");
}

TEST(odd_names_are_refused)
{
    static const struct {
        const char *names[6], *text;
    } bad[] = {
        {{"a.b.q", "a.b.k", "a.b.v"}, "'b' is no step, layer or branch"},
        {{"layer1.q", "layer1.k"}, "'layer1.v' is missing"},
        {{"query"}, "no tensor is named"},
        {{""}, "no tensor is named"},
        {{"layer1.q", "layer1.k", "layer1.v", "layer-01.q", "layer-01.k", "layer-01.v"},
         "the same step"},
    };
    struct trace_call defaults = {.branch = "main"};
    float x[8] = {0};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct st_out out[6];
        int64_t n = 0;
        OWN(st_close) struct st_file *f = NULL;
        OWN(import_free) struct import_job j = {0};
        for (; n < 6 && bad[i].names[n]; n++)
            out[n] = (struct st_out){bad[i].names[n], DT_F32, 3, {1, 2, 4}, x};
        MUST(st_write(test_path("bad.safetensors"), out, n, ERR));
        MUST(st_open(test_path("bad.safetensors"), &f, ERR));
        FAILS(import_safetensors(&j, f, "bad", LAYOUT_HND, &defaults, ERR), ERR_INPUT, bad[i].text);
    }
}
