/*
 * test_svg2.c - Sparse VideoGen2: k-means, cluster maps, masks, text, warm-up, state across steps
 * and guidance branches, refusals.
 */
#include "core/accel.h"
#include "core/rng.h"
#include "sim/blocks/callrng.h"
#include "sim/blocks/gpusum.h"
#include "sim/replay.h"
#include "sim/methods/svg2/svg2.h"
#include "tests/harness/methodrun.h"
#include "tests/harness/trace_fixture.h"

#include <stdio.h>
#include <unistd.h>

/* ---- k-means -------------------------------------------------------------------------------- */

static struct kmeans line_of(const float *centroids, int64_t n, int64_t k)
{
    struct kmeans m;
    MUST(kmeans_init(&m, n, k, 1, DT_F32, ERR));
    memcpy(m.centroids, centroids, (size_t)k * sizeof *centroids);
    return m;
}

TEST(kmeans_by_hand)
{
    static const float x[] = {0, 1, 10, 11}, start[] = {0, 10};
    struct kmeans m = line_of(start, 4, 2);
    MUST(kmeans_run(&m, x, 1, 1e-4, ERR));
    ck_assert_int_eq(m.iterations, 1);
    ck_assert_double_eq(m.shift, 0.5);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(m.labels[i], i / 2);
    ck_assert_float_eq(m.centroids[0], 0.5f);
    ck_assert_float_eq(m.centroids[1], 10.5f);
    MUST(kmeans_run(&m, x, 50, 1e-4, ERR));
    ck_assert_int_eq(m.iterations, 1);
    ck_assert_double_eq(m.shift, 0);
    ck_assert_float_eq(m.centroids[0], 0.5f);
    kmeans_free(&m);
    m = line_of(start, 4, 2);
    MUST(kmeans_run(&m, x, 50, 1e-4, ERR));
    ck_assert_int_eq(m.iterations, 2);
    kmeans_free(&m);
}

TEST(equal_centroids_leave_one_empty)
{
    static const float x[] = {0, 1, 10, 11}, start[] = {0, 0};
    OWN(kmeans_free) struct kmeans m = line_of(start, 4, 2);
    MUST(kmeans_run(&m, x, 1, 1e-4, ERR));
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(m.labels[i], 0);
    ck_assert_int_eq(m.sizes[0], 4);
    ck_assert_int_eq(m.sizes[1], 0);
    ck_assert_float_eq(m.centroids[0], 5.5f);
    ck_assert_float_eq(m.centroids[1], 0);
}

/* Tokens that were drawn twice as centroids: the copies stay empty, wherever BLAS puts them in its
 * tiles of rows and columns. */
TEST_N(copies_of_a_centroid_stay_empty, 20)
{
    enum { D = 80 };
    static const int64_t tokens[] = {1, 3, 16, 200, 300}, clusters[] = {33, 70, 220, 257};
    int64_t n = tokens[_i / 4], k = clusters[_i % 4];
    OWN(kmeans_free) struct kmeans m;
    OWN(free_at) float *x = calloc((size_t)(n * D), sizeof *x);
    for (int64_t i = 0; i < n * D; i++)
        x[i] = (float)rng_normal(11, 0, (uint64_t)i);
    MUST(kmeans_init(&m, n, k, D, DT_F32, ERR));
    for (int64_t j = 0; j < k; j++) {
        uint64_t i = rng_below(11, 1, (uint64_t)(j % 11), (uint64_t)n);
        memcpy(m.centroids + j * D, x + (int64_t)i * D, D * sizeof *x);
    }
    MUST(kmeans_run(&m, x, 1, 0, ERR));
    for (int64_t j = 11; j < k; j++)
        ck_assert_msg(m.sizes[j] == 0, "%lld tokens in copy %lld of %lld", (long long)m.sizes[j],
                      (long long)j, (long long)k);
}

/* Labels with the norms of the published bf16 kernel, from tests/data/gpu_sums.py; with
 * exact norms 75, 86 and 151 of the 600 labels are others. */
