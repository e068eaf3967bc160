/*
 * test_outside.c - the method mask: arrays that NumPy and safetensors wrote, what is wrong
 * with arrays, and dumps, which give the records of the methods that wrote them.
 */
#include "tests/harness/conform.h"

#include "core/fileio.h"
#include "core/maskfile.h"
#include "core/npy.h"
#include "core/record.h"
#include "core/safetensors.h"

enum { N = 70, B = 16, NB = 5 };

/* tests/data/make_masks.py has the rule, head 5. */
static bool kept(int64_t i, int64_t j)
{
    return j <= i && (i - j < 8 || j == 0 || i % 9 == 4);
}

static bool block_kept(int64_t i, int64_t j)
{
    bool any = false;
    for (int64_t a = i / B * B; a < i / B * B + B && a < N; a++)
        for (int64_t b = j / B * B; b < j / B * B + B && b < N; b++)
            any = any || kept(a, b);
    return any && j <= i;
}

/* The mask of a layer's head; pairs that were dropped. */
static void assert_kept(const char *text, int layer, bool (*want)(int64_t, int64_t), double dropped)
{
    OWN(conform_result_free) struct conform_result res;
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, N, N, true, PREC_F64, &h);
    h.in.layer = layer;
    conform_run(text, &h.in, NULL, 1, &res);
    ck_assert_msg(res.r.status == RECORD_OK, "%s: %s", text, res.r.reason);
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < N; j++)
            ck_assert_msg(res.bits[i * N + j] == want(i, j), "%s: row %lld, key %lld", text,
                          (long long)i, (long long)j);
    HAS(&res.r, 0, "pairs_dropped", dropped);
    ck_assert_int_eq(record_get(&res.r, "rows_empty") > 0, layer == 2);
}

static bool causal_complement(int64_t i, int64_t j)
{
    return j <= i && !kept(i, j);
}

static const struct {
    const char *text;
    int layer;
    bool (*want)(int64_t, int64_t);
    double dropped;
} arrays[] = {
    {"mask:file=tests/data/masks/five.npy", 3, kept, 0},
    {"mask:file=tests/data/masks/pairs.npz", 3, kept, 0},
    {"mask:file=tests/data/masks/blocks.npz", 3, block_kept, 0},
    {"mask:file=tests/data/masks/blocks.npz:unit=16x16", 3, block_kept, 0},
    {"mask:file=tests/data/masks/rows.safetensors:unit=16x16", 3, block_kept, 0},
    {"mask:file=tests/data/masks/flex.safetensors:unit=16x16", 3, block_kept, 0},
    /* The complement for layer 2: all pairs after the query, which are dropped. */
    {"mask:file=tests/data/masks/pairs.npz", 2, causal_complement, N *(N - 1) / 2},
};

TEST_EACH(arrays_of_other_programs, arrays)
{
    assert_kept(arrays[_i].text, arrays[_i].layer, arrays[_i].want, arrays[_i].dropped);
}

TEST(a_head_without_an_array_is_skipped)
{
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, N, N, true, PREC_F64, &h);
    h.in.layer = 4;
    assert_skips("mask:file=tests/data/masks/pairs.npz", &h.in,
                 "has no mask of step 0, branch main, layer 4");
}

/* Everything that the suite demands of a method's mask and numbers, and rows in any ranges. */
TEST(it_conforms)
{
    static const char *const texts[] = {"mask:file=tests/data/masks/pairs.npz",
                                        "mask:file=tests/data/masks/flex.safetensors:unit=16x16"};
    for (int k = 0; k < 2; k++)
        for (int data = 0; data < DATA_KINDS; data++)
            for (int causal = 0; causal < 2; causal++) {
                OWN(sim_head_free) struct sim_head h;
                conform_head(data, N, N, causal, PREC_F64, &h);
                conform_check(texts[k], &h, conform_data_names[data]);
            }
}

/* ---- what is wrong -------------------------------------------------------------------------- */

/* The method's error, not that of its parameters. */
static void fails(const char *text, const char *why)
{
    OWN(run_free) struct method_run *run_it = run_of(text);
    OWN(record_free) struct record r;
    OWN(sim_head_free) struct sim_head h;
    struct method_ctx ctx = {0};
    struct err err = {0};
    conform_head(NORMAL, N, N, true, PREC_F64, &h);
    record_init(&r);
    struct sim_cell cell = {
        .method = run_it->method, .params = run_it->params, .ctx = &ctx, .in = &h.in};
    int rc = sim_run(&cell, &r, &err);
    ck_assert_msg(rc < 0 && strstr(err.msg, why), "%s: %d '%s', wanted '%s'", text, rc, err.msg,
                  why);
}

