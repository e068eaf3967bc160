/*
 * npy.c - NumPy .npy arrays (format 1.0, 2.0, 3.0).
 *
 * "\x93NUMPY", two version bytes, the header's length (u16 in 1.0, u32 later, little-endian) and
 * the header: a Python dict literal with exactly the keys descr, fortran_order and shape, padded
 * with spaces and ended by a newline. Only plain numbers are read. The grammar refuses pickled
 * objects, records and sub-arrays; nothing is ever evaluated. The data must end where the file
 * ends, so a file with several arrays is refused and not silently read in part.
 */
#include "core/npy.h"
#include "core/buf.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HEADER_MAX 10000 /* numpy's own limit for untrusted files */

/* ---- the dict literal ----------------------------------------------------------------------- */

struct parser {
    const char *path, *p, *end;
    bool v2_as_bf16;
    struct npy *out;
};

static void skip_space(struct parser *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t'))
        s->p++;
}

/* Skip space and take `c` if it comes next. */
static bool take(struct parser *s, char c)
{
    skip_space(s);
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

/* "found ..." for messages. */
static const char *found(struct parser *s, char text[24])
{
    skip_space(s);
    if (s->p == s->end)
        return "found the end of the header";
    unsigned char c = (unsigned char)*s->p;
    snprintf(text, 24, c > 32 && c < 127 ? "found '%c'" : "found byte 0x%02x", c);
    return text;
}

static int expect(struct parser *s, char c, const char *where, struct err *err)
{
    char text[24], want[4] = {'\'', c, '\''};
    if (take(s, c))
        return 0;
    return err_set(err, ERR_INPUT, "%s: npy header: expected %s %s, %s", s->path,
                   c == '\n' ? "a newline" : want, where, found(s, text));
}

/* A quoted string without escapes into text[32]. */
static int parse_string(struct parser *s, const char *what, char text[32], struct err *err)
{
    char f[24], quote = take(s, '\'') ? '\'' : take(s, '"') ? '"' : 0;
    int n = 0;
    if (!quote)
        return err_set(err, ERR_INPUT, "%s: npy header: %s must be a string, %s", s->path, what,
                       found(s, f));
    while (s->p < s->end && *s->p != quote && *s->p != '\\' && *s->p >= ' ' && n < 31)
        text[n++] = *s->p++;
    text[n] = '\0';
    if (s->p == s->end || *s->p != quote)
        return err_set(err, ERR_INPUT, "%s: npy header: %s is not a plain string: '%s' then %s",
                       s->path, what, text, found(s, f));
    s->p++;
    return 0;
}

static enum dtype descr_type(char kind, char size)
{
    static const struct {
        char code[3];
        enum dtype t;
    } known[] = {{"b1", DT_BOOL}, {"f2", DT_F16}, {"f4", DT_F32}, {"f8", DT_F64},
                 {"i1", DT_I8},   {"i2", DT_I16}, {"i4", DT_I32}, {"i8", DT_I64},
                 {"u1", DT_U8},   {"u2", DT_U16}, {"u4", DT_U32}, {"u8", DT_U64}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code[0] == kind && known[i].code[1] == size)
            return known[i].t;
    return DT_NONE;
}

static int parse_descr(struct parser *s, struct err *err)
{
    char d[32] = "";
    skip_space(s);
    if (s->p < s->end && (*s->p == '[' || *s->p == '('))
        return err_set(
            err, ERR_INPUT,
            "%s: npy descr is a record or sub-array; expected one number type like '<f4'", s->path);
    int rc = parse_string(s, "descr", d, err);
    if (rc)
        return rc;
    if (strchr(d, 'O'))
        return err_set(err, ERR_INPUT, "%s: npy descr '%s': pickled Python objects are not read",
                       s->path, d);
    bool plain = strlen(d) == 3 && strchr("<>|=", d[0]);
    s->out->dtype = plain ? descr_type(d[1], d[2]) : DT_NONE;
    if (!strcmp(d, "<V2") || !strcmp(d, "|V2")) {
        if (!s->v2_as_bf16)
            return err_set(err, ERR_INPUT,
                           "%s: npy descr '%s' is two raw bytes; to be read as bfloat16 this must "
                           "be asked for",
                           s->path, d);
        s->out->dtype = DT_BF16;
    }
    if (s->out->dtype == DT_NONE)
        return err_set(err, ERR_INPUT,
                       "%s: npy descr '%s': expected one of < > | = and then b1, f2, f4, f8, i1, "
                       "i2, i4, i8, u1, u2, u4 or u8",
                       s->path, d);
    s->out->swap = d[0] == '>' && dtype_size(s->out->dtype) > 1;
    return 0;
}

static int parse_bool(struct parser *s, struct err *err)
{
    skip_space(s);
    size_t left = (size_t)(s->end - s->p);
    bool yes = left >= 4 && !memcmp(s->p, "True", 4), no = left >= 5 && !memcmp(s->p, "False", 5);
    const char *end = s->p + (yes ? 4 : no ? 5 : 0);
    if ((!yes && !no) || (end < s->end && *end != ',' && *end != ' ' && *end != '}'))
        return err_set(err, ERR_INPUT, "%s: npy fortran_order must be True or False", s->path);
    s->p = end;
    s->out->fortran = yes;
    return 0;
}

/* A Python integer literal: decimal digits, an old file's L behind them. */
static int parse_dim(struct parser *s, int64_t *out, struct err *err)
{
    char text[24];
    int64_t x = 0;
    bool fits = true;
    skip_space(s);
    const char *start = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') {
        fits = fits && mul_ok(x, 10, &x) && add_ok(x, *s->p - '0', &x);
        s->p++;
    }
    if (s->p == start)
        return err_set(err, ERR_INPUT, "%s: npy shape must be non-negative integers, %s", s->path,
                       found(s, text));
    if (s->p - start > 1 && *start == '0')
        return err_set(err, ERR_INPUT, "%s: npy shape has a number with leading zeros", s->path);
    if (!fits)
        return err_set(err, ERR_INPUT, "%s: npy shape: a dimension is beyond 64 bits", s->path);
    if (s->p < s->end && *s->p == 'L')
        s->p++;
    *out = x;
    return 0;
}