TEST_N(labels_with_the_norms_of_the_bf16_kernel, 3)
{
    enum { N = 600, K = 48, MAX_D = 128 };
    static const struct {
        int d;
        int64_t bf16, exact;
    } c[] = {{128, 4462410, 4288455}, {64, 4170796, 4317345}, {40, 4342197, 4156919}};
    int d = c[_i].d;
    float x[N * MAX_D];
    for (int64_t i = 0; i < N * d; i++)
        x[i] = (float)((int)((uint32_t)((uint64_t)i * 2654435761u) >> 24) - 128) / 32;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        OWN(kmeans_free) struct kmeans m;
        int64_t sum = 0;
        MUST(kmeans_init(&m, N, K, d, DT_BF16, ERR));
        m.bf16_norms = bf16 == 1;
        for (int64_t j = 0; j < K; j++)
            memcpy(m.centroids + j * d, x + 7 * j * d, (size_t)d * sizeof *x);
        MUST(kmeans_run(&m, x, 1, 0, ERR));
        for (int64_t i = 0; i < N; i++)
            sum += (i + 1) * m.labels[i];
        ck_assert_int_eq(sum, bf16 ? c[_i].bf16 : c[_i].exact);
    }
}

/* A step below the tolerance is not taken. */
TEST(small_movements_are_dropped)
{
    static const float x[] = {0, 1, 10, 11}, start[] = {0, 10};
    OWN(kmeans_free) struct kmeans m = line_of(start, 4, 2);
    MUST(kmeans_run(&m, x, 50, 0.6, ERR));
    ck_assert_int_eq(m.iterations, 1);
    ck_assert_float_eq(m.centroids[0], 0);
    ck_assert_float_eq(m.centroids[1], 10);
    ck_assert_int_eq(m.sizes[0], 2);
}

/* Lloyd's algorithm in double; values are multiples of 1/8, so that float products are exact. */
TEST_N(kmeans_follows_the_plain_algorithm, 3)
{
    enum { N = 700, K = 9, D = 5 };
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    OWN(kmeans_free) struct kmeans m;
    float x[N * D], c[K * D];
    for (int i = 0; i < N * D; i++)
        x[i] = (float)(rng_u64(5, 1, (uint64_t)i) % 65) / 8 - 4;
    MUST(kmeans_init(&m, N, K, D, types[_i], ERR));
    for (int j = 0; j < K * D; j++)
        c[j] = m.centroids[j] = x[j * 7];
    for (int t = 0; t < 6; t++) {
        double sum[K * D] = {0};
        int64_t size[K] = {0};
        int label[N];
        for (int i = 0; i < N; i++) {
            double best = INFINITY;
            for (int j = 0; j < K; j++) {
                double dist = 0;
                for (int a = 0; a < D; a++)
                    dist += pow((double)x[i * D + a] - c[j * D + a], 2);
                if (dist < best - 1e-4) {
                    best = dist;
                    label[i] = j;
                }
            }
            size[label[i]]++;
            for (int a = 0; a < D; a++)
                sum[label[i] * D + a] += x[i * D + a];
        }
        for (int j = 0; j < K * D; j++)
            if (size[j / D])
                c[j] = dtype_round(types[_i], (float)(sum[j] / (double)size[j / D]));
        MUST(kmeans_run(&m, x, 1, 0, ERR));
        int different = 0;
        for (int i = 0; i < N; i++)
            different += m.labels[i] != label[i];
        ck_assert_msg(different == 0, "iteration %d: %d labels differ", t, different);
        for (int j = 0; j < K; j++)
            ck_assert_int_eq(m.sizes[j], size[j]);
        for (int j = 0; j < K * D; j++)
            ck_assert_float_eq(m.centroids[j], c[j]);
    }
}

/* ---- maps ----------------------------------------------------------------------------------- */

