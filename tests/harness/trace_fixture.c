#include "tests/harness/trace_fixture.h"

#include "core/mem.h"
#include "core/rng.h"
#include "core/trace_internal.h"

#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct trace_meta fixture_text(enum dtype dtype, int heads, int kv_heads, int64_t n)
{
    return (struct trace_meta){
        .name = "fixture",
        .architecture = "LlamaForCausalLM",
        .weights_id = "xxh3:00112233445566778899aabbccddeeff",
        .layers = 3,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = 8,
        .v_dim = 8,
        .scale = 1 / sqrt(8),
        .causal = true,
        .positions_applied = true,
        .positions = "rope",
        .dtype = dtype,
        .compute = "float32",
        .source = "synthetic",
        .prompt_id = "xxh3:ffeeddccbbaa99887766554433221100",
        .n_q = n,
        .n_k = n,
        .seed = 7,
    };
}

struct trace_meta fixture_sampled(enum dtype dtype)
{
    struct trace_meta m = fixture_text(dtype, 2, 1, 300);
    m.n_q = ROW_GROUP + 300 % ROW_GROUP;
    m.row_group = ROW_GROUP;
    return m;
}

struct trace_meta fixture_decode(enum dtype dtype)
{
    struct trace_meta m = fixture_text(dtype, 4, 2, 40);
    m.n_q = 16;
    m.decode_from = 30;
    m.question_from = 25;
    strcpy(m.generated_by, "greedy");
    return m;
}

struct trace_meta fixture_video(enum dtype dtype)
{
    struct trace_meta m = fixture_text(dtype, 2, 2, 24);
    strcpy(m.architecture, "WanTransformer3DModel");
    m.causal = false;
    m.grid_t = 2;
    m.grid_h = 3;
    m.grid_w = 4;
    m.frames = 2;
    m.height = 24;
    m.width = 32;
    m.fps = 16;
    m.patch_t = 1;
    m.patch_h = m.patch_w = 8;
    strcpy(m.text_place, "none");
    strcpy(m.token_order, "raster");
    strcpy(m.sampler, "flow-euler");
    m.steps = 50;
    m.shift = 5;
    m.guidance = 4.5;
    return m;
}

float fixture_value(int64_t call, enum trace_what what, int64_t head, int64_t token, int64_t dim)
{
    uint64_t stream = (uint64_t)(call * TRACE_WHAT_COUNT + (int64_t)what);
    return (float)rng_normal(11, stream, (uint64_t)((head * 100003 + token) * 257 + dim));
}

struct trace_call fixture_call(const struct trace_meta *m, int i)
{
    struct trace_call c = {.layer = i,
                           .branch = "main",
                           .timestep = NAN,
                           .sigma = NAN,
                           .order = i,
                           .has_out = true,
                           .has_lse = true,
                           .has_col_sum = m->decode_from > 0,
                           .has_map = m->pool > 0};
    if (m->grid_t > 0) {
        c.layer = i % m->layers;
        strcpy(c.branch, i / m->layers % 2 ? "uncond" : "cond");
        c.step = i / m->layers / 2 * 15;
        c.order = (c.step * 2 + i / m->layers % 2) * m->layers + c.layer;
        c.sigma = 1 - c.step / 50.0;
        c.timestep = 1000 * c.sigma;
    }
    return c;
}

static int put_tensor(struct trace_writer *w, const struct trace_meta *m, int call,
                      enum trace_what what, struct err *err)
{
    struct trace_shape s = trace_shape(m, what);
    int64_t ld = s.heads * s.dim + 3; /* a row stride larger than the row */
    OWN(free_at) float *x = NULL;
    PASS_ON(mem_zalloc(&x, s.tokens * ld, sizeof *x, "fixture", err));
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t d = 0; d < s.dim; d++)
                x[t * ld + h * s.dim + d] = fixture_value(call, what, h, t, d);
    for (int64_t t = 0, n; t < s.tokens; t += n) {
        n = s.tokens - t < 7 ? s.tokens - t : 7;
        PASS_ON(trace_put(w, what, t, n, x + t * ld, ld, err));
    }
    return 0;
}

