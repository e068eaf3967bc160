/*
 * test_rope.c - frequencies and angles of every position scaling against transformers
 * (tests/data/tiny/rope.json), and what rotation must keep.
 */
#include "capture/llm_config.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/safetensors.h"
#include "tests/harness/suite.h"
#include "tests/harness/tinymodel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_D 128

static struct err err;

static const char *const names[] = {"code-lm", "linear", "llama31", "qwen25-yarn", "qwen25-card"};

/* Configuration `name` of rope.json; positions [*n] when asked for. */
static struct llm_config read_config(const char *name, int64_t *positions, int64_t *n)
{
    struct llm_config c;
    OWN(json_decrefp) json_t *all = NULL;
    assert_ok(json_read_file("tests/data/tiny/rope.json", 1 << 20, &all, &err), &err);
    tiny_put_config(test_tmpdir(), json_object_get(json_object_get(all, "configs"), name));
    assert_ok(llm_config_read(test_tmpdir(), &c, &err), &err);
    const json_t *list = json_object_get(all, "positions");
    if (n)
        *n = (int64_t)json_array_size(list);
    for (size_t i = 0; positions && i < json_array_size(list); i++)
        positions[i] = json_integer_value(json_array_get(list, i));
    return c;
}

static float *golden(const char *name, const char *what, int64_t count)
{
    OWN(st_close) struct st_file *f = NULL;
    const struct st_tensor *t;
    char full[96];
    float *x = NULL;
    snprintf(full, sizeof full, "rope.%s.%s", name, what);
    assert_ok(st_open("tests/data/tiny/golden.safetensors", &f, &err), &err);
    assert_ok(st_require(f, full, -1, NULL, &t, &err), &err);
    ck_assert_int_eq(t->count, count);
    assert_ok(mem_alloc(&x, count, sizeof *x, full, &err), &err);
    assert_ok(st_read_f32(f, t, 0, count, x, &err), &err);
    return x;
}

/* The reference's frequencies are float32: half a unit in the last place each, and one more for its
 * power function. */
TEST_N(frequencies_are_those_of_the_reference, 5)
{
    struct llm_config c = read_config(names[_i], NULL, NULL);
    double freq[MAX_D / 2];
    OWN(free_at) float *want = golden(names[_i], "inv_freq", c.head_dim / 2);
    rope_frequencies(&c.rope, c.head_dim, freq);
    for (int i = 0; i < c.head_dim / 2; i++)
        ck_assert_msg(fabs(freq[i] / want[i] - 1) < 4e-7, "%s %d: %.9g, expected %.9g", names[_i],
                      i, freq[i], want[i]);
}

/* Rotating (1, 0) shows cos and sin. The reference multiplies position and frequency in float32:
 * the angle differs by up to 5e-7 of itself, its rounding and that of the frequencies. */
TEST_N(angles_are_those_of_the_reference, 5)
{
    int64_t pos[16], n = 0;
    struct llm_config c = read_config(names[_i], pos, &n);
    int d = c.head_dim, half = d / 2;
    double freq[MAX_D / 2], factor = rope_frequencies(&c.rope, d, freq);
    OWN(free_at) float *want_cos = golden(names[_i], "cos", n * d), *x = malloc(sizeof *x * MAX_D);
    OWN(free_at) float *want_sin = golden(names[_i], "sin", n * d);
    for (int64_t p = 0; p < n; p++) {
        for (int i = 0; i < d; i++)
            x[i] = i < half;
        rope_apply(x, 1, 1, d, pos[p], freq, factor);
        for (int i = 0; i < half; i++) {
            double tol = 3e-7 + 5e-7 * (double)pos[p] * freq[i];
            ck_assert_double_eq_tol(x[i], want_cos[p * d + i], tol);
            ck_assert_double_eq_tol(x[half + i], want_sin[p * d + i], tol);
        }
    }
}

/* q at i times k at j depends on i - j alone, and rotation keeps lengths. */
TEST(products_depend_on_the_distance_alone)
{
    enum { D = 64 };
    struct rope_config c = {.theta = 500000, .factor = 1};
    double freq[D / 2];
    float q[D], k[D], a[D], b[D];
    double first = 0;
    ck_assert(rope_frequencies(&c, D, freq) == 1);
    for (int i = 0; i < D; i++) {
        q[i] = (float)rng_normal(1, 0, (uint64_t)i);
        k[i] = (float)rng_normal(1, 1, (uint64_t)i);
    }
    for (int64_t shift = 0; shift < 40000; shift += 7919) {
        double dot = 0, len = 0, len0 = 0;
        memcpy(a, q, sizeof q);
        memcpy(b, k, sizeof k);
        rope_apply(a, 1, 1, D, 100 + shift, freq, 1);
        rope_apply(b, 1, 1, D, 58 + shift, freq, 1);
        for (int i = 0; i < D; i++) {
            dot += (double)a[i] * b[i];
            len += (double)a[i] * a[i];
            len0 += (double)q[i] * q[i];
        }
        first = shift ? first : dot;
        ck_assert_double_eq_tol(dot, first, 1e-5);
        ck_assert_double_eq_tol(len, len0, 1e-4);
    }
}

TEST(position_zero_is_left_alone_and_heads_turn_alike)
{
    enum { D = 8, HEADS = 3, N = 4 };
    struct rope_config c = {.theta = 10000, .factor = 1};
    double freq[D / 2];
    float x[N][HEADS][D];
    rope_frequencies(&c, D, freq);
    for (int t = 0; t < N; t++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < D; i++)
                x[t][h][i] = (float)i + 1;
    rope_apply(&x[0][0][0], N, HEADS, D, 0, freq, 1);
    for (int i = 0; i < D; i++)
        ck_assert(x[0][1][i] == (float)i + 1);
    for (int t = 1; t < N; t++) {
        ck_assert(memcmp(x[t][0], x[t][2], sizeof x[t][0]) == 0);
        ck_assert(memcmp(x[t][0], x[0][0], sizeof x[t][0]) != 0);
    }
}
