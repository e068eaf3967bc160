/*
 * test_npy.c - every rule of the format refuses its own small file; what is legal is read exactly,
 * also byte-swapped and in column-major order.
 */
#include "tests/harness/suite.h"
#include "core/buf.h"
#include "core/fileio.h"
#include "core/npy.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct err err;

/* Version `major`.0 with `dict` as the whole header and the data bytes. */
static const char *make(int major, const char *dict, const void *data, size_t data_len)
{
    OWN(buf_free) struct buf b = {0};
    const char *path = test_path("a.npy");
    size_t len = strlen(dict);
    buf_put(&b, "\x93NUMPY", 6);
    buf_put(&b, (char[2]){(char)major, 0}, 2);
    for (int i = 0; i < (major == 1 ? 2 : 4); i++)
        buf_put(&b, &(char){(char)(len >> 8 * i & 0xff)}, 1);
    buf_puts(&b, dict);
    buf_put(&b, data, data_len);
    assert_ok(file_write_atomic(path, b.data, b.len, &err), &err);
    return path;
}

static void refused(const char *path, bool v2, const char *text)
{
    struct npy *a = NULL;
    int rc = npy_open(path, v2, &a, &err);
    ck_assert_msg(rc == ERR_INPUT, "accepted or failed with %d: %s", rc, err.msg);
    ck_assert_msg(strstr(err.msg, text) != NULL, "'%s' lacks '%s'", err.msg, text);
    ck_assert_msg(strstr(err.msg, path) != NULL, "'%s' lacks the path", err.msg);
    ck_assert_ptr_null(a);
    err_clear(&err);
}

#define DICT(descr, order, shape)                                                                  \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

static const char zeros[64];