static int parse_shape(struct parser *s, struct err *err)
{
    int rc = expect(s, '(', "before the shape", err);
    struct npy *a = s->out;
    bool comma = true;
    while (!rc && !take(s, ')')) {
        if (!comma)
            return expect(s, ',', "or ')' in the shape", err);
        if (a->ndim == NPY_MAX_DIMS)
            return err_set(err, ERR_INPUT, "%s: npy shape has more than %d dimensions", s->path,
                           NPY_MAX_DIMS);
        rc = parse_dim(s, &a->shape[a->ndim], err);
        a->ndim++;
        comma = take(s, ',');
    }
    if (!rc && a->ndim == 1 && !comma)
        return err_set(err, ERR_INPUT,
                       "%s: npy shape (%lld) is a number, not a tuple: expected (%lld,)", s->path,
                       (long long)a->shape[0], (long long)a->shape[0]);
    return rc;
}

static int parse_pair(struct parser *s, unsigned *seen, struct err *err)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[32];
    int rc = parse_string(s, "a key", key, err), k = 0;
    if (rc)
        return rc;
    while (k < 3 && strcmp(key, keys[k]) != 0)
        k++;
    if (k == 3)
        return err_set(err, ERR_INPUT,
                       "%s: npy header has the unknown key '%s'; expected descr, fortran_order, "
                       "shape",
                       s->path, key);
    if (*seen & 1u << k)
        return err_set(err, ERR_INPUT, "%s: npy header has the key '%s' twice", s->path, key);
    *seen |= 1u << k;
    rc = expect(s, ':', "after a key", err);
    if (rc)
        return rc;
    return k == 0 ? parse_descr(s, err) : k == 1 ? parse_bool(s, err) : parse_shape(s, err);
}

