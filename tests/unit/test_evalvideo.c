/*
 * test_evalvideo.c - `lacuna eval` of a video model on a device: with one that computes what the
 * CPU would, the records say what those of a run on the CPU say.
 */
#include "core/cmd.h"
#include "sim/registry.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/evalcmd.h"
#include "tests/harness/fakedenoiser.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <string.h>

extern const struct command cmd_eval;

static struct err err;
static int attended, there, stayed; /* heads that the methods' device took; whose q, k, v lay there;
                                     * whose outputs stayed */

static int samples; /* that the session was opened for */

static int open_session(const struct accel_options *o, struct accel_session **s, struct err *e)
{
    samples = o->samples;
    return 0;
}

static void close_session(struct accel_session **s)
{
}

static int attend_call(struct accel_session *s, const struct accel_call *c,
                       const struct accel_lists *l, struct accel_result *r, struct err *e)
{
    for (int h = 0; h < c->n; h++) {
        attended++;
        there += c->heads[h].x->on_device != NULL;
        stayed += accel_keeps_output(c->heads[h].x);
        accel_attend_head(c, l, h, PREC_F32, e);
    }
    accel_untimed(c, r);
    if (samples) { /* over a mask a quarter of exact attention's time */
        double ns = c->n * (l->ptr ? 250 : 1000), dense = c->n * 1000;
        r->attend = r->total = (struct accel_time){ns, ns, ns, samples};
        r->dense = (struct accel_time){dense, dense, dense, samples};
    }
    return 0;
}

static const struct accel fake_accel = {.name = "fake",
                                        .open = open_session,
                                        .close = close_session,
                                        .supports = accel_supports_all,
                                        .attend_call = attend_call};

static int run_eval(const char *device, const char *more, const char *dir)
{
    static const struct command *const none[] = {NULL};
    struct app app = {
        .commands = none, .methods = sim_methods, .accel = &fake_accel, .denoiser = &fake_denoiser};
    char line[8192], *argv[64], *rest = line;
    int argc = 0;
    snprintf(line, sizeof line,
             "--model datasets/models/video-dit --size 4x32x48 --steps 2 --seed 5 --guidance 3 "
             "--dense-layers 1 --jobs 2 --quiet --device %s %s -o",
             device, more);
    for (char *w; (w = strtok_r(rest, " ", &rest)) != NULL;)
        argv[argc++] = w;
    argv[argc++] = (char *)(uintptr_t)dir;
    app.argc = argc;
    app.argv = argv;
    return cmd_run(&cmd_eval, &app, argc, argv, &err);
}

/* Every metric of the one is in the other, and as large. */
static void compare(const struct record *x, const struct record *y)
{
    ck_assert_int_eq(x->status, RECORD_OK);
    ck_assert_int_eq(y->status, RECORD_OK);
    ck_assert_int_eq(record_metrics(x), record_metrics(y));
    for (int64_t i = 0; i < record_metrics(y); i++) {
        const char *name = y->names->name[i];
        double a = record_get(x, name), b = y->values[i];
        ck_assert_msg(a == b || fabs(a - b) <= 1e-4 * fabs(b) + 1e-6,
                      "%s: %g on the device, %g on the CPU", name, a, b);
    }
}

static const char methods[] = "-m spargeattn:theta=-1:tau=0.5:pv=off -m fg-attn";

TEST(a_device_gives_what_the_cpu_gives)
{
    char cpu[4096], dev[4096];
    snprintf(cpu, sizeof cpu, "%s", evalcmd_own_path("cpu"));
    snprintf(dev, sizeof dev, "%s", evalcmd_own_path("dev"));
    assert_ok(run_eval("cpu", methods, cpu), &err);
    ck_assert_int_eq(attended, 0);
    assert_ok(run_eval("cuda", methods, dev), &err);
    ck_assert_int_eq(fake_denoisers, 0);
    /* 2 settings x 5 layers, one being exact, x 2 heads x 2 steps x 2 branches */
    ck_assert_int_eq(attended, 80);
    ck_assert_int_eq(there, attended);
    ck_assert_int_eq(stayed, attended);

    struct evalcmd_records x = evalcmd_load(dev), y = evalcmd_load(cpu);
    ck_assert(x.n == 3 && y.n == 3);
    for (int64_t i = 0; i < y.n; i++) {
        const struct record *r = evalcmd_find(&x, y.r[i].method, y.r[i].params);
        ck_assert_str_eq(r->backend, "fake");
        ck_assert(strstr(r->notes.data, "operands=bf16") != NULL);
        compare(r, y.r + i);
    }
    records_free(x.r, x.n);
    records_free(y.r, y.n);
}

