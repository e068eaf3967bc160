/*
 * test_capture.c - `lacuna capture` from a prompt to a trace, on the shipped language model and on
 * tiny checkpoints: what is stored, what the selections leave out, what is refused.
 */
#include "capture/trace/trace_tools.h"
#include "core/checkpoint.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/gemm.h"
#include "core/safetensors.h"
#include "tests/harness/capturerun.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"
#include "tests/harness/tinymodel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CODE_LM "datasets/models/code-lm"
#define PROMPT "tests/data/code-lm-a.txt"
#define GOLDEN "tests/data/code-lm-a.safetensors"

static struct err err;

static int capture(const char *model, const char *out, const char *args)
{
    return capture_run(model, out, "--jobs 1", args, &err);
}

static void put_file(const char *name, const char *text)
{
    assert_ok(file_write_atomic(test_path(name), text, strlen(text), &err), &err);
}

/* A fresh trace of code-lm over the golden prompt. */
static struct trace *code_lm(const char *name, const char *args)
{
    char all[512];
    snprintf(all, sizeof all, "--prompt " PROMPT " --force %s", args);
    assert_ok(capture(CODE_LM, test_path(name), all), &err);
    return open_trace(test_path(name));
}

/* All rows of a head of a layer. */
static float *head_rows(const struct trace *t, int layer, enum trace_what what, int head)
{
    struct trace_shape s = trace_shape(trace_meta(t), what);
    float *x = NULL;
    int64_t call = trace_find(t, 0, "main", layer);
    ck_assert_int_ge(call, 0);
    assert_ok(mem_alloc(&x, s.tokens * s.dim, sizeof *x, "rows", &err), &err);
    assert_ok(trace_read(t, call, what, head, 0, s.tokens, x, &err), &err);
    return x;
}

static int64_t head_values(const struct trace *t, enum trace_what what)
{
    struct trace_shape s = trace_shape(trace_meta(t), what);
    return s.tokens * s.dim;
}

/* Head `ha` of trace a holds exactly what head `hb` of trace b does. */
static void same_rows(const struct trace *a, int ha, const struct trace *b, int hb, int layer,
                      enum trace_what what)
{
    OWN(free_at) float *x = head_rows(a, layer, what, ha), *y = head_rows(b, layer, what, hb);
    ck_assert(memcmp(x, y, (size_t)head_values(a, what) * sizeof *x) == 0);
}

/* ---- golden ---------------------------------------------------------------------------------- */

enum { N = 770, D = 64, HEADS = 8, KV = 2 };

static double distance(const struct trace *t, int layer, enum trace_what what, int head,
                       const float *want)
{
    OWN(free_at) float *x = head_rows(t, layer, what, head);
    return rel_l2(x, want, N * D);
}

/* Every stored tensor of the golden file within `tol` (relative L2). */
static void check_tensors(const struct trace *t, double tol)
{
    OWN(free_at)
    float *q0 = golden_tensor(GOLDEN, "layer0.q.heads0,7", 2 * N * D),
          *q5 = golden_tensor(GOLDEN, "layer5.q.heads0,7", 2 * N * D);
    OWN(free_at)
    float *k0 = golden_tensor(GOLDEN, "layer0.k", KV * N * D),
          *k5 = golden_tensor(GOLDEN, "layer5.k", KV * N * D);
    OWN(free_at) float *v5 = golden_tensor(GOLDEN, "layer5.v", KV * N * D);
    for (int i = 0; i < 2; i++) {
        ck_assert_double_lt(distance(t, 0, TRACE_Q, 7 * i, q0 + i * N * D), tol);
        ck_assert_double_lt(distance(t, 5, TRACE_Q, 7 * i, q5 + i * N * D), tol);
        ck_assert_double_lt(distance(t, 0, TRACE_K, i, k0 + i * N * D), tol);
        ck_assert_double_lt(distance(t, 5, TRACE_K, i, k5 + i * N * D), tol);
        ck_assert_double_lt(distance(t, 5, TRACE_V, i, v5 + i * N * D), tol);
    }
}

static void check_run_data(const struct trace *t)
{
    OWN(free_at)
    float *want_ids = golden_tensor(GOLDEN, "tokens", N),
          *want_nll = golden_tensor(GOLDEN, "nll", N - 1), *nll = NULL;
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    assert_ok(trace_read_run(t, TRACE_TOKENS, &ids, &n, &err), &err);
    ck_assert_int_eq(n, N);
    for (int i = 0; i < N; i++)
        ck_assert(ids[i] == (int32_t)want_ids[i]);
    assert_ok(trace_read_run(t, TRACE_NLL, &nll, &n, &err), &err);
    ck_assert_int_eq(n, N - 1);
    for (int i = 0; i < N - 1; i++)
        ck_assert_float_eq_tol(nll[i], want_nll[i], 1e-3f);
}

