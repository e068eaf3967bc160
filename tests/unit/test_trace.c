/* Traces: what is written is read back, in every dtype, shape and storage form. */
#include "tests/harness/suite.h"
#include "tests/harness/trace_fixture.h"

#include "core/buf.h"
#include "core/dtype.h"
#include "core/fileio.h"
#include "core/h5util.h"
#include "core/trace.h"
#include "core/trace_internal.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void ignore_bad(void *ctx, const char *object, int head, const char *what)
{
    fprintf(stderr, "%s head %d: %s\n", object, head, what);
}

static int64_t count_bad(const struct trace *t)
{
    int64_t bad = -1;
    MUST(trace_verify(t, 1, ignore_bad, NULL, &bad, ERR));
    return bad;
}

/* Every element of every tensor of a call equals the fixture's value rounded to the dtype. */
static void check_call(const struct trace *t, int64_t i)
{
    const struct trace_meta *m = trace_meta(t);
    for (int what = 0; what < TRACE_WHAT_COUNT; what++) {
        struct trace_shape s = trace_shape(m, (enum trace_what)what);
        OWN(free_at) float *x = malloc(sizeof *x * (size_t)(s.tokens * s.dim));
        for (int64_t h = 0; h < s.heads; h++) {
            MUST(trace_read(t, i, (enum trace_what)what, (int)h, 0, s.tokens, x, ERR));
            for (int64_t j = 0; j < s.tokens * s.dim; j++) {
                float v = fixture_value(i, (enum trace_what)what, h, j / s.dim, j % s.dim);
                ck_assert_msg(x[j] == dtype_round(s.dtype, v), "%s head %d element %d: %g, not %g",
                              trace_what_name((enum trace_what)what), (int)h, (int)j, x[j], v);
            }
        }
    }
}

static const struct shape {
    enum dtype dtype;
    int heads, kv_heads;
    int64_t n, pool;
} shapes[] = {
    {DT_BF16, 4, 2, 37, 8},    {DT_F16, 4, 4, 64, 0},   {DT_F32, 3, 1, 1, 1},
    {DT_BF16, 1, 1, 1500, 64}, {DT_F32, 2, 2, 129, 64},
};

TEST_EACH(payload_comes_back_in_the_dtype_of_the_trace, shapes)
{
    const struct shape *s = &shapes[_i];
    struct trace_meta m = fixture_text(s->dtype, s->heads, s->kv_heads, s->n);
    struct trace *t = NULL;
    m.pool = s->pool;
    MUST(fixture_write(test_path("a.h5"), &m, 3, ERR));
    MUST(trace_open(test_path("a.h5"), &t, ERR));
    ck_assert_int_eq(trace_calls(t), 3);
    for (int i = 0; i < 3; i++)
        check_call(t, i);
    ck_assert_int_eq(count_bad(t), 0);
    trace_close(&t);
    ck_assert_ptr_null(t);
}

TEST(ranges_of_rows_equal_the_whole)
{
    struct trace_meta m = fixture_text(DT_BF16, 2, 1, 1100);
    OWN(trace_close) struct trace *t = NULL;
    float all[1100 * 8], part[1100 * 8];
    static const int ranges[][2] = {{0, 1}, {1099, 1}, {1, 1098}, {1020, 9}, {512, 0}, {0, 1100}};
    MUST(fixture_write(test_path("a.h5"), &m, 1, ERR));
    MUST(trace_open(test_path("a.h5"), &t, ERR));
    MUST(trace_read(t, 0, TRACE_Q, 1, 0, 1100, all, ERR));
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        int at = ranges[i][0], n = ranges[i][1];
        MUST(trace_read(t, 0, TRACE_Q, 1, at, n, part, ERR));
        ck_assert_mem_eq(part, all + at * 8, (size_t)n * 8 * sizeof *all);
    }
    FAILS(trace_read(t, 0, TRACE_Q, 1, 1000, 101, part, ERR), ERR_RUN, "do not exist");
    FAILS(trace_read(t, 0, TRACE_K, 1, 0, 1, part, ERR), ERR_RUN, "do not exist");
    FAILS(trace_read(t, 0, TRACE_Q, -1, 0, 1, part, ERR), ERR_RUN, "do not exist");
}

