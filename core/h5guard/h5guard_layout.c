/*
 * h5guard_layout.c - where the elements of a dataset are: layout messages of version 3 (IV.A.2.i).
 *
 * libhdf5 reads a chunk without filters into a buffer of the size that the index states and copies
 * a whole chunk out of it; so that size must be right. With filters the size is any: lacuna unpacks
 * such chunks itself (core/h5util.h).
 */
#include "core/h5guard/guard.h"

#include "core/mem.h"

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

static int chunk_shape(struct guard_cur *c, struct guard_chunks *ch, struct err *err)
{
    ch->bytes = 1;
    if (ch->ndims != ch->d->space->rank + 1 || ch->ndims < 2)
        return guard_bad(WHAT, c->at, err, "chunks of rank %d, the dataset has %d", ch->ndims - 1,
                         ch->d->space->rank);
    for (int i = 0; i < ch->ndims; i++) {
        uint64_t n = guard_take(c, 4);
        if (n < 1 || ch->bytes > UINT32_MAX / n)
            return guard_bad(WHAT, c->at, err, "dimension %d of a chunk is %llu", i,
                             (unsigned long long)n);
        ch->dim[i] = (uint32_t)n;
        ch->bytes *= n;
    }
    if (ch->dim[ch->ndims - 1] != (uint64_t)ch->d->type->size)
        return guard_bad(WHAT, c->at, err, "elements of %u bytes, the type has %lld",
                         ch->dim[ch->ndims - 1], (long long)ch->d->type->size);
    return 0;
}

static int chunked(struct h5guard *g, struct guard_cur *c, const struct guard_dataset *d,
                   struct err *err)
{
    struct guard_chunks ch = {.d = d, .ndims = (int)guard_take(c, 1)};
    uint64_t at = guard_take(c, 8);
    int rc = chunk_shape(c, &ch, err);
    if (rc == 0 && c->over)
        rc = guard_bad(WHAT, c->at, err, "it is cut off");
    return rc || at == GUARD_NOWHERE ? rc : guard_chunk_btree1(g, &ch, at, err);
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
    if (version > 3)
        return guard_foreign(WHAT, c->at, err, "a layout of version %u (HDF5 1.10 or later)",
                             version);
    if (version < 3)
        return guard_bad(WHAT, c->at, err, "version %u", version);
    unsigned kind = (unsigned)guard_take(c, 1);
    if (kind > 3)
        return guard_bad(WHAT, c->at, err, "class %u", kind);
    if (kind == 3)
        return guard_foreign(WHAT, c->at, err, "a virtual dataset");
    return kind == 2 ? chunked(g, c, d, err) : in_one_piece(g, c, kind == 0, d, err);
}
