/*
 * fuzz_npy.c - .npy files: open, read everything as float32.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "core/npy.h"

#include <stdio.h>
#include <stdlib.h>

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_I8, DT_F64, DT_I32};
    static const int64_t shape[4] = {2, 3, 1, 2};
    static const double data[12] = {1, 2, 3};
    static const char fortran[] = "{'descr': '>f4', 'shape': (3, 2L), \"fortran_order\": True}  \n";
    char path[512];
    OWN(buf_free) struct buf b = {0};
    snprintf(path, sizeof path, "%s/seed.npy", fuzz_dir());
    for (int i = 0; i < 6; i++) {
        PASS_ON(npy_write(path, types[i], i % 5, shape, data, err));
        PASS_ON(fuzz_add_file(c, path, err));
    }
    buf_put(&b, "\x93NUMPY\2\0", 8);
    buf_put(&b, (char[4]){sizeof fortran - 1, 0, 0, 0}, 4);
    buf_puts(&b, fortran);
    buf_put(&b, data, 24);
    fuzz_add(c, b.data, b.len);
    return 0;
}

/* Mostly the tokens of the dict, with the header's length put right again. */
static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    bool v1 = x->len > 8 && x->data[6] == 1;
    size_t start = v1 ? 10 : 12, n = 0;
    if (x->len > start)
        n = (unsigned char)x->data[8] | (size_t)(unsigned char)x->data[9] << 8;
    if (fuzz_below(r, 4) == 0 || n == 0 || n > x->len - start) {
        fuzz_bytes(r, x, c);
        return;
    }
    size_t end = fuzz_tokens(r, x, start, start + n);
    if (fuzz_below(r, 64)) {
        x->data[8] = (char)((end - start) & 0xff);
        x->data[9] = (char)((end - start) >> 8 & 0xff);
    }
}

static int run(const void *data, size_t len, struct err *err)
{
    int rc = 0;
    struct npy *a = NULL;
    float *x = NULL;
    TRY(npy_open(fuzz_file("x.npy", data, len), true, &a, err));
    if (a->count < 0 || a->count * (int64_t)dtype_size(a->dtype) + a->data_offset != (int64_t)len) {
        fuzz_wild("%lld elements in %zu bytes", (long long)a->count, len);
        goto out;
    }
    TRY(mem_alloc(&x, a->count, sizeof *x, "x", err));
    TRY(npy_read_f32(a, x, err));
out:
    npy_close(&a);
    free(x);
    return rc;
}

const struct fuzz_target fuzz_npy = {"npy", seeds, mutate, false, run};
