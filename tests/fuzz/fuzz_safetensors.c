/*
 * fuzz_safetensors.c - one safetensors file: open, list, read, content id.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "core/safetensors.h"

#include <stdio.h>
#include <string.h>

static int seed_of(struct fuzz_corpus *c, const struct st_out *t, int64_t n, struct err *err)
{
    char path[512];
    snprintf(path, sizeof path, "%s/seed", fuzz_dir());
    PASS_ON(st_write(path, t, n, err));
    return fuzz_add_file(c, path, err);
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char data[64] = "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17";
    const struct st_out t[] = {
        {"model.embed.weight", DT_BF16, 2, {3, 4}, data},
        {"b", DT_F32, 1, {2}, data},
        {"step", DT_I64, 0, {0}, data},
        {"none", DT_F16, 3, {2, 0, 5}, data},
        {"mask", DT_BOOL, 1, {5}, data},
        {"x", DT_F64, 4, {1, 2, 1, 3}, data},
    };
    static const char meta[] =
        "\x78\0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"pt\",\"a\":\"b\"},"
        "\"q\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}";
    OWN(buf_free) struct buf b = {0};
    int rc = seed_of(c, t, 6, err);
    for (int i = 0; !rc && i < 6; i++)
        rc = seed_of(c, t + i, 1, err);
    buf_put(&b, meta, sizeof meta - 1);
    b.data[0] = (char)(b.len - 8);
    buf_put(&b, "xy", 2);
    fuzz_add(c, b.data, b.len);
    return rc;
}

/* Mostly the header's tokens, with the length in front put right again. */
static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0 && x->len >= 8; i--)
        n = n << 8 | (unsigned char)x->data[i];
    if (fuzz_below(r, 4) == 0 || n == 0 || n > x->len - 8) {
        fuzz_bytes(r, x, c);
        return;
    }
    size_t end = fuzz_tokens(r, x, 8, 8 + (size_t)n);
    for (int i = 0; i < 8 && fuzz_below(r, 64); i++)
        x->data[i] = (char)((uint64_t)(end - 8) >> 8 * i & 0xff);
}

/* What an accepted file promises: tensors inside it, elements that fit their bytes. */
static int check(const struct st_file *f, size_t len, struct err *err)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < st_count(f); i++) {
        const struct st_tensor *t = st_at(f, i), *found = NULL;
        int64_t count = 1, n = t->count < 300 ? t->count : 300;
        float x[300];
        int64_t y[300];
        for (int k = 0; k < t->ndim; k++)
            count *= t->shape[k];
        sum += t->bytes;
        if (count != t->count || t->offset < 8 || t->offset + t->bytes > (int64_t)len)
            return fuzz_wild("tensor %lld: %lld elements at %lld + %lld", (long long)i,
                             (long long)t->count, (long long)t->offset, (long long)t->bytes);
        if (i > 0 && strcmp(st_at(f, i - 1)->name, t->name) >= 0)
            return fuzz_wild("tensor %lld is not in order", (long long)i);
        if (st_require(f, t->name, t->ndim, t->shape, &found, err) != 0 || found != t)
            return fuzz_wild("tensor %lld is not found by its name", (long long)i);
        bool floats = dtype_to_f32(t->dtype, x, x, 0) == 0;
        if ((st_read_f32(f, t, t->count - n, n, x, err) == 0) != floats)
            return floats ? err->code : fuzz_wild("type %s was converted", t->dtype_text);
        err_clear(err);
        st_read_i64(f, t, 0, n, y, err);
        err_clear(err);
    }
    if (sum > (int64_t)len)
        return fuzz_wild("%lld bytes of tensors in %zu bytes", (long long)sum, len);
    return 0;
}

static int run(const void *data, size_t len, struct err *err)
{
    OWN(st_close) struct st_file *f = NULL;
    char id[40];
    PASS_ON(st_open(fuzz_file("x.safetensors", data, len), &f, err));
    PASS_ON(check(f, len, err));
    return st_content_id(f, id, err);
}

const struct fuzz_target fuzz_safetensors = {"safetensors", seeds, mutate, false, run};
