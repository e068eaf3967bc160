/* Mask dumps: every form comes back as it was put, in ranges, from threads, and nothing damaged or
 * unfinished is read. */
#include "tests/harness/suite.h"
#include "tests/harness/trace_fixture.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/maskfile.h"
#include "core/pool.h"
#include "core/rng.h"

#include <hdf5.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct record cell(int head, const char *params)
{
    struct record r;
    record_init(&r);
    snprintf(r.trace, sizeof r.trace, "xxh3:0123456789abcdef0123456789abcdef");
    record_text(&r, &r.model, "code-lm");
    snprintf(r.method, sizeof r.method, "spargeattn");
    r.params = strdup(params);
    r.layer = 3;
    r.head = head;
    r.kv_head = head / 4;
    r.seed = UINT64_MAX - 5;
    r.d = 64;
    r.timestep = 875.5;
    return r;
}

/* Random lists for the rows [row0, row1); about a quarter of the units. */
static void random_lists(struct mask *m, uint64_t seed, int64_t n, int64_t row0, int64_t row1,
                         int64_t bq, int64_t bk)
{
    MUST(mask_lists_init(m, n, n, row0, row1, true, bq, bk, ERR));
    for (int64_t g = 0; g < m->ngroups; g++)
        for (int32_t u = 0; u < (n + bk - 1) / bk; u++)
            if (rng_below(seed, (uint64_t)(row0 / bq + g), (uint64_t)u, 4) == 0)
                MUST(mask_lists_add(m, g, u, ERR));
    mask_lists_finish(m);
}

static void assert_same_lists(const struct mask *a, const struct mask *b)
{
    ck_assert(a->form == b->form && a->nq == b->nq && a->nk == b->nk && a->causal == b->causal);
    ck_assert(a->bq == b->bq && a->bk == b->bk && a->exec == b->exec);
    ck_assert(a->exec_bq == b->exec_bq && a->exec_bk == b->exec_bk);
    ck_assert(a->row0 == b->row0 && a->row1 == b->row1 && a->ngroups == b->ngroups);
    ck_assert_mem_eq(a->ptr, b->ptr, (size_t)(a->ngroups + 1) * sizeof *a->ptr);
    if (a->ptr[a->ngroups])
        ck_assert_mem_eq(a->col, b->col, (size_t)a->ptr[a->ngroups] * sizeof *a->col);
}

/* Two masks keep the same pairs in the rows of a. */
static void assert_same_pairs(const struct mask *a, const struct mask *b)
{
    struct span x[600], y[600];
    for (int64_t i = a->row0; i < a->row1; i++) {
        int64_t n = mask_row_spans(a, i, x);
        ck_assert_int_eq(n, mask_row_spans(b, i, y));
        ck_assert_mem_eq(x, y, (size_t)n * sizeof *x);
    }
}

static struct maskfile *create(void)
{
    struct maskfile *f = NULL;
    MUST(maskfile_create(test_path("m.h5"), true, &f, ERR));
    return f;
}

/* Commit the file that create() began, and open it: so many cells. */
static void reopen(struct maskfile **f, int64_t cells)
{
    MUST(maskfile_commit(f, ERR));
    ck_assert_ptr_null(*f);
    MUST(maskfile_open(test_path("m.h5"), f, ERR));
    ck_assert_int_eq(maskfile_cells(*f), cells);
}

static const int64_t units[][3] = {
    {64, 64, 500}, {128, 1, 500}, {1, 1, 200}, {16, 1, 257}, {64, 128, 64}};