static const struct {
    const char *dict;
    size_t data;
    const char *message;
} bad_headers[] = {
    /* what may not be in an array */
    {DICT("'|O'", "False", "(1,)"), 8, "pickled Python objects are not read"},
    {DICT("[('x', '<f4')]", "False", "(1,)"), 4, "record or sub-array"},
    {DICT("'<V2'", "False", "(1,)"), 2, "'<V2' is two raw bytes"},
    {DICT("'|V4'", "False", "(1,)"), 4, "descr '|V4': expected one of"},
    {DICT("'<f3'", "False", "(1,)"), 3, "descr '<f3'"},
    {DICT("''", "False", "(1,)"), 1, "descr ''"},
    {DICT("'<f4\\x00'", "False", "(1,)"), 4, "the npy header is not"},
    {DICT("'aaaaaaaaaabbbbbbbbbbccccccccccdddd'", "False", "(1,)"), 4, "expected one of"},
    {DICT("4", "False", "(1,)"), 4, "record or sub-array"},
    /* order */
    {DICT("'<f4'", "Truer", "(1,)"), 4, "the npy header is not"},
    /* shape */
    {DICT("'<f4'", "False", "3"), 12, "the npy header is not"},
    {DICT("'<f4'", "False", "(1.0,)"), 4, "non-negative integers"},
    {DICT("'<f4'", "False", "(1 1)"), 4, "the npy header is not"},
    {DICT("'<f4'", "False", "(01,)"), 4, "the npy header is not"},
    {DICT("'<f4'", "False", "(9223372036854775808,)"), 4, "the npy header is not"},
    {DICT("'<f4'", "False", "(4294967296, 4294967296)"), 0, "product of the npy shape overflows"},
    {DICT("'<f4'", "False", "(2305843009213693952, 1)"), 0, "size of the npy data overflows"},
    {DICT("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), 4, "more than 8 dimensions"},
    /* data */
    {DICT("'<f4'", "False", "(2,)"), 7,
     "2 elements of float32 need 8 bytes of data, the file has 7"},
    {DICT("'<f4'", "False", "(2,)"), 9, "the file has 9 (extra bytes at its end)"},
    {DICT("'<f4'", "False", "()"), 0, "1 elements of float32 need 4 bytes"},
    {DICT("'<f4'", "False", "(0,)"), 1, "need 0 bytes"},
    /* keys */
    {"{'descr': '<f4', 'fortran_order': False}\n", 4, "a key is missing"},
    {"{'fortran_order': False, 'shape': (1,)}\n", 4, "a key is missing"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}\n", 4,
     "a key is missing, of another type or unknown"},
    {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}\n", 4,
     "duplicate object key"},
    {"{descr: '<f4', 'fortran_order': False, 'shape': (1,)}\n", 4, "the npy header is not"},
    {"{'descr' '<f4', 'fortran_order': False, 'shape': (1,)}\n", 4, "the npy header is not"},
    {"{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}\n", 4, "the npy header is not"},
    {"{'descr': '<f4', , 'fortran_order': False, 'shape': (1,)}\n", 4, "the npy header is not"},
    /* around the dict */
    {"", 4, "the npy header is not"},
    {"{'descr': '<f4'", 4, "the npy header is not"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x\n", 4, "the npy header is not"},
    {"\xff{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", 4, "the npy header is not"},
};

TEST_EACH(bad_header_is_refused, bad_headers)
{
    refused(make(1 + _i % 3, bad_headers[_i].dict, zeros, bad_headers[_i].data), false,
            bad_headers[_i].message);
}

TEST(bad_prefix_is_refused)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *message;
    } c[] = {
        {"", 0, "0 bytes are too few"},
        {"\x93NUMPY\1\0\0", 9, "9 bytes are too few"},
        {"\x93NUMPX\1\0\0\0", 10, "not an npy file"},
        {"PK\3\4\0\0\0\0\0\0", 10, "not an npy file"},
        {"\x93NUMPY\0\0\0\0", 10, "npy version 0.0"},
        {"\x93NUMPY\4\0\0\0\0\0", 12, "npy version 4.0"},
        {"\x93NUMPY\1\1\0\0", 10, "npy version 1.1"},
        {"\x93NUMPY\1\0\1\0", 10, "header of 1 bytes goes past the end of the file (10 bytes)"},
        {"\x93NUMPY\2\0\0\0", 10, "goes past the end"},
        {"\x93NUMPY\1\0\x11\x27", 10, "header of 10001 bytes, at most 10000"},
        {"\x93NUMPY\2\0\xff\xff\xff\xff", 12, "header of 4294967295 bytes, at most 10000"},
        {"\x93NUMPY\3\0\0\0\0\x80", 12, "header of 2147483648 bytes, at most 10000"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        assert_ok(file_write_atomic(test_path("p.npy"), c[i].bytes, c[i].len, &err), &err);
        refused(test_path("p.npy"), true, c[i].message);
    }
    refused(test_path("absent.npy"), false, "cannot open");
    refused(test_tmpdir(), false, "not a regular file");
}

/* ---- what is legal -------------------------------------------------------------------------- */

static void read_all(const char *path, bool v2, int ndim, int64_t count, float *x)
{
    struct npy *a = NULL;
    assert_ok(npy_open(path, v2, &a, &err), &err);
    ck_assert_int_eq(a->ndim, ndim);
    ck_assert_int_eq(a->count, count);
    assert_ok(npy_read_f32(a, x, &err), &err);
    npy_close(&a);
    ck_assert_ptr_null(a);
    npy_close(&a);
}

TEST(legal_spellings_are_read)
{
    static const char *const dicts[] = {
        DICT("'<f4'", "False", "(2,)"),
        DICT("\"<f4\"", "False", "( 2 , )"),
        DICT("'=f4'", "True", "(2L,)"),
        DICT("'|f4'", "False", "(2, )"),
        "{'shape': (2,), 'fortran_order': False, 'descr': '<f4'}                  \n",
        "{ 'fortran_order' : True , 'descr' : '<f4' , 'shape' : (2,) , }\n",
    };
    static const float data[2] = {1.5f, -2.0f};
    for (size_t i = 0; i < 3 * sizeof dicts / sizeof *dicts; i++) {
        float x[2] = {0};
        read_all(make(1 + (int)i % 3, dicts[i / 3], data, sizeof data), false, 1, 2, x);
        ck_assert(!memcmp(x, data, sizeof data));
    }
}

