/*
 * maskfile.c - dumped masks: attributes of a cell, writing, reading, index.
 */
#include "core/maskfile.h"

#include "core/buf.h"
#include "core/h5util.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/strmap.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MASKFILE_FORMAT "lacuna-masks"
#define PARAMS_MAX 60000 /* characters of a canonical parameter text that fit an attribute */

struct open_cell;

struct maskfile {
    struct cellfile *out;   /* writing */
    struct open_cell *open; /* writing: cells that still wait for their last range */
    char *path;             /* reading, owned, as the others */
    hid_t file, cells;
    int64_t n_cells, file_size;
};

/* ---- attributes of a cell: identity, form and geometry -------------------------------------- */

/* Identity of a cell: its trace, the model's name, these, the parameters. A seed is a bit
 * pattern. */
static const struct h5_field trace_id[] = {H5_FIELD(record, H5_TEXT, trace), {0}};
static const struct h5_field identity[] = {
    H5_FIELD(record, H5_INT, run),       H5_FIELD(record, H5_INT, step),
    H5_FIELD(record, H5_TEXT, branch),   H5_FIELD(record, H5_INT, layer),
    H5_FIELD(record, H5_INT, head),      H5_FIELD(record, H5_INT, kv_head),
    H5_FIELD(record, H5_TEXT, method),   H5_FIELD(record, H5_INT64, seed),
    H5_FIELD(record, H5_TEXT, backend),  H5_FIELD(record, H5_TEXT, precision),
    H5_FIELD(record, H5_TEXT, permute),  H5_FIELD(record, H5_INT, d),
    H5_FIELD(record, H5_REAL, timestep), {0},
};

static const struct h5_field geometry[] = {
    H5_FIELD(mask, H5_INT64, nq),      H5_FIELD(mask, H5_INT64, nk),
    H5_FIELD(mask, H5_FLAG, causal),   H5_FIELD(mask, H5_INT64, bq),
    H5_FIELD(mask, H5_INT64, bk),      H5_FIELD(mask, H5_INT64, exec_bq),
    H5_FIELD(mask, H5_INT64, exec_bk), {0},
};

static const struct h5_field band[] = {
    H5_FIELD(mask, H5_INT64, sink),
    H5_FIELD(mask, H5_INT64, window),
    H5_FIELD(mask, H5_INT64, dense_from),
    {0},
};

/* Windows, chunks and prefix of the model; at 0 (none) they are left out. */
static const struct h5_field reach[] = {
    {"window_left", H5_INT64, offsetof(struct mask, reach.back), 8},
    {"window_right", H5_INT64, offsetof(struct mask, reach.ahead), 8},
    {"chunk", H5_INT64, offsetof(struct mask, reach.chunk), 8},
    {"prefix", H5_INT64, offsetof(struct mask, reach.prefix), 8},
    {0},
};

static const char *const form_names[] = {"full", "lists", "band"};
static const char *const exec_names[] = {"tiles", "gather", "none"};

static int get_name(hid_t group, const char *attr, const char *const *names, int n, int *out,
                    struct err *err)
{
    char text[32];
    PASS_ON(h5_get_str(group, attr, text, sizeof text, err));
    for (int i = 0; i < n; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return 0;
        }
    return err_set(err, ERR_INPUT, "%s '%s' is unknown", attr, text);
}

static int put_identity(hid_t group, const struct record *r, struct err *err)
{
    const char *params = r->params ? r->params : "";
    if (strlen(params) > PARAMS_MAX)
        return err_set(err, ERR_RUN, "parameters of %zu characters", strlen(params));
    PASS_ON(h5_put_fields(group, trace_id, r, err));
    PASS_ON(h5_put_str(group, "model", r->model, err));
    PASS_ON(h5_put_fields(group, identity, r, err));
    return h5_put_str(group, "params", params, err);
}

