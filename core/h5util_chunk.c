/*
 * h5util_chunk.c - the zstd filter (id 32015) and the chunk codecs of packed traces.
 *
 * Shuffle writes byte 0 of all elements, then byte 1 of all, ...: exponents become neighbours,
 * which makes 16-bit floats compressible (about 1.4 to 1). Each chunk is one zstd frame that states
 * its content size.
 */
#include "core/h5util.h"

#include "core/mem.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

/* Chunks are packed and unpacked outside of libhdf5: it has to know the filter only. */
static size_t filter(unsigned flags, size_t nvalues, const unsigned *values, size_t nbytes,
                     size_t *buf_size, void **buf)
{
    return 0;
}

void h5_zstd_register(void)
{
    static const H5Z_class2_t class = {
        H5Z_CLASS_T_VERS, H5_FILTER_ZSTD, 1, 1, "zstd", NULL, NULL, filter,
    };
    H5Zregister(&class);
}

size_t chunk_bound(size_t size)
{
    return ZSTD_compressBound(size);
}

int h5_fetch_chunk(hid_t dset, const hsize_t *at, size_t bytes, void **packed, int64_t *cap,
                   size_t *size, uint32_t *mask, struct err *err)
{
    hsize_t stored = 0;
    *size = 0;
    /* libhdf5 has no other answer for a chunk that is not there. */
    if (H5Dget_chunk_storage_size(dset, at, &stored) < 0 || stored == 0)
        return 0;
    if (stored > chunk_bound(bytes) + 4096)
        return err_set(err, ERR_INPUT, "a chunk has %llu bytes", (unsigned long long)stored);
    PASS_ON(mem_grow(packed, cap, (int64_t)stored, 1, "packed chunk", err));
    if (H5Dread_chunk(dset, H5P_DEFAULT, at, mask, *packed) < 0)
        return h5_fail(err, ERR_INPUT, "reading a chunk");
    *size = (size_t)stored;
    return 0;
}

static void shuffle(const uint8_t *src, size_t size, size_t elem, uint8_t *dst)
{
    size_t n = size / elem;
    for (size_t j = 0; j < elem; j++)
        for (size_t i = 0; i < n; i++)
            dst[j * n + i] = src[i * elem + j];
    memcpy(dst + n * elem, src + n * elem, size - n * elem);
}

static void unshuffle(const uint8_t *src, size_t size, size_t elem, uint8_t *dst)
{
    size_t n = size / elem;
    for (size_t j = 0; j < elem; j++)
        for (size_t i = 0; i < n; i++)
            dst[i * elem + j] = src[j * n + i];
    memcpy(dst + n * elem, src + n * elem, size - n * elem);
}

int chunk_pack(const void *src, size_t size, size_t elem, int level, void *scratch, void *dst,
               size_t *packed, struct err *err)
{
    shuffle(src, size, elem, scratch);
    size_t got = ZSTD_compress(dst, ZSTD_compressBound(size), scratch, size, level);
    if (ZSTD_isError(got))
        return err_set(err, ERR_NOMEM, "zstd: %s", ZSTD_getErrorName(got));
    *packed = got;
    return 0;
}

static int decompress(const void *src, size_t packed, enum chunk_codec codec, void *dst,
                      size_t size, size_t *got, struct err *err)
{
    if (codec == CHUNK_ZSTD) {
        *got = ZSTD_decompress(dst, size, src, packed);
        if (!ZSTD_isError(*got))
            return 0;
        bool memory = ZSTD_getErrorCode(*got) == ZSTD_error_memory_allocation;
        return err_set(err, memory ? ERR_NOMEM : ERR_INPUT, "zstd: %s", ZSTD_getErrorName(*got));
    }
    uLongf n = size;
    int z = uncompress(dst, &n, src, packed);
    *got = n;
    return z == Z_OK
               ? 0
               : err_set(err, z == Z_MEM_ERROR ? ERR_NOMEM : ERR_INPUT, "deflate: %s", zError(z));
}

int chunk_unpack(const void *src, size_t packed, enum chunk_codec codec, uint32_t skip, size_t elem,
                 void *scratch, void *dst, size_t size, struct err *err)
{
    void *plain = skip & 1 ? dst : scratch;
    size_t got = packed;
    if (skip & 2) {
        if (packed == size)
            memcpy(plain, src, size);
    } else {
        PASS_ON(decompress(src, packed, codec, plain, size, &got, err));
    }
    if (got != size)
        return err_set(err, ERR_INPUT, "the chunk unpacks to %zu bytes, expected %zu", got, size);
    if (!(skip & 1))
        unshuffle(scratch, size, elem, dst);
    return 0;
}