TEST_EACH(lists_put_in_ranges_come_back_whole, units)
{
    int64_t bq = units[_i][0], bk = units[_i][1], n = units[_i][2];
    OWN(maskfile_close) struct maskfile *f = create();
    OWN(record_free) struct record r = cell(5, "tau=0.9:theta=0.3"), id;
    OWN(mask_free) struct mask whole, back;
    random_lists(&whole, 1, n, 0, n, bq, bk);
    for (int64_t row = 0; row < n; row += 2 * bq) {
        OWN(mask_free) struct mask part;
        random_lists(&part, 1, n, row, row + 2 * bq < n ? row + 2 * bq : n, bq, bk);
        MUST(maskfile_put(f, &r, NULL, &part, ERR));
    }
    reopen(&f, 1);
    MUST(maskfile_cell(f, 0, &id, ERR));
    OWN(buf_free) struct buf want = {0}, have = {0};
    record_key(&r, &want);
    record_key(&id, &have);
    ck_assert_str_eq(buf_str(&want), buf_str(&have));
    ck_assert(id.seed == r.seed && id.n_q == n && id.n_k == n && id.causal && id.d == 64);
    ck_assert(id.timestep == 875.5 && id.kv_head == 1);
    MUST(maskfile_read(f, 0, &back, ERR));
    assert_same_lists(&whole, &back);
}

TEST(bands_and_full_masks_come_back)
{
    OWN(maskfile_close) struct maskfile *f = create();
    OWN(record_free) struct record a = cell(0, ""), b = cell(1, "");
    char order[MASKFILE_ORDER];
    struct mask full, band, back;
    mask_full(&full, 300, 300, 0, 300, true);
    MUST(maskfile_put(f, &a, "hilbert", &full, ERR));
    for (int64_t row = 0; row < 300; row += 100) {
        mask_band(&band, 300, 300, row, row + 100, true, (struct band){4, 60, 290});
        MUST(maskfile_put(f, &b, NULL, &band, ERR));
    }
    reopen(&f, 2);
    MUST(maskfile_order(f, 0, order, ERR));
    ck_assert_str_eq(order, "hilbert");
    MUST(maskfile_order(f, 1, order, ERR));
    ck_assert_str_eq(order, "none");
    MUST(maskfile_read(f, 0, &back, ERR));
    ck_assert_int_eq(back.form, MASK_FULL);
    assert_same_pairs(&full, &back);
    MUST(maskfile_read(f, 1, &back, ERR));
    ck_assert_int_eq(back.form, MASK_BAND);
    band.row0 = 0;
    assert_same_pairs(&band, &back);
}

/* What the model lets a row see goes with its masks. */
TEST_N(windows_of_the_model_come_back, 5)
{
    static const struct reach reaches[] = {{.back = 40},
                                           {.back = 1, .ahead = 1},
                                           {.chunk = 64},
                                           {.back = 9, .ahead = 3, .chunk = 50},
                                           {.prefix = 150}};
    OWN(maskfile_close) struct maskfile *f = create();
    OWN(record_free) struct record r = cell(0, "");
    struct mask m, back;
    mask_band(&m, 200, 300, 0, 200, _i % 2, (struct band){4, 60, 190});
    mask_within(&m, &reaches[_i]);
    MUST(maskfile_put(f, &r, NULL, &m, ERR));
    reopen(&f, 1);
    MUST(maskfile_read(f, 0, &back, ERR));
    ck_assert(back.reach.back == m.reach.back && back.reach.ahead == m.reach.ahead &&
              back.reach.chunk == m.reach.chunk && back.reach.prefix == m.reach.prefix);
    assert_same_pairs(&m, &back);
}

/* Rows [row, row + 64) of 333: full or lists in turn; turn 0 begins with full. */
static void in_turn(struct mask *m, int64_t row, int turn)
{
    int64_t end = row + 64 < 333 ? row + 64 : 333;
    if ((row / 64 + turn) % 2 == 0)
        mask_full(m, 333, 333, row, end, true);
    else
        random_lists(m, 9, 333, row, end, 32, 16);
}

TEST_N(full_ranges_among_lists_keep_their_pairs, 2)
{
    OWN(maskfile_close) struct maskfile *f = create();
    OWN(record_free) struct record r = cell(0, "");
    OWN(mask_free) struct mask back;
    for (int64_t row = 0; row < 333; row += 64) {
        OWN(mask_free) struct mask part;
        in_turn(&part, row, _i);
        MUST(maskfile_put(f, &r, NULL, &part, ERR));
    }
    reopen(&f, 1);
    MUST(maskfile_read(f, 0, &back, ERR));
    for (int64_t row = 0; row < 333; row += 64) {
        OWN(mask_free) struct mask part;
        in_turn(&part, row, _i);
        assert_same_pairs(&part, &back);
    }
}

