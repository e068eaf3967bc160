/*
 * maskfile_attrs.c - attributes of a cell of a mask dump: identity, form and geometry.
 */
#include "core/maskfile_internal.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum attr_type { A_STR, A_MODEL, A_INT, A_I64, A_U64, A_F64, A_BOOL };

struct attr {
    const char *name;
    enum attr_type type;
    size_t offset, size;
};

#define SIZE(name) sizeof((struct record *)0)->name
#define RECORD(type, name) #name, type, offsetof(struct record, name), SIZE(name)
#define MASK(type, name) #name, type, offsetof(struct mask, name), sizeof((struct mask *)0)->name

static const struct attr identity[] = {
    {RECORD(A_STR, trace)},    {RECORD(A_MODEL, model)},
    {RECORD(A_INT, run)},      {RECORD(A_INT, step)},
    {RECORD(A_STR, branch)},   {RECORD(A_INT, layer)},
    {RECORD(A_INT, head)},     {RECORD(A_INT, kv_head)},
    {RECORD(A_STR, method)},   {RECORD(A_U64, seed)},
    {RECORD(A_STR, backend)},  {RECORD(A_STR, precision)},
    {RECORD(A_STR, permute)},  {RECORD(A_INT, d)},
    {RECORD(A_F64, timestep)}, {0},
};

static const struct attr geometry[] = {
    {MASK(A_I64, nq)}, {MASK(A_I64, nk)},      {MASK(A_BOOL, causal)}, {MASK(A_I64, bq)},
    {MASK(A_I64, bk)}, {MASK(A_I64, exec_bq)}, {MASK(A_I64, exec_bk)}, {0},
};

static const struct attr band[] = {
    {MASK(A_I64, sink)},
    {MASK(A_I64, window)},
    {MASK(A_I64, dense_from)},
    {0},
};

/* Windows, chunks and prefix of the model; at 0 (none) they are left out. */
static const struct attr reach[] = {
    {"window_left", A_I64, offsetof(struct mask, reach.back), 8},
    {"window_right", A_I64, offsetof(struct mask, reach.ahead), 8},
    {"chunk", A_I64, offsetof(struct mask, reach.chunk), 8},
    {"prefix", A_I64, offsetof(struct mask, reach.prefix), 8},
    {0},
};

static const char *const form_names[] = {"full", "lists", "band"};
static const char *const exec_names[] = {"tiles", "gather", "none"};

static int put_all(hid_t group, const struct attr *a, const void *obj, struct err *err)
{
    int rc = 0;
    for (; a->name && rc == 0; a++) {
        const void *p = (const char *)obj + a->offset;
        switch (a->type) {
        case A_STR:
            rc = h5_put_str(group, a->name, p, err);
            break;
        case A_MODEL:
            rc = h5_put_str(group, a->name, *(const char *const *)p, err);
            break;
        case A_INT:
            rc = h5_put_i64(group, a->name, *(const int *)p, err);
            break;
        case A_I64:
        case A_U64: /* a seed is a bit pattern */
            rc = h5_put_i64(group, a->name, *(const int64_t *)p, err);
            break;
        case A_F64:
            rc = h5_put_f64(group, a->name, *(const double *)p, err);
            break;
        case A_BOOL:
            rc = h5_put_i64(group, a->name, *(const bool *)p, err);
            break;
        }
    }
    return rc;
}

static int get_int(hid_t group, const struct attr *a, void *p, struct err *err)
{
    int64_t x = 0;
    int rc = h5_get_i64(group, a->name, &x, err);
    if (rc)
        return rc;
    if ((a->type == A_INT && (x < INT32_MIN || x > INT32_MAX)) ||
        (a->type == A_BOOL && (x < 0 || x > 1)))
        return err_set(err, ERR_INPUT, "attribute '%s' = %lld is out of range", a->name,
                       (long long)x);
    if (a->type == A_INT)
        *(int *)p = (int)x;
    else if (a->type == A_BOOL)
        *(bool *)p = x == 1;
    else
        *(int64_t *)p = x;
    return 0;
}

/* A text of the identity: it becomes a name in figures and messages. */
static int get_text(hid_t group, const struct attr *a, char *p, size_t size, struct err *err)
{
    char what[UTF8_FAULT_MAX];
    int rc = h5_get_str(group, a->name, p, size, err);
    const char *fault = rc ? NULL : utf8_fault(p, what);
    return fault ? err_set(err, ERR_INPUT, "attribute '%s' has a %s", a->name, fault) : rc;
}

/* The object is a record. */
static int get_model(hid_t group, const struct attr *a, struct record *r, struct err *err)
{
    char model[RECORD_MODEL];
    int rc = get_text(group, a, model, sizeof model, err);
    if (!rc)
        record_text(r, &r->model, "%s", model);
    return rc;
}

