/*
 * h5guard_layout.c - where the elements of a dataset are: layout messages of versions 3 and 4
 * (IV.A.2.i) and the indices of chunks (VII) that need no B-tree.
 *
 * libhdf5 reads a chunk without filters into a buffer of the size that the index states and copies
 * a whole chunk out of it; so that size must be right. With filters the size is any: lacuna unpacks
 * such chunks itself (core/h5util.h).
 */
#include "core/h5guard/guard.h"

#include "core/mem.h"

#include <string.h>

#define WHAT "layout"

/* ---- chunks ---------------------------------------------------------------------------------- */

int guard_check_chunk(struct h5guard *g, const struct guard_chunks *ch, uint64_t at, uint64_t n,
                      const char *what, uint64_t where, struct err *err)
{
    bool plain = ch->d->n_filters == 0;

    if (n == 0 || n > UINT32_MAX || (plain && n != ch->bytes) || !guard_inside(g, at, n))
        return guard_bad(what, where, err, "a chunk of %llu bytes at offset %llu",
                         (unsigned long long)n, (unsigned long long)at);
    return 0;
}

/* Chunks along the dimensions at their largest; UINT64_MAX: unlimited. */
static int count_chunks(struct h5guard *g, struct guard_chunks *ch, uint64_t at, struct err *err)
{
    int64_t count = 1;

    for (int i = 0; i < ch->d->space->rank; i++) {
        uint64_t max = ch->d->space->max[i], n = max / ch->dim[i] + (max % ch->dim[i] != 0);
        if (max == GUARD_NOWHERE) {
            ch->count = UINT64_MAX;
            return 0;
        }
        if (!mul_ok(count, (int64_t)n, &count))
            return guard_bad(WHAT, at, err, "the number of chunks overflows");
    }
    ch->count = (uint64_t)count;
    return 0;
}

static int chunk_shape(struct h5guard *g, struct guard_cur *c, size_t width,
                       struct guard_chunks *ch, struct err *err)
{
    ch->bytes = 1;
    if (ch->ndims != ch->d->space->rank + 1 || ch->ndims < 2)
        return guard_bad(WHAT, c->at, err, "chunks of rank %d, the dataset has %d", ch->ndims - 1,
                         ch->d->space->rank);
    for (int i = 0; i < ch->ndims; i++) {
        uint64_t n = guard_take(c, width);
        if (n < 1 || n > UINT32_MAX || ch->bytes > UINT32_MAX / n)
            return guard_bad(WHAT, c->at, err, "dimension %d of a chunk is %llu", i,
                             (unsigned long long)n);
        ch->dim[i] = (uint32_t)n;
        ch->bytes *= n;
    }
    if (ch->dim[ch->ndims - 1] != (uint64_t)ch->d->type->size)
        return guard_bad(WHAT, c->at, err, "elements of %u bytes, the type has %lld",
                         ch->dim[ch->ndims - 1], (long long)ch->d->type->size);
    ch->size_bytes = 1 + (guard_log2(ch->bytes) + 8) / 8;
    return count_chunks(g, ch, c->at, err);
}

/* ---- fixed array (VII.C) --------------------------------------------------------------------- */

#define ARRAY "fixed array"

struct fixed {
    const struct guard_chunks *ch;
    uint64_t header, count;
    size_t element, bits; /* bytes of an element; log2 of the elements of a page */
};