/* Random lists of rows [row0, row1) of 200, put into the file; refused: why. */
static void put_lists(struct maskfile *f, int head, uint64_t seed, int64_t row0, int64_t row1,
                      int64_t bq, int64_t bk, const char *refused)
{
    OWN(record_free) struct record r = cell(head, "");
    OWN(mask_free) struct mask m;
    random_lists(&m, seed, 200, row0, row1, bq, bk);
    if (refused)
        FAILS(maskfile_put(f, &r, NULL, &m, ERR), ERR_RUN, refused);
    else
        MUST(maskfile_put(f, &r, NULL, &m, ERR));
}

/* Cell 0 is these lists of all rows. */
static void assert_lists(struct maskfile *f, uint64_t seed, int64_t bq, int64_t bk)
{
    OWN(mask_free) struct mask want, back;
    random_lists(&want, seed, 200, 0, 200, bq, bk);
    MUST(maskfile_read(f, 0, &back, ERR));
    assert_same_lists(&want, &back);
}

TEST(what_cannot_be_one_mask_is_refused_and_the_file_goes_on)
{
    OWN(maskfile_close) struct maskfile *f = create();
    put_lists(f, 0, 1, 0, 64, 64, 64, NULL);
    put_lists(f, 0, 1, 64, 200, 32, 64, "changes at row 64");
    put_lists(f, 1, 1, 128, 200, 64, 64, "come after row 0");
    put_lists(f, 1, 1, 0, 200, 64, 64, NULL);
    reopen(&f, 1);
    assert_lists(f, 1, 64, 64);
    FAILS(maskfile_read(f, 1, &(struct mask){0}, ERR), ERR_RUN, "cell 1");
}

TEST(a_cell_computed_again_replaces_its_first_ranges)
{
    OWN(maskfile_close) struct maskfile *f = create();
    put_lists(f, 0, 1, 0, 64, 64, 64, NULL);
    put_lists(f, 0, 2, 0, 200, 16, 1, NULL);
    reopen(&f, 1);
    assert_lists(f, 2, 16, 1);
}

#define LONG_N 6400 /* rows of all keys: 6400 * 6401 / 2 entries are beyond the memory limit */

static void all_keys(struct mask *m, int64_t row0, int64_t row1)
{
    MUST(mask_lists_init(m, LONG_N, LONG_N, row0, row1, true, 1, 1, ERR));
    for (int64_t r = row0; r < row1; r++)
        MUST(mask_lists_add_run(m, r - row0, 0, (int32_t)r + 1, ERR));
    mask_lists_finish(m);
}

TEST(lists_larger_than_the_memory_limit_are_whole)
{
    OWN(maskfile_close) struct maskfile *f = create();
    OWN(record_free) struct record r = cell(0, ""), lost = cell(1, "");
    struct mask m, back;
    struct stat st;
    r.ordinal = 1; /* waits for another one to the end */
    for (int64_t row = 0; row < LONG_N; row += 800) {
        all_keys(&m, row, row + 800);
        MUST(maskfile_put(f, &r, NULL, &m, ERR));
        if (row + 800 < LONG_N) /* this one never gets its last range */
            MUST(maskfile_put(f, &lost, NULL, &m, ERR));
        mask_free(&m);
    }
    MUST(maskfile_commit(&f, ERR));
    ck_assert(stat(test_path("m.h5"), &st) == 0 && st.st_size > (off_t)LONG_N * LONG_N / 2 * 4);
    MUST(maskfile_open(test_path("m.h5"), &f, ERR));
    ck_assert_int_eq(maskfile_cells(f), 1);
    MUST(maskfile_read(f, 0, &back, ERR));
    ck_assert_int_eq(back.ptr[LONG_N], (int64_t)LONG_N * (LONG_N + 1) / 2);
    for (int64_t i = 0; i < LONG_N; i++) {
        ck_assert_int_eq(back.ptr[i + 1] - back.ptr[i], i + 1);
        ck_assert_int_eq(back.col[back.ptr[i + 1] - 1], i);
    }
    mask_free(&back);
}