static int get_all(hid_t group, const struct attr *a, void *obj, struct err *err)
{
    int rc = 0;
    for (; a->name && rc == 0; a++) {
        void *p = (char *)obj + a->offset;
        rc = a->type == A_STR     ? get_text(group, a, p, a->size, err)
             : a->type == A_MODEL ? get_model(group, a, obj, err)
             : a->type == A_F64   ? h5_get_f64(group, a->name, p, err)
                                  : get_int(group, a, p, err);
    }
    return rc;
}

static int get_name(hid_t group, const char *attr, const char *const *names, int n, int *out,
                    struct err *err)
{
    char text[32];
    int rc = h5_get_str(group, attr, text, sizeof text, err);
    if (rc)
        return rc;
    for (int i = 0; i < n; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return 0;
        }
    return err_set(err, ERR_INPUT, "%s '%s' is unknown", attr, text);
}

int maskfile_put_identity(hid_t group, const struct record *r, struct err *err)
{
    const char *params = r->params ? r->params : "";
    if (strlen(params) > PARAMS_MAX)
        return err_set(err, ERR_RUN, "parameters of %zu characters", strlen(params));
    int rc = put_all(group, identity, r, err);
    return rc ? rc : h5_put_str(group, "params", params, err);
}

int maskfile_get_identity(hid_t group, struct record *r, struct err *err)
{
    char *text = NULL;
    int rc = 0;

    TRY(get_all(group, identity, r, err));
    TRY(mem_alloc(&text, PARAMS_MAX + 1, 1, "parameters", err));
    TRY(h5_get_str(group, "params", text, PARAMS_MAX + 1, err));
    free(r->params);
    if (!(r->params = strdup(text)))
        FAIL(err, ERR_NOMEM, "parameters");
out:
    free(text);
    return rc;
}

/* Windows are inclusive in a file, as in a trace: window_left = back - 1. */
static int put_reach(hid_t group, const struct mask *m, struct err *err)
{
    int rc = 0;
    for (const struct attr *a = reach; a->name && rc == 0; a++) {
        int64_t n = *(const int64_t *)((const char *)m + a->offset);
        if (n > 0)
            rc = h5_put_i64(group, a->name, n - (a->name[0] == 'w'), err);
    }
    return rc;
}

static int get_reach(hid_t group, struct mask *m, struct err *err)
{
    int rc = 0;
    for (const struct attr *a = reach; a->name && rc == 0; a++) {
        int64_t n = 0;
        if (!h5_has_attr(group, a->name))
            continue;
        rc = h5_get_i64(group, a->name, &n, err);
        if (rc == 0 && (n < (a->name[0] != 'w') || n > INT32_MAX || m->nq > m->nk))
            rc = err_set(err, ERR_INPUT, "attribute '%s' = %lld is out of range", a->name,
                         (long long)n);
        *(int64_t *)((char *)m + a->offset) = n + (a->name[0] == 'w');
    }
    return rc;
}

int maskfile_put_geometry(hid_t group, const struct mask *m, struct err *err)
{
    int rc = 0;
    TRY(h5_put_str(group, "form", form_names[m->form], err));
    TRY(h5_put_str(group, "exec", exec_names[m->exec], err));
    TRY(put_all(group, geometry, m, err));
    if (m->form == MASK_BAND)
        TRY(put_all(group, band, m, err));
    TRY(put_reach(group, m, err));
out:
    return rc;
}

static bool is_size(int64_t n)
{
    return n >= 1 && n <= INT32_MAX;
}

int maskfile_get_geometry(hid_t group, struct mask *m, struct err *err)
{
    int rc = 0, form = 0, exec = 0;

    memset(m, 0, sizeof *m);
    TRY(get_name(group, "form", form_names, 3, &form, err));
    TRY(get_name(group, "exec", exec_names, 3, &exec, err));
    TRY(get_all(group, geometry, m, err));
    m->form = (enum mask_form)form;
    m->exec = exec == 0 ? EXEC_TILES : exec == 1 ? EXEC_GATHER : EXEC_NONE;
    m->row1 = m->nq;
    if (m->form == MASK_BAND)
        TRY(get_all(group, band, m, err));
    if (!is_size(m->nq) || !is_size(m->nk) || !is_size(m->bq) || !is_size(m->bk) ||
        !is_size(m->exec_bq) || !is_size(m->exec_bk) || m->sink < 0 || m->window < 0 ||
        m->sink > INT64_MAX / 4 || m->window > INT64_MAX / 4 || m->dense_from < 0)
        FAIL(err, ERR_INPUT,
             "the geometry of the mask (%lld x %lld in units of %lld x %lld) is "
             "impossible",
             (long long)m->nq, (long long)m->nk, (long long)m->bq, (long long)m->bk);
    TRY(get_reach(group, m, err));
out:
    return rc;
}
