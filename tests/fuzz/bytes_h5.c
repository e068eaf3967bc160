/*
 * bytes_h5.c - where the metadata and the checksums of a file are, and changes of them.
 *
 * Checksums are found in a seed without any knowledge of its structures: behind each signature the
 * first length counts whose bytes have the checksum that follows them. Metadata are the bytes that
 * the guard shows to libhdf5.
 */
#include "tests/fuzz/bytes_h5.h"

#include "tests/fuzz/mutate_h5.h"
#include "tests/harness/h5walk.h"

#include "core/h5guard/guard.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

enum { VARIANTS = 12, SEARCH = 3000, SEEDS_MAX = 32 };

/* A checksum at `sum` of the bytes [at, at + n); zeroed: it is one of them and counts as zero. */
struct sum {
    size_t at, n, sum;
    bool zeroed;
};

struct image {
    struct buf bytes; /* of variants */
    bool made;
    struct sum *sums;
    int64_t n_sums, cap_sums;
    uint32_t *meta; /* positions of metadata bytes */
    int64_t n_meta, cap_meta;
};

static uint32_t get32(const char *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* ---- where things are ------------------------------------------------------------------------ */

static void add_sum(struct image *m, struct sum s)
{
    struct err err = {0};
    if (mem_grow(&m->sums, &m->cap_sums, m->n_sums + 1, sizeof s, "checksums", &err) == 0)
        m->sums[m->n_sums++] = s;
}

/* Direct blocks of fractal heaps have theirs inside, behind an offset of 4 or 5 bytes. */
static void find_zeroed(struct image *m, const struct buf *x, size_t at)
{
    for (size_t n = 512; n <= 65536 && n <= x->len - at; n *= 2)
        for (size_t width = 4; width <= 5; width++) {
            char *copy = malloc(n);
            memcpy(copy, x->data + at, n);
            memset(copy + 13 + width, 0, 4);
            bool found = guard_checksum(copy, n) == get32(x->data + at + 13 + width);
            free(copy);
            if (found) {
                add_sum(m, (struct sum){at, n, at + 13 + width, true});
                return;
            }
        }
}

static void find_sum(struct image *m, const struct buf *x, size_t at)
{
    for (size_t n = 6; n < SEARCH && at + n + 4 <= x->len; n++)
        if (guard_checksum(x->data + at, n) == get32(x->data + at + n)) {
            add_sum(m, (struct sum){at, n, at + n, false});
            return;
        }
}

static void find_sums(struct image *m, const struct buf *x)
{
    static const char marks[] = "OHDROCHKBTHDBTLFBTINFRHPFHIB";
    if (x->len > 48 && x->data[8] >= 2)
        add_sum(m, (struct sum){0, 44, 44, false});
    for (size_t at = 8; at + 8 < x->len; at++) {
        if (memcmp(x->data + at, "FHDB", 4) == 0)
            find_zeroed(m, x, at);
        for (const char *s = marks; *s && x->data[at] >= 'B'; s += 4)
            if (memcmp(x->data + at, s, 4) == 0)
                find_sum(m, x, at);
    }
}

static int touch(void *ctx, hid_t object, const char *path, struct err *err)
{
    return 0;
}

static void find_metadata(struct image *m, const struct buf *x)
{
    struct err err = {0};
    hid_t file = H5I_INVALID_HID;
    OWN(free_at) char *seen = calloc(1, x->len + 8);
    h5_lock();
    if (h5walk_open(fuzz_file("map.h5", buf_str(x), x->len), &file, &err) == 0) {
        h5walk(file, touch, NULL, &err);
        if (!h5guard_read(h5guard_of(file), false, 0, x->len, seen))
            memset(seen, 0, x->len);
    }
    h5_close(file);
    h5_unlock();
    for (size_t at = 0; at < x->len; at++)
        if (seen[at] &&
            mem_grow(&m->meta, &m->cap_meta, m->n_meta + 1, sizeof *m->meta, "map", &err) == 0)
            m->meta[m->n_meta++] = (uint32_t)at;
}

/* ---- changes --------------------------------------------------------------------------------- */

static size_t some_place(struct fuzz_rng *r, const struct buf *x, const struct image *m)
{
    size_t at = m->n_meta && fuzz_below(r, 16) ? m->meta[fuzz_below(r, (uint64_t)m->n_meta)]
                                               : fuzz_below(r, x->len);
    at += fuzz_below(r, 4) ? 0 : fuzz_below(r, 8); /* zeros beside it */
    return at < x->len ? at : x->len - 1;
}

static void put_number(struct fuzz_rng *r, struct buf *x, size_t at, uint64_t value)
{
    size_t width = (size_t)1 << fuzz_below(r, 4);
    memcpy(x->data + at, &value, width < x->len - at ? width : x->len - at);
}

static uint64_t odd_value(struct fuzz_rng *r, const struct buf *x, const struct image *m)
{
    static const uint64_t odd[] = {0,          1,          2,      7,      8,
                                   0x7f,       0xff,       0x7fff, 0xffff, 0x7fffffff,
                                   0xffffffff, 1ull << 32, 4096,   65536,  UINT64_MAX,
                                   INT64_MAX,  1ull << 63, 16,     1 << 20};
    switch (fuzz_below(r, 4)) {
    case 0:
        return x->len - fuzz_below(r, 64);
    case 1:
        return m->n_sums ? m->sums[fuzz_below(r, (uint64_t)m->n_sums)].at : 96;
    default:
        return odd[fuzz_below(r, sizeof odd / sizeof *odd)];
    }
}

static void change(struct fuzz_rng *r, struct buf *x, const struct image *m)
{
    size_t at = some_place(r, x, m), from = some_place(r, x, m), n = 1 + fuzz_below(r, 24);
    switch (fuzz_below(r, 8)) {
    case 0:
        x->data[at] ^= (char)(1 << fuzz_below(r, 8));
        break;
    case 1:
        x->data[at] = (char)fuzz_u64(r);
        break;
    case 2:
        x->data[at] = (char)(x->data[at] + (fuzz_below(r, 2) ? 1 : -1));
        break;
    case 3:
    case 4:
        put_number(r, x, at, odd_value(r, x, m));
        break;
    case 5:
        n = 8; /* an address or a length of another structure */
        /* fall through */
    case 6:
        if (at + n <= x->len && from + n <= x->len)
            memmove(x->data + at, x->data + from, n);
        break;
    default:
        x->data[at] = (char)fuzz_below(r, 8);
    }
}

/* ---- repair ---------------------------------------------------------------------------------- */

static void put_sum(struct buf *x, struct sum s)
{
    if (s.sum + 4 > x->len || s.n > x->len - s.at)
        return;
    if (s.zeroed)
        memset(x->data + s.sum, 0, 4);
    uint32_t sum = guard_checksum(x->data + s.at, s.n);
    memcpy(x->data + s.sum, &sum, sizeof sum);
}

/* Length of an object header by its own fields, which may have changed. */
static size_t header_length(const struct buf *x, size_t at)
{
    unsigned flags = (unsigned char)x->data[at + 5];
    size_t prefix = 6 + (flags & 32 ? 16 : 0) + (flags & 16 ? 4 : 0), width = 1u << (flags & 3);
    uint64_t size = 0;
    if (at + prefix + width > x->len)
        return 0;
    memcpy(&size, x->data + at + prefix, width);
    return size < x->len ? prefix + width + (size_t)size : 0;
}

static void repair(struct buf *x, const struct image *m)
{
    for (int64_t i = 0; i < m->n_sums; i++) {
        struct sum s = m->sums[i];
        size_t n = memcmp(x->data + s.at, "OHDR", 4) == 0 ? header_length(x, s.at) : 0;
        if (n && n != s.n)
            s = (struct sum){s.at, n, s.at + n, false};
        put_sum(x, s);
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

static struct image seeds[SEEDS_MAX], variants[SEEDS_MAX][VARIANTS];

static struct image *map_of(struct image *m, const struct buf *x)
{
    if (!m->made) {
        m->made = true;
        find_sums(m, x);
        find_metadata(m, x);
    }
    return m;
}

static struct image *variant(const struct fuzz_corpus *c, uint64_t seed, int64_t i, uint64_t k,
                             void (*mend)(struct buf *x))
{
    struct image *m = &variants[i][k];
    struct fuzz_rng r = {seed, UINT64_MAX - (uint64_t)i * VARIANTS - k, 0};
    if (m->made)
        return m;
    buf_put(&m->bytes, c->seeds[i].data, c->seeds[i].len);
    for (uint64_t n = 1 + fuzz_below(&r, 3); n > 0; n--)
        fuzz_h5(&r, &m->bytes);
    if (mend && fuzz_below(&r, 4))
        mend(&m->bytes);
    return map_of(m, &m->bytes);
}

/* The seed that a case begins with. */
static int64_t find_seed(const struct fuzz_corpus *c, const struct buf *x)
{
    for (int64_t i = 0; i < c->n && i < SEEDS_MAX; i++)
        if (c->seeds[i].len == x->len && memcmp(c->seeds[i].data, x->data, x->len) == 0)
            return i;
    return -1;
}

/* Freed structures in the free lists of libhdf5 still point at what was not freed. */
static void collect_garbage(void)
{
    h5_lock();
    H5garbage_collect();
    h5_unlock();
}

void fuzz_h5_setup(void)
{
    fuzz_before_leaks(collect_garbage);
    h5_lock();
    H5set_free_list_limits(64 << 20, 8 << 20, -1, -1, -1, -1);
    h5_unlock();
}

void fuzz_h5_change(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c,
                    void (*mend)(struct buf *x))
{
    static uint64_t stream = UINT64_MAX;
    static struct image *base;
    if (stream != r->stream) {
        int64_t i = find_seed(c, x);
        stream = r->stream;
        base = i < 0 ? NULL : map_of(&seeds[i], x);
        if (base && fuzz_below(r, 4) == 0) {
            base = variant(c, r->seed, i, fuzz_below(r, VARIANTS), mend);
            buf_reset(x);
            buf_put(x, base->bytes.data, base->bytes.len);
            if (fuzz_below(r, 2))
                return;
        }
    }
    if (!base || fuzz_below(r, 32) == 0) {
        base = NULL; /* lengths may have changed */
        fuzz_bytes(r, x, c);
        return;
    }
    change(r, x, base);
    repair(x, base);
}