static int get_identity(hid_t group, struct record *r, struct err *err)
{
    struct model {
        char model[RECORD_MODEL];
    } m;
    static const struct h5_field model = H5_FIELD(model, H5_TEXT, model);
    OWN(free_at) char *text = NULL;

    PASS_ON(h5_get_fields(group, trace_id, r, err));
    PASS_ON(h5_get_fields(group, identity, r, err));
    PASS_ON(h5_get_field(group, &model, &m, err));
    record_text(r, &r->model, "%s", m.model);
    PASS_ON(mem_alloc(&text, PARAMS_MAX + 1, 1, "parameters", err));
    PASS_ON(h5_get_str(group, "params", text, PARAMS_MAX + 1, err));
    free(r->params);
    return mem_dup(&r->params, text, "parameters", err);
}

/* Windows are inclusive in a file, as in a trace: window_left = back - 1. */
static int put_reach(hid_t group, const struct mask *m, struct err *err)
{
    for (const struct h5_field *a = reach; a->name; a++) {
        int64_t n = *(const int64_t *)((const char *)m + a->offset);
        if (n > 0)
            PASS_ON(h5_put_i64(group, a->name, n - (a->name[0] == 'w'), err));
    }
    return 0;
}

static int get_reach(hid_t group, struct mask *m, struct err *err)
{
    for (const struct h5_field *a = reach; a->name; a++) {
        int64_t n = 0;
        if (!h5_has_attr(group, a->name))
            continue;
        PASS_ON(h5_get_i64(group, a->name, &n, err));
        if (n < (a->name[0] != 'w') || n > INT32_MAX || m->nq > m->nk)
            return err_set(err, ERR_INPUT, "attribute '%s' = %lld is out of range", a->name,
                           (long long)n);
        *(int64_t *)((char *)m + a->offset) = n + (a->name[0] == 'w');
    }
    return 0;
}

static int put_geometry(hid_t group, const struct mask *m, struct err *err)
{
    PASS_ON(h5_put_str(group, "form", form_names[m->form], err));
    PASS_ON(h5_put_str(group, "exec", exec_names[m->exec], err));
    PASS_ON(h5_put_fields(group, geometry, m, err));
    if (m->form == MASK_BAND)
        PASS_ON(h5_put_fields(group, band, m, err));
    return put_reach(group, m, err);
}

static bool is_size(int64_t n)
{
    return n >= 1 && n <= INT32_MAX;
}

static int get_geometry(hid_t group, struct mask *m, struct err *err)
{
    int form = 0, exec = 0;
    memset(m, 0, sizeof *m);
    PASS_ON(get_name(group, "form", form_names, 3, &form, err));
    PASS_ON(get_name(group, "exec", exec_names, 3, &exec, err));
    PASS_ON(h5_get_fields(group, geometry, m, err));
    m->form = (enum mask_form)form;
    m->exec = exec == 0 ? EXEC_TILES : exec == 1 ? EXEC_GATHER : EXEC_NONE;
    m->row1 = m->nq;
    if (m->form == MASK_BAND)
        PASS_ON(h5_get_fields(group, band, m, err));
    if (!is_size(m->nq) || !is_size(m->nk) || !is_size(m->bq) || !is_size(m->bk) ||
        !is_size(m->exec_bq) || !is_size(m->exec_bk) || m->sink < 0 || m->window < 0 ||
        m->sink > INT64_MAX / 4 || m->window > INT64_MAX / 4 || m->dense_from < 0)
        return err_set(err, ERR_INPUT,
                       "the geometry of the mask (%lld x %lld in units of %lld x %lld) is "
                       "impossible",
                       (long long)m->nq, (long long)m->nk, (long long)m->bq, (long long)m->bk);
    return get_reach(group, m, err);
}

/* ---- writing, while a replay runs ------------------------------------------------------------ */

struct open_cell {
    struct h5_cell cell; /* lists: row_ptr, col */
    struct open_cell *next;
    struct buf key;
    struct mask m; /* form and geometry; without lists */
    char order[MASKFILE_ORDER];
    int64_t next_row;
    struct hash_state *hash; /* of the entries of col, in order */
    char xxh3[HASH_TEXT_MAX];
};

enum { PTR, COL };

