/*
 * test_safetensors.c - every rule of the format refuses its own small broken file; what is legal is
 * read exactly.
 */
#include "tests/harness/suite.h"
#include "core/buf.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err err;

/* ---- making files --------------------------------------------------------------------------- */

/* A file of `len` as the header length, `header`, then data_len bytes 0, 1, 2, ... */
static const char *make_file(const char *name, uint64_t len, const char *header, size_t data_len)
{
    OWN(buf_free) struct buf b = {0};
    const char *path = test_path(name);
    for (int i = 0; i < 8; i++)
        buf_put(&b, &(char){(char)(len >> 8 * i & 0xff)}, 1);
    buf_puts(&b, header);
    for (size_t i = 0; i < data_len; i++)
        buf_put(&b, &(char){(char)i}, 1);
    assert_ok(file_write_atomic(path, b.data, b.len, &err), &err);
    return path;
}

static const char *make(const char *name, const char *header, size_t data_len)
{
    return make_file(name, strlen(header), header, data_len);
}

static void make_text(const char *name, const char *text)
{
    assert_ok(file_write_atomic(test_path(name), text, strlen(text), &err), &err);
}

/* The file is refused with a message that has its path and `text`; nothing is handed out. */
static void refused(const char *path, const char *text)
{
    struct st_file *f = NULL;
    int rc = st_open(path, &f, &err);
    ck_assert_msg(rc == ERR_INPUT, "%s was accepted or failed with %d: %s", path, rc, err.msg);
    ck_assert_msg(strstr(err.msg, text) != NULL, "'%s' lacks '%s'", err.msg, text);
    ck_assert_msg(strstr(err.msg, path) != NULL, "'%s' lacks the path", err.msg);
    ck_assert_ptr_null(f);
    err_clear(&err);
}

