#include "tests/harness/tinymodel.h"

#include "core/fileio.h"
#include "core/mem.h"
#include "core/safetensors.h"
#include "tests/harness/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY "tests/data/tiny/"
#define MAX_TENSORS 128

static struct err err;

static json_t *read_json(const char *path)
{
    json_t *o = NULL;
    assert_ok(json_read_file(path, 1 << 20, &o, &err), &err);
    return o;
}

json_t *tiny_config(const char *variant)
{
    json_t *all = read_json(TINY "configs.json"), *c = json_object_get(all, variant);
    ck_assert_msg(c != NULL, "no variant %s", variant);
    c = json_deep_copy(c);
    json_decref(all);
    return c;
}

const char *tiny_variant(int i)
{
    static char name[64];
    json_t *all = read_json(TINY "configs.json"), *v;
    const char *key;
    int at = 0;
    ck_assert_uint_eq(json_object_size(all), TINY_VARIANTS);
    json_object_foreach(all, key, v) if (at++ == i) snprintf(name, sizeof name, "%s", key);
    json_decref(all);
    return name;
}

void tiny_tokens(int32_t ids[TINY_TOKENS])
{
    OWN(json_decrefp) json_t *list = read_json(TINY "tokens.json");
    ck_assert_uint_eq(json_array_size(list), TINY_TOKENS);
    for (size_t i = 0; i < TINY_TOKENS; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
}

static void put_text(const char *dir, const char *name, const char *text)
{
    char path[4300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(file_write_atomic(path, text, strlen(text), &err), &err);
}

void tiny_put_config(const char *dir, const json_t *config)
{
    OWN(free_at) char *text = json_dumps(config, JSON_INDENT(1));
    ck_assert(text);
    put_text(dir, "config.json", text);
}

/* Shard s of n: every n-th tensor. */
static void put_shard(const char *dir, const char *file, const struct st_out *all, int64_t n, int s,
                      int shards, struct jw *map)
{
    struct st_out some[MAX_TENSORS];
    int64_t k = 0;
    char path[4300];
    for (int64_t i = s; i < n; i += shards) {
        some[k++] = all[i];
        jw_kstr(map, all[i].name, file);
    }
    snprintf(path, sizeof path, "%s/%s", dir, file);
    assert_ok(st_write(path, some, k, &err), &err);
}

static int64_t read_tensors(const struct st_file *f, const char *leave_out, struct st_out *out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < st_count(f); i++) {
        const struct st_tensor *t = st_at(f, i);
        void *data = NULL;
        if (leave_out && strcmp(t->name, leave_out) == 0)
            continue;
        ck_assert_int_lt(n, MAX_TENSORS);
        assert_ok(mem_alloc(&data, t->bytes, 1, t->name, &err), &err);
        assert_ok(st_read_raw(f, t, 0, t->count, data, &err), &err);
        out[n] = (struct st_out){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = data};
        memcpy(out[n++].shape, t->shape, sizeof t->shape);
    }
    return n;
}

void tiny_put_checkpoint(const char *dir, const char *source, const char *stem, int shards,
                         const char *leave_out)
{
    OWN(st_close) struct st_file *f = NULL;
    struct st_out all[MAX_TENSORS];
    OWN(buf_free) struct buf index = {0};
    struct jw w;
    char name[128];
    assert_ok(st_open(source, &f, &err), &err);
    int64_t n = read_tensors(f, leave_out, all);
    jw_init(&w, &index, 0);
    jw_obj(&w);
    jw_key(&w, "weight_map");
    jw_obj(&w);
    for (int s = 0; s < shards; s++) {
        char file[128];
        snprintf(file, sizeof file, "%s.safetensors", stem);
        if (shards > 1)
            snprintf(file, sizeof file, "%s-%05d-of-%05d.safetensors", stem, s + 1, shards);
        put_shard(dir, file, all, n, s, shards, &w);
    }
    jw_obj_end(&w);
    jw_obj_end(&w);
    snprintf(name, sizeof name, "%s.safetensors.index.json", stem);
    if (shards > 1)
        put_text(dir, name, buf_str(&index));
    char path[4300], other[140]; /* of an earlier call */
    snprintf(other, sizeof other, "%s.safetensors", stem);
    snprintf(path, sizeof path, "%s/%s", dir, shards > 1 ? other : name);
    unlink(path);
    for (int64_t i = 0; i < n; i++)
        free((void *)(uintptr_t)all[i].data);
}

void tiny_put_weights(const char *dir, const char *variant, int shards, const char *leave_out)
{
    bool mha = strcmp(variant, "llama-mha") == 0;
    OWN(json_decrefp) json_t *c = tiny_config(variant);
    if (!leave_out && json_is_true(json_object_get(c, "tie_word_embeddings")))
        leave_out = "lm_head.weight"; /* as the reference has it */
    tiny_put_checkpoint(dir, mha ? TINY "weights-mha.safetensors" : TINY "weights.safetensors",
                        "model", shards, leave_out);
}