static int put_maps(struct trace_writer *w, const struct trace_meta *m, struct err *err)
{
    int64_t cells = (m->n_q + m->pool - 1) / m->pool * ((m->n_k + m->pool - 1) / m->pool);
    OWN(free_at) float *map = NULL;
    PASS_ON(mem_alloc(&map, cells, sizeof *map, "fixture", err));
    for (int h = 0; h < m->heads; h++) {
        for (int64_t i = 0; i < cells; i++)
            map[i] = (float)(h * 1000 + i);
        PASS_ON(trace_put_map(w, h, map, map, err));
    }
    return 0;
}

static int put_col_sums(struct trace_writer *w, const struct trace_meta *m, struct err *err)
{
    int64_t n = m->heads * m->decode_from;
    OWN(free_at) float *x = NULL;
    PASS_ON(mem_alloc(&x, n, sizeof *x, "fixture", err));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)i / 8;
    return trace_put_values(w, TRACE_COL_SUM, x, err);
}

static int put_run(struct trace_writer *w, const struct trace_meta *m, struct err *err)
{
    int32_t *ids = NULL, *at = NULL;
    float *nll = NULL;
    double s[51];
    int64_t n;
    int rc = 0;
    if (m->grid_t > 0) {
        for (int i = 0; i < 51; i++)
            s[i] = 1 - i / 50.0;
        TRY(trace_put_run(w, TRACE_SIGMAS, 51, s, err));
        for (int i = 0; i < 50; i++)
            s[i] *= 1000;
        return trace_put_run(w, TRACE_TIMESTEPS, 50, s, err);
    }
    TRY(mem_alloc(&ids, m->n_k, sizeof *ids, "fixture", err));
    TRY(mem_alloc(&nll, m->n_k, sizeof *nll, "fixture", err));
    for (int64_t i = 0; i < m->n_k; i++) {
        ids[i] = (int32_t)(i * 7 % 4096);
        nll[i] = (float)i / 8;
    }
    TRY(trace_put_run(w, TRACE_TOKENS, m->n_k, ids, err));
    TRY(trace_put_run(w, TRACE_NLL, m->n_k - 1, nll, err));
    if (m->row_group) {
        TRY(row_sample_draw(m->n_k, 2, m->row_group, (uint64_t)m->seed, &at, &n, err));
        TRY(trace_put_run(w, TRACE_ROWS, n, at, err));
    }
out:
    free(at);
    free(ids);
    free(nll);
    return rc;
}

int fixture_begin(const char *path, const struct trace_meta *m, int n_calls,
                  struct trace_writer **out, struct err *err)
{
    OWN(trace_abort) struct trace_writer *w = NULL;
    PASS_ON(trace_create(path, m, n_calls, true, &w, err));
    PASS_ON(put_run(w, m, err));
    for (int i = 0; i < n_calls; i++) {
        struct trace_call c = fixture_call(m, i);
        PASS_ON(trace_begin_call(w, &c, err));
        for (int what = 0; what < TRACE_WHAT_COUNT; what++)
            PASS_ON(put_tensor(w, m, i, (enum trace_what)what, err));
        if (c.has_map)
            PASS_ON(put_maps(w, m, err));
        if (c.has_col_sum)
            PASS_ON(put_col_sums(w, m, err));
        PASS_ON(trace_end_call(w, err));
    }
    *out = w;
    w = NULL;
    return 0;
}

int fixture_write(const char *path, const struct trace_meta *m, int n_calls, struct err *err)
{
    struct trace_writer *w = NULL;
    PASS_ON(fixture_begin(path, m, n_calls, &w, err));
    return trace_commit(&w, err);
}

struct trace_score fixture_score(const struct trace_meta *m, int call)
{
    const struct trace_score all[] = {
        {.reach = {.back = 5}, .softcap = 3, .sinks = true},
        {.reach = {.chunk = 4}, .scale = 0.75, .rel_bias = m->heads},
        {.alibi = true, .reach = {.prefix = 6}},
        {.bias = m->heads, .reach = {.back = 7}, .causal = CALL_BIDIRECTIONAL},
    };
    return all[call];
}

