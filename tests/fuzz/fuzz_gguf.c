/*
 * fuzz_gguf.c - one GGUF file: header, configuration, tokenizer, tensors.
 */
#include "tests/fuzz/fuzz.h"
#include "core/checkpoint.h"
#include "capture/llm_model.h"
#include "capture/tokenizer.h"

#include <stdlib.h>

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const names[] = {"llama", "smollm", "qwen2", "phi3", "glm4"};
    int rc = 0;
    for (int i = 0; !rc && i < 5; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/data/gguf/%s.gguf", names[i]);
        rc = fuzz_add_file(c, path, err);
    }
    return rc;
}

/* What an accepted file promises: tensors inside it, elements that can be read. */
static int check_weights(const struct st_file *f, size_t len, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < st_count(f); i++) {
        const struct st_tensor *t = st_at(f, i);
        int64_t n = t->count < 300 ? t->count : 300;
        float x[300];
        if (t->offset < 0 || t->bytes < 0 || t->offset + t->bytes > (int64_t)len)
            return fuzz_wild("tensor %lld: %lld bytes at %lld", (long long)i, (long long)t->bytes,
                             (long long)t->offset);
        TRY(st_read_f32(f, t, t->count - n, n, x, err));
    }
out:
    return rc;
}

static int run(const void *data, size_t len, struct err *err)
{
    const char *path = fuzz_file("x.gguf", data, len);
    struct st_file *weights = NULL;
    struct llm_model m = {0};
    struct llm_layer layer = {0};
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    int rc = 0;
    TRY(checkpoint_weights(path, &weights, err));
    TRY(check_weights(weights, len, err));
    TRY(tokenizer_open(path, &t, err));
    TRY(tokenizer_encode(t, "a <s>text, 123", 14, NULL, &ids, &n, err));
    TRY(llm_open(path, &m, err));
    TRY(llm_layer_load(&m, m.c.layers - 1, &layer, err));
out:
    free(ids);
    tokenizer_close(&t);
    llm_layer_free(&layer);
    llm_close(&m);
    st_close(&weights);
    return rc;
}

const struct fuzz_target fuzz_gguf = {"gguf", seeds, NULL, false, run};