int maskfile_create(const char *path, bool force, struct maskfile **out, struct err *err)
{
    OWN(maskfile_abort) struct maskfile *f = NULL;
    PASS_ON(mem_zalloc(&f, 1, sizeof *f, "mask file", err));
    PASS_ON(cellfile_create(path, MASKFILE_FORMAT, MASKFILE_VERSION_MAJOR, MASKFILE_VERSION_MINOR,
                            force, &f->out, err));
    *out = HAND_OVER(f);
    return 0;
}

/* Take it from the cells in flight. */
static struct h5_cell *close_cell(struct maskfile *f, struct open_cell *c)
{
    struct open_cell **p = &f->open;
    while (*p != c)
        p = &(*p)->next;
    *p = c->next;
    buf_free(&c->key);
    hash_free(c->hash);
    return &c->cell;
}

static struct open_cell *find_cell(struct maskfile *f, const struct buf *key)
{
    for (struct open_cell *c = f->open; c; c = c->next)
        if (strcmp(buf_str(&c->key), buf_str(key)) == 0)
            return c;
    return NULL;
}

static int put_attributes(hid_t group, const struct h5_cell *cell, struct err *err)
{
    const struct open_cell *c = (const struct open_cell *)cell;
    PASS_ON(put_identity(group, &cell->id, err));
    PASS_ON(h5_put_str(group, "order", c->order, err));
    PASS_ON(put_geometry(group, &c->m, err));
    if (c->m.form == MASK_LISTS)
        return h5_put_str(group, "xxh3", c->xxh3, err);
    return 0;
}

static int end_group(struct open_cell *c, struct err *err)
{
    struct h5_cell_list *l = c->cell.lists + PTR; /* in memory, for the checksum */
    PASS_ON(mem_grow(&l->data, &l->cap, l->kept + 1, sizeof(int64_t), "mask groups", err));
    ((int64_t *)l->data)[l->kept++] = c->cell.lists[COL].n;
    l->n = l->kept;
    return 0;
}

/* From here on the cell has lists. */
static int begin_lists(struct open_cell *c, struct err *err)
{
    c->cell.lists[PTR] = (struct h5_cell_list){.name = "row_ptr", .type = DT_I64};
    c->cell.lists[COL] = (struct h5_cell_list){.name = "col", .type = DT_I32};
    return end_group(c, err);
}

/* The key is taken over. */
static int new_cell(struct maskfile *f, const struct record *r, const char *order, struct buf *key,
                    const struct mask *m, struct open_cell **out, struct err *err)
{
    struct open_cell *c = NULL;
    PASS_ON(h5_cell_new(r, sizeof *c, &c, err));
    c->next = f->open;
    f->open = *out = c;
    c->key = *key;
    memset(key, 0, sizeof *key);
    c->cell.write = put_attributes;
    c->m = *m;
    c->m.ptr = NULL;
    c->m.col = NULL;
    c->m.row0 = 0;
    snprintf(c->order, sizeof c->order, "%s", order ? order : "none");
    PASS_ON(hash_new(&c->hash, err));
    if (m->form == MASK_LISTS)
        return begin_lists(c, err);
    return 0;
}

static int add_units(struct maskfile *f, struct open_cell *c, const int32_t *col, int64_t n,
                     struct err *err)
{
    hash_update(c->hash, col, (size_t)n * sizeof *col);
    return h5_cell_add(f->out, c->cell.lists + COL, col, n, err);
}

/* Lists of all units that the rows [row0, row1) may see, in the geometry of the cell. */
static int add_full(struct maskfile *f, struct open_cell *c, int64_t row0, int64_t row1,
                    struct err *err)
{
    OWN(free_at) int32_t *all = NULL;
    int64_t units = (c->m.nk + c->m.bk - 1) / c->m.bk;
    if (row0 % c->m.bq != 0)
        return err_set(err, ERR_RUN, "rows from %lld do not start a group of %lld", (long long)row0,
                       (long long)c->m.bq);
    PASS_ON(mem_alloc(&all, units, sizeof *all, "mask lists", err));
    for (int64_t u = 0; u < units; u++)
        all[u] = (int32_t)u;
    for (int64_t r = row0; r < row1; r += c->m.bq) {
        int64_t last = r + c->m.bq < row1 ? r + c->m.bq - 1 : row1 - 1;
        PASS_ON(add_units(f, c, all, (mask_limit(&c->m, last) + c->m.bk - 1) / c->m.bk, err));
        PASS_ON(end_group(c, err));
    }
    return 0;
}

