/*
 * select.c - the GPU sides of methods: table, rules, memory of their lists (select.h).
 */
#include "cuda/select/select.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define METHOD(id)
#define METHOD_GPU(id) extern const struct select_method select_##id;
#include "core/methods.def"
#undef METHOD_GPU

#define METHOD_GPU(id) &select_##id,
const struct select_method *const select_methods[] = {
#include "core/methods.def"
    NULL,
};
#undef METHOD_GPU

const struct select_method *select_find(const char *name)
{
    const struct select_method *const *m = select_methods;
    while (*m && strcmp((*m)->name, name) != 0)
        m++;
    return *m;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

int select_lists_init(struct gpu *g, struct select_job *job, int64_t bq, int64_t bk,
                      struct err *err)
{
    const struct select_problem *p = &job->problem;
    struct select_lists *l = &job->lists;
    int64_t cells;

    *l = (struct select_lists){
        .bq = bq, .bk = bk, .groups = ceil_div(p->nq, bq), .units = ceil_div(p->nk, bk)};
    l->rows = p->heads * l->groups;
    l->words = (l->units + 31) / 32;
    if (!mul_ok(l->rows, l->words, &cells) || cells > INT64_MAX / 4)
        return err_set(err, ERR_NOMEM, "maps of %lld x %lld units", (long long)l->rows,
                       (long long)l->units);
    return gpu_alloc(g, cells * 4, &l->map, err);
}

int select_job_init(struct gpu *g, const struct select_method *method,
                    const struct select_problem *p, struct select_job *job, struct err *err)
{
    memset(job, 0, sizeof *job);
    job->method = method;
    job->problem = *p;
    int rc = method->init(g, job, err);
    if (rc)
        select_job_free(job);
    return rc;
}

void select_job_free(struct select_job *job)
{
    if (job->state && job->method->release)
        job->method->release(job);
    free(job->state);
    memset(job, 0, sizeof *job);
}

int select_job_choose(struct gpu *g, const void *job, struct err *err)
{
    const struct select_job *j = job;
    return j->choose ? j->choose(g, j, err) : j->method->launch(g, j, err);
}

const union method_rule *select_rule(const struct select_problem *p, int head)
{
    return p->choices[head % p->n_choices].rule;
}

const void *select_given(const struct select_problem *p, int head)
{
    return p->choices[head % p->n_choices].given;
}

/* Rules are compared by their bytes: they are zeroed before they are filled. */
bool select_together(const struct accel_choice *a, const struct accel_choice *b)
{
    if (!a->method || !b->method || strcmp(a->method, b->method) != 0)
        return false;
    const struct select_method *m = select_find(a->method);
    const void *x = a->rule, *y = b->rule;
    return memcmp(x, y, sizeof *a->rule) == 0 ||
           (m && m->together && m->together(a->rule, b->rule));
}

int select_v_exp(const struct select_problem *p, int kv)
{
    return p->v_exp ? p->v_exp[p->n_choices == 1 ? 0 : kv] : 0;
}

/* ---- results -------------------------------------------------------------------------------- */

int select_fetch_rows(struct gpu *g, const struct select_job *job, int64_t row0, int64_t row1,
                      int64_t **ptr, int32_t **col, struct err *err)
{
    const struct select_lists *l = &job->lists;
    int64_t n_rows = row1 - row0, n = 0;
    OWN(free_at) uint32_t *map = NULL;

    PASS_ON(mem_alloc(&map, n_rows * l->words, sizeof *map, "map of kept keys", err));
    PASS_ON(gpu_get(g, map, l->map + row0 * l->words, n_rows * l->words * 4, err));
    PASS_ON(mem_alloc(ptr, n_rows + 1, sizeof **ptr, "lists of kept keys", err));
    for (int64_t r = 0; r < n_rows; r++) {
        (*ptr)[r] = n;
        for (int64_t w = 0; w < l->words; w++)
            n += __builtin_popcount(map[r * l->words + w]);
    }
    (*ptr)[n_rows] = n;
    PASS_ON(mem_alloc(col, n, sizeof **col, "lists of kept keys", err));
    n = 0;
    for (int64_t i = 0; i < n_rows * l->words; i++)
        for (uint32_t bits = map[i]; bits; bits &= bits - 1)
            (*col)[n++] = (int32_t)(i % l->words * 32 + __builtin_ctz(bits));
    return 0;
}

int select_fetch_own(struct gpu *g, const struct select_job *job, int head, struct accel_own *own,
                     struct err *err)
{
    const struct select_lists *l = &job->lists;
    free(own->data);
    *own = (struct accel_own){0};
    if (!l->own)
        return 0;
    if (l->own_make)
        PASS_ON(l->own_make(g, job, err));
    PASS_ON(mem_alloc((char **)&own->data, l->own_bytes, 1, "numbers of a choice", err));
    own->bytes = l->own_bytes;
    return gpu_get(g, own->data, (const char *)l->own + head * l->own_bytes, l->own_bytes, err);
}
