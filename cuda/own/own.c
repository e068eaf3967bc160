#include "cuda/own/own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct own_kind *const kinds[] = {
    [OWN_DILATED] = &own_kind_dilated,
    [OWN_QUANTISED] = &own_kind_quantised,
    [OWN_HASHED] = &own_kind_hashed,
};

bool own_fits(int sm, const struct attn_problem *p, const struct own_rule *r, char why[160])
{
    const struct own_kind *kind = kinds[r->kind];
    const struct attn_kernel *k;
    struct err e = {0};
    int rc = attn_kernel_find(p, sm, NULL, &k, &e);
    if (rc == 0 && (p->d == 64 || p->d == 128))
        return !kind->fits || kind->fits(p, r, why);
    if (rc)
        snprintf(why, 160, "%.150s", e.msg);
    else
        snprintf(why, 160, "own arithmetic has CUDA kernels for head dim 64 and 128, not %d", p->d);
    return false;
}

int own_job_init(struct gpu *g, const struct attn_problem *p, const struct own_rule *rules,
                 const struct attn_tensors *x, struct own_job *job, struct err *err)
{
    int rc = 0;
    *job = (struct own_job){
        .problem = *p, .x = *x, .kind = kinds[rules->kind], .balance = 1, .launches = 1};
    job->problem.lists = ATTN_DENSE;
    job->has_quant = job->kind->quant != NULL;
    for (int h = 1; h < p->heads; h++)
        if (rules[h].kind != rules->kind)
            FAIL(err, ERR_RUN, "heads 0 and %d of one launch ask for different arithmetic", h);
    TRY(mem_zalloc(&job->pairs, p->heads, sizeof *job->pairs, "pairs of heads", err));
    TRY(job->kind->init(g, job, rules, err));
out:
    if (rc)
        own_job_free(job);
    return rc;
}

void own_job_free(struct own_job *job)
{
    if (job->kind)
        job->kind->release(job->state);
    free(job->pairs);
    memset(job, 0, sizeof *job);
}

int own_job_quant(struct gpu *g, const void *job, struct err *err)
{
    const struct own_job *j = job;
    return j->kind->quant ? j->kind->quant(g, j, err) : 0;
}

int own_job_attend(struct gpu *g, const void *job, struct err *err)
{
    const struct own_job *j = job;
    return j->kind->attend(g, j, err);
}
