/*
 * npy.c - NumPy .npy arrays (format 1.0, 2.0, 3.0), and .npz archives of them.
 *
 * "\x93NUMPY", two version bytes, the header's length (u16 in 1.0, u32 later, little-endian) and
 * the header: a Python dict literal with exactly the keys descr, fortran_order and shape, padded
 * with spaces and ended by a newline. Only plain numbers are read: pickled objects, records and
 * sub-arrays are refused, and nothing is ever evaluated. The data must end where the file
 * ends, so a file with several arrays is refused and not silently read in part.
 *
 * A stored member of an archive is read where it lies; a deflated one is unpacked into memory.
 */
#include "core/npy.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/intmath.h"
#include "core/json.h"
#include "core/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#define HEADER_MAX 10000 /* numpy's own limit for untrusted files */

/* ---- header --------------------------------------------------------------------------------- */

/* The dict literal as JSON: quotes, brackets, truth values, no comma before a closing bracket, no L
 * of old integers. */
static void put_json(const char *text, int64_t n, struct buf *b)
{
    bool quoted = false;
    for (const char *p = text, *end = text + n; p < end; p++) {
        char c = *p == '\'' ? '"' : *p;
        const char *next = p + 1;
        quoted ^= c == '"';
        if (!quoted && c == ',') {
            while (next < end && *next == ' ')
                next++;
            c = next < end && strchr(")]}", *next) ? ' ' : c;
        } else if (!quoted) {
            c = c == '(' ? '[' : c == ')' ? ']' : c == 'T' || c == 'F' ? (char)(c | 32) : c;
            c = c == 'L' && p > text && p[-1] >= '0' && p[-1] <= '9' ? ' ' : c;
        }
        buf_put(b, &c, 1);
    }
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

static int read_descr(struct npy *a, const json_t *v, bool v2_as_bf16, struct err *err)
{
    const char *d = json_string_value(v);
    if (!d)
        return err_set(
            err, ERR_INPUT,
            "%s: npy descr is a record or sub-array; expected one number type like '<f4'", a->path);
    if (strchr(d, 'O'))
        return err_set(err, ERR_INPUT, "%s: npy descr '%.40s': pickled Python objects are not read",
                       a->path, d);
    bool plain = strlen(d) == 3 && strchr("<>|=", d[0]);
    a->dtype = plain ? descr_type(d[1], d[2]) : DT_NONE;
    if (!strcmp(d, "<V2") || !strcmp(d, "|V2")) {
        if (!v2_as_bf16)
            return err_set(err, ERR_INPUT,
                           "%s: npy descr '%s' is two raw bytes; to be read as bfloat16 this must "
                           "be asked for",
                           a->path, d);
        a->dtype = DT_BF16;
    }
    if (a->dtype == DT_NONE)
        return err_set(err, ERR_INPUT,
                       "%s: npy descr '%.40s': expected one of < > | = and then b1, f2, f4, f8, "
                       "i1, i2, i4, i8, u1, u2, u4 or u8",
                       a->path, d);
    a->swap = d[0] == '>' && dtype_size(a->dtype) > 1;
    return 0;
}

static int read_shape(struct npy *a, const json_t *shape, struct err *err)
{
    if (json_array_size(shape) > NPY_MAX_DIMS)
        return err_set(err, ERR_INPUT, "%s: npy shape has more than %d dimensions", a->path,
                       NPY_MAX_DIMS);
    a->ndim = (int)json_array_size(shape);
    for (int i = 0; i < a->ndim; i++) {
        const json_t *n = json_array_get(shape, (size_t)i);
        a->shape[i] = json_integer_value(n);
        if (!json_is_integer(n) || a->shape[i] < 0)
            return err_set(err, ERR_INPUT, "%s: npy shape must be non-negative integers", a->path);
    }
    return 0;
}

static int read_dict(struct npy *a, const char *text, int64_t n, bool v2_as_bf16, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    json_error_t why;
    OWN(json_decrefp) json_t *o = NULL;
    put_json(text, n, &b);
    PASS_ON(buf_check(&b, a->path, err));
    o = json_loadb(buf_str(&b), b.len, JSON_REJECT_DUPLICATES, &why);
    PASS_ON(mem_check_short(err));
    const json_t *descr = json_object_get(o, "descr"), *shape = json_object_get(o, "shape");
    const json_t *fortran = json_object_get(o, "fortran_order");
    if (!o || !descr || !json_is_boolean(fortran) || !json_is_array(shape) ||
        json_object_size(o) != 3)
        return err_set(
            err, ERR_INPUT,
            "%s: the npy header is not {'descr': TYPE, 'fortran_order': True or False, 'shape': "
            "(N, ...)}: %s",
            a->path, o ? "a key is missing, of another type or unknown" : why.text);
    a->fortran = json_is_true(fortran);
    PASS_ON(read_descr(a, descr, v2_as_bf16, err));
    return read_shape(a, shape, err);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Magic, version and length of the header: *start and *len from the array's begin at `base`. */
static int read_prefix(const struct npy *a, int64_t base, int64_t *start, int64_t *len,
                       struct err *err)
{
    unsigned char b[12] = {0};
    int64_t size = a->file_size - base;
    if (size < 10)
        return err_set(err, ERR_INPUT, "%s: %lld bytes are too few for an npy file", a->path,
                       (long long)size);
    PASS_ON(io_read_at(a->fd, a->path, a->file_size, base, b, size < 12 ? 10 : 12, err));
    if (memcmp(b, "\x93NUMPY", 6) != 0)
        return err_set(err, ERR_INPUT, "%s: not an npy file (it does not begin with \\x93NUMPY)",
                       a->path);
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        return err_set(err, ERR_INPUT, "%s: npy version %u.%u; expected 1.0, 2.0 or 3.0", a->path,
                       b[6], b[7]);
    *start = b[6] == 1 ? 10 : 12;
    *len = (int64_t)little_endian(b + 8, *start - 8);
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
    OWN(free_at) char *header = NULL;
    int64_t start = 0, len = 0;
    PASS_ON(read_prefix(a, base, &start, &len, err));
    PASS_ON(mem_alloc(&header, len, 1, a->path, err));
    PASS_ON(io_read_at(a->fd, a->path, a->file_size, base + start, header, len, err));
    PASS_ON(read_dict(a, header, len, v2_as_bf16, err));
    a->data_offset = base + start + len;
    return check_size(a, a->file_size, err);
}

/* The array in the bytes [begin, end) of fd, which is the array's from here on. */
static int open_fd(int fd, const char *name, int64_t begin, int64_t end, bool v2_as_bf16,
                   struct npy **out, struct err *err)
{
    int rc = 0;
    struct npy *a = NULL;
    TRY(mem_zalloc(&a, 1, sizeof *a, name, err));
    a->fd = fd;
    fd = -1;
    a->file_size = end;
    TRY(mem_dup(&a->path, name, name, err));
    TRY(open_header(a, begin, v2_as_bf16, err));
    *out = HAND_OVER(a);
out:
    npy_close(&a);
    if (fd >= 0)
        close(fd);
    return rc;
}

int npy_open(const char *path, bool v2_as_bf16, struct npy **out, struct err *err)
{
    int fd;
    int64_t size;
    PASS_ON(io_open(path, &fd, &size, err));
    return open_fd(fd, path, 0, size, v2_as_bf16, out, err);
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

/* ---- elements ------------------------------------------------------------------------------- */

enum { CHUNK = 1 << 16 }; /* elements converted at a time */

static int read_stored(const struct npy *a, int64_t first, int64_t count, void *dst,
                       struct err *err)
{
    int64_t size = (int64_t)dtype_size(a->dtype);
    unsigned char *p = dst;
    int rc = io_read_at(a->fd, a->path, a->file_size, a->data_offset + first * size, dst,
                        count * size, err);
    if (rc || !a->swap)
        return rc;
    for (int64_t i = 0; i < count; i++, p += size)
        for (int64_t low = 0, high = size - 1; low < high; low++, high--) {
            unsigned char t = p[low];
            p[low] = p[high];
            p[high] = t;
        }
    return 0;
}

/* Elements in the order in which they are stored. */
static int read_floats(const struct npy *a, int64_t first, int64_t count, float *dst,
                       struct err *err)
{
    OWN(free_at) char *raw = NULL;
    if (dtype_to_f32(a->dtype, NULL, dst, 0) != 0)
        return err_set(err, ERR_INPUT, "%s: npy elements of type %s cannot be read as float32",
                       a->path, dtype_name(a->dtype));
    PASS_ON(mem_alloc(&raw, MIN(count, CHUNK), dtype_size(a->dtype), a->path, err));
    for (int64_t i = 0; i < count; i += CHUNK) {
        int64_t n = MIN(count - i, CHUNK);
        PASS_ON(read_stored(a, first + i, n, raw, err));
        dtype_to_f32(a->dtype, raw, dst + i, n);
    }
    return 0;
}

static int check_range(const struct npy *a, int64_t first, int64_t count, struct err *err)
{
    if (a->fortran)
        return err_set(err, ERR_INPUT,
                       "%s: the array is stored in column-major (Fortran) order; save "
                       "np.ascontiguousarray of it",
                       a->path);
    if (first < 0 || count < 0 || first > a->count - count)
        return err_set(err, ERR_RUN, "%s: elements %lld..%lld of %lld", a->path, (long long)first,
                       (long long)(first + count), (long long)a->count);
    return 0;
}

int npy_read_range(const struct npy *a, int64_t first, int64_t count, void *dst, struct err *err)
{
    PASS_ON(check_range(a, first, count, err));
    return read_stored(a, first, count, dst, err);
}

int npy_read_range_f32(const struct npy *a, int64_t first, int64_t count, float *dst,
                       struct err *err)
{
    PASS_ON(check_range(a, first, count, err));
    return read_floats(a, first, count, dst, err);
}

/* Position of a walk through an array in column-major order, with its place in row-major order. */
struct walk {
    int64_t index[NPY_MAX_DIMS], stride[NPY_MAX_DIMS], at;
};

static void walk_next(struct walk *w, const struct npy *a)
{
    for (int i = 0; i < a->ndim; i++) {
        w->at += w->stride[i];
        if (++w->index[i] < a->shape[i])
            return;
        w->at -= w->stride[i] * a->shape[i];
        w->index[i] = 0;
    }
}

int npy_read_f32(const struct npy *a, float *dst, struct err *err)
{
    OWN(free_at) float *x = NULL;
    struct walk w = {0};
    if (!a->fortran)
        return read_floats(a, 0, a->count, dst, err);
    PASS_ON(mem_alloc(&x, MIN(a->count, CHUNK), sizeof *x, a->path, err));
    /* Without a zero among them all products are at most a->count. */
    for (int64_t i = a->ndim - 1, stride = 1; i >= 0 && a->count > 0; stride *= a->shape[i--])
        w.stride[i] = stride;
    for (int64_t i = 0; i < a->count; i += CHUNK) {
        int64_t n = MIN(a->count - i, CHUNK);
        PASS_ON(read_floats(a, i, n, x, err));
        for (int64_t k = 0; k < n; k++, walk_next(&w, a))
            dst[w.at] = x[k];
    }
    return 0;
}

/* ---- archives: .npz --------------------------------------------------------------------------
 *
 * The directory at the end of a zip archive says where its members are; sizes, checksums and
 * offsets are taken from there. A member's local header is read for its length alone. Formats:
 * PKWARE's APPNOTE 6.3, sections 4.3.7 (local header), 4.3.12 (directory), 4.3.14 to 4.3.16 (its
 * end), 4.5.3 (zip64 sizes). */

#define END_BYTES 22
#define END64_BYTES 56
#define LOCATOR_BYTES 20
#define ENTRY_BYTES 46
#define LOCAL_BYTES 30
#define COMMENT_MAX 65535
#define MEMBERS_MAX 10000
#define NAME_BYTES 256
#define RATIO_MAX 1032 /* deflate cannot pack better */

enum { STORED = 0, DEFLATED = 8 };
enum { STEP = 1 << 18 }; /* bytes that are read and unpacked at a time */

struct member {
    char name[NAME_BYTES]; /* without ".npy" */
    int method;
    uint32_t crc;
    int64_t packed, size, header; /* bytes stored, bytes of the array, offset of the local header */
};

struct npz {
    char *path;
    int fd;
    int64_t file_size;
    int64_t begin, bytes, entries; /* of the directory; members end before it */
    struct member *members;
    int64_t n, cap;
};

static int bad_zip(const struct npz *z, const char *what, struct err *err)
{
    return err_set(err, ERR_INPUT, "%s: not a whole .npz (zip) file: %s", z->path, what);
}

/* The end record of zip64, in front of the common one at `at`. */
static int read_end64(struct npz *z, int64_t at, struct err *err)
{
    unsigned char locator[LOCATOR_BYTES] = {0}, end[END64_BYTES] = {0};
    int64_t most = at - LOCATOR_BYTES - END64_BYTES;
    if (most >= 0)
        PASS_ON(io_read_at(z->fd, z->path, z->file_size, at - LOCATOR_BYTES, locator, LOCATOR_BYTES,
                           err));
    uint64_t where = little_endian(locator + 8, 8);
    if (memcmp(locator, "PK\6\7", 4) != 0 || where > (uint64_t)most)
        return bad_zip(z, "its zip64 directory is missing", err);
    PASS_ON(io_read_at(z->fd, z->path, z->file_size, (int64_t)where, end, END64_BYTES, err));
    z->entries = (int64_t)little_endian(end + 32, 8);
    z->bytes = (int64_t)little_endian(end + 40, 8);
    z->begin = (int64_t)little_endian(end + 48, 8);
    if (memcmp(end, "PK\6\6", 4) != 0)
        return bad_zip(z, "its zip64 directory is damaged", err);
    return 0;
}

/* By the end record: the last one whose comment ends with the file. */
static int find_directory(struct npz *z, struct err *err)
{
    int64_t n = MIN(z->file_size, END_BYTES + COMMENT_MAX), i = n - END_BYTES, last;
    OWN(free_at) unsigned char *tail = NULL;
    PASS_ON(mem_alloc(&tail, n, 1, z->path, err));
    PASS_ON(io_read_at(z->fd, z->path, z->file_size, z->file_size - n, tail, n, err));
    while (i >= 0 && (memcmp(tail + i, "PK\5\6", 4) != 0 ||
                      i + END_BYTES + (int64_t)little_endian(tail + i + 20, 2) != n))
        i--;
    if (i < 0)
        return bad_zip(z, "it has no directory at its end; was it cut short?", err);
    if (memcmp(tail + i + 4, tail + i + 6, 2) != 0)
        return err_set(err, ERR_INPUT, "%s: a zip archive in several parts is not read", z->path);
    z->entries = (int64_t)little_endian(tail + i + 10, 2);
    z->bytes = (int64_t)little_endian(tail + i + 12, 4);
    z->begin = (int64_t)little_endian(tail + i + 16, 4);
    int64_t at = z->file_size - n + i;
    if (z->entries == 0xffff || z->bytes == 0xffffffff || z->begin == 0xffffffff)
        PASS_ON(read_end64(z, at, err));
    if (MIN(z->begin, MIN(z->bytes, z->entries)) < 0 || !add_ok(z->begin, z->bytes, &last) ||
        last > at || z->entries > z->bytes / ENTRY_BYTES)
        return bad_zip(z, "its directory does not fit the file", err);
    if (z->entries > MEMBERS_MAX)
        return err_set(err, ERR_INPUT, "%s: %lld arrays, at most %d are read", z->path,
                       (long long)z->entries, MEMBERS_MAX);
    return 0;
}

/* Sizes and offset that do not fit 32 bits stand in the extra field of zip64, in this order. */
static bool read_zip64(const unsigned char *extra, int64_t n, int64_t *wanted[3])
{
    bool all = *wanted[0] != 0xffffffff && *wanted[1] != 0xffffffff && *wanted[2] != 0xffffffff;
    for (int64_t at = 0, stop; !all && at + 4 <= n; at = stop) {
        int64_t id = (int64_t)little_endian(extra + at, 2), p = at + 4;
        stop = p + (int64_t)little_endian(extra + at + 2, 2);
        if (stop > n)
            return false;
        for (int k = 0; id == 1 && k < 3; k++) {
            if (*wanted[k] != 0xffffffff)
                continue;
            if (p + 8 > stop)
                return false;
            *wanted[k] = (int64_t)little_endian(extra + p, 8);
            p += 8;
        }
        all = id == 1;
    }
    return all && MIN(*wanted[0], MIN(*wanted[1], *wanted[2])) >= 0;
}

static int check_member(const struct npz *z, const struct member *m, int flags, struct err *err)
{
    int64_t most;
    if (flags & 1)
        return err_set(err, ERR_INPUT, "%s: array '%s' is encrypted", z->path, m->name);
    if (m->method != STORED && m->method != DEFLATED)
        return err_set(err, ERR_INPUT,
                       "%s: array '%s' is packed by method %d; np.savez and np.savez_compressed "
                       "write 0 and 8",
                       z->path, m->name, m->method);
    if (m->packed > z->file_size || m->header > z->begin - LOCAL_BYTES ||
        (m->method == STORED && m->packed != m->size) || !mul_ok(m->packed, RATIO_MAX, &most) ||
        m->size > most + RATIO_MAX)
        return err_set(err, ERR_INPUT, "%s: array '%s': its size and place do not fit the file",
                       z->path, m->name);
    for (int64_t i = 0; i < z->n; i++)
        if (strcmp(z->members[i].name, m->name) == 0)
            return err_set(err, ERR_INPUT, "%s: array '%s' occurs twice", z->path, m->name);
    return 0;
}

/* One entry of `n` bytes or fewer; *used is its length. Members that are no .npy are left out. */
static int add_entry(struct npz *z, const unsigned char *p, int64_t n, int64_t *used,
                     struct err *err)
{
    struct member m = {0};
    if (n < ENTRY_BYTES || memcmp(p, "PK\1\2", 4) != 0)
        return bad_zip(z, "its directory is damaged", err);
    int64_t name = (int64_t)little_endian(p + 28, 2), extra = (int64_t)little_endian(p + 30, 2);
    m.method = (int)little_endian(p + 10, 2);
    m.crc = (uint32_t)little_endian(p + 16, 4);
    m.packed = (int64_t)little_endian(p + 20, 4);
    m.size = (int64_t)little_endian(p + 24, 4);
    m.header = (int64_t)little_endian(p + 42, 4);
    *used = ENTRY_BYTES + name + extra + (int64_t)little_endian(p + 32, 2);
    if (*used > n ||
        !read_zip64(p + ENTRY_BYTES + name, extra, (int64_t *[]){&m.size, &m.packed, &m.header}))
        return bad_zip(z, "its directory is damaged", err);
    p += ENTRY_BYTES;
    if (name < 5 || memcmp(p + name - 4, ".npy", 4) != 0)
        return 0;
    if (name - 4 >= NAME_BYTES || memchr(p, 0, (size_t)name))
        return bad_zip(z, "a name in its directory is too long or damaged", err);
    memcpy(m.name, p, (size_t)name - 4);
    PASS_ON(check_member(z, &m, p[8 - ENTRY_BYTES], err));
    PASS_ON(mem_grow(&z->members, &z->cap, z->n + 1, sizeof m, z->path, err));
    z->members[z->n++] = m;
    return 0;
}

int npz_open(const char *path, struct npz **out, struct err *err)
{
    OWN(npz_close) struct npz *z = NULL;
    OWN(free_at) unsigned char *p = NULL;
    int64_t at = 0, used = 0;
    PASS_ON(mem_zalloc(&z, 1, sizeof *z, path, err));
    z->fd = -1;
    PASS_ON(mem_dup(&z->path, path, path, err));
    PASS_ON(io_open(path, &z->fd, &z->file_size, err));
    PASS_ON(find_directory(z, err));
    PASS_ON(mem_alloc(&p, z->bytes, 1, path, err));
    PASS_ON(io_read_at(z->fd, path, z->file_size, z->begin, p, z->bytes, err));
    for (int64_t i = 0; i < z->entries; i++, at += used)
        PASS_ON(add_entry(z, p + at, z->bytes - at, &used, err));
    *out = HAND_OVER(z);
    return 0;
}

void npz_close(struct npz **pz)
{
    struct npz *z = *pz;
    if (!z)
        return;
    if (z->fd >= 0)
        close(z->fd);
    free(z->members);
    free(z->path);
    free(z);
    *pz = NULL;
}

int64_t npz_count(const struct npz *z)
{
    return z->n;
}

const char *npz_name(const struct npz *z, int64_t i)
{
    return z->members[i].name;
}

static int bad_size(const struct npz *z, const struct member *m, struct err *err)
{
    return err_set(err, ERR_INPUT, "%s: array '%s' is damaged: it does not unpack to %lld bytes",
                   z->path, m->name, (long long)m->size);
}

/* What a member unpacks to. */
struct unpacked {
    int fd; /* what is deflated is appended to it */
    int64_t size;
    uint32_t crc;
};

/* The next bytes of a member. */
static int take_bytes(const struct npz *z, const struct member *m, struct unpacked *u,
                      const void *bytes, int64_t n, struct err *err)
{
    u->size += n;
    u->crc = (uint32_t)crc32(u->crc, bytes, (uInt)n);
    if (u->size > m->size)
        return bad_size(z, m, err);
    return m->method == DEFLATED ? io_write(u->fd, m->name, bytes, n, err) : 0;
}

/* Read a member as a whole and compare size and checksum. */
static int read_member(const struct npz *z, const struct member *m, int64_t begin, int fd,
                       struct err *err)
{
    struct unpacked u = {.fd = fd};
    OWN(free_at) unsigned char *in = NULL, *out = NULL;
    OWN(inflateEnd) z_stream s = {0};
    int code = Z_OK;
    if (inflateInit2(&s, -MAX_WBITS) != Z_OK)
        return err_set(err, ERR_NOMEM, "%s: out of memory", z->path);
    PASS_ON(mem_alloc(&in, STEP, 1, z->path, err));
    PASS_ON(mem_alloc(&out, STEP, 1, z->path, err));
    for (int64_t at = 0; at < m->packed && code == Z_OK; at += STEP) {
        int64_t n = MIN(m->packed - at, STEP);
        PASS_ON(io_read_at(z->fd, z->path, z->file_size, begin + at, in, n, err));
        if (m->method == STORED)
            PASS_ON(take_bytes(z, m, &u, in, n, err));
        s.next_in = in;
        s.avail_in = (uInt)n;
        while (m->method == DEFLATED) {
            s.next_out = out;
            s.avail_out = STEP;
            code = inflate(&s, Z_NO_FLUSH);
            PASS_ON(take_bytes(z, m, &u, out, STEP - (int64_t)s.avail_out, err));
            if (code != Z_OK || s.avail_out > 0)
                break;
        }
        code = code == Z_BUF_ERROR ? Z_OK : code; /* it waits for more */
    }
    if (u.size != m->size || (code != Z_STREAM_END && m->method == DEFLATED))
        PASS_ON(bad_size(z, m, err));
    if (u.crc != m->crc)
        return err_set(err, ERR_INPUT, "%s: array '%s': its checksum is %08x, not %08x", z->path,
                       m->name, u.crc, m->crc);
    return 0;
}

int npz_array(const struct npz *z, int64_t i, struct npy **out, struct err *err)
{
    const struct member *m = &z->members[i];
    unsigned char local[LOCAL_BYTES];
    char name[NAME_BYTES + 512];
    int rc = 0, fd = -1;
    snprintf(name, sizeof name, "%.500s: %s", z->path, m->name);
    TRY(io_read_at(z->fd, z->path, z->file_size, m->header, local, LOCAL_BYTES, err));
    int64_t begin = m->header + LOCAL_BYTES + (int64_t)little_endian(local + 26, 2) +
                    (int64_t)little_endian(local + 28, 2);
    if (memcmp(local, "PK\3\4", 4) != 0 || m->packed > z->begin - begin)
        FAIL(err, ERR_INPUT, "%s: array '%s' does not begin where the directory says", z->path,
             m->name);
    fd = m->method == STORED ? fcntl(z->fd, F_DUPFD_CLOEXEC, 0)
                             : memfd_create("lacuna-npz", MFD_CLOEXEC);
    if (fd < 0) {
        rc = err_sys(err, ERR_MACHINE, "%s: %s", name,
                     m->method == STORED ? "open" : "memory to unpack it");
        goto out;
    }
    TRY(read_member(z, m, begin, fd, err));
    begin = m->method == STORED ? begin : 0;
    return open_fd(fd, name, begin, begin + m->size, false, out, err);
out:
    if (fd >= 0)
        close(fd);
    return rc;
}