TEST(located_bytes_are_the_stored_bytes)
{
    struct trace_meta m = fixture_text(DT_F16, 4, 2, 300);
    OWN(trace_close) struct trace *t = NULL;
    int64_t at, bytes;
    uint16_t raw[300 * 8], direct[300 * 8];
    MUST(fixture_write(test_path("a.h5"), &m, 2, ERR));
    MUST(trace_open(test_path("a.h5"), &t, ERR));
    FILE *f = fopen(test_path("a.h5"), "rb");
    for (int head = 0; head < 2; head++) {
        trace_locate(t, 1, TRACE_V, head, &at, &bytes);
        ck_assert_int_eq(bytes, (int64_t)sizeof direct);
        if (head == 0)
            ck_assert_int_eq(at % 4096, 0);
        ck_assert(fseek(f, at, SEEK_SET) == 0 && fread(direct, sizeof direct, 1, f) == 1);
        MUST(trace_read_raw(t, 1, TRACE_V, head, 0, 300, raw, ERR));
        ck_assert_mem_eq(raw, direct, sizeof raw);
        ck_assert_float_eq(f16_to_f32(raw[0]),
                           dtype_round(DT_F16, fixture_value(1, TRACE_V, head, 0, 0)));
    }
    fclose(f);
}

TEST(metadata_of_a_video_run_come_back)
{
    struct trace_meta m = fixture_video(DT_BF16);
    OWN(trace_close) struct trace *t = NULL;
    OWN(free_at) double *sigmas = NULL, *timesteps = NULL;
    int32_t *ids = NULL;
    int64_t n;
    m.pool = 5;
    MUST(fixture_write(test_path("v.h5"), &m, 12, ERR));
    MUST(trace_open(test_path("v.h5"), &t, ERR));
    OWN(buf_free) struct buf want = {0}, have = {0};
    struct jw a, b;
    jw_init(&a, &want, 0);
    jw_init(&b, &have, 0);
    jw_obj(&a);
    trace_meta_json(&m, &a);
    jw_obj(&b);
    trace_meta_json(trace_meta(t), &b);
    ck_assert_str_eq(buf_str(&want), buf_str(&have));
    ck_assert_ptr_nonnull(strstr(buf_str(&have), "\"fps\""));
    ck_assert_int_eq(trace_calls(t), 12);
    for (int i = 0; i < 12; i++) {
        const struct trace_call *c = trace_call(t, i);
        struct trace_call w = fixture_call(&m, i);
        ck_assert_str_eq(c->branch, w.branch);
        ck_assert(c->step == w.step && c->layer == w.layer && c->order == w.order);
        ck_assert(c->timestep == w.timestep && c->sigma == w.sigma);
        ck_assert_str_eq(c->block, "self");
        ck_assert_int_eq(trace_find(t, w.step, w.branch, w.layer), i);
    }
    ck_assert_int_eq(trace_find(t, 1, "cond", 0), -1);
    MUST(trace_read_run(t, TRACE_SIGMAS, &sigmas, &n, ERR));
    ck_assert(n == 51 && sigmas[50] == 0 && sigmas[1] == 0.98);
    MUST(trace_read_run(t, TRACE_TIMESTEPS, &timesteps, &n, ERR));
    ck_assert(n == 50 && timesteps[0] == 1000);
    MUST(trace_read_run(t, TRACE_TOKENS, &ids, &n, ERR));
    ck_assert(n == 0 && ids == NULL);
}

TEST(tokens_losses_and_maps_come_back)
{
    struct trace_meta m = fixture_text(DT_BF16, 2, 2, 20);
    OWN(trace_close) struct trace *t = NULL;
    OWN(free_at) int32_t *ids = NULL;
    float *nll = NULL, sum[9], max[9];
    int64_t n;
    m.pool = 8;
    MUST(fixture_write(test_path("a.h5"), &m, 2, ERR));
    MUST(trace_open(test_path("a.h5"), &t, ERR));
    MUST(trace_read_run(t, TRACE_TOKENS, &ids, &n, ERR));
    ck_assert(n == 20 && ids[19] == 133);
    MUST(trace_read_run(t, TRACE_NLL, &nll, &n, ERR));
    ck_assert(n == 19 && nll[18] == 2.25f);
    ck_assert_int_eq(trace_map_cells(t, true), 3);
    ck_assert_int_eq(trace_map_cells(t, false), 3);
    MUST(trace_read_map(t, 1, 1, sum, max, ERR));
    ck_assert(sum[0] == 1000 && max[8] == 1008);
    MUST(trace_read_map(t, 1, 0, NULL, max, ERR));
    ck_assert(max[8] == 8);
    free(nll);
}

