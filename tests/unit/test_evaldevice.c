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

/* A back end that takes whole calls, and chooses nothing. */
static int select_call(struct accel_session *s, const struct accel_call *call,
                       const struct accel_choice *choices, struct mask *masks, int *answers,
                       char (*why)[160], struct err *e)
{
    ck_assert_int_eq(call->n, HEADS - 1);
    return 0; /* answers as they came: ACCEL_NO_SELECT */
}

static int attend_call(struct accel_session *s, const struct accel_call_work *w,
                       struct accel_call_result *r, struct err *e)
{
    static const struct accel_time none = {NAN, NAN, NAN, 0};
    const struct accel_call_lists *l = &w->lists;
    int64_t groups = l->ptr ? (N + l->bq - 1) / l->bq : 0;
    ck_assert_int_eq(w->call->group, 1); /* a head of the second group is missing */
    for (int h = 0; h < w->call->n; h++) {
        struct accel_result one = {.out = r->heads[h].out, .lse = r->heads[h].lse};
        struct accel_head head = {.x = w->call->x[h],
                                  .bq = l->bq,
                                  .bk = l->bk,
                                  .ptr = l->ptr ? l->ptr + h * groups : NULL,
                                  .col = l->col};
        accel_attend_lists(&head, &one, e);
    }
    r->select = r->build = r->plan = none;
    r->attend = r->total = (struct accel_time){600, 600, 600, 5};
    r->dense = (struct accel_time){900, 900, 900, 5};
    r->kv = w->call->n;
    r->launches = 1;
    r->counters.tensor_pipe_pct = NAN;
    calls++;
    return 0;
}

static const struct accel fake_calls = {.name = "fake",
                                        .supports = supports,
                                        .attend = attend,
                                        .select_call = select_call,
                                        .attend_call = attend_call};

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

START_TEST(a_device_attends_to_a_call)
{
    static const char *const method = "xattention:profile=clean:tau=0.5";
    struct sim_device device = {.accel = &fake_calls, .select = SELECT_AUTO};
    static float cpu[N * HEADS * D], gpu[N * HEADS * D];
    double d_cpu, d_gpu;

    calls = 0;
    run(NULL, method, cpu, &d_cpu);
    run(&device, method, gpu, &d_gpu);
    ck_assert_int_eq(calls, 1);
    ck_assert_double_eq(d_cpu, d_gpu);
    ck_assert(isnan(attn_ns));
    for (int i = 0; i < N * HEADS * D; i++)
        ck_assert_msg(fabsf(cpu[i] - gpu[i]) < 1e-5F, "%d: %g %g", i, (double)cpu[i],
                      (double)gpu[i]);
    device.timed = true;
    run(&device, "dense", gpu, &d_gpu);
    ck_assert_double_eq(attn_ns, 200); /* a third of the call's time */
    ck_assert_double_eq(dense_ns, 300);
}
END_TEST

/* The outputs of a call, and of the head that attends exactly beside it, without a copy here. */
START_TEST(outputs_of_a_call_stay_there)
{
    static const char *const method = "xattention:profile=clean:tau=0.5";
    const struct sim_device device = {.accel = &fake_calls, .select = SELECT_AUTO};
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
END_TEST

/* Methods whose output is exact attention in some steps leave these to a device, also where nothing
 * is measured. */
START_TEST(a_device_answers_for_masks_without_metrics)
{
    struct exact exact = {0};
    struct head_in in = {.exact = &exact};
    struct sim_device d = {.accel = &fake, .dense = true};
    struct device_map m;
    device_map_attach(&m, &d, &in);
    ck_assert(exact_on_device(&exact));
    device_map_detach(&m);
    ck_assert(!exact_on_device(&exact));
    d.dense = false;
    device_map_attach(&m, &d, &in);
    ck_assert(!exact_on_device(&exact));
    device_map_detach(&m);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("evaldevice");
    TCase *t = tcase_create("evaldevice");
    tcase_add_loop_test(t, a_device_attends, 0, 2);
    tcase_add_test(t, a_device_attends_to_a_call);
    tcase_add_test(t, outputs_of_a_call_stay_there);
    tcase_add_test(t, a_device_answers_for_masks_without_metrics);
    suite_add_tcase(s, t);
    return s;
}
