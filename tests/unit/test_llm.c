/* The Llama-family runner against an independent float32 implementation of the shipped code-lm
 * (tests/data/code-lm-a.safetensors, N = 770). */
#include "capture/llm_model.h"
#include "core/mem.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "datasets/models/code-lm"
#define GOLDEN "tests/data/code-lm-a.safetensors"

enum { N = 770, HEADS = 8, KV = 2, D = 64, CELLS = 13 };

static float *golden(const struct st_file *f, const char *name)
{
    const struct st_tensor *t = st_find(f, name);
    float *x = NULL;
    ck_assert_msg(t != NULL, "%s", name);
    MUST(mem_alloc(&x, t->count, sizeof *x, name, ERR));
    MUST(st_read_f32(f, t, 0, t->count, x, ERR));
    return x;
}

/* Everything that a run hands out, by layer and head. */
struct seen {
    float *q[6], *k[6], *v[6]; /* [heads][N][D] */
    float *map_sum, *map_max;  /* of layer 2 */
    int64_t cells;
};

static int keep_rows(void *ctx, int layer, int64_t t0, int64_t n, const float *q, const float *k,
                     const float *v, struct err *err)
{
    struct seen *s = ctx;
    for (int h = 0; h < HEADS; h++)
        nn_take_head(q, n, HEADS, D, h, s->q[layer] + (h * N + t0) * D);
    for (int h = 0; h < KV; h++) {
        nn_take_head(k, n, KV, D, h, s->k[layer] + (h * N + t0) * D);
        nn_take_head(v, n, KV, D, h, s->v[layer] + (h * N + t0) * D);
    }
    return 0;
}

static int keep_map(void *ctx, int layer, const struct attnmap *map, struct err *err)
{
    struct seen *s = ctx;
    if (layer != 2 || !map)
        return 0;
    int64_t n = HEADS * map->cells_q * map->cells_k;
    s->cells = map->cells_q;
    s->map_sum = malloc((size_t)n * sizeof(float));
    s->map_max = malloc((size_t)n * sizeof(float));
    memcpy(s->map_sum, map->sum, (size_t)n * sizeof(float));
    memcpy(s->map_max, map->max, (size_t)n * sizeof(float));
    return 0;
}

static void check_tensors(const struct seen *s, const struct st_file *f)
{
    static const int stored[] = {0, 5};
    char name[64];
    for (int i = 0; i < 2; i++) {
        int l = stored[i];
        float *want;
        snprintf(name, sizeof name, "layer%d.q.heads0,7", l);
        want = golden(f, name);
        ck_assert_double_lt(rel_l2(s->q[l], want, N * D), 1e-4);
        ck_assert_double_lt(rel_l2(s->q[l] + 7 * N * D, want + N * D, N * D), 1e-4);
        free(want);
        snprintf(name, sizeof name, "layer%d.k", l);
        want = golden(f, name);
        ck_assert_double_lt(rel_l2(s->k[l], want, KV * N * D), 1e-4);
        free(want);
    }
    OWN(free_at) float *want = golden(f, "layer5.v");
    ck_assert_double_lt(rel_l2(s->v[5], want, KV * N * D), 1e-4);
}

/* The file holds the 12 x 12 full cells; ours has the partial edge cells too. */
static void check_maps(const struct seen *s, const struct st_file *f)
{
    OWN(free_at) float *sum = golden(f, "layer2.map_sum64"), *max = golden(f, "layer2.map_max64");
    ck_assert_int_eq(s->cells, CELLS);
    for (int h = 0; h < HEADS; h++) {
        double total = 0;
        for (int r = 0; r < CELLS; r++)
            for (int c = 0; c < CELLS; c++) {
                float x = s->map_sum[(h * CELLS + r) * CELLS + c];
                total += x;
                if (r == 12 || c == 12)
                    continue;
                ck_assert_float_eq_tol(x, sum[(h * 12 + r) * 12 + c], 1e-4);
                ck_assert_float_eq_tol(s->map_max[(h * CELLS + r) * CELLS + c],
                                       max[(h * 12 + r) * 12 + c], 1e-4);
            }
        ck_assert_double_eq_tol(total, N, 1e-2); /* every row sums to 1 */
    }
}

static void check_run(int64_t chunk)
{
    struct llm_model m;
    OWN(st_close) struct st_file *f = NULL;
    struct seen s = {0};
    float nll[N - 1], logits[4096], *want;
    int64_t ids64[N];
    int32_t ids[N];
    MUST(st_open(GOLDEN, &f, ERR));
    MUST(st_read_i64(f, st_find(f, "tokens"), 0, N, ids64, ERR));
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)ids64[i];
    for (int l = 0; l < 6; l++) {
        s.q[l] = malloc(HEADS * N * D * sizeof(float));
        s.k[l] = malloc(KV * N * D * sizeof(float));
        s.v[l] = malloc(KV * N * D * sizeof(float));
    }
    MUST(llm_open(MODEL, &m, ERR));
    struct llm_run run = {.tokens = ids,
                          .n = N,
                          .chunk = chunk,
                          .pool = 64,
                          .jobs = 2,
                          .nll = nll,
                          .last_logits = logits};
    struct llm_hooks hooks = {.ctx = &s, .rows = keep_rows, .end_layer = keep_map};
    MUST(llm_forward(&m, &run, &hooks, ERR));
    llm_close(&m);

    check_tensors(&s, f);
    check_maps(&s, f);
    want = golden(f, "nll");
    for (int i = 0; i < N - 1; i++)
        ck_assert_msg(fabs(nll[i] - want[i]) < 1e-3, "nll of token %d: %g, %g", i + 1, nll[i],
                      want[i]);
    free(want);
    want = golden(f, "last_logits");
    ck_assert_double_lt(rel_l2(logits, want, 4096), 1e-4);
    free(want);
    for (int l = 0; l < 6; l++) {
        free(s.q[l]);
        free(s.k[l]);
        free(s.v[l]);
    }
    free(s.map_sum);
    free(s.map_max);
}

TEST(golden_in_one_chunk)
{
    check_run(0);
}

TEST(golden_in_chunks_of_two_cells)
{
    check_run(128);
}

TEST(tokens_outside_the_vocabulary_are_refused)
{
    OWN(llm_close) struct llm_model m;
    int32_t ids[] = {0, 4096};
    struct llm_run run = {.tokens = ids, .n = 2, .jobs = 1};
    MUST(llm_open(MODEL, &m, ERR));
    FAILS(llm_forward(&m, &run, NULL, ERR), ERR_INPUT, "vocabulary is 0..4095");
    run.n = 0;
    FAILS(llm_forward(&m, &run, NULL, ERR), ERR_USAGE, "empty");
}

TEST(missing_directory_names_the_file)
{
    struct llm_model m;
    FAILS(llm_open("no/such/model", &m, ERR), ERR_INPUT, "no/such/model/config.json");
}
