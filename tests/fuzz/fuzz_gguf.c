/*
 * fuzz_gguf.c - one GGUF file: header, configuration, tokenizer, tensors.
 */
#include "tests/fuzz/fuzz.h"
#include "core/checkpoint.h"
#include "core/mem.h"
#include "capture/llm_model.h"
#include "capture/tokenizer.h"

#include <stdlib.h>

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const names[] = {"llama", "smollm", "qwen2", "phi3", "glm4"};
    for (int i = 0; i < 5; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/data/gguf/%s.gguf", names[i]);
        PASS_ON(fuzz_add_file(c, path, err));
    }
    return 0;
}

/* What an accepted file promises: tensors inside it, elements that can be read. */
static int check_weights(const struct st_file *f, size_t len, struct err *err)
{
    for (int64_t i = 0; i < st_count(f); i++) {
        const struct st_tensor *t = st_at(f, i);
        int64_t n = t->count < 300 ? t->count : 300;
        float x[300];
        if (t->offset < 0 || t->bytes < 0 || t->offset + t->bytes > (int64_t)len)
            return fuzz_wild("tensor %lld: %lld bytes at %lld", (long long)i, (long long)t->bytes,
                             (long long)t->offset);
        PASS_ON(st_read_f32(f, t, t->count - n, n, x, err));
    }
    return 0;
}

static int run(const void *data, size_t len, struct err *err)
{
    const char *path = fuzz_file("x.gguf", data, len);
    OWN(st_close) struct st_file *weights = NULL;
    OWN(llm_close) struct llm_model m = {0};
    OWN(llm_layer_free) struct llm_layer layer = {0};
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    PASS_ON(checkpoint_weights(path, &weights, err));
    PASS_ON(check_weights(weights, len, err));
    PASS_ON(tokenizer_open(path, &t, err));
    PASS_ON(tokenizer_encode(t, "a <s>text, 123", 14, NULL, &ids, &n, err));
    PASS_ON(llm_open(path, &m, err));
    return llm_layer_load(&m, m.c.layers - 1, &layer, err);
}

const struct fuzz_target fuzz_gguf = {"gguf", seeds, NULL, false, run};
