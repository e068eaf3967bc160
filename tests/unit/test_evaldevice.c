/* A layer whose methods attend on a device: one that computes what the CPU would, through the
 * interface of core/accel.h. */
#include "core/mem.h"
#include "core/rng.h"
#include "eval/layerattn.h"
#include "sim/blocks/exact.h"
#include "sim/devicemap.h"
#include "sim/registry.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>

enum { N = 512, HEADS = 4, KV = 2, D = 64 };

static struct err err;
static int calls, heads;

/* It takes calls, and chooses nothing. */
static int attend_call(struct accel_session *s, const struct accel_call *c,
                       const struct accel_lists *l, struct accel_result *r, struct err *e)
{
    ck_assert_int_eq(c->group, 1); /* a head of the second group is missing */
    for (int h = 0; h < c->n; h++)
        accel_attend_head(c, l, h, PREC_F32, e);
    accel_untimed(c, r);
    r->attend = r->total = (struct accel_time){600, 600, 600, 5};
    r->dense = (struct accel_time){900, 900, 900, 5};
    heads += c->n;
    calls++;
    return 0;
}

static const struct accel fake = {
    .name = "fake", .supports = accel_supports_all, .attend_call = attend_call};

static double attn_ns, dense_ns; /* of head 0 of the last run */

/* there: q, k, v lie on the device, too, and q is by head; the outputs stay there. */
static void run_at(const struct sim_device *device, const char *method, bool there, float *out,
                   double *density)
{
    static float by_head[N * HEADS * D];
    struct decoder_operands operands = {.padded = D, .out = out};
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
    for (int h = 0; h < HEADS; h++)
        nn_take_head(q, N, HEADS, D, h, by_head + h * N * D);
    a.there = there ? &operands : NULL;
    a.there_tokens = there ? N : 0;
    assert_ok(layer_attn_attend(&a, 0, there ? by_head : q, N, &kv, N, there ? NULL : out, &err),
              &err);
    ck_assert(a.stayed == there);
    *density = a.elem[0];
    attn_ns = a.attn_ns[0];
    dense_ns = a.dense_ns[0];
    layer_attn_free(&a);
    nn_kv_free(&kv);
    free(q);
    method_runs_free(runs, n);
}

static void run(const struct sim_device *device, const char *method, float *out, double *density)
{
    run_at(device, method, false, out, density);
}

TEST_N(a_device_attends, 2)
{
    static const char *const methods[] = {"spargeattn:theta=-1:tau=0.5:pv=off",
                                          "xattention:profile=clean:tau=0.5"};
    const struct sim_device device = {.accel = &fake, .select = SELECT_AUTO};
    static float cpu[N * HEADS * D], gpu[N * HEADS * D];
    double d_cpu, d_gpu;
    calls = heads = 0;
    run(NULL, methods[_i], cpu, &d_cpu);
    ck_assert_int_eq(calls, 0);
    run(&device, methods[_i], gpu, &d_gpu);
    ck_assert_int_eq(calls, 1);
    ck_assert_int_eq(heads, HEADS - 1); /* the exact head stays on the CPU */
    ck_assert_double_eq(d_cpu, d_gpu);
    ck_assert_double_lt(d_cpu, 0.95);
    ck_assert(isnan(attn_ns));
    for (int i = 0; i < N * HEADS * D; i++)
        ck_assert_msg(fabsf(cpu[i] - gpu[i]) < 1e-5F, "%d: %g %g", i, (double)cpu[i],
                      (double)gpu[i]);
}

TEST(a_head_has_its_share_of_the_time)
{
    const struct sim_device device = {.accel = &fake, .select = SELECT_AUTO, .timed = true};
    static float gpu[N * HEADS * D];
    double density;
    run(&device, "dense", gpu, &density);
    ck_assert_double_eq(attn_ns, 200); /* a third of the call's time */
    ck_assert_double_eq(dense_ns, 300);
}

/* The outputs of a call, and of the head that attends exactly beside it, without a copy here. */
TEST(outputs_of_a_call_stay_there)
{
    static const char *const method = "xattention:profile=clean:tau=0.5";
    const struct sim_device device = {.accel = &fake, .select = SELECT_AUTO};
    static float cpu[N * HEADS * D], gpu[N * HEADS * D];
    double d_cpu, d_gpu;
    run(NULL, method, cpu, &d_cpu);
    calls = 0;
    run_at(&device, method, true, gpu, &d_gpu);
    ck_assert_int_eq(calls, 2);
    ck_assert_double_eq(d_cpu, d_gpu);
    for (int i = 0; i < N * HEADS * D; i++)
        ck_assert_msg(fabsf(cpu[i] - gpu[i]) < 1e-5F, "%d: %g %g", i, (double)cpu[i],
                      (double)gpu[i]);
}

/* Methods whose output is exact attention in some steps leave these to a device, also where nothing
 * is measured. */
TEST(a_device_answers_for_masks_without_metrics)
{
    struct exact exact = {0};
    struct head_in in = {.exact = &exact};
    struct sim_device d = {.accel = &fake, .dense = true};
    struct device_map m;
    device_map_attach(&m, &d, &in, 1);
    ck_assert(exact_on_device(&exact));
    device_map_detach(&m);
    ck_assert(!exact_on_device(&exact));
    d.dense = false;
    device_map_attach(&m, &d, &in, 1);
    ck_assert(!exact_on_device(&exact));
    device_map_detach(&m);
}