TEST_N(prefixes_by_hand, 6)
{
    static const struct {
        float p[4];
        int n;
        double top_p;
        int64_t kept;
    } cases[] = {
        {{0.5f, 0.3f, 0.15f, 0.05f}, 4, 0.9, 3}, {{0.5f, 0.25f, 0.25f}, 3, 0.75, 3},
        {{0.5f, 0.25f, 0.25f}, 3, 0.74, 2},      {{0.5f, 0.25f, 0.25f}, 3, 0.01, 1},
        {{0.5f, 0.25f, 0.25f}, 3, 1, 3},         {{0.99f, 0.006f, 0.004f}, 3, 1, 3},
    };
    struct svg2_cut cut = {.top_p = cases[_i].top_p, .dtype = DT_F32, .chunk = 32};
    ck_assert_int_eq(svg2_prefix(&cut, cases[_i].p, cases[_i].n), cases[_i].kept);
    cut.bf16_sums = true;
    ck_assert_int_eq(svg2_prefix(&cut, cases[_i].p, cases[_i].n), cases[_i].kept);
}

TEST(a_share_of_clusters_is_always_kept)
{
    static float p[1000] = {1};
    struct svg2_cut cut = {.top_p = 0.9, .min_share = 0.10, .dtype = DT_F32};
    ck_assert_int_eq(svg2_prefix(&cut, p, 1000), 100);
    ck_assert_int_eq(svg2_prefix(&cut, p, 15), 1);
    ck_assert_int_eq(svg2_prefix(&cut, p, 9), 1); /* of the sum; the share alone keeps none */
    cut.min_share = 0.5;
    ck_assert_int_eq(svg2_prefix(&cut, p, 9), 4);
}

/* x_i = 1 / (4 (i + 20)). Entries kept by the sum of a GPU in bf16, from tests/data/gpu_sums.py;
 * a sequential bf16 sum stands still at 0.5 and keeps all 1000. top_p acts as the bf16 number next
 * to it: 0.9 as 0.8984. */
TEST(running_sums_in_bf16)
{
    enum { N = 1000 };
    static const struct {
        double top_p;
        int64_t rows, bf16, f32;
    } c[] = {{0.3, 1, 46, 46},        {0.5, 1, 127, 125},      {0.7, 1, 300, 302},
             {0.9, 1, 691, 695},      {0.5, 100, 127, 125},    {0.9, 100, 722, 695},
             {0.5, 100000, 125, 125}, {0.7, 100000, 317, 302}, {0.9, 100000, 847, 695}};
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = 1 / ((float)i + 20) / 4;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct svg2_cut cut = {
            .top_p = c[i].top_p, .dtype = DT_F32, .chunk = gpusum_chunk(N, c[i].rows)};
        ck_assert_int_eq(svg2_prefix(&cut, x, N), c[i].f32);
        cut.bf16_sums = true;
        ck_assert_int_eq(svg2_prefix(&cut, x, N), c[i].bf16);
    }
}

TEST(weights_count_the_tokens_of_a_cluster)
{
    float q[] = {1, 2}, p[2];
    OWN(kmeans_free) struct kmeans keys;
    struct svg2_cut f32 = {.dtype = DT_F32}, bf16 = {.dtype = DT_BF16};
    MUST(kmeans_init(&keys, 4, 2, 2, DT_F32, ERR));
    keys.sizes[0] = 3;
    keys.sizes[1] = 1;
    svg2_weights(q, &keys, 0.5, &f32, p);
    ck_assert_float_eq(p[0], 0.75f);
    ck_assert_float_eq(p[1], 0.25f);
    keys.centroids[2] = 2 * logf(3); /* score ln 3 more for the small one: equal weights */
    svg2_weights(q, &keys, 0.5, &f32, p);
    ck_assert_float_eq_tol(p[0], 0.5f, 1e-6f);
    svg2_weights(q, &keys, 0.5, &bf16, p);
    ck_assert_float_eq(p[0], 0.5f);
    keys.sizes[1] = 0;
    svg2_weights(q, &keys, 0.5, &f32, p);
    ck_assert_float_eq(p[0], 1);
    ck_assert_float_eq(p[1], 0);
}