static double metric(const struct record *r, const char *name)
{
    return record_get(r, name);
}

/* A step is two evaluations of 6 layers of 2 heads. A layer is exact: its heads take what the
 * model's own attention does, 12000 / 12. radial attends exactly in the first step. */
TEST(times_of_a_clip)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", evalcmd_own_path("times"));
    fake_denoiser_timed = 0;
    assert_ok(run_eval("cuda",
                       "--samples 5 -m radial:dense_steps=1:dense_layers=0 "
                       "-m spargeattn:theta=-1:tau=0.5:pv=off",
                       dir),
              &err);
    ck_assert_int_eq(fake_denoiser_timed, 1);
    struct evalcmd_records x = evalcmd_load(dir);
    const struct record *exact = evalcmd_find(&x, "dense", ""), *r = NULL, *s = NULL;
    for (int64_t i = 0; i < x.n; i++) {
        r = strcmp(x.r[i].method, "radial") == 0 ? x.r + i : r;
        s = strcmp(x.r[i].method, "spargeattn") == 0 ? x.r + i : s;
    }
    ck_assert(r && s && x.n == 3);
    ck_assert_double_eq(metric(exact, "time_attn_ns"), 24000);
    ck_assert_double_eq(metric(exact, "time_linear_ns"), 1400);
    ck_assert_double_eq(metric(exact, "time_product_ns"), 1000);
    ck_assert_double_eq(metric(exact, "time_other_ns"), 400);
    ck_assert_double_eq(metric(exact, "generation_ns"), 2 * (24000 + 1400));
    ck_assert_double_eq(metric(exact, "generation_speedup"), 1);
    ck_assert_double_eq_tol(metric(exact, "attn_share"), 24000 / 25400.0, 1e-12);

    ck_assert_double_eq(metric(r, "time_attn_ns@step=0"), 24000);
    ck_assert_double_eq(metric(r, "time_attn_ns@step=1"), 4 * 1000 + 20 * 250);
    ck_assert_double_eq(metric(r, "time_attn_ns"), 16500);
    ck_assert_double_eq(metric(r, "time_attn_dense_ns"), 24000);
    ck_assert_double_eq(metric(r, "generation_ns"), 2 * (16500 + 1400));
    ck_assert_double_eq(metric(r, "generation_dense_ns"), 2 * (24000 + 1400));
    ck_assert_double_eq_tol(metric(r, "generation_speedup"), 25400 / 17900.0, 1e-12);

    /* Chosen on the CPU: of the method only what it leaves alone. */
    ck_assert(isnan(metric(s, "time_attn_ns")) && isnan(metric(s, "generation_ns")));
    ck_assert(isnan(metric(s, "attn_share")) && isnan(metric(s, "generation_speedup")));
    ck_assert_double_eq(metric(s, "generation_dense_ns"), 2 * (24000 + 1400));
    ck_assert_ptr_nonnull(strstr(s->notes.data, "time_attn_ns=a part of it ran on the CPU"));
    records_free(x.r, x.n);

    /* Without times, and again with: nothing is done again. */
    snprintf(dir, sizeof dir, "%s", evalcmd_own_path("later"));
    assert_ok(run_eval("cuda", methods, dir), &err);
    assert_ok(run_eval("cuda", "--samples 5 -m fg-attn", dir), &err);
    ck_assert_int_eq(fake_denoiser_timed, 1);
    samples = 0;
}
