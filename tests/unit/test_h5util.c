/*
 * What failures of HDF5 say: the reason that the library had, whatever was called between the
 * failure and the report of it, and what to do about it.
 */
#include "tests/harness/suite.h"
#include "tests/harness/trace_fixture.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/h5util.h"

#include <stdio.h>

static struct buf small_file(const char *path)
{
    struct trace_meta m = fixture_text(DT_BF16, 2, 1, 20);
    struct buf data = {0};
    MUST(fixture_write(path, &m, 2, ERR));
    MUST(buf_read_file(&data, path, 1 << 24, ERR));
    return data;
}

static void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

/* Open a trace as it is, without its checks. */
static int open_file(const char *path, struct err *err)
{
    hid_t file = H5I_INVALID_HID;
    PASS_ON(h5_open_file(path, "lacuna-trace", 1, &file, err));
    h5_lock();
    H5Fclose(file);
    h5_unlock();
    return 0;
}

TEST(a_truncated_file_says_how_much_of_it_is_there_and_what_to_do)
{
    OWN(buf_free) struct buf data = small_file(test_path("a.h5"));
    const size_t lengths[] = {100, 700, data.len / 2, data.len - 1};
    char there[64], whole[64];
    for (int i = 0; i < 4; i++) {
        put_file(test_path("cut.h5"), data.data, lengths[i]);
        snprintf(there, sizeof there, "truncated file: eof = %zu,", lengths[i]);
        snprintf(whole, sizeof whole, "stored_eof = %zu", data.len);
        FAILS(open_file(test_path("cut.h5"), ERR), ERR_INPUT, there);
        FAILS(open_file(test_path("cut.h5"), ERR), ERR_INPUT, whole);
        FAILS(open_file(test_path("cut.h5"), ERR), ERR_INPUT, "copy it again");
    }
}

/* Superblock, then the header of the root group: not "another kind of file". */
TEST(a_damaged_head_says_that_its_checksum_is_wrong)
{
    OWN(buf_free) struct buf data = small_file(test_path("a.h5"));
    const int at[] = {12, 150};
    for (int i = 0; i < 2; i++) {
        data.data[at[i]] ^= 1;
        put_file(test_path("bad.h5"), data.data, data.len);
        data.data[at[i]] ^= 1;
        FAILS(open_file(test_path("bad.h5"), ERR), ERR_INPUT, "checksum");
        FAILS(open_file(test_path("bad.h5"), ERR), ERR_INPUT, "is damaged");
    }
}

/* Messages name the object, which asks HDF5 for its name after the failure. */
TEST(a_reason_outlives_the_calls_after_the_failure)
{
    OWN(buf_free) struct buf data = small_file(test_path("a.h5"));
    hid_t file = H5I_INVALID_HID;
    MUST(h5_open_file(test_path("a.h5"), "lacuna-trace", 1, &file, ERR));
    h5_lock();
    FAILS(h5_put_i64(file, "new", 1, ERR), ERR_IO,
          "writing attribute 'new': HDF5: no write intent");
    H5Gopen2(file, "nowhere", H5P_DEFAULT);
    h5_close(H5Screate(H5S_SCALAR));
    FAILS(h5_fail(ERR, ERR_INPUT, "text"), ERR_INPUT, "text: HDF5: ");
    H5Fclose(file);
    h5_unlock();
}

TEST(a_reason_is_told_once_and_not_of_an_earlier_sequence)
{
    struct err err = {0};
    h5_lock();
    H5Gopen2(-1, "nowhere", H5P_DEFAULT);
    h5_fail(&err, ERR_INPUT, "first");
    ck_assert_str_ne(err.msg, "first");
    err_clear(&err);
    h5_fail(&err, ERR_INPUT, "second");
    ck_assert_str_eq(err.msg, "second");
    err_clear(&err);
    H5Gopen2(-1, "nowhere", H5P_DEFAULT);
    h5_unlock();
    h5_lock();
    h5_fail(&err, ERR_INPUT, "third");
    ck_assert_str_eq(err.msg, "third");
    h5_unlock();
}
