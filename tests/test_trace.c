/* Traces: what is written is read back, in every dtype, shape and storage form. */
#include "tests/suite.h"
#include "tests/trace_fixture.h"

#include "core/buf.h"
#include "core/dtype.h"
#include "core/trace.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *file(const char *name)
{
    static char buf[4][512];
    static int  i;
    i = (i + 1) % 4;
    snprintf(buf[i], sizeof buf[i], "%s/%s", test_tmpdir(), name);
    return buf[i];
}

static void ignore_bad(void *ctx, const char *object, int head, const char *what)
{
    fprintf(stderr, "%s head %d: %s\n", object, head, what);
}

static int64_t count_bad(const struct trace *t)
{
    struct err err = {0};
    int64_t    bad = -1;
    assert_ok(trace_verify(t, ignore_bad, NULL, &bad, &err), &err);
    return bad;
}

/* Every element of every tensor of a call equals the fixture's value rounded to the dtype. */
static void check_call(const struct trace *t, int64_t i)
{
    const struct trace_meta *m = trace_meta(t);
    struct err               err = {0};

    for (int what = 0; what < TRACE_WHAT_COUNT; what++) {
        struct trace_shape s = trace_shape(m, (enum trace_what)what);
        float             *x = malloc(sizeof *x * (size_t)(s.tokens * s.dim));
        for (int64_t h = 0; h < s.heads; h++) {
            assert_ok(trace_read(t, i, (enum trace_what)what, (int)h, 0, s.tokens, x, &err), &err);
            for (int64_t j = 0; j < s.tokens * s.dim; j++) {
                float v = fixture_value(i, (enum trace_what)what, h, j / s.dim, j % s.dim);
                ck_assert_msg(x[j] == dtype_round(s.dtype, v), "%s head %d element %d: %g, not %g",
                              trace_what_name((enum trace_what)what), (int)h, (int)j, x[j], v);
            }
        }
        free(x);
    }
}

static const struct shape {
    enum dtype dtype;
    int        heads, kv_heads;
    int64_t    n, pool;
} shapes[] = {
    {DT_BF16, 4, 2, 37, 8}, {DT_F16, 4, 4, 64, 0}, {DT_F32, 3, 1, 1, 1}, {DT_BF16, 1, 1, 1500, 64},
    {DT_F32, 2, 2, 129, 64},
};

START_TEST(payload_comes_back_in_the_dtype_of_the_trace)
{
    const struct shape *s = &shapes[_i];
    struct trace_meta   m = fixture_text(s->dtype, s->heads, s->kv_heads, s->n);
    struct err          err = {0};
    struct trace       *t = NULL;

    m.pool = s->pool;
    assert_ok(fixture_write(file("a.h5"), &m, 3, &err), &err);
    assert_ok(trace_open(file("a.h5"), &t, &err), &err);
    ck_assert_int_eq(trace_calls(t), 3);
    for (int i = 0; i < 3; i++)
        check_call(t, i);
    ck_assert_int_eq(count_bad(t), 0);
    trace_close(&t);
    ck_assert_ptr_null(t);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("trace");
    TCase *c = tcase_create("round trip");
    tcase_add_loop_test(c, payload_comes_back_in_the_dtype_of_the_trace, 0,
                        (int)(sizeof shapes / sizeof *shapes));
    suite_add_tcase(s, c);
    return s;
}

Suite *make_suite(void)
{
    return suite();
}