TEST(the_same_input_gives_the_same_bytes)
{
    struct trace_meta m = fixture_text(DT_BF16, 2, 1, 700);
    OWN(buf_free) struct buf a = {0}, b = {0};
    OWN(trace_close) struct trace *t = NULL;
    m.pool = 64;
    MUST(fixture_write(test_path("a.h5"), &m, 3, ERR));
    sleep(1); /* a stored time would show */
    MUST(fixture_write(test_path("b.h5"), &m, 3, ERR));
    MUST(buf_read_file(&a, test_path("a.h5"), 1 << 24, ERR));
    MUST(buf_read_file(&b, test_path("b.h5"), 1 << 24, ERR));
    ck_assert_int_eq(a.len, b.len);
    ck_assert_mem_eq(a.data, b.data, a.len);
    MUST(trace_open(test_path("a.h5"), &t, ERR));
    MUST(trace_pack(t, test_path("a.z"), TRACE_ZSTD, 1, true, ERR));
    MUST(trace_pack(t, test_path("b.z"), TRACE_ZSTD, 4, true, ERR));
    buf_reset(&a);
    buf_reset(&b);
    MUST(buf_read_file(&a, test_path("a.z"), 1 << 24, ERR));
    MUST(buf_read_file(&b, test_path("b.z"), 1 << 24, ERR));
    ck_assert(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
}

TEST(the_content_id_names_the_content)
{
    struct trace *t = NULL;
    char ids[6][64];
    for (int i = 0; i < 6; i++) {
        struct trace_meta m = fixture_text(DT_BF16, 2, 1, 40);
        if (i == 2)
            strcpy(m.name, "other");
        if (i == 3)
            m.scale += 1e-9;
        if (i == 4)
            m.seed++;
        MUST(fixture_write(test_path("a.h5"), &m, i == 5 ? 2 : 3, ERR));
        MUST(trace_open(test_path("a.h5"), &t, ERR));
        snprintf(ids[i], sizeof ids[i], "%s", trace_id(t));
        trace_close(&t);
    }
    ck_assert_str_eq(ids[0], ids[1]);
    for (int i = 2; i < 6; i++)
        for (int j = 0; j < i; j++)
            ck_assert(j == 0 || strcmp(ids[i], ids[j]) != 0);
}

TEST(what_computed_a_trace_is_kept_but_no_content)
{
    static const char *const by[] = {"", "openblas Haswell", "openblas Zen"};
    struct trace *t = NULL, *z = NULL;
    char first[64] = "", optional[64];
    for (int i = 0; i < 3; i++) {
        struct trace_meta m = fixture_text(DT_BF16, 2, 1, 40);
        strcpy(m.computed_by, by[i]);
        MUST(fixture_write(test_path("a.h5"), &m, 3, ERR));
        MUST(trace_open(test_path("a.h5"), &t, ERR));
        ck_assert_str_eq(trace_meta(t)->computed_by, by[i]);
        if (i == 0)
            strcpy(first, trace_id(t));
        ck_assert_str_eq(trace_id(t), first);
        MUST(trace_pack(t, test_path("z.h5"), TRACE_ZSTD, 1, true, ERR));
        MUST(trace_open(test_path("z.h5"), &z, ERR));
        ck_assert_str_eq(trace_meta(z)->computed_by, by[i]);
        trace_close(&z);
        trace_close(&t);
    }
    hid_t f = H5Fopen(test_path("a.h5"), H5F_ACC_RDONLY, H5P_DEFAULT), run = H5I_INVALID_HID;
    MUST(h5_open_group(f, "run", &run, ERR));
    MUST(h5_get_str(run, "optional", optional, sizeof optional, ERR));
    ck_assert_str_eq(optional, "computed_by"); /* older readers may ignore it */
    h5_close(run);
    H5Fclose(f);
}

static const struct {
    enum dtype dtype;
    int64_t n, pool;
    enum trace_storage storage;
} packs[] = {
    {DT_BF16, 37, 0, TRACE_ZSTD},    {DT_BF16, 2500, 64, TRACE_ZSTD}, {DT_F32, 1024, 7, TRACE_ZSTD},
    {DT_BF16, 2500, 64, TRACE_GZIP}, {DT_F16, 1025, 0, TRACE_GZIP},   {DT_F32, 1, 1, TRACE_GZIP},
};

TEST_EACH(packed_traces_hold_the_same_and_unpack_to_the_same_content, packs)
{
    struct trace_meta m = fixture_text(packs[_i].dtype, 3, 1, packs[_i].n);
    struct trace *t = NULL, *z = NULL;
    int64_t n = packs[_i].n;
    MUST(fixture_write(test_path("a.h5"), &m, 2, ERR)); /* HDF5 makes its own lists */
    int64_t before = hdf5_objects_open();
    m.pool = packs[_i].pool;
    unlink(test_path("z.h5"));
    MUST(fixture_write(test_path("a.h5"), &m, 2, ERR));
    MUST(trace_open(test_path("a.h5"), &t, ERR));
    MUST(trace_pack(t, test_path("z.h5"), packs[_i].storage, 2, false, ERR));
    FAILS(trace_pack(t, test_path("z.h5"), packs[_i].storage, 2, false, ERR), ERR_USAGE, "--force");
    MUST(trace_open(test_path("z.h5"), &z, ERR));
    ck_assert_int_eq(trace_storage(z), packs[_i].storage);
    ck_assert_str_eq(trace_id(t), trace_id(z));
    ck_assert_int_eq(count_bad(z), 0);
    for (int i = 0; i < 2; i++)
        check_call(z, i);
    float x[8], y[8];
    for (int64_t row = 0; row < n; row += n / 7 + 1) {
        MUST(trace_read(t, 1, TRACE_V, 0, row, 1, x, ERR));
        MUST(trace_read(z, 1, TRACE_V, 0, row, 1, y, ERR));
        ck_assert_mem_eq(x, y, sizeof x);
    }
    MUST(trace_pack(z, test_path("b.h5"), TRACE_CONTIGUOUS, 1, true, ERR));
    trace_close(&t);
    MUST(trace_open(test_path("b.h5"), &t, ERR));
    ck_assert_int_eq(trace_storage(t), TRACE_CONTIGUOUS);
    ck_assert_str_eq(trace_id(t), trace_id(z));
    ck_assert_int_eq(count_bad(t), 0);
    for (int i = 0; i < 2; i++)
        check_call(t, i);
    trace_close(&t);
    trace_close(&z);
    ck_assert_int_eq(hdf5_objects_open(), before);
}

struct reading {
    const struct trace *t;
    int seed;
    bool good;
};

static void *read_randomly(void *arg)
{
    struct reading *r = arg;
    struct err err = {0};
    float x[200 * 8];
    r->good = true;
    for (int i = 0; i < 200; i++) {
        int head = (i * 7 + r->seed) % 4, row = (i * 131 + r->seed * 17) % 1800;
        if (trace_read(r->t, i % 2, TRACE_Q, head, row, 200, x, &err) != 0) {
            r->good = false;
            return NULL;
        }
        for (int j = 0; j < 200 * 8; j += 33)
            r->good &= x[j] == dtype_round(DT_BF16,
                                           fixture_value(i % 2, TRACE_Q, head, row + j / 8, j % 8));
    }
    return NULL;
}

TEST_N(threads_read_side_by_side, 3)
{
    struct trace_meta m = fixture_text(DT_BF16, 4, 2, 2000);
    struct trace *t = NULL;
    pthread_t threads[6];
    struct reading r[6];
    MUST(fixture_write(test_path("a.h5"), &m, 2, ERR));
    MUST(trace_open(test_path("a.h5"), &t, ERR));
    if (_i != TRACE_CONTIGUOUS) {
        MUST(trace_pack(t, test_path("z.h5"), (enum trace_storage)_i, 2, true, ERR));
        trace_close(&t);
        MUST(trace_open(test_path("z.h5"), &t, ERR));
    }
    for (int i = 0; i < 6; i++) {
        r[i] = (struct reading){t, i, false};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_randomly, &r[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_msg(r[i].good, "thread %d", i);
    }
    int64_t bad = -1;
    MUST(trace_verify(t, 4, ignore_bad, NULL, &bad, ERR));
    ck_assert_int_eq(bad, 0);
    trace_close(&t);
}

/* ---- what the writer refuses ----------------------------------------------------------------- */

TEST(impossible_metadata_are_refused_before_anything_is_written)
{
    static const struct {
        size_t offset;
        int64_t value;
        const char *text;
    } bad[] = {
        {offsetof(struct trace_meta, heads), 0, "heads = 0"},
        {offsetof(struct trace_meta, kv_heads), 3, "not a multiple of 3"},
        {offsetof(struct trace_meta, layers), 0, "layers"},
        {offsetof(struct trace_meta, head_dim), -8, "head_dim"},
        {offsetof(struct trace_meta, dtype), DT_I8, "int8"},
    };
    struct trace_writer *w = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct trace_meta m = fixture_text(DT_BF16, 4, 2, 10);
        memcpy((char *)&m + bad[i].offset, &(int){(int)bad[i].value}, sizeof(int));
        FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE, bad[i].text);
    }
    struct trace_meta m = fixture_text(DT_BF16, 4, 2, 10);
    m.n_q = 11;
    FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE, "causal");
    m = fixture_text(DT_BF16, 4, 2, 10);
    m.scale = NAN;
    FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE, "scale");
    m = fixture_text(DT_BF16, 4, 2, 10);
    strcpy(m.name, "a\nb");
    FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE, "control");
    strcpy(m.name, "\xe2\x80\xaex");
    FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE,
          "/model: name has a direction mark U+202E");
    strcpy(m.name, "caf\xe9");
    FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE, "not UTF-8");
    m = fixture_video(DT_BF16);
    m.grid_t = 3;
    FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE, "do not make 24");
    m = fixture_video(DT_BF16);
    strcpy(m.text_place, "front");
    FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE, "text_place");
    ck_assert(test_absent("x.h5"));
}

