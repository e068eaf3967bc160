/*
 * h5array.c - see h5array.h. Chunks are unpacked here and not by libhdf5, for the reason that
 * core/h5zstd.h gives.
 */
#include "core/h5array.h"

#include "core/h5zstd.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct unpack {
    hid_t dset;
    const struct h5_info *info;
    size_t elem, bytes; /* of an element, of a chunk */
    enum chunk_codec codec;
    bool shuffled, packed;
    char *out; /* the whole array */
    void *stored, *scratch, *plain;
    int64_t cap;
};

static int check_pipeline(struct unpack *u, struct err *err)
{
    const struct h5_info *f = u->info;
    int last = f->nfilters ? f->filter[f->nfilters - 1] : 0;
    u->shuffled = f->nfilters > 0 && f->filter[0] == H5Z_FILTER_SHUFFLE;
    u->packed = f->nfilters > 0 && last != H5Z_FILTER_SHUFFLE;
    u->codec = last == H5Z_FILTER_DEFLATE ? CHUNK_DEFLATE : CHUNK_ZSTD;
    if (f->nfilters > u->shuffled + u->packed)
        return err_set(err, ERR_INPUT,
                       "a dataset is packed by %d filters in an order that is not read; write it "
                       "with gzip, or without compression",
                       f->nfilters);
    return 0;
}

/* Sizes of a chunk and of the array; the number of chunks is bounded, for each is looked up. */
static int check_size(struct unpack *u, int64_t *total, struct err *err)
{
    const struct h5_info *f = u->info;
    int64_t bytes = (int64_t)u->elem, chunks = 1;
    bool ok = true;

    *total = (int64_t)u->elem;
    for (int i = 0; i < f->ndim; i++) {
        ok = ok && f->chunk[i] > 0 && mul_ok(bytes, f->chunk[i], &bytes) &&
             mul_ok(*total, f->dims[i], total) &&
             mul_ok(chunks, (f->dims[i] + f->chunk[i] - 1) / f->chunk[i], &chunks);
    }
    if (!ok || bytes > UINT32_MAX || chunks > H5_ARRAY_CHUNKS)
        return err_set(err, ERR_INPUT, "a dataset has too many chunks or too large ones");
    u->bytes = (size_t)bytes;
    return 0;
}

/* The chunk at `at` into u->plain; *there = false when it was never written. */
static int fetch(struct unpack *u, const hsize_t *at, bool *there, struct err *err)
{
    hsize_t stored = 0;
    uint32_t mask = 0, skip = 0;
    int rc;

    if (H5Dget_chunk_storage_size(u->dset, at, &stored) < 0 || stored == 0) {
        *there = false; /* libhdf5 has no other answer for a chunk that is not there */
        return 0;
    }
    *there = true;
    if (stored > chunk_bound(u->bytes) + 4096)
        return err_set(err, ERR_INPUT, "a chunk has %llu bytes", (unsigned long long)stored);
    if ((rc = mem_grow(&u->stored, &u->cap, (int64_t)stored, 1, "packed chunk", err)) != 0)
        return rc;
    if (H5Dread_chunk(u->dset, H5P_DEFAULT, at, &mask, u->stored) < 0)
        return h5_fail(err, ERR_INPUT, "reading a chunk");
    /* Bit k of the mask: filter k was left out. chunk_unpack has shuffle as 0, codec as 1. */
    if (!u->shuffled || mask & 1)
        skip |= 1;
    if (!u->packed || mask >> u->shuffled & 1)
        skip |= 2;
    return chunk_unpack(u->stored, (size_t)stored, u->codec, skip, u->elem, u->scratch, u->plain,
                        u->bytes, err);
}

/* Copy what of the chunk lies inside of the array, a run of its last dimension at a time. */
static void scatter(const struct unpack *u, const hsize_t *at)
{
    const struct h5_info *f = u->info;
    int last = f->ndim - 1;
    int64_t in[H5_MAX_DIMS] = {0}, left = f->dims[last] - (int64_t)at[last];
    size_t run = (size_t)(left < f->chunk[last] ? left : f->chunk[last]) * u->elem;

    for (const char *from = u->plain;; from += (size_t)f->chunk[last] * u->elem) {
        int64_t to = 0;
        bool inside = true;
        for (int i = 0; i < f->ndim; i++) {
            inside = inside && (int64_t)at[i] + in[i] < f->dims[i];
            to = to * f->dims[i] + (int64_t)at[i] + in[i];
        }
        if (inside)
            memcpy(u->out + to * (int64_t)u->elem, from, run);
        int i = last - 1;
        while (i >= 0 && ++in[i] == f->chunk[i])
            in[i--] = 0;
        if (i < 0)
            return;
    }
}

static int unpack_all(struct unpack *u, struct err *err)
{
    const struct h5_info *f = u->info;
    hsize_t at[H5_MAX_DIMS] = {0};
    for (;;) {
        bool there;
        int rc = fetch(u, at, &there, err), i = f->ndim - 1;
        if (rc)
            return rc;
        if (there)
            scatter(u, at);
        for (; i >= 0 && (int64_t)(at[i] += (hsize_t)f->chunk[i]) >= f->dims[i]; i--)
            at[i] = 0;
        if (i < 0)
            return 0;
    }
}

int h5_array_unpack(hid_t dset, const struct h5_info *info, size_t elem, int fd, struct err *err)
{
    struct unpack u = {.dset = dset, .info = info, .elem = elem};
    int64_t total = 0;
    int rc = 0;

    TRY(check_pipeline(&u, err));
    TRY(check_size(&u, &total, err));
    if (total == 0)
        goto out;
    if (ftruncate(fd, total) != 0) {
        rc = err_sys(err, ERR_MACHINE, "%lld bytes of memory for a dataset", (long long)total);
        goto out;
    }
    void *map = mmap(NULL, (size_t)total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        rc = err_sys(err, ERR_MACHINE, "%lld bytes of memory for a dataset", (long long)total);
        goto out;
    }
    u.out = map;
    TRY(mem_alloc(&u.scratch, (int64_t)u.bytes, 1, "chunk", err));
    TRY(mem_alloc(&u.plain, (int64_t)u.bytes, 1, "chunk", err));
    rc = unpack_all(&u, err);
out:
    if (u.out)
        munmap(u.out, (size_t)total);
    free(u.stored);
    free(u.scratch);
    free(u.plain);
    return rc;
}
