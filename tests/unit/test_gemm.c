/*
 * test_gemm.c - products of matrices from several threads, with little memory and with none. It
 * runs without sanitizers: their shadow takes all the address space that it can get.
 */
#include "tests/harness/suite.h"

#include "core/gemm.h"
#include "core/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { N = 96, THREADS = 8, ITEMS = 400 };

static float a[N * N], b[N * N], want[N * N];

static void fill(void)
{
    for (int i = 0; i < N * N; i++) {
        a[i] = (float)(i % 37) / 37 - 0.5f;
        b[i] = (float)(i % 41) / 41 - 0.5f;
    }
}

/* Bits and not values are compared: a thread that works in another one's buffer shows at once. */
static int same_product(void *ctx, int64_t item, int worker, struct err *err)
{
    float c[N * N];
    (void)ctx, (void)item, (void)worker;
    gemm_nt_f32(N, N, N, 1, a, N, b, N, 0, c, N);
    return memcmp(c, want, sizeof c) == 0 ? 0 : err_set(err, ERR_RUN, "another product");
}

static int many_products(struct err *err)
{
    fill();
    PASS_ON(gemm_ready(err));
    gemm_nt_f32(N, N, N, 1, a, N, b, N, 0, want, N);
    return pool_run(THREADS, ITEMS, same_product, NULL, err);
}

static int quits, inits;
static char family[32];

static void quit(void)
{
    quits++;
}

static void init(void)
{
    const char *name = getenv("OPENBLAS_CORETYPE");
    snprintf(family, sizeof family, "%s", name ? name : "");
    inits++;
}

/* None on a processor without AVX2. */
TEST(kernels_without_avx_are_replaced_where_nobody_chose_them)
{
    setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    openblas_choose("Prescott", quit, init);
    unsetenv("OPENBLAS_CORETYPE");
    openblas_choose("Cooperlake", quit, init);
    openblas_choose("Prescott", NULL, NULL);
    ck_assert(quits == 0 && inits == 0);
    openblas_choose("Prescott", quit, init);
    ck_assert(quits == inits && inits <= 1 && !getenv("OPENBLAS_CORETYPE"));
    ck_assert(!inits || strcmp(family, "SkylakeX") == 0 || strcmp(family, "Haswell") == 0);
}

TEST(threads_do_not_disturb_each_other)
{
    struct err e = {0};
    assert_ok(many_products(&e), &e);
}

TEST(products_are_those_of_their_definition)
{
    double x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {1, 0, 2, -1, 3, 1}, c[4] = {1, 1, 1, 1};
    float fx[6] = {1, 2, 3, 4, 5, 6}, v[3] = {1, -1, 2}, out[2], d[4];
    gemm_nt_f64(2, 2, 3, 2, x, 3, y, 3, 1, c, 2); /* 2 [1 2 3; 4 5 6] [1 0 2; -1 3 1]^T + 1 */
    ck_assert(c[0] == 15 && c[1] == 17 && c[2] == 33 && c[3] == 35);
    gemm_nn_f32(2, 2, 3, 1, fx, 3, fx, 2, 0, d, 2); /* [1 2 3; 4 5 6] [1 2; 3 4; 5 6] */
    ck_assert(d[0] == 22 && d[1] == 28 && d[2] == 49 && d[3] == 64);
    gemv_f32(2, 3, 2, fx, 3, v, out);
    ck_assert(out[0] == 10 && out[1] == 22);
}

/* Address space of this process and `mb` more. */
static void leave_room(int64_t mb)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert(f && fscanf(f, "%ld", &pages) == 1);
    fclose(f);
    struct rlimit limit = {(rlim_t)(pages * 4096 + (mb << 20)), RLIM_INFINITY};
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &(struct rlimit){0}), 0);
    limit.rlim_max = limit.rlim_cur;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

/* Room for the library, one buffer and the threads' stacks. */
TEST(one_buffer_serves_all_threads)
{
    struct err e = {0};
    leave_room(420);
    assert_ok(many_products(&e), &e);
}

TEST(no_room_for_a_buffer_is_said)
{
    struct err e = {0};
    leave_room(100);
    assert_fails(gemm_ready(&e), &e, ERR_MACHINE, "address space");
}

TEST(no_room_for_the_library_is_said)
{
    struct err e = {0};
    leave_room(5);
    assert_fails(gemm_ready(&e), &e, ERR_MACHINE, "OpenBLAS cannot be loaded");
}