static int check_elements(struct h5guard *g, const struct fixed *a, struct guard_cur *c, uint64_t n,
                          struct err *err)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t where = c->at + c->i, at = guard_take(c, 8);
        uint64_t size = a->element > 8 ? guard_take(c, a->element - 12) : a->ch->bytes;
        if (a->element > 8)
            guard_bytes(c, 4); /* filter mask */
        int rc = at == GUARD_NOWHERE ? 0 : guard_check_chunk(g, a->ch, at, size, ARRAY, where, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int check_pages(struct h5guard *g, const struct fixed *a, uint64_t at, const uint8_t *made,
                       struct err *err)
{
    uint64_t per = (uint64_t)1 << a->bits;
    struct guard_cur c;
    int rc = 0;

    for (uint64_t i = 0; i * per < a->count && rc == 0; i++) {
        uint64_t n = a->count - i * per < per ? a->count - i * per : per;
        if (!(made[i / 8] & 0x80 >> i % 8))
            continue;
        rc = guard_claim_summed(g, "page of a fixed array", at + i * (per * a->element + 4),
                                n * a->element + 4, &c, err);
        if (rc == 0)
            rc = check_elements(g, a, &c, n, err);
    }
    return rc;
}

static int check_block(struct h5guard *g, const struct fixed *a, uint64_t at, struct err *err)
{
    uint64_t per = (uint64_t)1 << a->bits, pages = a->count > per ? (a->count - 1) / per + 1 : 0;
    size_t map = (size_t)((pages + 7) / 8), head = 14 + map;
    struct guard_cur c;

    if (a->count > GUARD_CLAIM_MAX)
        return guard_foreign(ARRAY, a->header, err, "a fixed array of %llu chunks",
                             (unsigned long long)a->count);
    int rc = guard_claim_summed(g, "block of a fixed array", at,
                                head + (pages ? 0 : a->count * a->element) + 4, &c, err);
    if (rc)
        return rc;
    const uint8_t *magic = guard_bytes(&c, 6);
    if (memcmp(magic, "FADB", 4) != 0 || magic[4] != 0 || magic[5] != (a->element > 8) ||
        guard_take(&c, 8) != a->header)
        return guard_bad("block of a fixed array", at, err, "its head is wrong");
    const uint8_t *made = guard_bytes(&c, map);
    return pages ? check_pages(g, a, at + head + 4, made, err)
                 : check_elements(g, a, &c, a->count, err);
}

static int fixed_array(struct h5guard *g, const struct guard_chunks *ch, uint64_t at,
                       unsigned page_bits, struct err *err)
{
    bool filtered = ch->d->n_filters > 0;
    struct fixed a = {.ch = ch, .header = at, .element = filtered ? 12 + ch->size_bytes : 8};
    struct guard_cur c;
    int rc = guard_claim_summed(g, ARRAY, at, 28, &c, err);

    if (rc)
        return rc;
    const uint8_t *head = guard_bytes(&c, 8);
    a.bits = head[7];
    a.count = guard_take(&c, 8);
    uint64_t block = guard_take(&c, 8);
    if (memcmp(head, "FAHD", 4) != 0 || head[4] != 0 || head[5] != filtered ||
        head[6] != a.element || a.bits != page_bits || a.bits < 1 || a.bits > 30 ||
        a.count != ch->count || a.count == 0)
        return guard_bad(ARRAY, at, err, "%llu elements of %u bytes, pages of 2^%zu",
                         (unsigned long long)a.count, head[6], a.bits);
    return block == GUARD_NOWHERE ? 0 : check_block(g, &a, block, err);
}

/* ---- version 4 ------------------------------------------------------------------------------- */

static int visit_chunk(struct h5guard *g, struct guard_cur *rec, void *ctx, struct err *err)
{
    const struct guard_chunks *ch = ctx;
    uint64_t at = guard_take(rec, 8);
    uint64_t n = ch->d->n_filters ? guard_take(rec, ch->size_bytes) : ch->bytes;

    return guard_check_chunk(g, ch, at, n, "record of a chunk", rec->at, err);
}

static int single(struct h5guard *g, struct guard_chunks *ch, struct guard_cur *c, bool filtered,
                  struct err *err)
{
    uint64_t n = filtered ? guard_take(c, 8) : ch->bytes;

    if (filtered)
        guard_bytes(c, 4); /* filter mask */
    uint64_t at = guard_take(c, 8);
    if (c->over || ch->count > 1 || (at != GUARD_NOWHERE && filtered != (ch->d->n_filters > 0)))
        return guard_bad(WHAT, c->at, err, "one chunk does not hold the dataset");
    return at == GUARD_NOWHERE ? 0 : guard_check_chunk(g, ch, at, n, WHAT, c->at, err);
}

static int btree2(struct h5guard *g, struct guard_chunks *ch, struct guard_cur *c, struct err *err)
{
    bool filtered = ch->d->n_filters > 0;
    struct guard_records r = {.type = filtered ? 11 : 10, .visit = visit_chunk, .ctx = ch};
    uint64_t n;

    guard_bytes(c, 6); /* node size and percentages are those of the B-tree's header */
    uint64_t at = guard_take(c, 8);
    if (c->over)
        return guard_bad(WHAT, c->at, err, "it is cut off");
    r.bytes = 8 + 8 * (unsigned)(ch->ndims - 1) + (filtered ? ch->size_bytes + 4 : 0);
    return at == GUARD_NOWHERE ? 0 : guard_btree2(g, at, &r, &n, err);
}

/* All chunks in a row. */
static int implicit(struct h5guard *g, struct guard_chunks *ch, struct guard_cur *c,
                    struct err *err)
{
    uint64_t at = guard_take(c, 8);
    int64_t bytes = 0;

    if (c->over || ch->d->n_filters || ch->count > INT64_MAX ||
        !mul_ok((int64_t)ch->count, (int64_t)ch->bytes, &bytes) ||
        (at != GUARD_NOWHERE && !guard_inside(g, at, (uint64_t)bytes)))
        return guard_bad(WHAT, c->at, err, "its chunks do not lie in the file");
    return 0;
}

static int index4(struct h5guard *g, struct guard_cur *c, struct guard_chunks *ch, unsigned flags,
                  struct err *err)
{
    unsigned kind = (unsigned)guard_take(c, 1), bits;
    uint64_t at;

    if ((flags & 2) && kind != 1)
        return guard_bad(WHAT, c->at, err, "flags 0x%x with an index of kind %u", flags, kind);
    switch (kind) {
    case 1:
        return single(g, ch, c, flags & 2, err);
    case 2:
        return implicit(g, ch, c, err);
    case 3:
        bits = (unsigned)guard_take(c, 1);
        at = guard_take(c, 8);
        if (c->over)
            return guard_bad(WHAT, c->at, err, "it is cut off");
        return at == GUARD_NOWHERE ? 0 : fixed_array(g, ch, at, bits, err);
    case 4:
        return guard_extensible_array(g, ch, c, err);
    case 5:
        return btree2(g, ch, c, err);
    default:
        return guard_bad(WHAT, c->at, err, "an index of kind %u", kind);
    }
}

static int chunked(struct h5guard *g, struct guard_cur *c, unsigned version,
                   const struct guard_dataset *d, struct err *err)
{
    struct guard_chunks ch = {.d = d};
    unsigned flags = version == 4 ? (unsigned)guard_take(c, 1) : 0;
    uint64_t at = GUARD_NOWHERE;
    size_t width = 4;

    ch.ndims = (int)guard_take(c, 1);
    if (version == 4)
        width = (size_t)guard_take(c, 1);
    else
        at = guard_take(c, 8);
    if (flags & 1)
        return guard_foreign(WHAT, c->at, err, "unfiltered chunks at the edge of a dataset");
    if ((flags & ~2u) || width < 1 || width > 8)
        return guard_bad(WHAT, c->at, err, "flags 0x%x, %zu bytes per dimension", flags, width);
    int rc = chunk_shape(g, c, width, &ch, err);
    if (rc || version == 4)
        return rc ? rc : index4(g, c, &ch, flags, err);
    if (c->over)
        return guard_bad(WHAT, c->at, err, "it is cut off");
    return at == GUARD_NOWHERE ? 0 : guard_chunk_btree1(g, &ch, at, err);
}

/* ---- layouts --------------------------------------------------------------------------------- */

static int in_one_piece(struct h5guard *g, struct guard_cur *c, bool compact,
                        const struct guard_dataset *d, struct err *err)
{
    uint64_t at = compact ? 0 : guard_take(c, 8), n = guard_take(c, compact ? 2 : 8);
    int64_t want;

    if (!mul_ok(d->space->count, d->type->size, &want) || n != (uint64_t)want)
        return guard_bad(WHAT, c->at, err, "%llu bytes for %lld elements of %lld",
                         (unsigned long long)n, (long long)d->space->count,
                         (long long)d->type->size);
    if (compact)
        guard_bytes(c, (size_t)n);
    if (c->over || (!compact && at != GUARD_NOWHERE && !guard_inside(g, at, n)))
        return guard_bad(WHAT, c->at, err, "%llu bytes at offset %llu reach past the end",
                         (unsigned long long)n, (unsigned long long)at);
    return 0;
}

int guard_check_layout(struct h5guard *g, struct guard_cur *c, const struct guard_dataset *d,
                       struct err *err)
{
    unsigned version = (unsigned)guard_take(c, 1);

    if (version == 1 || version == 2)
        return guard_foreign(WHAT, c->at, err, "a layout of version %u (HDF5 1.6 or earlier)",
                             version);
    if (version > 4)
        return guard_foreign(WHAT, c->at, err, "a layout of version %u (HDF5 2.0 or later)",
                             version);
    if (version < 3)
        return guard_bad(WHAT, c->at, err, "version %u", version);
    unsigned kind = (unsigned)guard_take(c, 1);
    if (kind > 3)
        return guard_bad(WHAT, c->at, err, "class %u", kind);
    if (kind == 3)
        return guard_foreign(WHAT, c->at, err, "a virtual dataset");
    return kind == 2 ? chunked(g, c, version, d, err) : in_one_piece(g, c, kind == 0, d, err);
}