TEST(too_little_disk_space_is_told_before_the_work)
{
    struct trace_meta m = fixture_text(DT_F32, 64, 64, INT32_MAX);
    struct err err = {0};
    struct trace_writer *w = NULL;
    m.head_dim = m.v_dim = 4096;
    assert_fails(trace_create(test_path("x.h5"), &m, 3, false, &w, &err), &err, ERR_MACHINE,
                 "are free");
    ck_assert_ptr_null(w);
    ck_assert(test_absent("x.h5"));
    m.heads = 65536;
    m.kv_heads = 65536;
    ck_assert(trace_size(&m, 1000) == INT64_MAX);
    ck_assert_int_ne(trace_create(test_path("x.h5"), &m, 1000, false, &w, &err), 0);
}

/* A copy is as large as it is: only another place or more room helps. */
TEST(the_advice_for_a_full_disk_fits_what_is_written)
{
    struct trace_meta text = fixture_text(DT_BF16, 2, 2, 24), video = fixture_video(DT_BF16);
    struct trace_meta import = video;
    char advice[TRACE_ADVICE_MAX];
    struct err err = {0};
    OWN(trace_close) struct trace *t = NULL;
    strcpy(import.source, "import");
    const struct {
        const struct trace_meta *m;
        bool copy;
        int sys;
        const char *want;
    } cases[] = {
        {&text, false, ENOSPC,
         "make room there, write elsewhere, or store fewer layers, heads or tokens"},
        {&video, false, EDQUOT,
         "make room there, write elsewhere, or store fewer layers, heads or steps"},
        {&import, false, ENOSPC, "make room there, write elsewhere, or import fewer calls"},
        {&text, true, ENOSPC, "make room there, write elsewhere"},
        {&import, true, EFBIG,
         "the file system there or ulimit -f allows no larger file: write elsewhere"},
        {&text, false, EACCES, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trace_write_advice(cases[i].m, cases[i].copy, cases[i].sys, advice);
        ck_assert_str_eq(advice, cases[i].want);
    }
    /* a file system without any room */
    assert_ok(fixture_write(test_path("a.h5"), &text, 1, &err), &err);
    assert_ok(trace_open(test_path("a.h5"), &t, &err), &err);
    int rc = trace_pack(t, "/proc/copy.h5", TRACE_GZIP, 1, false, &err);
    ck_assert_msg(rc == ERR_MACHINE && strstr(err.msg, "write elsewhere") &&
                      !strstr(err.msg, "fewer"),
                  "%d %s", rc, err.msg);
    err_clear(&err);
    assert_fails(trace_pack(t, test_path("none/copy.h5"), TRACE_GZIP, 1, false, &err), &err, ERR_IO,
                 "its directory");
}

TEST(numbers_of_stored_heads_are_ascending_lists)
{
    static const struct {
        const char *heads, *kv;
        bool ok;
    } cases[] = {
        {"1,3,5-6", "0,2", true}, {"", "", true},         {"0-3", "1,1", true},
        {"-5,3,4,5", "", false},  {"3-1,4,5", "", false}, {"0-4", "", false},
        {"1,1,2,3", "", false},   {"2,1,3,4", "", false}, {"0-99999999999999999999", "", false},
        {"1,2,3,", "", false},    {"1;2,3,4", "", false}, {"", "1,0", false},
        {"", "0-2", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trace_meta m = fixture_text(DT_BF16, 4, 2, 300);
        struct err err = {0};
        snprintf(m.head_ids, sizeof m.head_ids, "%s", cases[i].heads);
        snprintf(m.kv_head_ids, sizeof m.kv_head_ids, "%s", cases[i].kv);
        int rc = trace_meta_check(&m, &err);
        ck_assert_msg((rc == 0) == cases[i].ok, "%s, %s: %s", cases[i].heads, cases[i].kv, err.msg);
    }
}

TEST(the_size_is_known_beforehand)
{
    struct trace_meta m = fixture_text(DT_BF16, 4, 2, 3000);
    struct stat st;
    m.pool = 64;
    MUST(fixture_write(test_path("a.h5"), &m, 3, ERR));
    ck_assert_int_eq(stat(test_path("a.h5"), &st), 0);
    struct trace_call c = fixture_call(&m, 0);
    int64_t expected = 65536 + 3 * trace_call_size(&m, &c) + 8 * 3000;
    ck_assert_msg(st.st_size <= expected && st.st_size > expected * 3 / 4, "%lld, expected %lld",
                  (long long)st.st_size, (long long)expected);
}

TEST(calls_must_be_complete_and_in_order)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 1, 10);
    struct trace_writer *w = NULL;
    struct trace_call c = {.branch = "main", .timestep = NAN, .sigma = NAN, .order = 4};
    float x[10 * 16] = {0};
    MUST(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR));
    FAILS(trace_end_call(w, ERR), ERR_RUN, "did not begin");
    c.layer = 3;
    FAILS(trace_begin_call(w, &c, ERR), ERR_USAGE, "layer 3 of a model with 3");
    c.layer = 0;
    strcpy(c.branch, "../x");
    FAILS(trace_begin_call(w, &c, ERR), ERR_USAGE, "branch");
    strcpy(c.branch, "main");
    c.has_map = true;
    FAILS(trace_begin_call(w, &c, ERR), ERR_USAGE, "pool");
    c.has_map = false;
    MUST(trace_begin_call(w, &c, ERR));
    MUST(trace_put(w, TRACE_Q, 0, 5, x, 16, ERR));
    FAILS(trace_put(w, TRACE_Q, 6, 4, x, 16, ERR), ERR_RUN, "come after row 5");
    trace_abort(&w);

    MUST(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR));
    MUST(trace_begin_call(w, &c, ERR));
    FAILS(trace_put(w, TRACE_OUT, 0, 10, x, 16, ERR), ERR_RUN, "not announced");
    trace_abort(&w);

    MUST(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR));
    MUST(trace_begin_call(w, &c, ERR));
    MUST(trace_put(w, TRACE_Q, 0, 10, x, 16, ERR));
    FAILS(trace_end_call(w, ERR), ERR_RUN, "0 rows of 10");
    FAILS(trace_commit(&w, ERR), ERR_RUN, "not finished");
    ck_assert(test_absent("x.h5"));
}

TEST(an_existing_file_is_kept_unless_forced)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 1, 10);
    struct trace_writer *w = NULL, *second = NULL;
    struct trace *t = NULL;
    MUST(fixture_write(test_path("x.h5"), &m, 1, ERR));
    FAILS(trace_create(test_path("x.h5"), &m, 1, false, &w, ERR), ERR_USAGE, "--force");
    MUST(trace_create(test_path("x.h5"), &m, 1, true, &w, ERR));
    MUST(trace_open(test_path("x.h5"), &t, ERR)); /* the old one, until the commit */
    trace_close(&t);
    trace_abort(&w);
    MUST(trace_open(test_path("x.h5"), &t, ERR));
    trace_close(&t);
    FAILS(trace_create(test_path("no/such/x.h5"), &m, 1, false, &second, ERR), ERR_IO,
          "No such file");
    umask(027);
    MUST(fixture_write(test_path("mode.h5"), &m, 1, ERR));
    struct stat st;
    ck_assert(stat(test_path("mode.h5"), &st) == 0 && (st.st_mode & 0777) == 0640);
}