/* HDF5 reorganises a group that grows beyond its limits, which must never be reached. */
TEST(thousands_of_cells_are_kept_in_buckets)
{
    OWN(maskfile_close) struct maskfile *f = create();
    struct record id;
    struct mask m, back;
    for (int i = 0; i < 1030; i++) {
        OWN(record_free) struct record r = cell(i, "");
        mask_full(&m, 10 + i, 2000, 0, 10 + i, true);
        MUST(maskfile_put(f, &r, NULL, &m, ERR));
    }
    reopen(&f, 1030);
    for (int i = 0; i < 1030; i += 103) {
        MUST(maskfile_cell(f, i, &id, ERR));
        ck_assert_int_eq(id.head, i);
        record_free(&id);
        MUST(maskfile_read(f, i, &back, ERR));
        ck_assert_int_eq(back.nq, 10 + i);
    }
}

/* Every fifth head ends without a mask. */
static int put_head(void *ctx, int64_t head, int worker, struct err *err)
{
    OWN(record_free) struct record r = cell((int)head, "");
    r.ordinal = head;
    for (int64_t row = 0; row < 320 && head % 5 != 2; row += 64) {
        OWN(mask_free) struct mask m;
        random_lists(&m, (uint64_t)head, 320, row, row + 64, 32, 32);
        PASS_ON(maskfile_put(ctx, &r, NULL, &m, err));
    }
    return cellfile_end(maskfile_cellfile(ctx), head, err);
}

TEST(cells_of_threads_are_in_their_order_and_equal_bytes)
{
    OWN(maskfile_close) struct maskfile *f = create();
    OWN(buf_free) struct buf one = {0}, many = {0}, back = {0};
    struct buf *bytes[] = {&one, &many, &back};
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            for (int64_t head = 23; head >= 0; head--)
                MUST(put_head(f, head, 0, ERR));
        else
            MUST(pool_run(i ? 4 : 1, 24, put_head, f, ERR));
        reopen(&f, 19);
        MUST(buf_read_file(bytes[i], test_path("m.h5"), 1 << 24, ERR));
        ck_assert(bytes[i]->len == one.len && memcmp(bytes[i]->data, one.data, one.len) == 0);
        for (int c = 0, head = 0; c < 19; c++, head++) {
            OWN(record_free) struct record id;
            OWN(mask_free) struct mask want, have;
            head += head % 5 == 2;
            MUST(maskfile_cell(f, c, &id, ERR));
            ck_assert_int_eq(id.head, head);
            random_lists(&want, (uint64_t)head, 320, 0, 320, 32, 32);
            MUST(maskfile_read(f, c, &have, ERR));
            assert_same_lists(&want, &have);
        }
        maskfile_close(&f);
        f = i < 2 ? create() : NULL;
    }
}

static void write_one(const char *path)
{
    struct maskfile *f = NULL;
    OWN(record_free) struct record r = cell(0, "x=1");
    OWN(mask_free) struct mask m;
    random_lists(&m, 1, 200, 0, 200, 16, 8);
    MUST(maskfile_create(path, true, &f, ERR));
    MUST(maskfile_put(f, &r, NULL, &m, ERR));
    MUST(maskfile_commit(&f, ERR));
}

/* Open, identity and mask: all fine and equal to `want`, or an ERR_INPUT somewhere. */
static bool reads_as(const char *path, const struct mask *want, const char *what)
{
    struct err err = {0};
    struct maskfile *f = NULL;
    struct record id;
    struct mask back;
    int64_t open_before = hdf5_objects_open();
    int rc = maskfile_open(path, &f, &err);
    bool good = false;
    if (rc == 0 && maskfile_cells(f) == 1) {
        rc = maskfile_cell(f, 0, &id, &err);
        if (rc == 0) {
            good = id.layer == 3 && strcmp(id.params, "x=1") == 0;
            record_free(&id);
            rc = maskfile_read(f, 0, &back, &err);
        }
        if (rc == 0) {
            assert_same_lists(want, &back);
            mask_free(&back);
        }
    }
    ck_assert_msg(rc == 0 || rc == ERR_INPUT || rc == ERR_NOMEM, "%s: %d %s", what, rc, err.msg);
    maskfile_close(&f);
    ck_assert_msg(hdf5_objects_open() == open_before, "%s: objects are left open", what);
    return rc == 0 && good;
}

