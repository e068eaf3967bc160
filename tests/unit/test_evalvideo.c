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

static int open_session(const struct accel_options *o, struct accel_session **s, struct err *e)
{
    return 0;
}

static void close_session(struct accel_session **s)
{
}

static bool supports(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                     int64_t *bk, char why[160])
{
    return true;
}

static int attend(struct accel_session *s, const struct accel_head *h, struct accel_result *r,
                  struct err *e)
{
    __atomic_add_fetch(&attended, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&there, h->x->there != NULL, __ATOMIC_RELAXED);
    __atomic_add_fetch(&stayed, accel_stays(h->x), __ATOMIC_RELAXED);
    accel_attend_lists(h, r, e);
    return 0;
}

static const struct accel fake_accel = {.name = "fake",
                                        .open = open_session,
                                        .close = close_session,
                                        .supports = supports,
                                        .attend = attend};

static int run_eval(const char *device, const char *dir)
{
    static const struct command *const none[] = {NULL};
    struct app app = {
        .commands = none, .methods = sim_methods, .accel = &fake_accel, .denoiser = &fake_denoiser};
    char line[8192], *argv[64], *rest = line;
    int argc = 0;

    snprintf(line, sizeof line,
             "--model datasets/models/video-dit --size 4x32x48 --steps 2 --seed 5 --guidance 3 "
             "--dense-layers 1 -m spargeattn:theta=-1:tau=0.5:pv=off -m fg-attn --jobs 2 --quiet "
             "--device %s -o",
             device);
    for (char *w; (w = strtok_r(rest, " ", &rest)) != NULL;)
        argv[argc++] = w;
    argv[argc++] = (char *)(uintptr_t)dir;
    app.argc = argc;
    app.argv = argv;
    return cmd_eval.run(&app, argc, argv, &err);
}

/* Every metric of the one is in the other, and as large. */
static void compare(const struct record *x, const struct record *y)
{
    ck_assert_int_eq(x->status, RECORD_OK);
    ck_assert_int_eq(y->status, RECORD_OK);
    ck_assert_int_eq(x->n_metrics, y->n_metrics);
    for (int64_t i = 0; i < y->n_metrics; i++) {
        const char *name = y->metrics[i].name;
        double a = record_get(x, name), b = y->metrics[i].value;
        ck_assert_msg(a == b || fabs(a - b) <= 1e-4 * fabs(b) + 1e-6,
                      "%s: %g on the device, %g on the CPU", name, a, b);
    }
}

START_TEST(a_device_gives_what_the_cpu_gives)
{
    char cpu[4096], dev[4096];
    snprintf(cpu, sizeof cpu, "%s", evalcmd_own_path("cpu"));
    snprintf(dev, sizeof dev, "%s", evalcmd_own_path("dev"));
    assert_ok(run_eval("cpu", cpu), &err);
    ck_assert_int_eq(attended, 0);
    assert_ok(run_eval("cuda", dev), &err);
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
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("evalvideo");
    TCase *t = tcase_create("evalvideo");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_device_gives_what_the_cpu_gives);
    suite_add_tcase(s, t);
    return s;
}