static void refused(const char *text, int code, const char *why)
{
    struct method_run *runs = NULL;
    int64_t n = 0;
    FAILS(method_runs_parse(test_methods, text, &runs, &n, ERR), code, why);
    method_runs_free(runs, n);
}

static const char *with_file(const char *path, const char *rest)
{
    static char text[600];
    snprintf(text, sizeof text, "mask:file=%s%s", path, rest);
    return text;
}

static const char *npy(enum dtype t, int ndim, const int64_t *shape, const void *data)
{
    const char *path = test_path("a.npy");
    MUST(npy_write(path, t, ndim, shape, data, ERR));
    return path;
}

TEST(shapes_and_values)
{
    static uint8_t ones[N * N];
    static float floats[N * N];
    memset(ones, 1, sizeof ones);
    const int64_t square[] = {N, N}, heads[] = {2, NB, 7}, four[] = {2, 1, 5, 7},
                  blocks[] = {NB, NB}, row[] = {N};
    fails(with_file(npy(DT_BOOL, 2, (int64_t[]){N - 1, N + 1}, ones), ""),
          "shape [69][71], expected [70][70]");
    fails(with_file(npy(DT_BOOL, 2, blocks, ones), ""), "give unit=QUERIESxKEYS");
    fails(with_file(npy(DT_BOOL, 2, blocks, ones), ":unit=8x16"), "expected [9][5]");
    fails(with_file(npy(DT_BOOL, 3, heads, ones), ":unit=16x11"), "shape [2][5][7] has 2 heads");
    fails(with_file(npy(DT_BOOL, 4, four, ones), ":unit=16x11"), "expected");
    fails(with_file(npy(DT_BOOL, 1, row, ones), ""), "shape [70], expected 2 dimensions");
    fails(with_file(npy(DT_F32, 2, square, floats), ""), "elements of type float32");
    ones[3 * N + 7] = 2;
    fails(with_file(npy(DT_U8, 2, square, ones), ""), "element 217 is 2, expected 0 or 1");
}

/* Compressed rows with one thing wrong. */
static void rows_fail(const int32_t *ptr, int64_t n_ptr, const int32_t *col, int64_t n,
                      const char *why)
{
    static const int32_t size[] = {B};
    const char *path = test_path("rows.safetensors");
    const struct st_out t[] = {{"indptr", DT_I32, 1, {n_ptr}, ptr},
                               {"indices", DT_I32, 1, {n}, col},
                               {"blocksize", DT_I32, 1, {1}, size}};
    MUST(st_write(path, t, 3, ERR));
    fails(with_file(path, ""), why);
}

TEST(lists_are_checked)
{
    static const int32_t good[] = {0, 1, 2, 3, 4, 6}, col[] = {0, 0, 0, 0, 2, 4};
    static const int32_t late[] = {1, 1, 2, 3, 4, 6}, falls[] = {0, 1, 0, 3, 4, 6},
                         open[] = {0, 1, 2, 3, 4, 5}, past[] = {0, 1, 2, 3, 4, 7};
    static const int32_t twice[] = {0, 0, 0, 0, 2, 2}, back[] = {0, 0, 0, 0, 2, 1},
                         high[] = {0, 0, 0, 0, 2, 5}, low[] = {0, -1, 0, 0, 2, 4};
    rows_fail(good, 5, col, 6, "'indptr' has 5 numbers in 1 dimensions, expected 6");
    rows_fail(late, 6, col, 6, "begin with 1, expected 0");
    rows_fail(falls, 6, col, 6, "row group 1 go from 1 to 0 of 6 entries");
    rows_fail(open, 6, col, 6, "end with 5, there are 6 columns");
    rows_fail(past, 6, col, 6, "row group 4 go from 4 to 7 of 6 entries");
    rows_fail(good, 6, twice, 6, "row group 4 has column 2 after column 2");
    rows_fail(good, 6, back, 6, "row group 4 has column 1 after column 2");
    rows_fail(good, 6, high, 6, "row group 4 has column 5, expected 0..4");
    rows_fail(good, 6, low, 6, "layer 3, head 5: row group 1 has column -1, expected 0..4");
}