static int parse_dict(struct parser *s, struct err *err)
{
    int rc = 0;
    unsigned seen = 0;
    bool comma = true;

    TRY(expect(s, '{', "at its beginning", err));
    while (!take(s, '}')) {
        if (!comma)
            TRY(expect(s, ',', "or '}' between keys", err));
        TRY(parse_pair(s, &seen, err));
        comma = take(s, ',');
    }
    for (int k = 0; k < 3; k++)
        if (!(seen & 1u << k))
            FAIL(err, ERR_INPUT, "%s: npy header lacks the key '%s'", s->path,
                 k == 0   ? "descr"
                 : k == 1 ? "fortran_order"
                          : "shape");
    while (s->p < s->end && *s->p == ' ')
        s->p++;
    TRY(expect(s, '\n', "after the dict and its padding", err));
    if (s->p != s->end)
        FAIL(err, ERR_INPUT, "%s: npy header goes on after its newline", s->path);
out:
    return rc;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Magic, version and length of the header: *start and *len from the array's begin at `base`. */
static int read_prefix(const struct npy *a, int64_t base, int64_t *start, int64_t *len,
                       struct err *err)
{
    unsigned char b[12] = {0};
    int64_t size = a->file_size - base;
    int rc;
    if (size < 10)
        return err_set(err, ERR_INPUT, "%s: %lld bytes are too few for an npy file", a->path,
                       (long long)size);
    rc = io_read_at(a->fd, a->path, a->file_size, base, b, size < 12 ? 10 : 12, err);
    if (rc)
        return rc;
    if (memcmp(b, "\x93NUMPY", 6) != 0)
        return err_set(err, ERR_INPUT, "%s: not an npy file (it does not begin with \\x93NUMPY)",
                       a->path);
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        return err_set(err, ERR_INPUT, "%s: npy version %u.%u; expected 1.0, 2.0 or 3.0", a->path,
                       b[6], b[7]);
    *start = b[6] == 1 ? 10 : 12;
    *len = b[8] | b[9] << 8;
    if (b[6] > 1)
        *len |= (int64_t)b[10] << 16 | (int64_t)b[11] << 24;
    if (*len > HEADER_MAX)
        return err_set(err, ERR_INPUT, "%s: npy header of %lld bytes, at most %d are read", a->path,
                       (long long)*len, HEADER_MAX);
    if (*start + *len > size)
        return err_set(err, ERR_INPUT,
                       "%s: npy header of %lld bytes goes past the end of the file (%lld bytes)",
                       a->path, (long long)*len, (long long)size);
    return 0;
}

/* Elements of the shape, and that the data fills the rest of the file exactly. */
static int check_size(struct npy *a, int64_t size, struct err *err)
{
    int64_t bytes;
    a->count = 1;
    for (int i = 0; i < a->ndim; i++)
        if (!mul_ok(a->count, a->shape[i], &a->count))
            return err_set(err, ERR_INPUT, "%s: the product of the npy shape overflows 64 bits",
                           a->path);
    if (!mul_ok(a->count, (int64_t)dtype_size(a->dtype), &bytes))
        return err_set(err, ERR_INPUT, "%s: the size of the npy data overflows 64 bits", a->path);
    if (bytes != size - a->data_offset)
        return err_set(err, ERR_INPUT,
                       "%s: %lld elements of %s need %lld bytes of data, the file has %lld (%s)",
                       a->path, (long long)a->count, dtype_name(a->dtype), (long long)bytes,
                       (long long)(size - a->data_offset),
                       bytes > size - a->data_offset ? "it was cut short"
                                                     : "extra bytes at its end");
    return 0;
}

/* What begins at `base` and ends with the file. */
static int open_header(struct npy *a, int64_t base, bool v2_as_bf16, struct err *err)
{
    char *header = NULL;
    int64_t start = 0, len = 0;
    int rc = 0;

    TRY(read_prefix(a, base, &start, &len, err));
    TRY(mem_alloc(&header, len, 1, a->path, err));
    TRY(io_read_at(a->fd, a->path, a->file_size, base + start, header, len, err));
    struct parser s = {a->path, header, header + len, v2_as_bf16, a};
    TRY(parse_dict(&s, err));
    a->data_offset = base + start + len;
    TRY(check_size(a, a->file_size, err));
out:
    free(header);
    return rc;
}

static int new_npy(const char *path, struct npy **out, struct err *err)
{
    int rc = mem_zalloc(out, 1, sizeof **out, path, err);
    if (rc)
        return rc;
    (*out)->fd = -1;
    (*out)->path = strdup(path);
    return (*out)->path ? 0 : err_set(err, ERR_NOMEM, "%s: out of memory", path);
}

int npy_open(const char *path, bool v2_as_bf16, struct npy **out, struct err *err)
{
    int rc = 0;
    struct npy *a = NULL;

    TRY(new_npy(path, &a, err));
    TRY(io_open(path, &a->fd, &a->file_size, err));
    TRY(open_header(a, 0, v2_as_bf16, err));
    *out = a;
    a = NULL;
out:
    npy_close(&a);
    return rc;
}

int npy_open_at(int fd, const char *name, int64_t begin, int64_t end, struct npy **out,
                struct err *err)
{
    int rc = 0;
    struct npy *a = NULL;

    TRY(new_npy(name, &a, err));
    a->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (a->fd < 0) {
        rc = err_sys(err, ERR_IO, "%s", name);
        goto out;
    }
    a->file_size = end;
    TRY(open_header(a, begin, false, err));
    *out = a;
    a = NULL;
out:
    npy_close(&a);
    return rc;
}

void npy_close(struct npy **pa)
{
    struct npy *a = *pa;
    if (!a)
        return;
    if (a->fd >= 0)
        close(a->fd);
    free(a->path);
    free(a);
    *pa = NULL;
}

/* ---- writing -------------------------------------------------------------------------------- */

static const char *type_descr(enum dtype t)
{
    static const char *const descr[DT_COUNT] = {
        [DT_F32] = "<f4", [DT_BF16] = "<V2", [DT_F16] = "<f2", [DT_F64] = "<f8", [DT_I8] = "|i1",
        [DT_U8] = "|u1",  [DT_I16] = "<i2",  [DT_U16] = "<u2", [DT_I32] = "<i4", [DT_U32] = "<u4",
        [DT_I64] = "<i8", [DT_U64] = "<u8",  [DT_BOOL] = "|b1"};
    return (unsigned)t < DT_COUNT ? descr[t] : NULL;
}

/* Version 1.0 header, padded so that the data begins at a multiple of 64. */
static void put_header(struct buf *b, const char *descr, int ndim, const int64_t *shape)
{
    buf_put(b, "\x93NUMPY\1\0\0\0", 10);
    buf_printf(b, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < ndim; i++)
        buf_printf(b, "%s%lld%s", i ? ", " : "", (long long)shape[i], ndim == 1 ? "," : "");
    buf_puts(b, "), }");
    while ((b->len + 1) % 64 && !b->failed)
        buf_puts(b, " ");
    buf_puts(b, "\n");
    if (!b->failed) {
        b->data[8] = (char)((b->len - 10) & 0xff);
        b->data[9] = (char)((b->len - 10) >> 8);
    }
}

int npy_write(const char *path, enum dtype t, int ndim, const int64_t *shape, const void *data,
              struct err *err)
{
    int rc = 0;
    struct buf header = {0};
    struct io_part part = {0};
    int64_t bytes = (int64_t)dtype_size(t);
    bool ok = type_descr(t) && ndim >= 0 && ndim <= NPY_MAX_DIMS;

    for (int i = 0; ok && i < ndim; i++)
        ok = mul_ok(bytes, shape[i], &bytes);
    if (!ok)
        return err_set(err, ERR_RUN, "%s: npy array has no valid type or shape", path);
    put_header(&header, type_descr(t), ndim, shape);
    TRY(buf_check(&header, path, err));
    TRY(io_part_open(&part, path, err));
    TRY(io_write(part.fd, path, header.data, (int64_t)header.len, err));
    TRY(io_write(part.fd, path, data, bytes, err));
out:
    rc = io_part_close(&part, rc, err);
    buf_free(&header);
    return rc;
}
