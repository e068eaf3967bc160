/*
 * fuzz_trace.c - trace files: open, read every tensor, map and array, verify, all storage forms.
 */
#include "tests/fuzz/bytes_h5.h"
#include "tests/fuzz/mutate_h5.h"
#include "tests/harness/trace_fixture.h"
#include "core/mem.h"
#include "core/trace.h"

#include <stdio.h>
#include <stdlib.h>

static int add_packed(struct fuzz_corpus *c, const char *path, enum trace_storage s,
                      struct err *err)
{
    OWN(trace_close) struct trace *t = NULL;
    char packed[512];
    snprintf(packed, sizeof packed, "%s/packed.h5", fuzz_dir());
    PASS_ON(trace_open(path, &t, err));
    PASS_ON(trace_pack(t, packed, s, 1, true, err));
    return fuzz_add_file(c, packed, err);
}

static int add_fixture(struct fuzz_corpus *c, const char *path, const struct trace_meta *m,
                       bool packed, struct err *err)
{
    remove(path);
    PASS_ON(fixture_write(path, m, 1, err));
    PASS_ON(fuzz_add_file(c, path, err));
    if (packed) {
        PASS_ON(add_packed(c, path, TRACE_ZSTD, err));
        return add_packed(c, path, TRACE_GZIP, err);
    }
    return 0;
}

/* Superblocks 0, 2 and 3: those of h5py and our own. */
static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const foreign[] = {
        "trace-earliest.h5",
        "trace-ordered.h5",
        "packed-earliest.h5",
        "packed-ordered.h5",
    };
    struct trace_meta text = fixture_text(DT_BF16, 1, 1, 3), video = fixture_video(DT_F32);
    char path[512];
    fuzz_h5_setup();
    snprintf(path, sizeof path, "%s/seed.h5", fuzz_dir());
    PASS_ON(add_fixture(c, path, &text, true, err));
    text.pool = 4;
    PASS_ON(add_fixture(c, path, &text, false, err));
    PASS_ON(add_fixture(c, path, &video, false, err));
    struct trace_meta sampled = fixture_sampled(DT_F32);
    PASS_ON(add_fixture(c, path, &sampled, true, err));
    PASS_ON(fixture_write_scored(path, &text, err));
    PASS_ON(fuzz_add_file(c, path, err));
    PASS_ON(add_packed(c, path, TRACE_ZSTD, err));
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        snprintf(path, sizeof path, "tests/data/h5/%s", foreign[i]);
        PASS_ON(fuzz_add_file(c, path, err));
    }
    return 0;
}

/* The content id is made to fit, so that the reader goes on. */
static void mend(struct buf *x)
{
    struct trace *t = NULL;
    struct err err = {0};
    char id[64] = {0};
    if (trace_open_damaged(fuzz_file("id.h5", buf_str(x), x->len), &t, &err) == 0)
        snprintf(id, sizeof id, "%s", trace_id(t));
    trace_close(&t);
    if (id[0])
        fuzz_h5_set_string(x, "content_id", id);
}

static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    fuzz_h5_change(r, x, c, mend);
}

/* First and last tokens of every head. Sizes were checked against the file when it was opened, so
 * that a whole head can be allocated. */
static int read_call(const struct trace *t, int64_t i, size_t len, struct err *err)
{
    const struct trace_call *c = trace_call(t, i);
    float *x = NULL;
    int rc = 0;
    for (int w = 0; w < TRACE_WHAT_COUNT && !rc; w++) {
        struct trace_shape s = trace_shape(trace_meta(t), (enum trace_what)w);
        if ((w == TRACE_OUT && !c->has_out) || (w == TRACE_LSE && !c->has_lse))
            continue;
        if (s.heads < 1 || s.tokens < 1 || s.dim < 1)
            return fuzz_wild("shape %lld x %lld x %lld", (long long)s.heads, (long long)s.tokens,
                             (long long)s.dim);
        if (trace_storage(t) == TRACE_CONTIGUOUS && s.heads * s.tokens * s.dim > (int64_t)len)
            return fuzz_wild("%lld elements in %zu bytes", (long long)(s.heads * s.tokens * s.dim),
                             len);
        int64_t n = s.tokens < 5 ? s.tokens : 5;
        TRY(mem_alloc(&x, n * s.dim, sizeof *x, "rows", err));
        for (int h = 0; h < s.heads && h < 4 && !rc; h++) {
            TRY(trace_read(t, i, (enum trace_what)w, h, 0, n, x, err));
            TRY(trace_read(t, i, (enum trace_what)w, h, s.tokens - n, n, x, err));
        }
        free(x);
        x = NULL;
    }
out:
    free(x);
    return rc;
}

