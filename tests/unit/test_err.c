/* Errors: first one wins, context in front, codes to exit statuses. */
#include "tests/harness/test.h"

#include <errno.h>
#include <string.h>

TEST(first_error_wins)
{
    struct err e = {0};
    ck_assert_int_eq(err_set(&e, ERR_INPUT, "first %d", 1), ERR_INPUT);
    ck_assert_int_eq(err_set(&e, ERR_IO, "second"), ERR_INPUT);
    ck_assert_str_eq(e.msg, "first 1");
    ck_assert_ptr_nonnull(strstr(e.file, "test_err.c"));
    ck_assert_int_gt(e.line, 0);
}

TEST(prefix_goes_in_front_and_only_on_errors)
{
    struct err e = {0};
    ck_assert_int_eq(err_prefix(&e, "layer %d", 1), 0);
    ck_assert_str_eq(e.msg, "");
    err_set(&e, ERR_RUN, "reading k");
    ck_assert_int_eq(err_prefix(&e, "layer %d", 12), ERR_RUN);
    ck_assert_str_eq(e.msg, "layer 12: reading k");
}

TEST(long_messages_are_cut_not_overrun)
{
    struct err e = {0};
    char text[4 * sizeof e.msg];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    err_set(&e, ERR_RUN, "%s", text);
    ck_assert_uint_eq(strlen(e.msg), sizeof e.msg - 1);
    err_prefix(&e, "%s", text);
    ck_assert_uint_eq(strlen(e.msg), sizeof e.msg - 1);
}

TEST(control_characters_do_not_reach_a_message)
{
    struct err e = {0};
    err_set(&e, ERR_INPUT, "tensor '%s'", "a\nb\033[2J\x7f\xc3\xa9");
    err_prefix(&e, "%s", "x\ty");
    ck_assert_str_eq(e.msg, "x?y: tensor 'a?b?[2J?\xc3\xa9'");
    err_clear(&e);
    err_set(&e, ERR_INPUT, "%s", "\xc2\x9bJ \xe2\x80\xae \xff \xe2\x82\xac");
    ck_assert_str_eq(e.msg, "?J ? ? \xe2\x82\xac");
}

TEST(system_errors_append_the_reason)
{
    struct err e = {0};
    errno = ENOENT;
    ck_assert_int_eq(err_sys(&e, ERR_INPUT, "t.h5"), ERR_INPUT);
    ck_assert_str_eq(e.msg, "t.h5: No such file or directory");
    ck_assert_int_eq(e.sys, ENOENT);
    err_clear(&e);
    errno = ENOSPC;
    ck_assert_int_eq(err_sys(&e, ERR_IO, "t.h5"), ERR_MACHINE);
    err_clear(&e);
    errno = ENOMEM;
    ck_assert_int_eq(err_sys(&e, ERR_IO, "t.h5"), ERR_NOMEM);
}

TEST(codes_have_documented_exit_statuses)
{
    static const int want[][2] = {
        {0, 0},         {ERR_CHECK, 1}, {ERR_USAGE, 2}, {ERR_INPUT, 3},         {ERR_MACHINE, 4},
        {ERR_NOMEM, 4}, {ERR_IO, 5},    {ERR_RUN, 5},   {ERR_INTERRUPTED, 130}, {ERR_PIPE, 141}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ck_assert_int_eq(err_exit_code(want[i][0]), want[i][1]);
        ck_assert_uint_gt(strlen(err_text(want[i][0])), 0);
    }
    ck_assert_int_eq(err_exit_code(-1000), 5);
    ck_assert_int_eq(err_exit_code(7), 5);
}

TEST(null_err_is_accepted)
{
    ck_assert_int_eq(err_set(NULL, ERR_RUN, "x"), ERR_RUN);
    ck_assert_int_eq(err_prefix(NULL, "x"), 0);
}
