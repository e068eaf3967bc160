/*
 * rates.c - see rates.h.
 */
#include "sim/rates.h"

#include "core/clock.h"
#include "core/fileio.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const identity[] = {"uuid", "cuda_driver", "cuda_runtime"};
static const char *const rates[] = {"matmul_8192_tflops", "copy_tb_per_s"};
#define N_IDENTITY (sizeof identity / sizeof *identity)
#define N_RATES (sizeof rates / sizeof *rates)

/* Are they of this GPU, and complete? */
static bool fits(const json_t *kept, const json_t *gpu)
{
    for (size_t i = 0; i < N_IDENTITY; i++)
        if (!json_equal(json_object_get(kept, identity[i]), json_object_get(gpu, identity[i])))
            return false;
    for (size_t i = 0; i < N_RATES; i++)
        if (!(json_number_value(json_object_get(kept, rates[i])) > 0))
            return false;
    return true;
}

static void copy_members(const json_t *from, json_t *to)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)from, key, value) json_object_set(to, key, value);
}

/* What a function of the back end writes, as an object. */
static int read_back(int (*fn)(struct accel_session *s, struct jw *w, struct err *err),
                     const struct sim_device *d, const char *what, json_t **out, struct err *err)
{
    struct buf b = {0};
    struct jw w;
    int rc = 0;
    jw_init(&w, &b, 0);
    jw_obj(&w);
    TRY(fn(d->session, &w, err));
    jw_obj_end(&w);
    TRY(buf_check(&b, what, err));
    TRY(json_read_text(buf_str(&b), b.len, what, out, err));
out:
    buf_free(&b);
    return rc;
}

/* Only what says whose they are, and the rates. */
static int keep(const char *path, const json_t *gpu, struct err *err)
{
    json_t *doc = json_object();
    char *text;
    int rc;
    for (size_t i = 0; i < N_IDENTITY; i++)
        json_object_set(doc, identity[i], json_object_get(gpu, identity[i]));
    for (size_t i = 0; i < N_RATES; i++)
        json_object_set(doc, rates[i], json_object_get(gpu, rates[i]));
    text = json_dumps(doc, JSON_INDENT(2));
    rc = text ? file_write_atomic(path, text, strlen(text), err)
              : err_set(err, ERR_NOMEM, "%s: out of memory", path);
    free(text);
    json_decref(doc);
    return rc;
}

static int add_ceilings(const struct sim_device *d, const char *dir, bool again, json_t *gpu,
                        struct err *err)
{
    const char *uuid = json_string_value(json_object_get(gpu, "uuid"));
    json_t *kept = NULL, *measured = NULL;
    struct err damaged = {0}; /* such a file is as good as none */
    char path[4096];
    int rc = 0;

    if (!d->accel->ceilings || !uuid)
        return 0;
    if (snprintf(path, sizeof path, "%s/ceilings-%s.json", dir, uuid) >= (int)sizeof path)
        return err_set(err, ERR_USAGE, "%s: the path is too long", dir);
    if (!again && access(path, R_OK) == 0)
        json_read_file(path, 1 << 16, &kept, &damaged);
    if (kept && fits(kept, gpu)) {
        copy_members(kept, gpu);
        goto out;
    }
    TRY(read_back(d->accel->ceilings, d, "ceilings of the GPU", &measured, err));
    copy_members(measured, gpu);
    if (fits(gpu, gpu))
        TRY(keep(path, gpu, err));
out:
    json_decref(kept);
    json_decref(measured);
    return rc;
}

int rates_of_gpu(const struct sim_device *d, const char *dir, bool again, json_t **gpu,
                 struct err *err)
{
    int rc = read_back(d->accel->describe, d, "description of the GPU", gpu, err);
    return rc ? rc : add_ceilings(d, dir, again, *gpu, err);
}

int attn_rate(enum precision prec, double *flop_per_s, struct err *err)
{
    enum { N = 1024, D = 64 };
    int rc = 0;
    float *x = NULL;
    double *out = NULL, *lse = NULL;
    struct attn_ops ops = {0};
    struct mask full;
    double ns = 0;

    TRY(mem_zalloc(&x, N * D, sizeof *x, "rate probe", err));
    TRY(mem_alloc(&out, N * D, sizeof *out, "rate probe", err));
    TRY(mem_alloc(&lse, N, sizeof *lse, "rate probe", err));
    for (int i = 0; i < N * D; i++)
        x[i] = (float)(i % 17) / 17;
    struct attn_in in = {.nq = N, .nk = N, .d = D, .dv = D, .q = x, .k = x, .v = x, .scale = 0.125};
    TRY(attn_prepare(&ops, &in, prec, err));
    mask_full(&full, N, N, 0, N, false);
    for (int k = 0; k < 2; k++) { /* the first one warms up */
        double begin = clock_ns();
        TRY(attn_rows(&ops, &full, out, lse, err));
        ns = clock_ns() - begin;
    }
    *flop_per_s = 4e9 * N * N * D / ns;
out:
    attn_release(&ops);
    free(x);
    free(out);
    free(lse);
    return rc;
}
