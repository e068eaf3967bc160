/*
 * npz.c - see npz.h. The directory at the end of a zip archive says where its members are; sizes,
 * checksums and offsets are taken from there. A member's local header is read for its length alone.
 *
 * Formats: PKWARE's APPNOTE 6.3, sections 4.3.7 (local header), 4.3.12 (directory), 4.3.14
 * to 4.3.16 (its end), 4.5.3 (zip64 sizes).
 */
#include "core/npz.h"

#include "core/fileio.h"
#include "core/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

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
    int64_t directory; /* offset: members end before it */
    struct member *members;
    int64_t n, cap;
};

static uint64_t little(const unsigned char *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

/* ---- the end of the archive ----------------------------------------------------------------- */

/* Where the directory is and how many entries it has. */
struct directory {
    int64_t begin, bytes, entries;
};

static int bad(const struct npz *z, const char *what, struct err *err)
{
    return err_set(err, ERR_INPUT, "%s: not a whole .npz (zip) file: %s", z->path, what);
}

/* Offset of the end record: the last one whose comment ends with the file. */
static int find_end(const struct npz *z, int64_t *at, unsigned char end[END_BYTES], struct err *err)
{
    int64_t most = END_BYTES + COMMENT_MAX, n = z->file_size < most ? z->file_size : most;
    unsigned char *tail = NULL;
    int rc = 0;

    TRY(mem_alloc(&tail, n, 1, z->path, err));
    TRY(io_read_at(z->fd, z->path, z->file_size, z->file_size - n, tail, n, err));
    *at = -1;
    for (int64_t i = n - END_BYTES; i >= 0 && *at < 0; i--)
        if (memcmp(tail + i, "PK\5\6", 4) == 0 &&
            i + END_BYTES + (int64_t)little(tail + i + 20, 2) == n) {
            *at = z->file_size - n + i;
            memcpy(end, tail + i, END_BYTES);
        }
    if (*at < 0)
        rc = bad(z, "it has no directory at its end; was it cut short?", err);
out:
    free(tail);
    return rc;
}

/* The end record of zip64, in front of the common one at `at`. */
static int read_end64(const struct npz *z, int64_t at, struct directory *d, struct err *err)
{
    unsigned char locator[LOCATOR_BYTES], end[END64_BYTES];
    int rc = 0;

    if (at < LOCATOR_BYTES + END64_BYTES)
        return bad(z, "its zip64 directory is missing", err);
    TRY(io_read_at(z->fd, z->path, z->file_size, at - LOCATOR_BYTES, locator, LOCATOR_BYTES, err));
    uint64_t where = little(locator + 8, 8);
    if (memcmp(locator, "PK\6\7", 4) != 0 || where > (uint64_t)(at - LOCATOR_BYTES - END64_BYTES)) {
        rc = bad(z, "its zip64 directory is missing", err);
        goto out;
    }
    TRY(io_read_at(z->fd, z->path, z->file_size, (int64_t)where, end, END64_BYTES, err));
    if (memcmp(end, "PK\6\6", 4) != 0 || little(end + 32, 8) > INT64_MAX ||
        little(end + 40, 8) > INT64_MAX || little(end + 48, 8) > INT64_MAX) {
        rc = bad(z, "its zip64 directory is damaged", err);
        goto out;
    }
    *d = (struct directory){(int64_t)little(end + 48, 8), (int64_t)little(end + 40, 8),
                            (int64_t)little(end + 32, 8)};
out:
    return rc;
}

static int find_directory(const struct npz *z, struct directory *d, struct err *err)
{
    unsigned char end[END_BYTES];
    int64_t at, last;
    int rc = 0;

    if (z->file_size < END_BYTES)
        return bad(z, "it is too short", err);
    TRY(find_end(z, &at, end, err));
    if (little(end + 4, 2) != little(end + 6, 2))
        FAIL(err, ERR_INPUT, "%s: a zip archive in several parts is not read", z->path);
    *d = (struct directory){(int64_t)little(end + 16, 4), (int64_t)little(end + 12, 4),
                            (int64_t)little(end + 10, 2)};
    if (d->entries == 0xffff || d->bytes == 0xffffffff || d->begin == 0xffffffff)
        TRY(read_end64(z, at, d, err));
    if (!add_ok(d->begin, d->bytes, &last) || last > at || d->entries > d->bytes / ENTRY_BYTES)
        rc = bad(z, "its directory does not fit the file", err);
    else if (d->entries > MEMBERS_MAX)
        rc = err_set(err, ERR_INPUT, "%s: %lld arrays, at most %d are read", z->path,
                     (long long)d->entries, MEMBERS_MAX);
out:
    return rc;
}

/* ---- the directory -------------------------------------------------------------------------- */

/* Sizes and offset that do not fit 32 bits stand in the extra field of zip64, in this order. */
static bool read_zip64(const unsigned char *extra, int64_t n, uint64_t *size, uint64_t *packed,
                       uint64_t *header)
{
    uint64_t *wanted[] = {size, packed, header};
    bool all = *size != 0xffffffff && *packed != 0xffffffff && *header != 0xffffffff;

    for (int64_t at = 0; !all && at + 4 <= n;) {
        int64_t id = (int64_t)little(extra + at, 2), len = (int64_t)little(extra + at + 2, 2);
        int64_t p = at + 4, stop = p + len;
        if (stop > n)
            return false;
        for (int k = 0; id == 1 && k < 3; k++) {
            if (*wanted[k] != 0xffffffff)
                continue;
            if (p + 8 > stop)
                return false;
            *wanted[k] = little(extra + p, 8);
            p += 8;
        }
        all = id == 1;
        at = stop;
    }
    return all;
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
    if (m->packed > z->file_size || m->header > z->directory - LOCAL_BYTES ||
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
        return bad(z, "its directory is damaged", err);
    int64_t name = (int64_t)little(p + 28, 2), extra = (int64_t)little(p + 30, 2);
    uint64_t packed = little(p + 20, 4), size = little(p + 24, 4), header = little(p + 42, 4);
    *used = ENTRY_BYTES + name + extra + (int64_t)little(p + 32, 2);
    if (*used > n || !read_zip64(p + ENTRY_BYTES + name, extra, &size, &packed, &header) ||
        packed > INT64_MAX || size > INT64_MAX || header > INT64_MAX)
        return bad(z, "its directory is damaged", err);
    if (name < 5 || memcmp(p + ENTRY_BYTES + name - 4, ".npy", 4) != 0)
        return 0;
    if (name - 4 >= NAME_BYTES || memchr(p + ENTRY_BYTES, 0, (size_t)name))
        return bad(z, "a name in its directory is too long or damaged", err);
    memcpy(m.name, p + ENTRY_BYTES, (size_t)name - 4);
    m.method = (int)little(p + 10, 2);
    m.crc = (uint32_t)little(p + 16, 4);
    m.packed = (int64_t)packed;
    m.size = (int64_t)size;
    m.header = (int64_t)header;
    int rc = check_member(z, &m, (int)little(p + 8, 2), err);
    if (!rc)
        rc = mem_grow(&z->members, &z->cap, z->n + 1, sizeof *z->members, z->path, err);
    if (!rc)
        z->members[z->n++] = m;
    return rc;
}

static int read_directory(struct npz *z, struct err *err)
{
    struct directory d = {0};
    unsigned char *p = NULL;
    int64_t at = 0, used = 0;
    int rc = 0;

    TRY(find_directory(z, &d, err));
    z->directory = d.begin;
    TRY(mem_alloc(&p, d.bytes, 1, z->path, err));
    TRY(io_read_at(z->fd, z->path, z->file_size, d.begin, p, d.bytes, err));
    for (int64_t i = 0; i < d.entries; i++, at += used)
        TRY(add_entry(z, p + at, d.bytes - at, &used, err));
out:
    free(p);
    return rc;
}

int npz_open(const char *path, struct npz **out, struct err *err)
{
    struct npz *z = NULL;
    int rc = 0;

    TRY(mem_zalloc(&z, 1, sizeof *z, path, err));
    z->fd = -1;
    if (!(z->path = strdup(path)))
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    TRY(io_open(path, &z->fd, &z->file_size, err));
    TRY(read_directory(z, err));
    *out = z;
    z = NULL;
out:
    npz_close(&z);
    return rc;
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

/* ---- a member ------------------------------------------------------------------------------- */

/* Where the bytes of a member begin. */
static int data_begin(const struct npz *z, const struct member *m, int64_t *begin, struct err *err)
{
    unsigned char local[LOCAL_BYTES];
    int rc = io_read_at(z->fd, z->path, z->file_size, m->header, local, LOCAL_BYTES, err);
    if (rc)
        return rc;
    *begin =
        m->header + LOCAL_BYTES + (int64_t)little(local + 26, 2) + (int64_t)little(local + 28, 2);
    if (memcmp(local, "PK\3\4", 4) != 0 || m->packed > z->directory - *begin)
        return err_set(err, ERR_INPUT, "%s: array '%s' does not begin where the directory says",
                       z->path, m->name);
    return 0;
}

static int check_crc(const struct npz *z, const struct member *m, uint32_t crc, struct err *err)
{
    return crc == m->crc ? 0
                         : err_set(err, ERR_INPUT, "%s: array '%s': its checksum is %08x, not %08x",
                                   z->path, m->name, crc, m->crc);
}

static int check_stored(const struct npz *z, const struct member *m, int64_t begin, struct err *err)
{
    unsigned char *step = NULL;
    uint32_t crc = 0;
    int rc = 0;

    TRY(mem_alloc(&step, STEP, 1, z->path, err));
    for (int64_t at = 0; at < m->size; at += STEP) {
        int64_t n = m->size - at < STEP ? m->size - at : STEP;
        TRY(io_read_at(z->fd, z->path, z->file_size, begin + at, step, n, err));
        crc = (uint32_t)crc32(crc, step, (uInt)n);
    }
    TRY(check_crc(z, m, crc, err));
out:
    free(step);
    return rc;
}

/* Unpack what is in the input buffer of s and append it to fd. `end`: the stream ended. */
static int unpack_step(const struct npz *z, const struct member *m, z_stream *s, int fd,
                       unsigned char *out, int64_t *size, uint32_t *crc, bool *end, struct err *err)
{
    do {
        s->next_out = out;
        s->avail_out = STEP;
        int code = inflate(s, Z_NO_FLUSH);
        int64_t n = STEP - (int64_t)s->avail_out;
        *end = code == Z_STREAM_END;
        *size += n;
        if ((code != Z_OK && code != Z_BUF_ERROR && !*end) || *size > m->size)
            return err_set(err, ERR_INPUT,
                           "%s: array '%s' is damaged: it does not unpack to %lld "
                           "bytes",
                           z->path, m->name, (long long)m->size);
        *crc = (uint32_t)crc32(*crc, out, (uInt)n);
        int rc = io_write(fd, m->name, out, n, err);
        if (rc)
            return rc;
    } while (!*end && s->avail_out == 0);
    return 0;
}

static int unpack(const struct npz *z, const struct member *m, int64_t begin, int fd,
                  struct err *err)
{
    unsigned char *in = NULL, *out = NULL;
    z_stream s = {0};
    int64_t size = 0;
    uint32_t crc = 0;
    bool end = false, ready = false;
    int rc = 0;

    TRY(mem_alloc(&in, STEP, 1, z->path, err));
    TRY(mem_alloc(&out, STEP, 1, z->path, err));
    ready = inflateInit2(&s, -MAX_WBITS) == Z_OK;
    if (!ready)
        FAIL(err, ERR_NOMEM, "%s: out of memory", z->path);
    for (int64_t at = 0; at < m->packed && !end; at += STEP) {
        int64_t n = m->packed - at < STEP ? m->packed - at : STEP;
        TRY(io_read_at(z->fd, z->path, z->file_size, begin + at, in, n, err));
        s.next_in = in;
        s.avail_in = (uInt)n;
        TRY(unpack_step(z, m, &s, fd, out, &size, &crc, &end, err));
    }
    if (!end || size != m->size)
        FAIL(err, ERR_INPUT, "%s: array '%s' is damaged: it unpacks to %lld bytes, not %lld",
             z->path, m->name, (long long)size, (long long)m->size);
    TRY(check_crc(z, m, crc, err));
out:
    if (ready)
        inflateEnd(&s);
    free(in);
    free(out);
    return rc;
}

int npz_array(const struct npz *z, int64_t i, struct npy **out, struct err *err)
{
    const struct member *m = &z->members[i];
    char name[NAME_BYTES + 512];
    int64_t begin;
    int rc = 0, fd = -1;

    snprintf(name, sizeof name, "%.500s: %s", z->path, m->name);
    TRY(data_begin(z, m, &begin, err));
    if (m->method == STORED) {
        TRY(check_stored(z, m, begin, err));
        return npy_open_at(z->fd, name, begin, begin + m->size, out, err);
    }
    fd = memfd_create("lacuna-npz", MFD_CLOEXEC);
    if (fd < 0) {
        rc = err_sys(err, ERR_MACHINE, "%s: memory to unpack it", name);
        goto out;
    }
    TRY(unpack(z, m, begin, fd, err));
    TRY(npy_open_at(fd, name, 0, m->size, out, err));
out:
    if (fd >= 0)
        close(fd);
    return rc;
}