/* q.k = 257 is 256 in bf16 (ties to even), so that two scores become one; 0.3 is 0.30078. */
TEST(scores_are_rounded_twice)
{
    float q[] = {1, 1}, p[2];
    OWN(kmeans_free) struct kmeans keys;
    struct svg2_cut cut = {.dtype = DT_F32};
    MUST(kmeans_init(&keys, 2, 2, 2, DT_F32, ERR));
    keys.sizes[0] = keys.sizes[1] = 1;
    keys.centroids[0] = keys.centroids[2] = 256;
    keys.centroids[1] = 1;
    svg2_weights(q, &keys, 1, &cut, p);
    ck_assert_float_eq_tol(p[0], 0.731059f, 1e-6f);
    cut.bf16_scores = true;
    svg2_weights(q, &keys, 1, &cut, p);
    ck_assert_float_eq(p[0], 0.5f);
    keys.centroids[0] = 1;
    keys.centroids[1] = keys.centroids[2] = 0;
    svg2_weights(q, &keys, 0.3, &cut, p);
    ck_assert_float_eq_tol(p[0], 1 / (1 + expf(-0.30078125f)), 1e-6f);
}

TEST(ties_of_the_map_go_to_the_lower_cluster)
{
    OWN(kmeans_free) struct kmeans q, k;
    struct svg2_cut cut = {.top_p = 0.4, .dtype = DT_F32};
    OWN(free_at) uint8_t *map = NULL;
    MUST(kmeans_init(&q, 4, 2, 2, DT_F32, ERR));
    MUST(kmeans_init(&k, 4, 4, 2, DT_F32, ERR));
    for (int b = 0; b < 4; b++)
        k.sizes[b] = 1;
    k.centroids[3 * 2] = 1;
    q.centroids[0] = 0;  /* all equal: 0, 1 (0.25 + 0.25 > 0.4) */
    q.centroids[2] = 10; /* cluster 3 */
    MUST(svg2_map(&q, &k, 1, &cut, &map, ERR));
    static const uint8_t want[] = {1, 1, 0, 0, 0, 0, 0, 1};
    ck_assert_int_eq(memcmp(map, want, 8), 0);
}

/* ---- the method ----------------------------------------------------------------------------- */

static void round_to_bf16(struct sim_head *h)
{
    h->in.src_dtype = DT_BF16;
    for (int64_t i = 0; i < h->in.x.nq * h->in.x.d; i++) {
        h->q[i] = dtype_round(DT_BF16, h->q[i]);
        h->k[i] = dtype_round(DT_BF16, h->k[i]);
    }
}

/* Does `text` make this mask on the head? */
static bool same_bits(const char *text, const struct head_in *in, const uint8_t *want)
{
    OWN(free_at) uint8_t *got = run_bits(text, in);
    return memcmp(got, want, (size_t)(in->x.nq * in->x.nk)) == 0;
}

#define RULE "svg2:preset=none:qc=6:kc=12:top_p=0.5"

