/*
 * judge.c - see judge.h.
 */
#include "sim/blocks/judge.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void judge_from(struct exact *e, const struct judge *j)
{
    e->judge = j;
}

void judge_begin(struct judging *j, struct exact *e, double *mass)
{
    *j = (struct judging){.exact = e, .mass = mass};
}

void judge_free(struct judging *j)
{
    for (int64_t i = 0; i < j->n; i++)
        mask_free(j->masks + i);
    free(j->masks);
    free(j->out);
    free(j->lse);
    memset(j, 0, sizeof *j);
}

static int make_rows(struct judging *j, int64_t rows, struct err *err)
{
    int rc = 0;
    if (rows <= j->rows)
        return 0;
    free(j->out);
    free(j->lse);
    j->out = j->lse = NULL;
    j->rows = 0;
    TRY(mem_alloc(&j->out, rows * j->exact->x.dv, sizeof *j->out, "output rows", err));
    TRY(mem_alloc(&j->lse, rows, sizeof *j->lse, "log-sum-exp of rows", err));
    j->rows = rows;
out:
    return rc;
}

static int on_cpu(struct judging *j, const struct mask *m, struct err *err)
{
    struct judged *sum = &j->sum;
    int64_t rows = m->row1 - m->row0;
    const double *ref, *ref_lse;
    int rc = 0;

    TRY(make_rows(j, rows, err));
    TRY(exact_attend(j->exact, m, j->out, j->lse, err));
    TRY(exact_out(j->exact, m->row0, m->row1, &ref, err));
    for (int64_t i = 0; i < rows * j->exact->x.dv; i++) {
        double d = j->out[i] - ref[i];
        sum->abs_delta += fabs(d);
        sum->sq_delta += d * d;
        sum->sq_ref += ref[i] * ref[i];
    }
    if (!j->mass)
        return 0;
    TRY(exact_lse(j->exact, m->row0, m->row1, &ref_lse, err));
    for (int64_t r = 0; r < rows; r++)
        j->mass[m->row0 + r] = exp(j->lse[r] - ref_lse[r]);
out:
    return rc;
}

int judge_add(struct judging *j, struct mask *m, struct err *err)
{
    int rc = 0;
    if (!j->exact->judge) {
        TRY(on_cpu(j, m, err));
    } else {
        TRY(mem_grow(&j->masks, &j->cap, j->n + 1, sizeof *j->masks, "masks", err));
        j->masks[j->n++] = *m;
        *m = (struct mask){0};
    }
out:
    mask_free(m);
    return rc;
}

/* Said once: a search asks for hundreds. */
static void say_refused(const char *why)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        log_warn("masks that the GPU cannot attend to are judged on the CPU: %s", why);
}

int judge_end(struct judging *j, const struct accel_filter *filter, struct err *err)
{
    const struct judge *by = j->exact->judge;
    char why[160] = "";
    int rc = 0;

    if (!by)
        return 0;
    rc = by->masks(by->self, j->masks, j->n, filter, j->mass, &j->sum, why, err);
    if (rc != METHOD_SKIP)
        return rc;
    if (filter)
        return err_set(err, ERR_RUN, "a filter on P V that the GPU refuses: %s", why);
    say_refused(why);
    rc = 0;
    for (int64_t i = 0; i < j->n && !rc; i++)
        rc = on_cpu(j, j->masks + i, err);
    return rc;
}
