/*
 * select.c - the GPU sides of methods: table, memory of their lists, parameters by name (select.h).
 */
#include "cuda/select/select.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SELECT_METHOD(id) extern const struct select_method select_##id;
#include "cuda/kernels.def"
#undef SELECT_METHOD

#define SELECT_METHOD(id) &select_##id,
const struct select_method *const select_methods[] = {
#include "cuda/kernels.def"
    NULL,
};
#undef SELECT_METHOD

const struct select_method *select_find(const char *name)
{
    const struct select_method *const *m = select_methods;
    while (*m && strcmp((*m)->name, name) != 0)
        m++;
    return *m;
}

const struct select_method *select_for(const char *name, struct select_problem *p)
{
    const struct select_method *m = select_find(name);
    if (m && m->bands && p->shape && p->shape->form == MASK_BAND)
        return &select_streaming;
    p->shape = NULL;
    return m;
}

/* ---- parameters ----------------------------------------------------------------------------- */

static const void *field(const struct select_problem *p, const char *name, enum opt_type type,
                         const struct opt **opt)
{
    *opt = opt_find(p->options, name);
    assert(*opt && (*opt)->type == type);
    (void)type;
    return (const char *)p->params + (*opt)->offset;
}

double select_num(const struct select_problem *p, const char *name)
{
    const struct opt *o;
    return *(const double *)field(p, name, OPT_NUM, &o);
}

int64_t select_int(const struct select_problem *p, const char *name)
{
    const struct opt *o;
    return *(const int64_t *)field(p, name, OPT_INT, &o);
}

bool select_flag(const struct select_problem *p, const char *name)
{
    const struct opt *o;
    return *(const bool *)field(p, name, OPT_BOOL, &o);
}

const char *select_text(const struct select_problem *p, const char *name)
{
    const struct opt *o;
    return *(char *const *)field(p, name, OPT_STR, &o);
}

int select_index(const struct select_problem *p, const char *name)
{
    const struct opt *o;
    return *(const int *)field(p, name, OPT_ENUM, &o);
}

const char *select_word(const struct select_problem *p, const char *name)
{
    const struct opt *o;
    int i = *(const int *)field(p, name, OPT_ENUM, &o);
    return i < 0 ? NULL : o->values[i];
}

bool select_is(const struct select_problem *p, const char *name, const char *word)
{
    const char *w = select_word(p, name);
    return w && strcmp(w, word) == 0;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

int select_lists_init(struct gpu *g, struct select_job *job, int64_t bq, int64_t bk,
                      struct err *err)
{
    const struct select_problem *p = &job->problem;
    struct select_lists *l = &job->lists;
    int64_t cells;
    int rc = 0;

    *l = (struct select_lists){
        .bq = bq, .bk = bk, .groups = (p->nq + bq - 1) / bq, .units = (p->nk + bk - 1) / bk};
    l->rows = p->heads * l->groups;
    l->words = (l->units + 31) / 32;
    if (!mul_ok(l->rows, l->words, &cells) || cells > INT64_MAX / 4)
        FAIL(err, ERR_NOMEM, "maps of %lld x %lld units", (long long)l->rows, (long long)l->units);
    TRY(gpu_alloc(g, cells * 4, &l->map, err));
out:
    return rc;
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
    const union method_rule *own = p->choices ? p->choices[head % p->n_choices].rule : NULL;
    return own ? own : p->rule;
}

struct select_problem select_head(const struct select_problem *p, int head)
{
    struct select_problem own = *p;
    const struct accel_choice *c = p->choices ? p->choices + head % p->n_choices : NULL;
    if (c && c->params) {
        own.options = c->options;
        own.params = c->params;
    }
    return own;
}

static bool is_named(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

bool select_same_params(const struct accel_choice *a, const struct accel_choice *b,
                        const char *const *but)
{
    bool same = a->options == b->options && a->params && b->params;
    for (const struct opt *o = a->options; same && o->type != OPT_END; o++)
        same = is_named(but, o->name) || opt_same(o, a->params, b->params);
    return same;
}

const void *select_given(const struct select_problem *p, int head)
{
    return p->choices ? p->choices[head % p->n_choices].given : NULL;
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
    uint32_t *map = NULL;
    int rc = 0;

    TRY(mem_alloc(&map, n_rows * l->words, sizeof *map, "map of kept keys", err));
    TRY(gpu_get(g, map, l->map + row0 * l->words, n_rows * l->words * 4, err));
    TRY(mem_alloc(ptr, n_rows + 1, sizeof **ptr, "lists of kept keys", err));
    for (int64_t r = 0; r < n_rows; r++) {
        (*ptr)[r] = n;
        for (int64_t w = 0; w < l->words; w++)
            n += __builtin_popcount(map[r * l->words + w]);
    }
    (*ptr)[n_rows] = n;
    TRY(mem_alloc(col, n, sizeof **col, "lists of kept keys", err));
    n = 0;
    for (int64_t i = 0; i < n_rows * l->words; i++)
        for (uint32_t bits = map[i]; bits; bits &= bits - 1)
            (*col)[n++] = (int32_t)(i % l->words * 32 + __builtin_ctz(bits));
out:
    free(map);
    return rc;
}

int select_fetch(struct gpu *g, const struct select_job *job, int64_t **ptr, int32_t **col,
                 struct err *err)
{
    return select_fetch_rows(g, job, 0, job->lists.rows, ptr, col, err);
}

int select_fetch_own(struct gpu *g, const struct select_job *job, int head, struct accel_own *own,
                     struct err *err)
{
    const struct select_lists *l = &job->lists;
    int rc = 0;
    free(own->data);
    *own = (struct accel_own){0};
    if (!l->own)
        return 0;
    if (l->own_make)
        TRY(l->own_make(g, job, err));
    TRY(mem_alloc((char **)&own->data, l->own_bytes, 1, "numbers of a choice", err));
    own->bytes = l->own_bytes;
    TRY(gpu_get(g, own->data, (const char *)l->own + head * l->own_bytes, l->own_bytes, err));
out:
    return rc;
}