/* The golden maps hold the 12 x 12 full cells of 13 x 13. */
static void check_maps(const struct trace *t)
{
    OWN(free_at)
    float *sum = golden_tensor(GOLDEN, "layer2.map_sum64", HEADS * 144), *s = NULL, *m = NULL;
    OWN(free_at) float *max = golden_tensor(GOLDEN, "layer2.map_max64", HEADS * 144);
    int64_t cells = trace_map_cells(t, true), call = trace_find(t, 0, "main", 2);

    ck_assert_int_eq(cells, 13);
    s = malloc((size_t)(cells * cells) * sizeof *s);
    m = malloc((size_t)(cells * cells) * sizeof *m);
    for (int h = 0; h < HEADS; h++) {
        assert_ok(trace_read_map(t, call, h, s, m, &err), &err);
        for (int r = 0; r < 12; r++)
            for (int c = 0; c < 12; c++) {
                ck_assert_float_eq_tol(s[r * 13 + c], sum[(h * 12 + r) * 12 + c], 1e-4f);
                ck_assert_float_eq_tol(m[r * 13 + c], max[(h * 12 + r) * 12 + c], 1e-4f);
            }
    }
}

TEST(float32_trace_is_the_golden_run)
{
    OWN(trace_close) struct trace *t = code_lm("f32.h5", "--dtype f32");
    check_run_data(t);
    check_tensors(t, 1e-4);
    check_maps(t);
}

/* Storing rounds, to half a unit in the last of 8 bits: 2^-9 of each value, and so of the norm. The
 * run goes on with unrounded values, so the error does not grow with the layer. */
TEST(bfloat16_trace_is_the_rounded_float32_run)
{
    OWN(trace_close)
    struct trace *a = code_lm("f32.h5", "--dtype f32"), *b = code_lm("bf16.h5", "");
    ck_assert_int_eq(trace_meta(b)->dtype, DT_BF16);
    ck_assert_str_eq(trace_meta(b)->compute, "float32");
    check_run_data(b);
    check_tensors(b, 1.0 / 512 + 1e-4);
    check_maps(b);
    for (int layer = 0; layer < 6; layer += 5) {
        OWN(free_at)
        float *x = head_rows(a, layer, TRACE_Q, 3), *y = head_rows(b, layer, TRACE_Q, 3);
        for (int i = 0; i < N * D; i++)
            ck_assert(y[i] == dtype_round(DT_BF16, x[i]));
    }
}

TEST(metadata_say_where_the_trace_comes_from)
{
    OWN(trace_close) struct trace *t = code_lm("meta.h5", "--tokens 64 --seed 7");
    const struct trace_meta *m = trace_meta(t);
    ck_assert_str_eq(m->name, "code-lm");
    ck_assert_str_eq(m->architecture, "LlamaForCausalLM");
    ck_assert_str_eq(m->source, "capture");
    ck_assert(strncmp(m->computed_by, "openblas ", 9) == 0);
    ck_assert_str_eq(m->computed_by + 9, openblas_kernels());
    ck_assert_str_eq(m->positions, "rope");
    ck_assert_str_eq(m->head_ids, "");
    ck_assert(strncmp(m->weights_id, "xxh3:", 5) == 0 && strncmp(m->prompt_id, "xxh3:", 5) == 0);
    ck_assert(m->layers == 6 && m->heads == HEADS && m->kv_heads == KV && m->head_dim == D);
    ck_assert(m->causal && m->positions_applied && m->scale == 0.125 && m->seed == 7);
    ck_assert(m->n_q == 64 && m->n_k == 64 && m->pool == 64 && m->grid_t == 0);
    ck_assert_int_eq(trace_calls(t), 6);
}

/* ---- selections ------------------------------------------------------------------------------ */

TEST(layers_are_those_asked_for)
{
    struct trace *all = code_lm("all.h5", "--tokens 100"), *some;
    float *nll = NULL;
    int64_t n = 0;
    some = code_lm("some.h5", "--tokens 100 --layers 1,3");
    ck_assert_int_eq(trace_calls(some), 2);
    ck_assert(trace_find(some, 0, "main", 0) < 0 && trace_find(some, 0, "main", 3) == 1);
    same_rows(all, 5, some, 5, 3, TRACE_Q);
    assert_ok(trace_read_run(some, TRACE_NLL, &nll, &n, &err), &err);
    ck_assert_int_eq(n, 99);
    free(nll);
    nll = NULL;
    trace_close(&some);

    some = code_lm("short.h5", "--tokens 100 --layers 1,3 --no-nll");
    same_rows(all, 1, some, 1, 3, TRACE_V);
    assert_ok(trace_read_run(some, TRACE_NLL, &nll, &n, &err), &err);
    ck_assert(n == 0);
    free(nll);
    trace_close(&some);
    trace_close(&all);
}