static int put_score(struct trace_writer *w, const struct trace_meta *m,
                     const struct trace_score *s, struct err *err)
{
    enum { MOST = 2 * 12 * 12 }; /* the bias of fixture_write_scored */
    float x[MOST];
    for (int i = 0; i < MOST; i++)
        x[i] = (float)rng_normal(3, 0, (uint64_t)i);
    if (s->sinks)
        PASS_ON(trace_put_values(w, TRACE_SINKS, x, err));
    if (s->rel_bias)
        PASS_ON(trace_put_values(w, TRACE_REL_BIAS, x, err));
    if (s->alibi)
        PASS_ON(trace_put_values(w, TRACE_ALIBI, x, err));
    if (s->bias)
        return trace_put_values(w, TRACE_BIAS, x, err);
    return 0;
}

int fixture_write_scored(const char *path, struct trace_meta *m, struct err *err)
{
    OWN(trace_abort) struct trace_writer *w = NULL;
    *m = fixture_text(DT_F32, 2, 1, 12);
    m->layers = SCORED_CALLS;
    PASS_ON(trace_create(path, m, SCORED_CALLS, true, &w, err));
    for (int i = 0; i < SCORED_CALLS; i++) {
        struct trace_call c = fixture_call(m, i);
        c.has_out = c.has_lse = false;
        c.score = fixture_score(m, i);
        PASS_ON(trace_begin_call(w, &c, err));
        for (int what = 0; what <= TRACE_V; what++)
            PASS_ON(put_tensor(w, m, i, (enum trace_what)what, err));
        PASS_ON(put_score(w, m, &c.score, err));
        PASS_ON(trace_end_call(w, err));
    }
    return trace_commit(&w, err);
}

int fixture_write_random(const char *path, const struct trace_meta *m, double sigma, bool bad,
                         struct err *err)
{
    struct trace_writer *w = NULL;
    float *x = NULL;
    int rc = 0;
    TRY(mem_alloc(&x, m->n_k * m->heads * m->head_dim, sizeof *x, "fixture", err));
    TRY(trace_create(path, m, m->layers, true, &w, err));
    for (int l = 0; l < m->layers; l++) {
        struct trace_call c = {
            .layer = l, .branch = "main", .timestep = NAN, .sigma = NAN, .order = l};
        TRY(trace_begin_call(w, &c, err));
        for (int what = 0; what <= TRACE_V; what++) {
            int64_t row = (what == TRACE_Q ? m->heads : m->kv_heads) * m->head_dim;
            for (int64_t i = 0; i < m->n_k * row; i++)
                x[i] = (float)(what == TRACE_Q ? sigma : 1) *
                       (float)rng_normal(7, (uint64_t)(l * 3 + what), (uint64_t)i);
            if (bad && l == m->layers - 1 && what == TRACE_K)
                x[m->n_k * row - 1] = NAN;
            TRY(trace_put(w, (enum trace_what)what, 0, m->n_k, x, row, err));
        }
        TRY(trace_end_call(w, err));
    }
    TRY(trace_commit(&w, err));
out:
    trace_abort(&w);
    free(x);
    return rc;
}

int64_t hdf5_objects_open(void)
{
    static const H5I_type_t kinds[] = {H5I_FILE, H5I_GROUP,     H5I_DATASET,
                                       H5I_ATTR, H5I_DATASPACE, H5I_DATATYPE};
    int64_t sum = 0;
    hsize_t n;
    /* The library's own predefined types and lists are counted before and after alike. */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (H5Itype_exists(kinds[i]) > 0 && H5Inmembers(kinds[i], &n) >= 0)
            sum += (int64_t)n;
    if (H5Inmembers(H5I_GENPROP_LST, &n) >= 0)
        sum += (int64_t)n;
    return sum;
}

/* For the leak sanitizer: HDF5 leaks when it refuses a damaged file. Ids that we forget are found
 * by hdf5_objects_open. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5\n";
}

void trace_locate(const struct trace *t, int64_t call, enum trace_what what, int head,
                  int64_t *offset, int64_t *bytes)
{
    const struct trace_array *a = &t->calls[call].arr[what];
    *bytes = a->rows * a->row_bytes;
    *offset = a->offset + head * *bytes;
}
