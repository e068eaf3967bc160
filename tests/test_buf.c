/* Byte strings, whole-file reads, atomic writes, directories. */
#include "tests/suite.h"

#include "core/buf.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void path_in_tmp(char out[512], const char *name)
{
    snprintf(out, 512, "%s/%s", test_tmpdir(), name);
}

START_TEST(appends_keep_a_final_nul)
{
    struct buf b = {0};
    ck_assert_str_eq(buf_str(&b), "");
    buf_put(&b, "", 0);
    ck_assert_str_eq(buf_str(&b), "");
    for (int i = 0; i < 1000; i++)
        buf_printf(&b, "%d,", i);
    ck_assert_uint_eq(b.len, 10 * 2 + 90 * 3 + 900 * 4);
    ck_assert_uint_eq(strlen(b.data), b.len);
    buf_reset(&b);
    buf_puts(&b, "again");
    ck_assert_str_eq(buf_str(&b), "again");
    buf_free(&b);
    ck_assert_ptr_null(b.data);
}
END_TEST

START_TEST(a_failed_buffer_reports_once_asked)
{
    struct buf b = {0};
    struct err e = {0};
    buf_put(&b, "x", SIZE_MAX / 2);
    buf_puts(&b, "ignored");
    ck_assert_uint_eq(b.len, 0);
    assert_fails(buf_check(&b, "table", &e), &e, ERR_NOMEM, "table");
    buf_free(&b);
}
END_TEST

START_TEST(files_are_read_whole_and_binary_safe)
{
    char path[512];
    struct buf b = {0};
    struct err e = {0};
    path_in_tmp(path, "read");
    assert_ok(file_write_atomic(path, "a\0b\n", 4, &e), &e);
    assert_ok(buf_read_file(&b, path, 4, &e), &e);
    ck_assert_uint_eq(b.len, 4);
    ck_assert_mem_eq(b.data, "a\0b\n", 4);
    buf_reset(&b);
    assert_fails(buf_read_file(&b, path, 3, &e), &e, ERR_INPUT, path);
    assert_fails(buf_read_file(&b, test_tmpdir(), 3, &e), &e, ERR_INPUT, "directory");
    buf_free(&b);
}
END_TEST

START_TEST(a_file_without_a_size_is_limited_too)
{
    struct buf b = {0};
    struct err e = {0};
    assert_fails(buf_read_file(&b, "/dev/zero", 100000, &e), &e, ERR_INPUT, "/dev/zero");
    buf_free(&b);
}
END_TEST

START_TEST(a_missing_file_is_bad_input_with_its_name)
{
    struct buf b = {0};
    struct err e = {0};
    assert_fails(buf_read_file(&b, "no/such/file", 10, &e), &e, ERR_INPUT, "no/such/file");
    buf_free(&b);
}
END_TEST

START_TEST(a_failed_write_leaves_the_old_file_and_no_part)
{
    char path[512], part[512];
    struct buf b = {0};
    struct err e = {0};
    path_in_tmp(path, "keep");
    path_in_tmp(part, "keep.part");
    assert_ok(file_write_atomic(path, "old", 3, &e), &e);
    ck_assert_int_eq(symlink("/dev/full", part), 0);
    ck_assert_int_lt(file_write_atomic(path, "new", 3, &e), 0);
    ck_assert_ptr_nonnull(strstr(e.msg, "keep.part"));
    assert_ok(buf_read_file(&b, path, 100, (err_clear(&e), &e)), &e);
    ck_assert_str_eq(buf_str(&b), "old");
    ck_assert_int_ne(access(part, F_OK), 0);
    buf_free(&b);
}
END_TEST

START_TEST(directories_are_made_with_parents)
{
    char path[512];
    struct stat st;
    struct err e = {0};
    path_in_tmp(path, "a/b/c/");
    assert_ok(make_dirs(path, &e), &e);
    assert_ok(make_dirs(path, &e), &e);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert(S_ISDIR(st.st_mode));
    path_in_tmp(path, "file");
    assert_ok(file_write_atomic(path, "", 0, &e), &e);
    path_in_tmp(path, "file/sub");
    assert_fails(make_dirs(path, &e), &e, ERR_IO, "file");
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("buf");
    TCase *c = tcase_create("buf");
    tcase_add_test(c, appends_keep_a_final_nul);
    tcase_add_test(c, a_failed_buffer_reports_once_asked);
    tcase_add_test(c, files_are_read_whole_and_binary_safe);
    tcase_add_test(c, a_file_without_a_size_is_limited_too);
    tcase_add_test(c, a_missing_file_is_bad_input_with_its_name);
    tcase_add_test(c, a_failed_write_leaves_the_old_file_and_no_part);
    tcase_add_test(c, directories_are_made_with_parents);
    suite_add_tcase(s, c);
    return s;
}