static void check_heads(const char *list, const char *kv_ids, int heads, int kv_heads,
                        const int *head, const int *kv)
{
    char args[128];
    snprintf(args, sizeof args, "--tokens 70 --layers 2 --maps 32 --heads %s", list);
    OWN(trace_close)
    struct trace *all = code_lm("all.h5", "--tokens 70 --maps 32"),
                 *some = code_lm("heads.h5", args);
    float a[9], b[9];

    ck_assert_int_eq(trace_meta(some)->heads, heads);
    ck_assert_int_eq(trace_meta(some)->kv_heads, kv_heads);
    ck_assert_str_eq(trace_meta(some)->head_ids, list);
    ck_assert_str_eq(trace_meta(some)->kv_head_ids, kv_ids);
    for (int i = 0; i < heads; i++) {
        int read = i / (heads / kv_heads);
        ck_assert_int_eq(kv[read], head[i] / 4); /* what the model's head reads */
        same_rows(all, head[i], some, i, 2, TRACE_Q);
        assert_ok(trace_read_map(all, 2, head[i], a, NULL, &err), &err);
        assert_ok(trace_read_map(some, 0, i, b, NULL, &err), &err);
        ck_assert(memcmp(a, b, sizeof a) == 0);
    }
    for (int i = 0; i < kv_heads; i++) {
        same_rows(all, kv[i], some, i, 2, TRACE_K);
        same_rows(all, kv[i], some, i, 2, TRACE_V);
    }
}

TEST(heads_keep_the_kv_heads_that_they_read)
{
    check_heads("0,7", "0-1", 2, 2, (int[]){0, 7}, (int[]){0, 1});
    check_heads("4-6", "1", 3, 1, (int[]){4, 5, 6}, (int[]){1});
    check_heads("2-3,6-7", "0-1", 4, 2, (int[]){2, 3, 6, 7}, (int[]){0, 1});
    /* Two of kv head 0 and one of kv head 1: each has its own. */
    check_heads("1,3,5", "0,0-1", 3, 3, (int[]){1, 3, 5}, (int[]){0, 0, 1});
}

TEST(a_head_list_that_does_not_fit_is_refused)
{
    struct head_select s;
    struct trace_meta m = {0};
    char list[2048] = "0";
    for (int i = 2; i < 400; i += 2)
        snprintf(list + strlen(list), sizeof list - strlen(list), ",%d", i);
    assert_ok(head_select_parse(list, 400, 400, &s, &err), &err);
    assert_fails(head_select_meta(&s, &m, &err), &err, ERR_USAGE, "too long");
    head_select_free(&s);
    assert_fails(head_select_parse("8", 8, 2, &s, &err), &err, ERR_USAGE, "--heads");
}

/* Every row of probabilities sums to 1, so a row of cells sums to its queries: edge cells included.
 */
TEST(maps_cover_every_pair)
{
    struct trace *t = code_lm("maps.h5", "--tokens 131 --layers 4 --maps 50");
    float sum[9], max[9];
    ck_assert_int_eq(trace_map_cells(t, false), 3);
    for (int h = 0; h < HEADS; h++) {
        assert_ok(trace_read_map(t, 0, h, sum, max, &err), &err);
        for (int r = 0; r < 3; r++) {
            ck_assert_float_eq_tol(sum[3 * r] + sum[3 * r + 1] + sum[3 * r + 2], r < 2 ? 50 : 31,
                                   1e-3f);
            for (int c = r + 1; c < 3; c++)
                ck_assert(sum[3 * r + c] == 0 && max[3 * r + c] == 0);
        }
        ck_assert(max[0] == 1); /* token 0 sees itself alone */
    }
    trace_close(&t);
    t = code_lm("none.h5", "--tokens 20 --layers 4 --maps 0");
    ck_assert(trace_meta(t)->pool == 0 && !trace_call(t, 0)->has_map);
    trace_close(&t);
}