static bool same_geometry(const struct mask *a, const struct mask *b)
{
    return a->form == b->form && a->bq == b->bq && a->bk == b->bk && a->exec == b->exec &&
           a->exec_bq == b->exec_bq && a->exec_bk == b->exec_bk && a->sink == b->sink &&
           a->window == b->window && a->dense_from == b->dense_from;
}

/* Turn a cell that was full so far into lists with the geometry of m. */
static int become_lists(struct maskfile *f, struct open_cell *c, const struct mask *m,
                        struct err *err)
{
    c->m.form = MASK_LISTS;
    c->m.bq = m->bq;
    c->m.bk = m->bk;
    c->m.exec = m->exec;
    c->m.exec_bq = m->exec_bq;
    c->m.exec_bk = m->exec_bk;
    PASS_ON(begin_lists(c, err));
    return add_full(f, c, 0, c->next_row, err);
}

static int add_range(struct maskfile *f, struct open_cell *c, const struct mask *m, struct err *err)
{
    if (m->row0 != c->next_row || m->nq != c->m.nq || m->nk != c->m.nk || m->causal != c->m.causal)
        return err_set(err, ERR_RUN, "rows %lld..%lld of a mask come after row %lld",
                       (long long)m->row0, (long long)m->row1, (long long)c->next_row);
    if (c->m.form == MASK_FULL && m->form == MASK_LISTS)
        PASS_ON(become_lists(f, c, m, err));
    if (c->m.form == MASK_LISTS && m->form == MASK_FULL) {
        PASS_ON(add_full(f, c, m->row0, m->row1, err));
    } else if (!same_geometry(&c->m, m)) {
        return err_set(err, ERR_RUN,
                       "the mask's form or unit changes at row %lld; only one can be dumped",
                       (long long)m->row0);
    } else if (m->form == MASK_LISTS) {
        for (int64_t g = 0; g < m->ngroups; g++) {
            PASS_ON(add_units(f, c, m->col + m->ptr[g], m->ptr[g + 1] - m->ptr[g], err));
            PASS_ON(end_group(c, err));
        }
    }
    c->next_row = m->row1;
    return 0;
}

/* The checksum is of col followed by row_ptr. */
static int end_cell(struct maskfile *f, struct open_cell *c, struct err *err)
{
    const struct h5_cell_list *ptr = c->cell.lists + PTR;
    hash_update(c->hash, ptr->data, (size_t)ptr->n * sizeof(int64_t));
    hash_text(hash_digest(c->hash), c->xxh3);
    return cellfile_put(f->out, close_cell(f, c), err);
}

int maskfile_put(struct maskfile *f, const struct record *r, const char *order,
                 const struct mask *m, struct err *err)
{
    struct buf key = {0};
    struct open_cell *c = NULL;
    int rc = 0;
    h5_lock();
    TRY(mask_check(m, err));
    record_key(r, &key);
    TRY(buf_check(&key, "key of a cell", err));
    c = find_cell(f, &key);
    if (c && m->row0 == 0) {
        h5_cell_free(close_cell(f, c)); /* the cell is computed again */
        c = NULL;
    }
    if (!c)
        TRY(new_cell(f, r, order, &key, m, &c, err));
    TRY(add_range(f, c, m, err));
    if (m->row1 == m->nq) {
        struct open_cell *whole = HAND_OVER(c);
        TRY(end_cell(f, whole, err));
    }
out:
    /* A cell that cannot be dumped leaves the file as it was; a failed write does not. */
    if (rc && c)
        h5_cell_free(close_cell(f, c));
    buf_free(&key);
    h5_unlock();
    if (rc)
        err_prefix(err, "%s: %s layer %d head %d", cellfile_path(f->out), r->method, r->layer,
                   r->head);
    return rc;
}

