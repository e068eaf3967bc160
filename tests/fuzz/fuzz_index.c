/*
 * fuzz_index.c - model.safetensors.index.json beside two fixed shards and a file out of reach.
 */
#include "tests/fuzz/fuzz.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/safetensors.h"

#include <stdio.h>
#include <string.h>

/* Tensors a of n floats and b of 3 bytes. */
static int write_shard(const char *name, const char *a, const char *b, int64_t n, struct err *err)
{
    char path[512];
    const struct st_out t[] = {{a, DT_F32, 1, {n}, "abcdefgh"}, {b, DT_U8, 1, {3}, "xyz"}};
    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    return st_write(path, t, 2, err);
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const index[] = {
        "{\"metadata\": {\"total_size\": 22}, \"weight_map\": {\n"
        "  \"a.weight\": \"m-00001-of-00002.safetensors\",\n"
        "  \"b.weight\": \"m-00001-of-00002.safetensors\",\n"
        "  \"c.weight\": \"m-00002-of-00002.safetensors\",\n"
        "  \"d.weight\": \"m-00002-of-00002.safetensors\"}}\n",
        "{\"weight_map\":{\"a.weight\":\"m-00001-of-00002.safetensors\"}}",
        "{\"metadata\":{\"total_size\":1.5e3,\"x\":[\"..\",\"../outside.safetensors\"]},"
        "\"weight_map\":{\"c.weight\":\"m-00002-of-00002.safetensors\"}}",
    };
    char dir[512];
    snprintf(dir, sizeof dir, "%s/ckpt", fuzz_dir());
    PASS_ON(make_dirs(dir, err));
    PASS_ON(write_shard("ckpt/m-00001-of-00002.safetensors", "a.weight", "b.weight", 2, err));
    PASS_ON(write_shard("ckpt/m-00002-of-00002.safetensors", "c.weight", "d.weight", 2, err));
    PASS_ON(write_shard("ckpt/m-3.safetensors", "a.weight", "e.weight", 2, err));
    /* The same names as inside: an index that leads there would be accepted. */
    PASS_ON(write_shard("outside.safetensors", "c.weight", "d.weight", 1, err));
    for (size_t i = 0; i < sizeof index / sizeof *index; i++)
        fuzz_add(c, index[i], strlen(index[i]));
    return 0;
}

static int run(const void *data, size_t len, struct err *err)
{
    OWN(st_close) struct st_file *f = NULL;
    char dir[512];
    snprintf(dir, sizeof dir, "%s/ckpt", fuzz_dir());
    fuzz_file("ckpt/model.safetensors.index.json", data, len);
    PASS_ON(st_open_dir(dir, "model", &f, err));
    const struct st_tensor *c = st_find(f, "c.weight");
    if (c && c->count != 2)
        fuzz_wild("a file outside the directory was opened");
    if (st_count(f) < 2 || st_count(f) > 6)
        fuzz_wild("%lld tensors", (long long)st_count(f));
    for (int64_t i = 0; i < st_count(f); i++) {
        float x[3];
        PASS_ON(st_read_f32(f, st_at(f, i), 0, st_at(f, i)->count, x, err));
    }
    return 0;
}

const struct fuzz_target fuzz_index = {"index", seeds, NULL, true, run};