/* A BlockMask of one head whose row 3 is as given. */
static void flex_fails(int32_t count, int32_t c0, int32_t c1, const char *why)
{
    int32_t n[NB] = {1, 1, 1, count, 1}, full[NB] = {0, 0, 0, 1, 0}, index[NB * NB] = {0},
            full_index[NB * NB] = {0};
    const char *path = test_path("flex.safetensors");
    index[3 * NB] = c0;
    index[3 * NB + 1] = c1;
    full_index[3 * NB] = 1;
    const struct st_out t[] = {{"kv_num_blocks", DT_I32, 2, {1, NB}, n},
                               {"kv_indices", DT_I32, 3, {1, NB, NB}, index},
                               {"full_kv_num_blocks", DT_I32, 2, {1, NB}, full},
                               {"full_kv_indices", DT_I32, 3, {1, NB, NB}, full_index}};
    MUST(st_write(path, t, 4, ERR));
    fails(with_file(path, ":unit=16x16"), why);
}

TEST(block_masks_are_checked)
{
    flex_fails(6, 0, 2, "'kv_num_blocks': row 3 has 6 blocks, expected 0..5");
    flex_fails(-1, 0, 2, "row 3 has -1 blocks");
    flex_fails(2, 0, 9, "row group 3 has column 9, expected 0..4");
    flex_fails(2, 0, 1, "row group 3 has column 1 after column 1"); /* full and partial */
    fails("mask:file=tests/data/masks/flex.safetensors", "give unit=QUERIESxKEYS");
}

/* One file with two arrays of these names. */
static void names_refused(const char *a, const char *b, const char *why)
{
    static const uint8_t x[4];
    const char *path = test_path("names.safetensors");
    const struct st_out t[] = {{a, DT_BOOL, 2, {2, 2}, x}, {b, DT_BOOL, 2, {2, 2}, x}};
    MUST(st_write(path, t, 2, ERR));
    refused(with_file(path, ""), ERR_INPUT, why);
}

TEST(names_are_checked)
{
    names_refused("q", "k", "none of its 2 arrays is a mask");
    names_refused("mask", "indptr", "several kinds of mask");
    names_refused("x.y.mask", "mask", "'y' is no step, branch, layer or head");
    names_refused("indptr", "layer-1.mask", "lacks indices");
    names_refused("kv_indices", "layer-1.mask", "lacks kv_num_blocks");
    names_refused("blocksize", "BLOCK_SIZE", "say the same");
}

TEST(parameters_are_checked)
{
    static const uint8_t x[4] = {1, 0, 1, 1};
    const char *path = npy(DT_BOOL, 2, (int64_t[]){2, 2}, x);
    refused(with_file(path, ":pick=1"), ERR_USAGE, "pick has no effect on");
    refused(with_file(path, ":match=order"), ERR_USAGE, "match has no effect on");
    refused(with_file(path, ":unit=64"), ERR_USAGE, "expected queries x keys");
    refused(with_file(path, ":unit=0x64"), ERR_USAGE, "expected queries x keys");
    refused(with_file(path, ":id=0123456789abcdef"), ERR_USAGE, "id=0123456789abcdef, but ");
    refused("mask:file=tests/data/none.npy", ERR_INPUT, "tests/data/none.npy");
    refused("mask", ERR_USAGE, "file");
}

/* ---- dumps ---------------------------------------------------------------------------------- */

struct dump {
    struct maskfile *file;
    struct record *id;
    const char *order;
};

static int dump_chunk(void *ctx, const struct mask *m, const double *out, const double *lse,
                      struct err *err)
{
    struct dump *d = ctx;
    return maskfile_put(d->file, d->id, d->order, m, err);
}

/* Run a method on the head, its mask into the file under its name. */
static void run_dumped(const char *text, const struct head_in *in, struct maskfile *f,
                       struct record *r)
{
    struct method_run *runs;
    struct record id;
    const struct method *m = conform_method(text, &runs);
    const char *order = m->params.order ? m->params.order(runs[0].params) : NULL;
    record_init(&id);
    snprintf(id.trace, sizeof id.trace, "xxh3:1");
    snprintf(id.method, sizeof id.method, "%s", m->name);
    snprintf(id.branch, sizeof id.branch, "%s", in->branch);
    id.params = strdup(runs[0].canonical);
    id.layer = in->layer;
    id.head = in->head;
    struct dump d = {f, &id, order};
    run_text_carry(text, in, NULL, 7, dump_chunk, &d, r);
    ck_assert_msg(r->status == RECORD_OK, "%s: %s", text, r->reason);
    record_free(&id);
    method_runs_free(runs, 1);
}