struct cellfile *maskfile_cellfile(struct maskfile *f)
{
    return f->out;
}

int maskfile_commit(struct maskfile **f, struct err *err)
{
    int rc = cellfile_commit(&(*f)->out, err);
    maskfile_abort(f);
    return rc;
}

void maskfile_abort(struct maskfile **f)
{
    if (!*f)
        return;
    while ((*f)->open)
        h5_cell_free(close_cell(*f, (*f)->open));
    cellfile_abort(&(*f)->out);
    free(*f);
    *f = NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

int maskfile_open(const char *path, struct maskfile **out, struct err *err)
{
    H5_LOCKED;
    OWN(maskfile_close) struct maskfile *f = NULL;
    struct stat st;
    PASS_ON(mem_zalloc(&f, 1, sizeof *f, "mask file", err));
    f->file = f->cells = H5I_INVALID_HID;
    PASS_ON(h5_open_file(path, MASKFILE_FORMAT, MASKFILE_VERSION_MAJOR, &f->file, err));
    PASS_ON(mem_dup(&f->path, path, path, err));
    if (stat(path, &st) != 0)
        return err_sys(err, ERR_INPUT, "%s", path);
    f->file_size = st.st_size;
    int rc = h5_open_group(f->file, "cells", &f->cells, err);
    if (rc == 0)
        rc = h5_get_i64(f->cells, "count", &f->n_cells, err);
    if (rc == 0 && (f->n_cells < 0 || f->n_cells > INT32_MAX))
        rc = err_set(err, ERR_INPUT, "/cells: count = %lld", (long long)f->n_cells);
    if (rc)
        return err_prefix(err, "%s", path), rc;
    *out = HAND_OVER(f);
    return 0;
}

void maskfile_close(struct maskfile **fp)
{
    struct maskfile *f = *fp;
    if (!f)
        return;
    h5_lock();
    h5_close(f->cells);
    h5_close(f->file);
    h5_unlock();
    free(f->path);
    free(f);
    *fp = NULL;
}

int64_t maskfile_cells(const struct maskfile *f)
{
    return f->n_cells;
}

static int open_stored(const struct maskfile *f, int64_t i, hid_t *out, struct err *err)
{
    if (i < 0 || i >= f->n_cells)
        return err_set(err, ERR_RUN, "cell %lld of %lld", (long long)i, (long long)f->n_cells);
    return h5_open_numbered(f->cells, i, out, err);
}

/* The message of a helper names the object where it can; the file is always named here. */
static int fail_in(const struct maskfile *f, int64_t i, int rc, struct err *err)
{
    if (rc)
        err_prefix(err, "%s: cell %lld", f->path, (long long)i);
    return rc;
}

int maskfile_cell(const struct maskfile *f, int64_t i, struct record *id, struct err *err)
{
    struct mask m;
    hid_t group = H5I_INVALID_HID;
    int rc = 0;
    h5_lock();
    record_init(id);
    TRY(open_stored(f, i, &group, err));
    TRY(get_identity(group, id, err));
    TRY(get_geometry(group, &m, err));
    id->n_q = m.nq;
    id->n_k = m.nk;
    id->causal = m.causal;
out:
    h5_close(group);
    h5_unlock();
    if (rc)
        record_free(id);
    return fail_in(f, i, rc, err);
}

int maskfile_order(const struct maskfile *f, int64_t i, char order[MASKFILE_ORDER], struct err *err)
{
    hid_t group = H5I_INVALID_HID;
    int rc = 0;
    h5_lock();
    TRY(open_stored(f, i, &group, err));
    /* Files of version 1.0 have the replay's order alone. */
    TRY(h5_get_str(group, h5_has_attr(group, "order") ? "order" : "permute", order, MASKFILE_ORDER,
                   err));
out:
    h5_close(group);
    h5_unlock();
    return fail_in(f, i, rc, err);
}

/* A list of unknown length: unfiltered, so that it cannot be longer than the file. */
static int read_list(const struct maskfile *f, hid_t group, const char *name, enum dtype type,
                     void *out, int64_t *n, struct err *err)
{
    struct h5_info info;
    OWN(free_at) void *data = NULL;
    OWN(h5_close_at) hid_t dset = H5I_INVALID_HID, t = h5_type(type);
    PASS_ON(h5_open_dataset(group, name, &dset, err));
    PASS_ON(h5_dataset_info(dset, type, &info, err));
    if (info.nfilters > 0)
        return err_set(err, ERR_INPUT,
                       "'%s' is packed; `h5repack -l CONTI -f NONE` unpacks the file", name);
    if (info.ndim != 1 || info.dims[0] > f->file_size / (int64_t)dtype_size(type))
        return err_set(err, ERR_INPUT, "'%s' is not a list that fits the file", name);
    PASS_ON(mem_alloc(&data, info.dims[0], dtype_size(type), name, err));
    if (info.dims[0] > 0 && H5Dread(dset, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        return h5_fail(err, ERR_INPUT, "reading '%s'", name);
    memcpy(out, &data, sizeof data);
    *n = info.dims[0];
    data = NULL;
    return 0;
}

static int check_hash(hid_t group, const struct mask *m, struct err *err)
{
    OWN(hash_free_at) struct hash_state *h = NULL;
    char want[HASH_TEXT_MAX], have[HASH_TEXT_MAX];
    PASS_ON(h5_get_str(group, "xxh3", want, sizeof want, err));
    PASS_ON(hash_new(&h, err));
    hash_update(h, m->col, (size_t)m->col_cap * sizeof *m->col);
    hash_update(h, m->ptr, (size_t)(m->ngroups + 1) * sizeof *m->ptr);
    hash_text(hash_digest(h), have);
    if (strcmp(want, have) != 0)
        return err_set(err, ERR_INPUT, "the checksum of the lists is %s, stored is %s", have, want);
    return 0;
}

static int read_lists(const struct maskfile *f, hid_t group, struct mask *m, struct err *err)
{
    int64_t n = 0;
    int rc = 0;
    TRY(read_list(f, group, "row_ptr", DT_I64, &m->ptr, &n, err));
    if (n != (m->nq + m->bq - 1) / m->bq + 1)
        FAIL(err, ERR_INPUT, "row_ptr has %lld entries for %lld rows in groups of %lld",
             (long long)n, (long long)m->nq, (long long)m->bq);
    m->ngroups = n - 1;
    TRY(read_list(f, group, "col", DT_I32, &m->col, &m->col_cap, err));
    TRY(check_hash(group, m, err));
    /* Bounds before mask_check walks along them. */
    for (int64_t g = 0; g <= m->ngroups; g++)
        if (m->ptr[g] < 0 || m->ptr[g] > m->col_cap)
            FAIL(err, ERR_INPUT, "row_ptr[%lld] = %lld of %lld entries", (long long)g,
                 (long long)m->ptr[g], (long long)m->col_cap);
    if (m->ptr[m->ngroups] != m->col_cap)
        FAIL(err, ERR_INPUT, "row_ptr ends at %lld, col has %lld entries",
             (long long)m->ptr[m->ngroups], (long long)m->col_cap);
    if ((rc = mask_check(m, err)) != 0 && err)
        rc = err->code = ERR_INPUT; /* a bad mask is a bug when computed, bad input when read */
out:
    return rc;
}

int maskfile_read(const struct maskfile *f, int64_t i, struct mask *out, struct err *err)
{
    struct mask m = {0};
    hid_t group = H5I_INVALID_HID;
    int rc = 0;
    h5_lock();
    TRY(open_stored(f, i, &group, err));
    TRY(get_geometry(group, &m, err));
    if (m.form == MASK_LISTS)
        TRY(read_lists(f, group, &m, err));
    *out = HAND_OVER(m);
out:
    mask_free(&m);
    h5_close(group);
    h5_unlock();
    return fail_in(f, i, rc, err);
}

/* ---- index ----------------------------------------------------------------------------------- */

void mask_setting_text(const struct mask_setting *s, struct buf *b)
{
    buf_printf(b, "%s%s%s", s->method, s->params[0] ? ":" : "", s->params);
}

/* Number of the setting of id, entered when it is new. */
static int find_setting(struct mask_index *x, struct strmap *known, const struct record *id,
                        int *setting, struct err *err)
{
    struct mask_setting s = {0};
    OWN(buf_free) struct buf text = {0};
    memcpy(s.method, id->method, sizeof s.method);
    s.params = id->params;
    mask_setting_text(&s, &text);
    PASS_ON(buf_check(&text, "setting of a mask", err));
    int64_t at = strmap_get(known, buf_str(&text));
    if (at < 0) {
        at = x->n_settings;
        PASS_ON(
            mem_grow(&x->settings, &x->cap_settings, at + 1, sizeof *x->settings, "settings", err));
        PASS_ON(strmap_put(known, buf_str(&text), at, err));
        PASS_ON(mem_dup(&s.params, id->params, "settings of masks", err));
        x->settings[x->n_settings++] = s;
    }
    x->settings[at].cells++;
    *setting = (int)at;
    return 0;
}

static int add_entry(const struct maskfile *f, struct mask_index *x, struct strmap *known,
                     int64_t cell, struct err *err)
{
    struct mask_entry e = {.cell = cell};
    OWN(record_free) struct record id;
    PASS_ON(maskfile_cell(f, cell, &id, err));
    PASS_ON(find_setting(x, known, &id, &e.setting, err));
    PASS_ON(maskfile_order(f, cell, e.order, err));
    e.step = id.step;
    e.layer = id.layer;
    e.head = id.head;
    memcpy(e.branch, id.branch, sizeof e.branch);
    memcpy(e.trace, id.trace, sizeof e.trace);
    e.nq = id.n_q;
    e.nk = id.n_k;
    e.causal = id.causal;
    x->entries[x->n++] = e;
    return 0;
}

static int compare(const struct mask_entry *a, const struct mask_entry *b)
{
    int d = (a->step > b->step) - (a->step < b->step);
    if (d == 0)
        d = strcmp(a->branch, b->branch);
    if (d == 0)
        d = (a->layer > b->layer) - (a->layer < b->layer);
    if (d == 0)
        d = (a->head > b->head) - (a->head < b->head);
    return d ? d : (a->setting > b->setting) - (a->setting < b->setting);
}

static int by_call(const void *x, const void *y)
{
    const struct mask_entry *a = x, *b = y;
    int d = compare(a, b);
    return d ? d : (a->cell > b->cell) - (a->cell < b->cell);
}

bool mask_entry_same(const struct mask_entry *a, const struct mask_entry *b)
{
    return compare(a, b) == 0;
}

int mask_index_make(const struct maskfile *f, struct mask_index *out, struct err *err)
{
    OWN(mask_index_free) struct mask_index x = {0};
    OWN(strmap_free) struct strmap known = {0};
    int64_t n = maskfile_cells(f);
    for (int64_t i = 0; i < n; i++) {
        PASS_ON(mem_grow(&x.entries, &x.cap, i + 1, sizeof *x.entries, "index of masks", err));
        PASS_ON(add_entry(f, &x, &known, i, err));
    }
    if (x.entries)
        qsort(x.entries, (size_t)n, sizeof *x.entries, by_call);
    *out = HAND_OVER(x);
    return 0;
}

void mask_index_free(struct mask_index *x)
{
    for (int64_t i = 0; i < x->n_settings; i++)
        free(x->settings[i].params);
    free(x->settings);
    free(x->entries);
    memset(x, 0, sizeof *x);
}

const struct mask_entry *mask_index_find(const struct mask_index *x, int step, const char *branch,
                                         int layer, int head, int setting)
{
    struct mask_entry want = {.step = step, .layer = layer, .head = head, .setting = setting};
    int64_t lo = 0, hi = x->n;
    strncpy(want.branch, branch, sizeof want.branch - 1);
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (compare(&x->entries[mid], &want) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->n && mask_entry_same(&x->entries[lo], &want) ? &x->entries[lo] : NULL;
}
