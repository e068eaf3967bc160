/*
 * fuzz_import.c - a .safetensors file as import reads it: metadata, names of calls, what they do to
 * their scores, tensors, a trace.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "capture/import.h"

#include <stdio.h>

static json_t *metadata(void)
{
    static const char *const pairs[][2] = {
        {"name", "m"},
        {"scale", "0.25"},
        {"causal", "true"},
        {"layers", "4"},
        {"compute", "float32"},
        {"tokens", "1, 2, 3, 4, 5, 6"},
        {"grid", "1x2x3"},
        {"text_tokens", "0"},
        {"head_ids", "0-1"},
        {"chunk", "4"},
        {"layer-01.window_left", "3"},
        {"layer-01.window_right", "2"},
        {"layer-01.softcap", "30"},
        {"layer-01.scale", "0.5"},
    };
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        json_object_set_new(o, pairs[i][0], json_string(pairs[i][1]));
    return o;
}

/* A sample of query rows: 128 of the first group of 300, and the last 44. */
static int seed_of_rows(struct fuzz_corpus *c, const char *path, struct err *err)
{
    enum { ROWS = 172 };
    static const char data[2400];
    int32_t at[ROWS];
    OWN(json_decrefp) json_t *meta = json_object();
    for (int i = 0; i < ROWS; i++)
        at[i] = i < 128 ? i : i + 128;
    json_object_set_new(meta, "causal", json_string("true"));
    json_object_set_new(meta, "row_group", json_string("128"));
    const struct st_out t[] = {{"q", DT_F32, 3, {1, ROWS, 2}, data},
                               {"k", DT_F32, 3, {1, 300, 2}, data},
                               {"v", DT_F32, 3, {1, 300, 1}, data},
                               {"rows", DT_I32, 1, {ROWS}, at}};
    PASS_ON(st_write_meta(path, t, 4, meta, err));
    return fuzz_add_file(c, path, err);
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char data[512];
    const struct st_out t[] = {
        {"layer-01.q", DT_F32, 3, {2, 6, 2}, data}, {"layer-01.k", DT_F32, 3, {1, 6, 2}, data},
        {"layer-01.v", DT_F32, 3, {1, 6, 2}, data}, {"layer-01.out", DT_F32, 3, {2, 6, 2}, data},
        {"layer-01.sinks", DT_F32, 1, {2}, data},   {"layer-01.alibi", DT_F32, 1, {2}, data},
        {"layer-02.q", DT_F32, 3, {2, 6, 2}, data}, {"layer-02.k", DT_F32, 3, {1, 6, 2}, data},
        {"layer-02.v", DT_F32, 3, {1, 6, 2}, data}, {"layer-02.rel_bias", DT_F32, 1, {11}, data},
        {"layer-03.q", DT_F32, 3, {2, 6, 2}, data}, {"layer-03.k", DT_F32, 3, {1, 6, 2}, data},
        {"layer-03.v", DT_F32, 3, {1, 6, 2}, data}, {"layer-03.bias", DT_F32, 3, {2, 6, 6}, data},
        {"tokens", DT_I32, 1, {6}, data},
    };
    OWN(json_decrefp) json_t *meta = metadata();
    char path[512];
    snprintf(path, sizeof path, "%s/seed", fuzz_dir());
    PASS_ON(st_write_meta(path, t, sizeof t / sizeof *t, meta, err));
    PASS_ON(fuzz_add_file(c, path, err));
    PASS_ON(st_write_meta(path, t + 6, 4, meta, err));
    PASS_ON(fuzz_add_file(c, path, err));
    PASS_ON(st_write_meta(path, t + 10, 4, meta, err));
    PASS_ON(fuzz_add_file(c, path, err));
    return seed_of_rows(c, path, err);
}

/* The header's tokens, with the length in front put right again. */
static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0 && x->len >= 8; i--)
        n = n << 8 | (unsigned char)x->data[i];
    if (n == 0 || n > x->len - 8) {
        fuzz_bytes(r, x, c);
        return;
    }
    size_t end = fuzz_tokens(r, x, 8, 8 + (size_t)n);
    for (int i = 0; i < 8; i++)
        x->data[i] = (char)((uint64_t)(end - 8) >> 8 * i & 0xff);
}

/* What was accepted is a trace that opens again. */
static int check(struct import_job *j, struct err *err)
{
    struct trace *t = NULL;
    char path[512];
    int rc = 0;
    snprintf(path, sizeof path, "%s/t.h5", fuzz_dir());
    rc = import_write(j, path, 1, true, err);
    if (rc)
        return rc;
    if (trace_open(path, &t, err) != 0)
        return fuzz_wild("the imported trace does not open: %s", err->msg);
    if (trace_calls(t) != j->n_calls)
        rc = fuzz_wild("%lld calls became %lld", (long long)j->n_calls, (long long)trace_calls(t));
    trace_close(&t);
    return rc;
}

static int run(const void *data, size_t len, struct err *err)
{
    struct import_job j = {.allow_nonfinite = true};
    struct trace_call defaults = {.branch = "main"};
    struct st_file *f = NULL;
    int rc = 0;
    TRY(st_open(fuzz_file("x.safetensors", data, len), &f, err));
    TRY(import_metadata(&j, f, err));
    TRY(import_safetensors(&j, f, "x", LAYOUT_HND, &defaults, err));
    TRY(import_shapes(&j, DT_F32, err));
    TRY(check(&j, err));
out:
    import_free(&j);
    st_close(&f);
    return rc;
}

const struct fuzz_target fuzz_import = {"import", seeds, mutate, false, run};