static int read_maps(const struct trace *t, int64_t i, struct err *err)
{
    int64_t n;
    OWN(free_at) float *x = NULL;
    if (!trace_call(t, i)->has_map)
        return 0;
    if (!mul_ok(trace_map_cells(t, false), trace_map_cells(t, true), &n) || n < 1)
        return fuzz_wild("maps of %lld x %lld cells", (long long)trace_map_cells(t, false),
                         (long long)trace_map_cells(t, true));
    PASS_ON(mem_alloc(&x, n, sizeof *x, "map", err));
    return trace_read_map(t, i, 0, x, x, err);
}

/* What a head's attention is, with its biases: a row sees keys that exist, as many as are counted.
 */
static int read_score(const struct trace *t, int64_t call, struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    struct attn_in x;
    float *rel = NULL;
    int rc = trace_attn(t, call, m->heads - 1, &x, &rel, err);
    free(rel);
    if (rc)
        return rc;
    for (int64_t i = 0; i<x.nq; i += x.nq> 8 ? x.nq / 8 : 1)
        if (attn_first(&x, i) < 0 || attn_limit(&x, i) > x.nk)
            return fuzz_wild("row %lld sees the keys %lld to %lld of %lld", (long long)i,
                             (long long)attn_first(&x, i), (long long)attn_limit(&x, i),
                             (long long)x.nk);
    return 0;
}

static int read_run(const struct trace *t, struct err *err)
{
    OWN(free_at) int32_t *ids = NULL;
    OWN(free_at) float *nll = NULL;
    OWN(free_at) double *steps = NULL, *sigmas = NULL;
    int64_t n;
    PASS_ON(trace_read_run(t, TRACE_TOKENS, &ids, &n, err));
    PASS_ON(trace_read_run(t, TRACE_NLL, &nll, &n, err));
    PASS_ON(trace_read_run(t, TRACE_TIMESTEPS, &steps, &n, err));
    return trace_read_run(t, TRACE_SIGMAS, &sigmas, &n, err);
}

static int read_all(const struct trace *t, size_t len, struct err *err)
{
    struct trace_extent e;
    int64_t bad = 0;
    PASS_ON(trace_verify(t, 1, NULL, NULL, &bad, err));
    PASS_ON(trace_extent(t, &e, err));
    for (int64_t i = 0; i < trace_calls(t) && i < 20; i++) {
        PASS_ON(read_call(t, i, len, err));
        PASS_ON(read_maps(t, i, err));
        PASS_ON(read_score(t, i, err));
    }
    PASS_ON(read_run(t, err));
    struct row_sample s;
    if (trace_rows(t, &s) &&
        (s.n != trace_meta(t)->n_q || (trace_calls(t) > 0 && trace_call_pairs(t, 0) < 0) ||
         s.at[s.n - 1] >= trace_meta(t)->n_k))
        return fuzz_wild("%lld sampled rows", (long long)s.n);
    return 0;
}

/* All is read as `trace verify` does it, whatever the content id; then the id counts too. */
static int run(const void *data, size_t len, struct err *err)
{
    const char *path = fuzz_file("trace.h5", data, len);
    struct trace *t = NULL;
    int64_t ids = hdf5_objects_open();
    int rc = trace_open_damaged(path, &t, err);
    if (rc == 0)
        rc = read_all(t, len, err);
    trace_close(&t);
    if (rc == 0)
        rc = trace_open(path, &t, err);
    trace_close(&t);
    if (hdf5_objects_open() != ids)
        fuzz_wild("%lld HDF5 ids are left open", (long long)(hdf5_objects_open() - ids));
    return rc;
}

const struct fuzz_target fuzz_trace = {"trace", seeds, mutate, false, run};