TEST(empty_and_rank_zero_arrays_are_read)
{
    float x = 0;
    read_all(make(1, DICT("'<f4'", "False", "()"), "\0\0\x80\x3f", 4), false, 0, 1, &x);
    ck_assert_float_eq(x, 1);
    read_all(make(1, DICT("'<f4'", "False", "(0,)"), "", 0), false, 1, 0, &x);
    read_all(make(1, DICT("'<f4'", "True", "(0, 9223372036854775807, 9)"), "", 0), false, 3, 0, &x);
}

/* The value -2 (1 for unsigned types and bool) in every type and both byte orders. */
TEST(every_type_and_byte_order_is_read)
{
    static const struct {
        char descr[8], bytes[9];
        enum dtype t;
        float want;
    } c[] = {
        {"'<f2'", "\0\xc0", DT_F16, -2},
        {"'>f2'", "\xc0\0", DT_F16, -2},
        {"'<f4'", "\0\0\0\xc0", DT_F32, -2},
        {"'>f4'", "\xc0\0\0\0", DT_F32, -2},
        {"'<f8'", "\0\0\0\0\0\0\0\xc0", DT_F64, -2},
        {"'>f8'", "\xc0\0\0\0\0\0\0\0", DT_F64, -2},
        {"'|i1'", "\xfe", DT_I8, -2},
        {"'>i1'", "\xfe", DT_I8, -2},
        {"'|u1'", "\1", DT_U8, 1},
        {"'<i2'", "\xfe\xff", DT_I16, -2},
        {"'>i2'", "\xff\xfe", DT_I16, -2},
        {"'<u2'", "\1\0", DT_U16, 1},
        {"'>u2'", "\0\1", DT_U16, 1},
        {"'<i4'", "\xfe\xff\xff\xff", DT_I32, -2},
        {"'>i4'", "\xff\xff\xff\xfe", DT_I32, -2},
        {"'<V2'", "\0\xc0", DT_BF16, -2},
        {"'|V2'", "\0\xc0", DT_BF16, -2},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char dict[600];
        OWN(npy_close) struct npy *a = NULL;
        float x = 0;
        snprintf(dict, sizeof dict, "{'descr': %s, 'fortran_order': False, 'shape': (1,), }\n",
                 c[i].descr);
        const char *path = make(1, dict, c[i].bytes, dtype_size(c[i].t));
        assert_ok(npy_open(path, true, &a, &err), &err);
        ck_assert_int_eq(a->dtype, c[i].t);
        assert_ok(npy_read_f32(a, &x, &err), &err);
        ck_assert_msg(x == c[i].want, "%s gave %g", c[i].descr, (double)x);
    }
}

TEST(types_without_float_conversion_open_but_do_not_read)
{
    static const char *const descr[] = {"'<u4'", "'<i8'", "'>u8'", "'|b1'"};
    static const size_t size[] = {4, 8, 8, 1};
    for (int i = 0; i < 4; i++) {
        char dict[100];
        OWN(npy_close) struct npy *a = NULL;
        float x;
        snprintf(dict, sizeof dict, "{'descr': %s, 'fortran_order': False, 'shape': (1,), }\n",
                 descr[i]);
        assert_ok(npy_open(make(1, dict, zeros, size[i]), false, &a, &err), &err);
        assert_fails(npy_read_f32(a, &x, &err), &err, ERR_INPUT, "cannot be read as float32");
    }
}