static void write_bytes(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_uint_eq(fwrite(data, 1, n, f), n);
    fclose(f);
}

TEST(a_flipped_byte_is_refused_or_means_nothing)
{
    OWN(mask_free) struct mask want;
    char what[64];
    int64_t refused = 0;
    random_lists(&want, 1, 200, 0, 200, 16, 8);
    write_one(test_path("m.h5"));
    OWN(buf_free) struct buf b = {0};
    MUST(buf_read_file(&b, test_path("m.h5"), 1 << 24, ERR));
    for (size_t at = 0; at < b.len; at += 13) {
        b.data[at] ^= 0x10;
        write_bytes(test_path("flip.h5"), b.data, b.len);
        snprintf(what, sizeof what, "byte %zu", at);
        refused += !reads_as(test_path("flip.h5"), &want, what);
        b.data[at] ^= 0x10;
    }
    ck_assert_int_gt(refused, 10);
    for (size_t at = 0; at < b.len; at += 97) {
        write_bytes(test_path("cut.h5"), b.data, at);
        ck_assert_msg(!reads_as(test_path("cut.h5"), &want, "cut"), "cut at %zu", at);
    }
}

/* A size that no mask has: sums with it would overflow. */
TEST(impossible_sizes_are_refused)
{
    static const char *const names[] = {"nq", "nk", "bq", "bk", "exec_bq", "exec_bk"};
    static const long long bad[] = {INT64_MAX, 0, -1, (long long)INT32_MAX + 1};
    for (int i = 0; i < 24; i++) {
        OWN(maskfile_close) struct maskfile *f = NULL;
        struct mask m;
        write_one(test_path("m.h5"));
        hid_t h = H5Fopen(test_path("m.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
        hid_t group = H5Gopen2(h, "cells/000/000000", H5P_DEFAULT);
        hid_t a = H5Aopen(group, names[i / 4], H5P_DEFAULT);
        ck_assert_int_ge(H5Awrite(a, H5T_NATIVE_LLONG, &bad[i % 4]), 0);
        H5Aclose(a);
        H5Gclose(group);
        H5Fclose(h);
        MUST(maskfile_open(test_path("m.h5"), &f, ERR));
        FAILS(maskfile_read(f, 0, &m, ERR), ERR_INPUT, "geometry");
    }
}

TEST(other_files_and_unfinished_dumps_are_told_apart)
{
    struct maskfile *f = NULL, *g = NULL;
    char part[NAME_MAX + 1];
    FAILS(maskfile_open(test_path("none.h5"), &g, ERR), ERR_INPUT, "No such file");
    write_one(test_path("m.h5"));
    FAILS(maskfile_create(test_path("m.h5"), false, &f, ERR), ERR_USAGE, "--force");
    ck_assert_ptr_null(f);
    MUST(maskfile_create(test_path("open.h5"), false, &f, ERR));
    FAILS(maskfile_open(test_path("open.h5"), &g, ERR), ERR_INPUT, "still being written");
    ck_assert_int_eq(io_part_find(test_path("open.h5"), part), IO_PART_LIVE);
    FAILS(maskfile_open(test_path(part), &g, ERR), ERR_INPUT, "unfinished");
    maskfile_abort(&f);
    ck_assert_int_eq(io_part_find(test_path("open.h5"), part), IO_PART_NONE);
    write_bytes(test_path("text.h5"), "not a mask dump\n", 16);
    FAILS(maskfile_open(test_path("text.h5"), &g, ERR), ERR_INPUT, "not an HDF5 file");
    hid_t h = H5Fcreate(test_path("other.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(h);
    FAILS(maskfile_open(test_path("other.h5"), &g, ERR), ERR_INPUT, "not a lacuna-masks");
}