/* The mask from clusters that are made here with the same start. */
TEST_N(masks_follow_the_clusters, 2)
{
    OWN(record_free) struct record r;
    OWN(kmeans_free) struct kmeans q, k;
    OWN(free_at) uint8_t *map = NULL;
    struct svg2_cut cut = {.top_p = 0.5, .min_share = 0.10, .dtype = DT_F32};
    int64_t video = 192, text = _i ? 11 : 0, n = video + text, pairs = 0;
    OWN(free_at) uint8_t *bits = calloc((size_t)(n * n), 1);
    HEAD(h, random_video, 3, 4, 6, 8, text, 2);
    h.in.head = 5;
    h.in.kv_head = 2;
    MUST(kmeans_init(&q, video, 6, 16, DT_F32, ERR));
    MUST(kmeans_init(&k, video, 12, 16, DT_F32, ERR));
    for (int j = 0; j < 12; j++) {
        uint64_t a = rng_below(1, head_stream(0x7376673271756572ull, &h.in, 5), (uint64_t)j, 192);
        uint64_t b = rng_below(1, head_stream(0x737667326b657973ull, &h.in, 2), (uint64_t)j, 192);
        if (j < 6)
            memcpy(q.centroids + j * 16, h.q + a * 16, 16 * sizeof(float));
        memcpy(k.centroids + j * 16, h.k + b * 16, 16 * sizeof(float));
    }
    MUST(kmeans_run(&q, h.q, 50, 1e-4, ERR));
    MUST(kmeans_run(&k, h.k, 50, 1e-4, ERR));
    MUST(svg2_map(&q, &k, h.in.x.scale, &cut, &map, ERR));
    run_text_carry(RULE, &h.in, NULL, 1, sink_bits, bits, &r);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            bool want = i >= video || j >= video || map[q.labels[i] * 12 + k.labels[j]];
            ck_assert_int_eq(bits[i * n + j], want);
            pairs += want;
        }
    HAS(&r, 1e-14, "pairs_kept density_native cold_start kmeans_iter_q kmeans_iter_k",
        (double)pairs, record_get(&r, "density_elem"), 1, (double)q.iterations,
        (double)k.iterations);
    int64_t exec = (text + 127) / 128 * ((n + 127) / 128), kept = 0, full = 0;
    for (int a = 0; a < 6; a++) {
        int64_t keys = text;
        for (int b = 0; b < 12; b++) {
            keys += map[a * 12 + b] ? k.sizes[b] : 0;
            kept += map[a * 12 + b] && q.sizes[a] && k.sizes[b];
            full += q.sizes[a] && k.sizes[b];
        }
        exec += (q.sizes[a] + 127) / 128 * ((keys + 127) / 128);
    }
    HAS(&r, 1e-15, "pairs_exec map_density", (double)(exec * 128 * 128),
        (double)kept / (double)full);
}

/* emulate=bf16 rounds a float trace as a bf16 one, whose clusters and map are then the same; it
 * has the running sum of cumsum=bf16. */
TEST(emulation_is_that_of_a_bf16_trace)
{
    static const char *const same[] = {RULE ":emulate=bf16", RULE ":emulate=bf16:cumsum=bf16"};
    HEAD(h, random_video, 12, 4, 6, 8, 0, 0);
    OWN(free_at) uint8_t *emulated = run_bits(same[0], &h.in);
    ck_assert(!same_bits(RULE, &h.in, emulated));
    round_to_bf16(&h);
    for (int i = 0; i < 2; i++)
        ck_assert(same_bits(same[i], &h.in, emulated));
}

TEST_N(one_cluster_or_all_mass_is_dense, 3)
{
    static const char *const texts[] = {"svg2:preset=none:qc=1:kc=1",
                                        "svg2:preset=none:qc=6:kc=12:top_p=1", RULE ":min_kc=1"};
    HEAD(h, random_video, 4, 4, 6, 8, 0, 0);
    RUN_HAS(texts[_i], &h.in, 1e-14, "density_elem map_density err_l2_rel", 1, 1, 0);
}

/* Prompt tokens see and are seen by everything but padding; padding sees padding. */
TEST(text_is_kept_and_padding_counts_in_the_published_number)
{
    OWN(record_free) struct record r;
    int64_t n = 200;
    OWN(free_at) uint8_t *bits = calloc((size_t)(n * n), 1);
    HEAD(h, random_video, 5, 4, 6, 8, 8, 2);
    h.in.n_padding = 24;
    run_text_carry(RULE, &h.in, NULL, 1, sink_bits, bits, &r);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 192; j < n; j++)
            ck_assert(bits[i * n + j] && bits[j * n + i]);
    ck_assert_double_eq_tol(record_get(&r, "density_native"),
                            (record_get(&r, "pairs_kept") + 24 * 24) / (224.0 * 224), 1e-14);
    ck_assert_double_lt(record_get(&r, "density_elem"), 0.9);
}

/* With one query cluster its centroid is the mean query, whatever token it started from: query
 * heads of one key head then share their masks, since they share the key clusters. */