/* Element (i, j, k) holds 100 i + 10 j + k whatever the order of storage. */
TEST(column_major_arrays_are_transposed)
{
    enum { A = 3, B = 4, C = 5 };
    int16_t stored[A * B * C];
    float x[A * B * C];
    for (int i = 0; i < A; i++)
        for (int j = 0; j < B; j++)
            for (int k = 0; k < C; k++)
                stored[i + A * (j + B * k)] = (int16_t)(100 * i + 10 * j + k);
    read_all(make(1, DICT("'<i2'", "True", "(3, 4, 5)"), stored, sizeof stored), false, 3, 60, x);
    for (int i = 0; i < A * B * C; i++)
        ck_assert_float_eq(x[i], (float)(100 * (i / 20) + 10 * (i / 5 % 4) + i % 5));
}

/* Larger than the conversion buffer, in both orders. */
TEST(written_array_reads_back)
{
    enum { R = 301, C = 499 };
    static float x[R * C], y[R * C];
    static uint16_t h[R * C];
    for (int i = 0; i < R * C; i++)
        x[i] = (float)(i - 777) * 0.37f;
    const int64_t shape[] = {R, C};
    assert_ok(npy_write(test_path("w.npy"), DT_F32, 2, shape, x, &err), &err);
    read_all(test_path("w.npy"), false, 2, R * C, y);
    ck_assert(!memcmp(x, y, sizeof x));

    dtype_from_f32(DT_BF16, x, h, R * C);
    assert_ok(npy_write(test_path("w.npy"), DT_BF16, 2, shape, h, &err), &err);
    read_all(test_path("w.npy"), true, 2, R * C, y);
    for (int i = 0; i < R * C; i++)
        if (y[i] != dtype_round(DT_BF16, x[i]))
            ck_abort_msg("element %d: %g", i, (double)y[i]);

    char dict[100];
    snprintf(dict, sizeof dict, "{'descr': '<f4', 'fortran_order': True, 'shape': (%d, %d), }\n", R,
             C);
    read_all(make(1, dict, x, sizeof x), false, 2, R * C, y);
    for (int i = 0; i < R * C; i++)
        if (y[i] != x[i / C + R * (i % C)])
            ck_abort_msg("element %d: %g", i, (double)y[i]);
}

TEST(written_data_begins_at_a_multiple_of_64)
{
    static const int64_t shape[NPY_MAX_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int ndim = 0; ndim <= NPY_MAX_DIMS; ndim++) {
        OWN(npy_close) struct npy *a = NULL;
        assert_ok(npy_write(test_path("n.npy"), DT_U8, ndim, shape, "x", &err), &err);
        assert_ok(npy_open(test_path("n.npy"), false, &a, &err), &err);
        ck_assert_int_eq(a->ndim, ndim);
        ck_assert_int_eq(a->data_offset % 64, 0);
    }
}

TEST(writer_refuses_bad_types_and_shapes)
{
    const int64_t negative[] = {-1}, huge[] = {INT64_MAX, 2};
    assert_fails(npy_write(test_path("x"), DT_NONE, 0, NULL, "", &err), &err, ERR_RUN, "no valid");
    assert_fails(npy_write(test_path("x"), DT_F32, 1, negative, "", &err), &err, ERR_RUN,
                 "no valid");
    assert_fails(npy_write(test_path("x"), DT_F32, 2, huge, "", &err), &err, ERR_RUN, "no valid");
    assert_fails(npy_write(test_path("no/x"), DT_U8, 0, NULL, "x", &err), &err, ERR_IO,
                 "cannot create");
    ck_assert_int_ne(access(test_path("x"), F_OK), 0);
}

TEST(file_that_shrinks_while_open_fails_to_read)
{
    OWN(npy_close) struct npy *a = NULL;
    float x[4];
    assert_ok(npy_open(make(1, DICT("'<f4'", "False", "(4,)"), zeros, 16), false, &a, &err), &err);
    ck_assert_int_eq(truncate(test_path("a.npy"), a->data_offset + 15), 0);
    assert_fails(npy_read_f32(a, x, &err), &err, ERR_IO, "shrank while it was open");
}
