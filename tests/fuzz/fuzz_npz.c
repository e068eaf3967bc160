/*
 * fuzz_npz.c - .npz files: open, read every array. Checksums are put right after a change,
 * otherwise nearly every change would be refused for that alone.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "core/npy.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    PASS_ON(fuzz_add_file(c, "tests/data/masks/blocks.npz", err));
    PASS_ON(fuzz_add_file(c, "tests/data/masks/pairs.npz", err));
    return fuzz_add_file(c, "tests/data/masks/zip64.npz", err);
}

static size_t number(const unsigned char *p, int bytes)
{
    size_t x = 0;
    for (int i = bytes - 1; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

/* The checksum of a stored member whose local header is at p, into its entry of the directory. */
static void right_crc(struct buf *x, unsigned char *entry)
{
    unsigned char *data = (unsigned char *)x->data;
    size_t at = number(entry + 42, 4), size = number(entry + 20, 4);
    if (number(entry + 10, 2) != 0 || at + 30 > x->len)
        return;
    size_t begin = at + 30 + number(data + at + 26, 2) + number(data + at + 28, 2);
    if (begin > x->len || size > x->len - begin)
        return;
    uLong crc = crc32(0, data + begin, (uInt)size);
    for (int i = 0; i < 4; i++)
        entry[16 + i] = (unsigned char)(crc >> 8 * i);
}

static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    fuzz_bytes(r, x, c);
    if (fuzz_below(r, 4) == 0)
        return;
    for (size_t i = 0; i + 46 <= x->len; i++)
        if (memcmp(x->data + i, "PK\1\2", 4) == 0)
            right_crc(x, (unsigned char *)x->data + i);
}

static int run(const void *data, size_t len, struct err *err)
{
    struct npz *z = NULL;
    struct npy *a = NULL;
    char *x = NULL;
    int rc = 0;
    TRY(npz_open(fuzz_file("x.npz", data, len), &z, err));
    for (int64_t i = 0; i < npz_count(z); i++) {
        TRY(npz_array(z, i, &a, err));
        int64_t bytes = a->count * (int64_t)dtype_size(a->dtype);
        if (bytes < 0 || bytes > (int64_t)len * 1100 + 2000) {
            fuzz_wild("%lld bytes out of %zu", (long long)bytes, len);
            goto out;
        }
        TRY(mem_alloc(&x, bytes, 1, "x", err));
        if (!a->fortran)
            TRY(npy_read_range(a, 0, a->count, x, err));
        npy_close(&a);
        free(x);
        x = NULL;
    }
out:
    npy_close(&a);
    npz_close(&z);
    free(x);
    return rc;
}

const struct fuzz_target fuzz_npz = {"npz", seeds, mutate, false, run};