TEST(keys_are_clustered_once_per_key_head)
{
    const char *text = "svg2:preset=none:qc=1:kc=12:top_p=0.5";
    HEAD(h, random_video, 6, 4, 6, 8, 0, 0);
    for (int64_t i = 0; i < h.in.x.nq * h.in.x.d; i++)
        h.q[i] += 1;
    h.in.head = 4;
    h.in.kv_head = 1;
    OWN(free_at) uint8_t *bits = run_bits(text, &h.in);
    h.in.head = 5;
    ck_assert(same_bits(text, &h.in, bits));
    h.in.kv_head = 2;
    ck_assert(!same_bits(text, &h.in, bits));
}

TEST(later_steps_start_from_the_last_centroids)
{
    OWN(carry_end) struct carry carry = {0};
    HEAD(h, random_video, 7, 4, 6, 8, 0, 0);
    for (int t = 0; t < 4; t++) {
        STEP(r, RULE, &h, t, &carry);
        /* The head does not change: converged at once. */
        HAS(&r, 0, "cold_start", t == 0);
        ck_assert_int_eq(record_get(&r, "kmeans_iter_q") == 1, t > 0);
    }
    step_skips(RULE, &h, 5, &carry, "no clusters of step 4");
    step_skips(RULE, &h, 5, NULL, "no clusters of step 4");
    STEP_HAS(RULE ":cold=1", &h, 5, &carry, 0, "cold_start", 1);
    STEP_HAS(RULE ":cold=1", &h, 6, &carry, 0, "cold_start", 0);
}

TEST(iterations_are_limited)
{
    OWN(carry_end) struct carry carry = {0};
    for (int t = 0; t < 3; t++) {
        HEAD(h, random_video, 50 + (uint64_t)t, 4, 6, 8, 0, 0);
        STEP_HAS(RULE ":iter_init=3:iter_step=2:tol=0", &h, t, &carry, 0, "kmeans_iter_k",
                 t ? 2 : 3);
    }
}

TEST(first_steps_and_layers_are_dense)
{
    static const char *const rule = "svg2:qc=6:kc=12"; /* wan-t2v-720p: 10 of 50 steps, no warm */
    static const char *const warm = "svg2:preset=wan-i2v-480p:qc=6:kc=12";
    OWN(carry_end) struct carry cold = {0}, carry = {0}, other = {0};
    HEAD(h, random_video, 8, 4, 6, 8, 0, 0);
    STEP_HAS(rule, &h, 9, &cold, 0, "dense_call density_elem cold_start", 1, 1, NONE);
    STEP_HAS(rule, &h, 10, &cold, 0, "dense_call cold_start", 0, 1);
    /* With warm the dense steps cluster; one that is missing leaves them dense, later ones skip. */
    for (int t = 0; t < 11; t++)
        STEP_HAS(warm, &h, t, &carry, 0, "dense_call cold_start", t < 10, t == 0);
    STEP_HAS(warm, &h, 7, &carry, 0, "dense_call cold_start", 1, NONE);
    step_skips(warm, &h, 10, &other, "no clusters of step 9");
    STEP_HAS("svg2:preset=wan-i2v-480p:qc=6:kc=12:warm=0", &h, 10, &other, 0, "cold_start", 1);
    h.in.layer = 0;
    STEP_HAS(rule, &h, 30, NULL, 0, "dense_call", 1);
}

/* What a device gives of 3 and 4 clusters, in its layout (core/rules.h): every token in cluster 1,
 * which keeps the key clusters 1 and 2. */
static void make_own(int64_t video, int64_t d, struct accel_own *own)
{
    struct svg2_own head = {{5, 6}};
    own->bytes = (int64_t)sizeof head + 7 * d * 4 + 2 * video * 4 + 3 * 4;
    own->data = calloc((size_t)own->bytes, 1);
    memcpy(own->data, &head, sizeof head);
    int32_t *labels = (int32_t *)((char *)own->data + sizeof head + 7 * d * 4);
    for (int64_t i = 0; i < 2 * video; i++)
        labels[i] = 1;
    uint8_t *map = (uint8_t *)(labels + 2 * video);
    map[4 + 1] = map[4 + 2] = 1;
}