/* ---- headers that are refused --------------------------------------------------------------- */

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define U8_AT(name, begin, end, n)                                                                 \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *header;
    size_t data;
    const char *message;
} bad_headers[] = {
    /* the text */
    {"", 0, "must begin with '{'"},
    {" {}", 0, "must begin with '{', found byte 0x20"},
    {"{}\n", 0, "must end with '}' and spaces, found byte 0x0a"},
    {"{} x ", 0, "found byte 0x78"},
    {"{}{}", 0, "not valid JSON"},
    {"{", 0, "must end with '}' and spaces, found byte 0x7b"},
    {"{" U8_AT("w", 0, 1, 1) "," U8_AT("w", 1, 2, 1) "}", 2, "duplicate"},
    /* __metadata__ */
    {"{\"__metadata__\":[]}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":{\"format\":1}}", 0, "'__metadata__' key 'format' must be a string"},
    /* entries */
    {"{\"w\":3}", 0, "tensor 'w' is not {\"dtype\""},
    {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor 'w' is not {\"dtype\""},
    {ONE("8", "[1]", "[0,1]"), 1, "is not {\"dtype\""},
    {ONE("\"U9\"", "[1]", "[0,1]"), 1, "unknown dtype 'U9'"},
    {ONE("\"U8\"", "1", "[0,1]"), 1, "is not {\"dtype\""},
    {ONE("\"U8\"", "[1.0]", "[0,1]"), 1, "'shape' must be a whole number"},
    {ONE("\"U8\"", "[-1]", "[0,1]"), 1, "'shape' must be a whole number"},
    {ONE("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "product of its shape overflows"},
    {ONE("\"F64\"", "[288230376151711744]", "[0,0]"), 0, "size in bits overflows"},
    {ONE("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "has 9 dimensions, at most 8"},
    {ONE("\"F4\"", "[3]", "[0,2]"), 2, "3 elements of F4 are not a whole number of bytes"},
    {ONE("\"U8\"", "[1]", "[0]"), 1, "is not {\"dtype\""},
    {ONE("\"U8\"", "[1]", "[0.0,1]"), 1, "is not {\"dtype\""},
    {ONE("\"U8\"", "[1]", "[-1,0]"), 1, "is not {\"dtype\""},
    {ONE("\"U8\"", "[0]", "[3,2]"), 3, "data_offsets end (2) before they begin (3)"},
    {ONE("\"F32\"", "[2]", "[0,4]"), 4, "dtype F32 need 8 bytes, data_offsets span 4"},
    /* tiling of the data */
    {ONE("\"U8\"", "[1]", "[1,2]"), 2, "tensor 'w' begins at 1, expected 0 (a hole before it)"},
    {"{" U8_AT("a", 0, 2, 2) "," U8_AT("b", 3, 4, 1) "}", 4, "'b' begins at 3, expected 2 (a hole"},
    {"{" U8_AT("a", 0, 2, 2) "," U8_AT("b", 1, 3, 2) "}", 3,
     "'b' begins at 1, expected 2 (it over"},
    {"{" U8_AT("a", 0, 2, 2) "," U8_AT("b", 0, 2, 2) "}", 2, "expected 2 (it overlaps"},
    {"{" U8_AT("a", 0, 4, 4) "}", 3, "need 4 bytes of data, the file has 3 (it was cut short)"},
    {"{" U8_AT("a", 0, 4, 4) "}", 5,
     "need 4 bytes of data, the file has 5 (extra bytes at its end)"},
    {"{}", 1, "need 0 bytes of data, the file has 1"},
};

TEST_EACH(bad_header_is_refused, bad_headers)
{
    refused(make("bad.safetensors", bad_headers[_i].header, bad_headers[_i].data),
            bad_headers[_i].message);
}

TEST(bad_header_length_is_refused)
{
    static const struct {
        uint64_t n;
        const char *message;
    } c[] = {
        {UINT64_MAX, "header of 18446744073709551615 bytes, at most 100000000"},
        {UINT64_MAX - 7, "at most 100000000"},
        {1ull << 63, "at most 100000000"},
        {100000001, "header of 100000001 bytes, at most 100000000"},
        {100000000, "header of 100000000 bytes goes past the end of the file (10 bytes)"},
        {3, "header of 3 bytes goes past the end"},
        {0, "must begin with '{'"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        refused(make_file("length.safetensors", c[i].n, "{}", 0), c[i].message);
}

TEST(file_shorter_than_its_length_field_is_refused)
{
    for (int n = 0; n < 8; n++) {
        assert_ok(file_write_atomic(test_path("short"), "\2\0\0\0\0\0\0", (size_t)n, &err), &err);
        refused(test_path("short"), "too few for a safetensors file");
    }
}

TEST(missing_file_and_directory_and_fifo_are_refused)
{
    refused(test_path("absent.safetensors"), "cannot open");
    refused(test_tmpdir(), "not a regular file");
    ck_assert_int_eq(mkfifo(test_path("fifo"), 0600), 0);
    refused(test_path("fifo"), "not a regular file");
}

TEST(deep_nesting_is_refused)
{
    OWN(buf_free) struct buf b = {0};
    buf_puts(&b, "{\"w\":");
    for (int i = 0; i < 100000; i++)
        buf_puts(&b, "[");
    buf_puts(&b, "}");
    refused(make("deep.safetensors", buf_str(&b), 0), "not valid JSON");
}

/* ---- what is legal -------------------------------------------------------------------------- */

TEST(spaces_after_the_header_are_allowed)
{
    struct st_file *f = NULL;
    OWN(buf_free) struct buf b = {0};
    buf_puts(&b, "{" U8_AT("a", 0, 3, 3) "}");
    for (int i = 0; i < 3000000; i++)
        buf_puts(&b, " ");
    assert_ok(st_open(make("spaces.safetensors", buf_str(&b), 3), &f, &err), &err);
    ck_assert_int_eq(st_count(f), 1);
    ck_assert_int_eq(st_at(f, 0)->offset, 8 + (int64_t)b.len);
    st_close(&f);
    ck_assert_ptr_null(f);
    st_close(&f);
}

/* A header of 100 MB that is not JSON costs one read, no parse (the file is sparse). */
TEST(header_of_the_largest_size_is_refused_by_its_first_byte)
{
    make_file("large.safetensors", 100000000, " ", 0);
    ck_assert_int_eq(truncate(test_path("large.safetensors"), 100000008), 0);
    refused(test_path("large.safetensors"), "must begin with '{', found byte 0x20");
}

TEST(empty_tensors_and_rank_zero_are_allowed)
{
    OWN(st_close) struct st_file *f = NULL;
    assert_ok(st_open(make("zero.safetensors",
                           "{\"z1\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
                           "\"s\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]},"
                           "\"z0\":{\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[0,0]},"
                           "\"\":{\"dtype\":\"F16\",\"shape\":[2,0],\"data_offsets\":[4,4]}}",
                           4),
                      &f, &err),
              &err);
    ck_assert_int_eq(st_count(f), 4);
    ck_assert_str_eq(st_at(f, 0)->name, "");
    const struct st_tensor *t = st_find(f, "s");
    int64_t x = 0;
    float none;
    ck_assert_int_eq(t->ndim, 0);
    ck_assert_int_eq(t->count, 1);
    assert_ok(st_read_i64(f, t, 0, 1, &x, &err), &err);
    ck_assert_int_eq(x, 0x03020100);
    assert_ok(st_read_f32(f, st_find(f, "z1"), 0, 0, &none, &err), &err);
}

TEST(header_without_tensors_and_with_metadata_is_allowed)
{
    OWN(st_close) struct st_file *f = NULL;
    assert_ok(
        st_open(make("meta.safetensors", "{\"__metadata__\":{\"format\":\"pt\"}}  ", 0), &f, &err),
        &err);
    ck_assert_int_eq(st_count(f), 0);
    ck_assert_ptr_null(st_find(f, "w"));
}

/* Types that the format knows and lacuna cannot convert are listed and read raw. */
TEST(every_known_type_is_listed)
{
    static const struct {
        const char *name;
        int bits;
        bool converts;
    } c[] = {{"BOOL", 8, 0},    {"U8", 8, 1},      {"I8", 8, 1},          {"F8_E5M2", 8, 0},
             {"F8_E4M3", 8, 0}, {"F8_E8M0", 8, 0}, {"F8_E4M3FNUZ", 8, 0}, {"F8_E5M2FNUZ", 8, 0},
             {"U16", 16, 1},    {"I16", 16, 1},    {"F16", 16, 1},        {"BF16", 16, 1},
             {"U32", 32, 0},    {"I32", 32, 1},    {"F32", 32, 1},        {"C64", 64, 0},
             {"U64", 64, 0},    {"I64", 64, 0},    {"F64", 64, 1},        {"F4", 4, 0},
             {"F6_E2M3", 6, 0}, {"F6_E3M2", 6, 0}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        OWN(st_close) struct st_file *f = NULL;
        char header[200];
        float x[4];
        unsigned char raw[32];
        snprintf(header, sizeof header,
                 "{\"w\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,%d]}}", c[i].name,
                 c[i].bits / 2);
        assert_ok(st_open(make("type.safetensors", header, (size_t)c[i].bits / 2), &f, &err), &err);
        const struct st_tensor *t = st_at(f, 0);
        ck_assert_str_eq(t->dtype_text, c[i].name);
        ck_assert_int_eq(t->bytes, c[i].bits / 2);
        if (c[i].converts)
            assert_ok(st_read_f32(f, t, 0, 4, x, &err), &err);
        else
            assert_fails(st_read_f32(f, t, 0, 4, x, &err), &err, ERR_INPUT, c[i].name);
        if (c[i].bits % 8 == 0) {
            assert_ok(st_read_raw(f, t, 1, 3, raw, &err), &err);
            ck_assert_uint_eq(raw[0], (unsigned)c[i].bits / 8);
        } else {
            assert_fails(st_read_raw(f, t, 0, 4, raw, &err), &err, ERR_INPUT, "singly");
        }
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

TEST(integers_are_read_exactly)
{
    static const int64_t i64[] = {INT64_MIN, -1, INT64_MAX};
    static const uint32_t u32[] = {0, UINT32_MAX};
    static const int16_t i16[] = {INT16_MIN, -1};
    static const int8_t i8[] = {-128, 127};
    static const uint8_t boole[] = {0, 1};
    const struct st_out t[] = {
        {"i64", DT_I64, 1, {3}, i64}, {"u32", DT_U32, 1, {2}, u32},  {"i16", DT_I16, 1, {2}, i16},
        {"i8", DT_I8, 1, {2}, i8},    {"b", DT_BOOL, 1, {2}, boole}, {"f", DT_F32, 1, {2}, u32},
    };
    static const int64_t want[5][3] = {
        {INT64_MIN, -1, INT64_MAX}, {0, UINT32_MAX}, {INT16_MIN, -1}, {-128, 127}, {0, 1}};
    OWN(st_close) struct st_file *f = NULL;
    int64_t x[3];
    assert_ok(st_write(test_path("ints.safetensors"), t, 6, &err), &err);
    assert_ok(st_open(test_path("ints.safetensors"), &f, &err), &err);
    for (int i = 0; i < 5; i++) {
        const struct st_tensor *s = st_find(f, t[i].name);
        assert_ok(st_read_i64(f, s, 0, s->count, x, &err), &err);
        ck_assert(!memcmp(x, want[i], (size_t)s->count * sizeof *x));
    }
    assert_fails(st_read_i64(f, st_find(f, "f"), 0, 2, x, &err), &err, ERR_INPUT,
                 "expected an integer type, found F32");
}

/* Crosses the size of the conversion buffer. */
TEST(written_tensors_read_back)
{
    enum { N = 150001 };
    OWN(free_at) float *x, *y;
    float edge[] = {NAN, -INFINITY, -0.0f, 1e-45f};
    OWN(free_at) uint16_t *h;
    OWN(st_close) struct st_file *f = NULL;
    assert_ok(mem_alloc(&x, N, sizeof *x, "x", &err), &err);
    assert_ok(mem_alloc(&y, N, sizeof *y, "y", &err), &err);
    assert_ok(mem_alloc(&h, N, sizeof *h, "h", &err), &err);
    for (int i = 0; i < N; i++)
        x[i] = (float)(i - N / 2) / 64;
    dtype_from_f32(DT_BF16, x, h, N);
    const struct st_out t[] = {{"zz", DT_BF16, 2, {3, N / 3}, h},
                               {"a \"quoted\" \xc3\xa9", DT_F32, 1, {N}, x},
                               {"edge", DT_F32, 1, {4}, edge}};
    assert_ok(st_write(test_path("rw.safetensors"), t, 3, &err), &err);
    assert_ok(st_open(test_path("rw.safetensors"), &f, &err), &err);
    ck_assert_int_eq(st_count(f), 3);
    ck_assert_str_eq(st_at(f, 0)->name, t[1].name);
    ck_assert_int_eq(st_at(f, 0)->offset % 8, 0);
    assert_ok(st_read_f32(f, st_at(f, 0), 0, N, y, &err), &err);
    ck_assert(!memcmp(x, y, N * sizeof *x));
    const struct st_tensor *z = st_find(f, "zz");
    assert_ok(st_read_f32(f, z, 7, N / 3 * 3 - 7, y, &err), &err);
    for (int i = 7; i < N / 3 * 3; i++)
        if (y[i - 7] != dtype_round(DT_BF16, x[i]))
            ck_abort_msg("element %d: %g", i, (double)y[i - 7]);
    assert_ok(st_read_f32(f, st_find(f, "edge"), 0, 4, y, &err), &err);
    ck_assert(!memcmp(y, edge, sizeof edge));
}

TEST(ranges_outside_a_tensor_are_refused)
{
    static const int64_t bad[][2] = {{-1, 1},        {0, 5},  {4, 1},        {5, 0},
                                     {1, INT64_MAX}, {0, -1}, {INT64_MAX, 1}};
    OWN(st_close) struct st_file *f = NULL;
    float x[8];
    int64_t y[8];
    assert_ok(st_open(make("range.safetensors", "{" U8_AT("a", 0, 4, 4) "}", 4), &f, &err), &err);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct st_tensor *t = st_at(f, 0);
        assert_fails(st_read_raw(f, t, bad[i][0], bad[i][1], x, &err), &err, ERR_RUN, "of 4");
        assert_fails(st_read_f32(f, t, bad[i][0], bad[i][1], x, &err), &err, ERR_RUN, "of 4");
        assert_fails(st_read_i64(f, t, bad[i][0], bad[i][1], y, &err), &err, ERR_RUN, "of 4");
    }
}

TEST(file_that_shrinks_while_open_fails_to_read)
{
    OWN(st_close) struct st_file *f = NULL;
    float x[4];
    char id[40];
    assert_ok(st_open(make("shrink.safetensors", "{" U8_AT("a", 0, 4, 4) "}", 4), &f, &err), &err);
    int64_t size = 8 + (int64_t)strlen("{" U8_AT("a", 0, 4, 4) "}") + 4;
    ck_assert_int_eq(truncate(test_path("shrink.safetensors"), size - 1), 0);
    assert_ok(st_read_f32(f, st_at(f, 0), 0, 3, x, &err), &err);
    assert_fails(st_read_f32(f, st_at(f, 0), 0, 4, x, &err), &err, ERR_IO, "shrank while it was");
    assert_fails(st_read_raw(f, st_at(f, 0), 3, 1, x, &err), &err, ERR_IO, "tensor 'a'");
    assert_fails(st_content_id(f, id, &err), &err, ERR_IO, "shrank");
}

TEST(require_names_tensor_and_shapes)
{
    OWN(st_close) struct st_file *f = NULL;
    const struct st_tensor *t = NULL;
    assert_ok(st_open(make("req.safetensors", ONE("\"U8\"", "[2,3]", "[0,6]"), 6), &f, &err), &err);
    assert_ok(st_require(f, "w", 2, (int64_t[]){2, 3}, &t, &err), &err);
    assert_ok(st_require(f, "w", -1, NULL, &t, &err), &err);
    ck_assert_str_eq(t->name, "w");
    assert_fails(st_require(f, "w", 2, (int64_t[]){3, 2}, &t, &err), &err, ERR_INPUT,
                 "tensor 'w': expected shape [3, 2], found [2, 3]");
    assert_fails(st_require(f, "w", 1, (int64_t[]){6}, &t, &err), &err, ERR_INPUT,
                 "expected shape [6], found [2, 3]");
    assert_fails(st_require(f, "w", 0, NULL, &t, &err), &err, ERR_INPUT, "expected shape []");
    assert_fails(st_require(f, "v", -1, NULL, &t, &err), &err, ERR_INPUT, "tensor 'v' is missing");
}

TEST(writer_refuses_equal_names_and_types_without_a_name)
{
    const struct st_out same[] = {
        {"a", DT_U8, 1, {1}, "x"}, {"b", DT_U8, 1, {1}, "y"}, {"a", DT_I16, 1, {1}, "zz"}};
    const struct st_out none[] = {{"a", DT_NONE, 1, {1}, "x"}};
    const struct st_out huge[] = {{"a", DT_F32, 2, {INT64_MAX, 2}, "x"}};
    assert_fails(st_write(test_path("w"), same, 3, &err), &err, ERR_RUN,
                 "two tensors are named 'a'");
    assert_fails(st_write(test_path("w"), none, 1, &err), &err, ERR_RUN, "tensor 'a'");
    assert_fails(st_write(test_path("w"), huge, 1, &err), &err, ERR_RUN, "tensor 'a'");
    assert_fails(st_write(test_path("no/such/dir"), none, 0, &err), &err, ERR_IO, "cannot create");
    ck_assert_int_ne(access(test_path("w"), F_OK), 0);
    ck_assert_int_ne(access(test_path("w.part"), F_OK), 0);
}

/* ---- sharded checkpoints -------------------------------------------------------------------- */

#define A_MODEL "{" U8_AT("a", 0, 2, 2) "," U8_AT("b", 2, 3, 1) "}"
#define B_MODEL "{" U8_AT("c", 0, 4, 4) "}"
#define MAP(entries) "{\"metadata\":{\"total_size\":7},\"weight_map\":{" entries "}}"

static const char *shard_dir(const char *index)
{
    static char dir[512];
    snprintf(dir, sizeof dir, "%s/ckpt", test_tmpdir());
    assert_ok(make_dirs(dir, &err), &err);
    make("ckpt/m-1.safetensors", A_MODEL, 3);
    make("ckpt/m-2.safetensors", B_MODEL, 4);
    make("outside.safetensors", B_MODEL, 4);
    make_text("ckpt/m.safetensors.index.json", index);
    return dir;
}

static const struct {
    const char *index, *message;
} bad_indices[] = {
    {"{}", "'weight_map' must be an object"},
    {"{\"weight_map\":{}}", "names no tensor"},
    {"{\"weight_map\":{}} x", "not valid JSON"},
    {MAP("\"a\":{\"file\":\"m-1.safetensors\"}"),
     "weight_map of 'a' must be a file name (a string)"},
    {MAP("\"a\":\"m-1.safetensors\",\"a\":\"m-2.safetensors\""), "duplicate"},
    {MAP("\"c\":\"../outside.safetensors\""), "'../outside.safetensors' must be a file name"},
    {MAP("\"c\":\"sub\\\\x.safetensors\""), "must be a file name without a path"},
    {MAP("\"c\":\"..safetensors\""), "must be a file name without a path"},
    {MAP("\"c\":\"m-2.bin\""), "'m-2.bin' must end in .safetensors"},
    {MAP("\"c\":\".safetensors\""), "'.safetensors' must end in .safetensors"},
    {MAP("\"a\":\"m-1.safetensors\",\"c\":\"m-3.safetensors\""), "shard m-3.safetensors"},
    {MAP("\"a\":\"m-1.safetensors\",\"c\":\"m-1.safetensors\""),
     "tensor 'c' is not in its shard m-1.safetensors"},
    {MAP("\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-2.safetensors\""),
     "not in its shard m-2.safetensors"},
};

TEST_EACH(bad_index_is_refused, bad_indices)
{
    struct st_file *f = NULL;
    const char *dir = shard_dir(bad_indices[_i].index);
    assert_fails(st_open_dir(dir, "m", &f, &err), &err, ERR_INPUT, bad_indices[_i].message);
    ck_assert_int_eq(st_open_dir(dir, "m", &f, &err), ERR_INPUT);
    ck_assert_msg(strstr(err.msg, "m.safetensors.index.json") != NULL, "'%s'", err.msg);
    ck_assert_ptr_null(f);
    err_clear(&err);
}

static const char good_index[] =
    MAP("\"c\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\"");

TEST(shards_are_read_as_one)
{
    OWN(st_close) struct st_file *f = NULL;
    float x[4];
    assert_ok(st_open_dir(shard_dir(good_index), "m", &f, &err), &err);
    ck_assert_int_eq(st_count(f), 3);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(st_at(f, i)->name[0], "abc"[i]);
    assert_ok(st_read_f32(f, st_find(f, "b"), 0, 1, x, &err), &err);
    ck_assert_float_eq(x[0], 2);
    assert_ok(st_read_f32(f, st_find(f, "c"), 1, 3, x, &err), &err);
    ck_assert_float_eq(x[2], 3);
}

TEST(tensor_in_two_shards_is_refused)
{
    struct st_file *f = NULL;
    const char *dir = shard_dir(good_index);
    make("ckpt/m-2.safetensors", "{" U8_AT("c", 0, 2, 2) "," U8_AT("a", 2, 4, 2) "}", 4);
    assert_fails(st_open_dir(dir, "m", &f, &err), &err, ERR_INPUT, "tensor 'a' is in two shards");
    ck_assert_ptr_null(f);
}

TEST(broken_shard_is_named)
{
    struct st_file *f = NULL;
    const char *dir = shard_dir(good_index);
    make("ckpt/m-2.safetensors", B_MODEL, 3);
    assert_fails(st_open_dir(dir, "m", &f, &err), &err, ERR_INPUT, "m-2.safetensors: the tensors");
}

/* Writers disagree about what it counts. */
TEST(total_size_is_only_advice)
{
    static const char *const size[] = {"1", "\"7\"", "1e300"};
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        OWN(st_close) struct st_file *f = NULL;
        char text[300];
        snprintf(text, sizeof text,
                 "{\"metadata\":{\"total_size\":%s},\"weight_map\":{\"c\":\"m-2.safetensors\"}}",
                 size[i]);
        assert_ok(st_open_dir(shard_dir(text), "m", &f, &err), &err);
        ck_assert_int_eq(st_count(f), 1);
    }
}

TEST(directory_without_checkpoint_is_refused)
{
    OWN(st_close) struct st_file *f = NULL;
    assert_fails(st_open_dir(test_tmpdir(), "model", &f, &err), &err, ERR_INPUT,
                 "neither model.safetensors.index.json nor model.safetensors");
    make("model.safetensors", B_MODEL, 4);
    assert_ok(st_open_dir(test_tmpdir(), "model", &f, &err), &err);
    ck_assert_int_eq(st_count(f), 1);
}

/* ---- content id ----------------------------------------------------------------------------- */

static void id_of(const char *dir, char id[40])
{
    OWN(st_close) struct st_file *f = NULL;
    assert_ok(st_open_dir(dir, "m", &f, &err), &err);
    assert_ok(st_content_id(f, id, &err), &err);
}

/* The id is that of the tensors: not of the way they are spread over files, but of every byte. */
TEST(content_id_depends_on_tensors_alone)
{
    char sharded[40], single[40], other[40];
    id_of(shard_dir(good_index), sharded);
    ck_assert_int_eq(unlink(test_path("ckpt/m.safetensors.index.json")), 0);
    const struct st_out t[] = {
        {"c", DT_U8, 1, {4}, "\0\1\2\3"}, {"a", DT_U8, 1, {2}, "\0\1"}, {"b", DT_U8, 1, {1}, "\2"}};
    assert_ok(st_write(test_path("ckpt/m.safetensors"), t, 3, &err), &err);
    id_of(test_path("ckpt"), single);
    ck_assert_str_eq(sharded, single);
    ck_assert(!strncmp(single, "xxh3:", 5) && strlen(single) == 37);

    const struct st_out changed[4][3] = {
        {{"c", DT_U8, 1, {4}, "\0\1\2\4"}, t[1], t[2]},
        {{"d", DT_U8, 1, {4}, "\0\1\2\3"}, t[1], t[2]},
        {{"c", DT_I8, 1, {4}, "\0\1\2\3"}, t[1], t[2]},
        {{"c", DT_U8, 2, {2, 2}, "\0\1\2\3"}, t[1], t[2]},
    };
    for (int i = 0; i < 4; i++) {
        assert_ok(st_write(test_path("ckpt/m.safetensors"), changed[i], 3, &err), &err);
        id_of(test_path("ckpt"), other);
        ck_assert_str_ne(other, single);
    }
}

TEST(shipped_checkpoints_open)
{
    struct st_file *f = NULL;
    const struct st_tensor *t;
    assert_ok(st_open_dir("datasets/models/code-lm", "model", &f, &err), &err);
    assert_ok(st_require(f, "model.embed_tokens.weight", 2, (int64_t[]){4096, 384}, &t, &err),
              &err);
    ck_assert_int_eq(t->dtype, DT_BF16);
    st_close(&f);
    assert_ok(st_open_dir("datasets/models/video-dit", "diffusion_pytorch_model", &f, &err), &err);
    ck_assert_int_gt(st_count(f), 50);
    st_close(&f);
}