/* A map whose values were changed in the file is refused, the other heads' are not. */
TEST(a_damaged_map_is_not_read)
{
    OWN(trace_close) struct trace *t = code_lm("maps.h5", "--tokens 131 --layers 4 --maps 50");
    float sum[9], max[9];
    FILE *f = fopen(trace_path(t), "r+b");
    static char bytes[1 << 20];
    assert_ok(trace_read_map(t, 0, 2, sum, max, &err), &err);
    ck_assert_ptr_nonnull(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    ck_assert(n > 0 && n < sizeof bytes);
    char *at = memmem(bytes, n, max, sizeof max);
    ck_assert_ptr_nonnull(at);
    at[sizeof max - 1] ^= 1;
    ck_assert(fseek(f, at - bytes, SEEK_SET) == 0 && fwrite(at, 1, sizeof max, f) == sizeof max);
    ck_assert_int_eq(fclose(f), 0);
    assert_ok(trace_read_map(t, 0, 2, sum, NULL, &err), &err);
    assert_fails(trace_read_map(t, 0, 2, sum, max, &err), &err, ERR_INPUT,
                 "map_max head 2 does not match its checksum");
    assert_ok(trace_read_map(t, 0, 3, sum, max, &err), &err);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void check_tokens(const char *path, int64_t want_n, const int32_t *want)
{
    OWN(trace_close) struct trace *t = open_trace(path);
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    assert_ok(trace_read_run(t, TRACE_TOKENS, &ids, &n, &err), &err);
    ck_assert_int_eq(n, want_n);
    for (int64_t i = 0; i < n; i++)
        ck_assert_int_eq(ids[i], want[i]);
}

TEST(prompt_and_token_file_give_the_same_run)
{
    put_file("p.txt", "int main");
    assert_ok(capture(CODE_LM, test_path("a.h5"), "--prompt " PROMPT " --tokens 5 --dtype f32"),
              &err);
    check_tokens(test_path("a.h5"), 5, (int32_t[]){0, 878, 411, 2415, 15});
    put_file("ids.txt", "0 878,\n411\t2415 15\n");
    char args[512];
    snprintf(args, sizeof args, "--tokens-file %s --dtype f32", test_path("ids.txt"));
    assert_ok(capture(CODE_LM, test_path("b.h5"), args), &err);
    check_tokens(test_path("b.h5"), 5, (int32_t[]){0, 878, 411, 2415, 15});
    OWN(trace_close)
    struct trace *a = open_trace(test_path("a.h5")), *b = open_trace(test_path("b.h5"));
    same_rows(a, 2, b, 2, 5, TRACE_Q);
    ck_assert_str_ne(trace_meta(a)->prompt_id, trace_meta(b)->prompt_id);
}

TEST(bos_can_be_asked_for_and_left_out)
{
    assert_ok(capture(CODE_LM, test_path("no.h5"), "--prompt " PROMPT " --tokens 4 --bos no"),
              &err);
    check_tokens(test_path("no.h5"), 4, (int32_t[]){878, 411, 2415, 15});
    assert_ok(capture(CODE_LM, test_path("yes.h5"), "--prompt " PROMPT " --tokens 2 --bos yes"),
              &err);
    check_tokens(test_path("yes.h5"), 2, (int32_t[]){0, 878});
    put_file("empty.txt", "");
    char args[512];
    snprintf(args, sizeof args, "--prompt %s", test_path("empty.txt"));
    assert_ok(capture(CODE_LM, test_path("one.h5"), args), &err);
    check_tokens(test_path("one.h5"), 1, (int32_t[]){0});
}

/* The type of the trace is that of the checkpoint, whatever its spelling. */
TEST_N(tiny_checkpoints_of_other_families_are_captured, 4)
{
    static const char *const variants[] = {"mistral", "qwen2", "qwen3", "llama-new"};
    struct buf ids = {0};
    int32_t tokens[TINY_TOKENS];
    char args[512];
    tiny_tokens(tokens);
    for (int i = 0; i < TINY_TOKENS; i++)
        buf_printf(&ids, "%d ", tokens[i]);
    put_file("ids.txt", buf_str(&ids));
    buf_free(&ids);
    json_t *c = tiny_config(variants[_i]);
    tiny_put_config(test_tmpdir(), c);
    tiny_put_weights(test_tmpdir(), variants[_i], 1, NULL);
    json_decref(c);
    snprintf(args, sizeof args, "--tokens-file %s --maps 16 --force", test_path("ids.txt"));
    assert_ok(capture(test_tmpdir(), test_path("t.h5"), args), &err);
    OWN(trace_close) struct trace *t = open_trace(test_path("t.h5"));
    ck_assert_int_eq(trace_meta(t)->dtype, DT_BF16);
    ck_assert_int_eq(trace_calls(t), TINY_LAYERS);
    ck_assert_int_eq(trace_map_cells(t, true), 3);
}

/* ---- refusals: none leaves a file behind ----------------------------------------------------- */

static const struct {
    const char *args, *message;
    int code;
} refused[] = {
    {"", "--prompt FILE is missing", ERR_USAGE},
    {"--prompt no-such-file", "no-such-file", ERR_INPUT},
    {"--prompt " PROMPT " --tokens-file " PROMPT, "not both", ERR_USAGE},
    {"--prompt " PROMPT " --tokens 771", "has 770 tokens, --tokens asks for 771", ERR_USAGE},
    {"--prompt " PROMPT " --tokens 0", "tokens", ERR_USAGE},
    {"--prompt " PROMPT " --layers 6", "--layers", ERR_USAGE},
    {"--prompt " PROMPT " --heads 8", "--heads", ERR_USAGE},
    {"--prompt " PROMPT " --maps -1", "maps", ERR_USAGE},
    {"--prompt " PROMPT " --dtype int8", "dtype", ERR_USAGE},
    {"--prompt " PROMPT " --device cuda", "CUDA", ERR_MACHINE},
    {"--prompt " PROMPT " --size 1x2x3", "video", ERR_USAGE},
    {"--prompt " PROMPT " extra", "unexpected argument 'extra'", ERR_USAGE},
    {"--tokens-file " PROMPT, "is not a token id", ERR_INPUT},
    {"--prompt datasets/models/code-lm/model-00001-of-00002.safetensors", "not valid UTF-8",
     ERR_INPUT},
};

TEST_EACH(what_cannot_be_done_is_refused_without_a_trace, refused)
{
    assert_fails(capture(CODE_LM, test_path("bad.h5"), refused[_i].args), &err, refused[_i].code,
                 refused[_i].message);
    ck_assert(test_absent("bad.h5"));
}

TEST(failures_in_the_run_remove_the_part)
{
    char args[512];
    put_file("ids.txt", "1 2 4096");
    snprintf(args, sizeof args, "--tokens-file %s", test_path("ids.txt"));
    assert_fails(capture(CODE_LM, test_path("bad.h5"), args), &err, ERR_INPUT,
                 "token 2 is 4096, the model's vocabulary is 0..4095");
    ck_assert(test_absent("bad.h5"));
    assert_fails(capture("no/such/model", test_path("bad.h5"), "--prompt " PROMPT), &err, ERR_INPUT,
                 "no/such/model/config.json");
}

TEST(an_existing_trace_is_kept_unless_forced)
{
    const char *args = "--prompt " PROMPT " --tokens 8 --layers 0 --no-nll";
    assert_ok(capture(CODE_LM, test_path("keep.h5"), args), &err);
    assert_fails(capture(CODE_LM, test_path("keep.h5"), args), &err, ERR_USAGE, "keep.h5");
    struct trace *t = open_trace(test_path("keep.h5"));
    char id[64];
    snprintf(id, sizeof id, "%s", trace_id(t));
    trace_close(&t);
    assert_ok(capture(CODE_LM, test_path("keep.h5"),
                      "--prompt " PROMPT " --tokens 8 --layers 0 --no-nll --force"),
              &err);
    t = open_trace(test_path("keep.h5"));
    ck_assert_str_eq(trace_id(t), id); /* the same run is the same trace */
    trace_close(&t);
}

/* ---- the model's name ------------------------------------------------------------------------ */

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define CLASS "\"architectures\":[\"LlamaForCausalLM\"]"

static const struct {
    const char *dir, *config, *name;
} named[] = {
    {"llama-8b", "{" CLASS "}", "llama-8b"},
    {"llama-8b", "{" CLASS ",\"_name_or_path\":\"\"}", "llama-8b"},
    {"hf", "{" CLASS ",\"_name_or_path\":\"org/SmolLM2-135M/\"}", "SmolLM2-135M"},
    {"hf", "{" CLASS ",\"_name_or_path\":\"a\\u001bb\"}", "a?b"},
    {"hf", "{" CLASS ",\"_name_or_path\":\"\\ud800\"}", "LlamaForCausalLM"},
    {"hf", "{}", "hf"},
    {"models--org--Own-Name/snapshots/" COMMIT, "{" CLASS "}", "Own-Name"},
};

TEST_EACH(a_model_has_its_own_name, named)
{
    char dir[4300], path[4400], name[128];
    snprintf(dir, sizeof dir, "%s/%s", test_tmpdir(), named[_i].dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(make_dirs(dir, &err), &err);
    assert_ok(file_write_atomic(path, named[_i].config, strlen(named[_i].config), &err), &err);
    checkpoint_name(dir, name, sizeof name);
    ck_assert_str_eq(name, named[_i].name);
}