#define CLUSTERED "svg2:preset=none:cold=1:qc=3:kc=4"

/* The centroids that the device starts from; NULL: it draws them. */
static const float *start_of(const struct prepared *p)
{
    struct rule rule = rule_of(p);
    return ((const struct svg2_given *)rule.data)->centroids[0];
}

TEST(a_device_clusters)
{
    OWN(carry_end) struct carry carry = {0};
    OWN(record_free) struct record r;
    OWN(mask_free) struct mask m = {0}, choice = {0};
    struct accel_own own = {0};
    struct err err = {0};
    HEAD(h, random_video, 3, 4, 6, 8, 0, 0);
    h.in.src_dtype = DT_BF16;
    int64_t video = h.in.x.nq;
    make_own(video, h.in.x.d, &own);
    {
        PREPARED(p, CLUSTERED, &h.in, 1, &carry);
        ck_assert_int_eq(rule_of(&p).of.svg2.video, video);
        ck_assert_ptr_null(start_of(&p));
        take_choice(&p, &choice, &own);
        MUST(p.me->select(p.state, 0, video, &m, ERR));
        ck_assert_int_eq(m.ptr[video], video * video);
        record_init(&r);
        MUST(record_metric(&r, "pairs_allowed", (double)(video * video), ERR));
        MUST(p.me->report(p.state, &r, ERR));
        HAS(&r, 0, "kmeans_iter_q kmeans_iter_k clusters_empty_k", 5, 6, 3);
        ck_assert_ptr_nonnull(carry.data);
    }
    h.in.step++;
    { /* What the device started from stays, so that it can choose again. */
        float start[3 * 16];
        PREPARED(p, CLUSTERED, &h.in, 1, &carry);
        memcpy(start, start_of(&p), sizeof start);
        take_choice(&p, &choice, &own);
        ck_assert_mem_eq(start, start_of(&p), sizeof start);
    }
    h.in.step++;
    { /* A label that no cluster has. */
        PREPARED(p, CLUSTERED, &h.in, 1, &carry);
        ck_assert_ptr_nonnull(start_of(&p));
        memset((char *)own.data + sizeof(struct svg2_own) + 7 * h.in.x.d * 4, 9, 1);
        ck_assert_int_eq(p.me->device.take(
                             p.state, &(struct device_choice){.lists = &choice, .own = &own}, &err),
                         ERR_RUN);
    }
    h.in.src_dtype = DT_F32;
    h.in.step++;
    PREPARED(p, CLUSTERED, &h.in, 1, &carry);
    ck_assert(!p.me->device.rule(p.state, &(struct rule){0}, (char[160]){0}));
    free(own.data);
}

/* Operands of float32 that lie on a device are bf16 there: it clusters them, and where it does not
 * the clusters here are those of rounded tokens. */
TEST(operands_on_a_device_are_bf16)
{
    static const struct accel_operands there = {0};
    struct accel_own own = {0};
    int64_t n = 192;
    OWN(record_free) struct record r;
    HEAD(h, random_video, 12, 4, 6, 8, 0, 0);
    OWN(free_at) uint8_t *here = run_bits(RULE, &h.in);
    h.in.x.on_device = &there;
    OWN(free_at) uint8_t *rounded = run_bits(RULE, &h.in);
    ck_assert_int_ne(memcmp(here, rounded, (size_t)(n * n)), 0);
    PREPARED(p, CLUSTERED, &h.in, 1, NULL);
    rule_of(&p);
    make_own(n, h.in.x.d, &own);
    take_choice(&p, NULL, &own); /* its mask stays there */
    record_init(&r);
    MUST(record_metric(&r, "pairs_allowed", (double)(n * n), ERR));
    MUST(p.me->report(p.state, &r, ERR));
    HAS(&r, 0, "map_density", 1);
    h.in.x.on_device = NULL;
    round_to_bf16(&h);
    ck_assert(same_bits(RULE, &h.in, rounded));
    free(own.data);
}

/* ---- guidance branches ---------------------------------------------------------------------- */

