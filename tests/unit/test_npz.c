/*
 * test_npz.c - .npz files that NumPy wrote, and the same with one thing wrong.
 */
#include "tests/harness/suite.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/npy.h"

#include <stdlib.h>
#include <string.h>

static struct err err;

/* mask [1][8][5][5] bool, BLOCK_SIZE int64 [2] */
#define STORED_FILE "tests/data/masks/blocks.npz"
#define PACKED_FILE "tests/data/masks/pairs.npz"
#define ZIP64_FILE "tests/data/masks/zip64.npz"

TEST(arrays_read_back)
{
    struct npz *z = NULL;
    struct npy *a = NULL;
    int64_t size[2] = {0};
    uint8_t row[5];
    assert_ok(npz_open(STORED_FILE, &z, &err), &err);
    ck_assert_int_eq(npz_count(z), 2);
    ck_assert_str_eq(npz_name(z, 0), "mask");
    ck_assert_str_eq(npz_name(z, 1), "BLOCK_SIZE");
    assert_ok(npz_array(z, 1, &a, &err), &err);
    ck_assert(a->dtype == DT_I64 && a->ndim == 1 && a->count == 2);
    assert_ok(npy_read_range(a, 0, 2, size, &err), &err);
    ck_assert(size[0] == 16 && size[1] == 16);
    npy_close(&a);
    assert_ok(npz_array(z, 0, &a, &err), &err);
    npz_close(&z); /* an array outlives its archive */
    ck_assert(a->dtype == DT_BOOL && a->ndim == 4 && a->count == 200);
    assert_ok(npy_read_range(a, 195, 5, row, &err), &err);
    for (int c = 0; c < 5; c++) /* last row of blocks of the last head: rows 64..69, 67 = 4 mod 9 */
        ck_assert_int_eq(row[c], 1);
    npy_close(&a);
}

static int64_t sum_of(const char *path, int64_t index)
{
    OWN(npz_close) struct npz *z = NULL;
    OWN(npy_close) struct npy *a = NULL;
    OWN(free_at) uint8_t *x;
    int64_t sum = 0, bytes;
    assert_ok(npz_open(path, &z, &err), &err);
    assert_ok(npz_array(z, index, &a, &err), &err);
    bytes = a->count * (int64_t)dtype_size(a->dtype);
    x = malloc((size_t)bytes);
    assert_ok(npy_read_range(a, 0, a->count, x, &err), &err);
    for (int64_t i = 0; i < bytes; i++)
        sum += x[i];
    return sum;
}

/* Pairs of head h: see tests/data/make_masks.py. */
static int64_t kept(int h)
{
    int64_t n = 0;
    for (int i = 0; i < 70; i++)
        for (int j = 0; j <= i; j++)
            n += i - j < 3 + h || j == 0 || i % 9 == 4;
    return n;
}

TEST(packed_arrays_read_back)
{
    int64_t all = 0;
    for (int h = 0; h < 8; h++)
        all += kept(h);
    ck_assert_int_eq(sum_of(PACKED_FILE, 0), 8 * 4900 - all); /* the complement */
    ck_assert_int_eq(sum_of(PACKED_FILE, 1), all);
    ck_assert_int_eq(sum_of(ZIP64_FILE, 0), kept(5));
}

/* ---- damage --------------------------------------------------------------------------------- */

/* A copy of a file with the bytes at `at` (from the first or last place of `mark`) replaced. */
static const char *changed(const char *path, const char *mark, bool last, int at, const char *bytes,
                           size_t n)
{
    OWN(buf_free) struct buf b = {0};
    const char *out = test_path("x.npz");
    char *found = NULL;
    assert_ok(buf_read_file(&b, path, 1 << 20, &err), &err);
    for (size_t i = 0; i + 4 <= b.len; i++)
        if (memcmp(b.data + i, mark, 4) == 0 && (last || !found))
            found = b.data + i;
    ck_assert_ptr_nonnull(found);
    memcpy(found + at, bytes, n);
    assert_ok(file_write_atomic(out, b.data, b.len, &err), &err);
    return out;
}

/* Opening the archive or reading its first array fails with this text and the name of the file. */
static void refused(const char *path, const char *why)
{
    struct npz *z = NULL;
    struct npy *a = NULL;
    int rc = npz_open(path, &z, &err);
    if (rc == 0)
        rc = npz_array(z, 0, &a, &err);
    ck_assert_msg(rc == ERR_INPUT && strstr(err.msg, why) && strstr(err.msg, path),
                  "%d '%s', wanted '%s'", rc, err.msg, why);
    npz_close(&z);
    err_clear(&err);
}

#define ENTRY "PK\1\2"
#define LOCAL "PK\3\4"
#define END "PK\5\6"

TEST(damage_is_named)
{
    refused(changed(STORED_FILE, END, true, 0, "QK", 2), "no directory at its end");
    refused(changed(STORED_FILE, END, true, 4, "\1", 1), "in several parts");
    refused(changed(STORED_FILE, END, true, 12, "\xff\xff", 2), "does not fit the file");
    refused(changed(STORED_FILE, ENTRY, false, 0, "QK", 2), "its directory is damaged");
    refused(changed(STORED_FILE, ENTRY, false, 8, "\1", 1), "'mask' is encrypted");
    refused(changed(STORED_FILE, ENTRY, false, 10, "\16", 1), "packed by method 14");
    refused(changed(STORED_FILE, ENTRY, false, 16, "\0\0\0\0", 4), "checksum");
    refused(changed(STORED_FILE, ENTRY, false, 20, "\1", 1), "size and place do not fit");
    refused(changed(STORED_FILE, ENTRY, false, 28, "\xff\xff", 2), "its directory is damaged");
    refused(changed(STORED_FILE, LOCAL, false, 0, "QK", 2), "does not begin where");
    refused(changed(PACKED_FILE, ENTRY, false, 24, "\1", 1), "does not unpack to");
    refused(changed(PACKED_FILE, ENTRY, false, 27, "\x7f", 1), "size and place do not fit");
    refused(changed(PACKED_FILE, LOCAL, false, 70, "\xff\xff\xff\xff", 4), "damaged");
}

/* With 0xffff entries the directory is that of zip64. */
TEST(zip64_directories)
{
    const char *path = changed(ZIP64_FILE, END, true, 8, "\xff\xff\xff\xff", 4);
    ck_assert_int_eq(sum_of(path, 0), kept(5));
    struct buf b = {0};
    assert_ok(buf_read_file(&b, path, 1 << 20, &err), &err);
    b.data[b.len - 42] = 'Q'; /* the locator */
    assert_ok(file_write_atomic(path, b.data, b.len, &err), &err);
    buf_free(&b);
    refused(path, "zip64 directory is missing");
}

TEST(short_files)
{
    OWN(buf_free) struct buf b = {0};
    const char *path = test_path("x.npz");
    assert_ok(buf_read_file(&b, STORED_FILE, 1 << 20, &err), &err);
    for (size_t n = 0; n < b.len; n += n < 40 ? 1 : 23) {
        assert_ok(file_write_atomic(path, b.data, n, &err), &err);
        refused(path, "not a whole .npz");
    }
}
