/* Byte strings. */
#include "tests/harness/suite.h"

#include "core/buf.h"

#include <string.h>

TEST(appends_keep_a_final_nul)
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

TEST(a_failed_buffer_reports_once_asked)
{
    OWN(buf_free) struct buf b = {0};
    struct err e = {0};
    buf_put(&b, "x", SIZE_MAX / 2);
    buf_puts(&b, "ignored");
    ck_assert_uint_eq(b.len, 0);
    assert_fails(buf_check(&b, "table", &e), &e, ERR_NOMEM, "table");
}