/* Records of a replay of the first calls of the fixture's video; `other` may be NULL. */
static int64_t replay_fixture(const char *text, const char *other, const char *branch, int calls,
                              struct record **records)
{
    static int times;
    struct trace_meta m = fixture_video(DT_F32);
    char path[400], file[400];
    struct replay r = {.load = {.precision = PREC_F64}, .seed = 1};
    struct call_select sel = {.branch = branch};
    int64_t n;
    snprintf(path, sizeof path, "%s/video-%d-%d.h5", test_tmpdir(), (int)getpid(), times);
    snprintf(file, sizeof file, "%s/records-%d-%d.jsonl", test_tmpdir(), (int)getpid(), times++);
    MUST(fixture_write(path, &m, calls, ERR));
    r.traces = calloc(1, sizeof *r.traces);
    r.n_traces = 1;
    MUST(trace_open(path, &r.traces[0], ERR));
    MUST(method_runs_parse(test_methods, text, &r.runs, &r.n_runs, ERR));
    if (other)
        MUST(method_runs_parse(test_methods, other, &r.runs, &r.n_runs, ERR));
    MUST(record_file_open(file, &r.records, ERR));
    MUST(replay_plan(&r, &sel, ERR));
    MUST(replay_groups(&r, ERR));
    MUST(replay_execute(&r, 2, ERR));
    record_file_close(&r.records);
    method_runs_free(r.runs, r.n_runs);
    replay_free(&r);
    MUST(records_load(file, records, &n, ERR));
    return n;
}

static double cold_starts(const char *text, const char *branch, int64_t want)
{
    struct record *records;
    int64_t n = replay_fixture(text, NULL, branch, 6, &records);
    double sum = 0;
    ck_assert_int_eq(n, want);
    for (int64_t i = 0; i < n; i++) {
        ck_assert_msg(records[i].status == RECORD_OK, "%s", records[i].reason);
        sum += record_get(&records[i], "cold_start");
    }
    records_free(records, n);
    return sum;
}

/* Step 0 of 2 branches, 3 layers, 2 heads: the second branch goes on from the first one's
 * centroids, or starts on its own. */
TEST(branches_share_their_centroids)
{
    const char *shared = "svg2:preset=none:qc=3:kc=4";
    const char *own = "svg2:preset=none:qc=3:kc=4:share_branches=0";
    ck_assert_double_eq(cold_starts(shared, NULL, 12), 6);
    ck_assert_double_eq(cold_starts(own, NULL, 12), 12);
    ck_assert_double_eq(cold_starts(shared, "uncond", 6), 6);
}

static const struct record *find(const struct record *r, int64_t n, const struct record *of)
{
    for (int64_t i = 0; i < n; i++)
        if (strcmp(r[i].method, of->method) == 0 && strcmp(r[i].branch, of->branch) == 0 &&
            r[i].step == of->step && r[i].layer == of->layer && r[i].head == of->head)
            return &r[i];
    ck_abort_msg("no record of step %d, branch %s", of->step, of->branch);
    return NULL;
}

/* Another method's masks stay with their branch when the branches are worked through together. */
TEST(other_methods_keep_their_branches_apart)
{
    const char *mask = "fg-attn:refresh=30:M=16:tau=1.5";
    struct record *alone, *joined;
    const char *clusters = "svg2:preset=none:qc=3:kc=4:cold=1";
    int64_t n = replay_fixture(mask, NULL, NULL, 12, &alone), reused = 0;
    int64_t both = replay_fixture(clusters, mask, NULL, 12, &joined);
    ck_assert_int_eq(n, 24);
    ck_assert_int_eq(both, 48);
    for (int64_t i = 0; i < n; i++) {
        const struct record *same = find(joined, both, &alone[i]);
        reused += record_get(&alone[i], "mask_age") == 15;
        HAS(same, 0, "pairs_kept err_l2_rel", record_get(&alone[i], "pairs_kept"),
            record_get(&alone[i], "err_l2_rel"));
    }
    ck_assert_int_eq(reused, 12);
    records_free(alone, n);
    records_free(joined, both);
}
