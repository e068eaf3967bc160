/* A layer whose methods attend on a device: one that computes what the CPU would, through the
 * interface of core/accel.h. */
#include "core/mem.h"
#include "core/rng.h"
#include "eval/layerattn.h"
#include "sim/registry.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 512, HEADS = 4, KV = 2, D = 64 };

static struct err err;
static int calls;

static bool supports(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                     int64_t *bk, char why[160])
{
    return true;
}

static int attend(struct accel_session *s, const struct accel_head *h, struct accel_result *r,
                  struct err *e)
{
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    accel_attend_lists(h, r, e);
    return 0;
}

static const struct accel fake = {.name = "fake", .supports = supports, .attend = attend};

static void run(const struct sim_device *device, const char *method, float *out, double *density)
{
    struct eval_how how = {.round = DT_F32, .precision = PREC_F32, .device = device};
    struct attn_shape shape = {
        .layers = 1, .heads = HEADS, .kv_heads = KV, .head_dim = D, .causal = true};
    bool dense[HEADS] = {false, false, false, true};
    struct method_run *runs = NULL;
    struct layer_attn a;
    struct nn_kv kv;
    float *q = NULL;
    int64_t n = 0;

    how.dense_head = dense;
    assert_ok(method_runs_parse(sim_methods, method, &runs, &n, &err), &err);
    assert_ok(layer_attn_init(&a, runs, &how, &shape, "toy", 2, &err), &err);
    assert_ok(nn_kv_init(&kv, N, KV, D, &err), &err);
    assert_ok(mem_alloc(&q, N * HEADS * D, sizeof *q, "q", &err), &err);
    for (int64_t i = 0; i < N * HEADS * D; i++)
        q[i] = (float)rng_normal(1, 1, (uint64_t)i);
    for (int64_t i = 0; i < N * KV * D; i++) {
        kv.k[i] = (float)rng_normal(1, 2, (uint64_t)i);
        kv.v[i] = (float)rng_normal(1, 3, (uint64_t)i);
    }
    assert_ok(layer_attn_attend(&a, 0, q, N, &kv, N, out, &err), &err);
    *density = a.elem[0];
    layer_attn_free(&a);
    nn_kv_free(&kv);
    free(q);
    method_runs_free(runs, n);
}

START_TEST(a_device_attends)
{
    static const char *const methods[] = {"spargeattn:theta=-1:tau=0.5:pv=off",
                                          "xattention:profile=clean:tau=0.5"};
    const struct sim_device device = {.accel = &fake, .select = SELECT_AUTO};
    static float cpu[N * HEADS * D], gpu[N * HEADS * D];
    double d_cpu, d_gpu;

    run(NULL, methods[_i], cpu, &d_cpu);
    ck_assert_int_eq(calls, 0);
    run(&device, methods[_i], gpu, &d_gpu);
    ck_assert_int_eq(calls, HEADS - 1); /* the exact head stays on the CPU */
    ck_assert_double_eq(d_cpu, d_gpu);
    ck_assert_double_lt(d_cpu, 0.95);
    for (int i = 0; i < N * HEADS * D; i++)
        ck_assert_msg(fabsf(cpu[i] - gpu[i]) < 1e-5F, "%d: %g %g", i, (double)cpu[i],
                      (double)gpu[i]);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("evaldevice");
    TCase *t = tcase_create("evaldevice");
    tcase_add_loop_test(t, a_device_attends, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