/* Every number of the mask's record is that of the method's; it has no other but its own. */
static void assert_same(const char *text, const struct record *want, const struct record *have)
{
    int64_t compared = 0;
    for (int64_t i = 0; i < record_metrics(have); i++) {
        const char *name = have->names->name[i];
        if (strncmp(name, "host_", 5) == 0)
            continue;
        ck_assert_msg(record_get(want, name) == have->values[i], "%s: %s is %.17g, was %.17g", text,
                      name, have->values[i], record_get(want, name));
        compared++;
    }
    ck_assert_int_gt(compared, 20);
    static const char *const more[] = {"density_exec", "density_tile@64x64", "pairs_exec"};
    for (int k = 0; k < 3; k++) /* absent in both or in none */
        ck_assert_msg(isnan(record_get(want, more[k])) == isnan(record_get(have, more[k])),
                      "%s: %s", text, more[k]);
}

static const char *const causal_methods[] = {"dense", "streaming:sink=4:window=40",
                                             "sampleattention", "oracle:kind=topk:k=9",
                                             "oracle:kind=block:unit=64x32:alpha=0.8"};
static const char *const video_methods[] = {"streaming:window=40", "oracle:alpha=0.9",
                                            "spargeattn:permute=hilbert:pv=off",
                                            "fg-attn:mode=pooled:permute=hilbert"};

TEST_N(a_dump_gives_the_same_record, 2)
{
    bool causal = _i == 0;
    const char *const *texts = causal ? causal_methods : video_methods;
    int n = causal ? 5 : 4;
    struct maskfile *f = NULL;
    OWN(sim_head_free) struct sim_head h;
    struct record want[5], have;
    const char *path = test_path("dump.h5");
    char text[700];
    conform_head(NORMAL, 300, 300, causal, PREC_F64, &h);
    h.in.trace = "xxh3:1";
    MUST(maskfile_create(path, true, &f, ERR));
    for (int k = 0; k < n; k++)
        run_dumped(texts[k], &h.in, f, &want[k]);
    MUST(maskfile_commit(&f, ERR));
    refused(with_file(path, ""), ERR_USAGE, "choose with pick=N (0 = ");
    for (int k = 0; k < n; k++) {
        snprintf(text, sizeof text, "mask:file=%s:pick=%d", path, k);
        run_text_carry(text, &h.in, NULL, 7, NULL, NULL, &have);
        ck_assert_msg(have.status == RECORD_OK, "%s: %s", texts[k], have.reason);
        assert_same(texts[k], &want[k], &have);
        record_free(&have);
        record_free(&want[k]);
    }
    refused(with_file(path, ":pick=9"), ERR_USAGE, "choose with pick=N");
    refused(with_file(path, ":pick=0:unit=64x64"), ERR_USAGE, "unit has no effect on");
    h.in.trace = "xxh3:2";
    assert_skips(with_file(path, ":pick=0"), &h.in, "match=order takes them");
    run_text(with_file(path, ":pick=0:match=order"), &h.in, &have);
    record_free(&have);
    h.in.head = 6;
    assert_skips(with_file(path, ":pick=0"), &h.in, "layer 3, head 6");
}

/* The identity of a run follows the content of its file. */
TEST(the_identity_has_the_content)
{
    struct method_run *runs[2];
    uint8_t x[4] = {1, 0, 1, 1};
    const char *path = test_path("a.npy");
    for (int k = 0; k < 2; k++) {
        x[0] = (uint8_t)k;
        MUST(npy_write(path, DT_BOOL, 2, (int64_t[]){2, 2}, x, ERR));
        runs[k] = run_of(with_file(path, ""));
    }
    ck_assert_str_ne(runs[0]->canonical, runs[1]->canonical);
    char text[700]; /* a canonical text says which content it means */
    snprintf(text, sizeof text, "mask:%s", runs[0]->canonical);
    refused(text, ERR_USAGE, "id=");
    run_free(&runs[0]);
    run_free(&runs[1]);
}

/* MInference's table goes to the method of that name. */
TEST(a_table_of_patterns)
{
    OWN(sim_head_free) struct sim_head h;
    static const char table[] = "[{}, {}, {}, {\"5\": [\"vertical_and_slash\", 30, 100, 1.0]}]";
    const char *path = test_path("table.json");
    char text[700];
    MUST(file_write_atomic(path, table, strlen(table), ERR));
    conform_head(NORMAL, 1200, 1200, true, PREC_F64, &h);
    snprintf(text, sizeof text, "minference:table=%s", path);
    RUN(want, text, &h.in);
    RUN(have, with_file(path, ""), &h.in);
    ck_assert_double_lt(record_get(&have, "density_elem"), 1);
    assert_same("table", &want, &have);
}
