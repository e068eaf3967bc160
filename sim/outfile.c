#include "sim/outfile.h"

#include "core/h5util.h"
#include "core/hash.h"
#include "core/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTFILE_FORMAT "lacuna-outputs"
#define OUTFILE_MAJOR 1
#define OUTFILE_MINOR 1 /* minor version 1 added the checksums of a cell */

/* A cell whose rows are still coming, in ascending order. */
struct open_cell {
    char *key; /* record_key, owned */
    hid_t group;
    hid_t out, lse; /* datasets */
    int64_t next_row;
    struct hash_state *out_hash, *lse_hash; /* of the rows so far */
};

struct outfile {
    struct h5_part part;
    hid_t cells; /* group */
    struct open_cell *open;
    int64_t n_open, cap_open, n_cells;
    pthread_mutex_t lock;
};

int outfile_create(const char *path, bool force, struct outfile **out, struct err *err)
{
    int rc = 0;
    struct outfile *f = NULL;

    TRY(mem_zalloc(&f, 1, sizeof *f, "output file", err));
    f->cells = H5I_INVALID_HID;
    pthread_mutex_init(&f->lock, NULL);
    h5_lock();
    rc = h5_part_create(&f->part, path, OUTFILE_FORMAT, OUTFILE_MAJOR, OUTFILE_MINOR, force, err);
    if (!rc)
        rc = h5_create_group(f->part.file, "cells", &f->cells, err);
    h5_unlock();
    if (rc)
        goto out;
    *out = f;
    return 0;
out:
    outfile_abort(&f);
    return rc;
}

static int put_identity(hid_t g, const struct record *r, struct err *err)
{
    int rc = 0;
    TRY(h5_put_str(g, "trace", r->trace, err));
    TRY(h5_put_i64(g, "run", r->run, err));
    TRY(h5_put_i64(g, "step", r->step, err));
    TRY(h5_put_str(g, "branch", r->branch, err));
    TRY(h5_put_i64(g, "layer", r->layer, err));
    TRY(h5_put_i64(g, "head", r->head, err));
    TRY(h5_put_str(g, "method", r->method, err));
    TRY(h5_put_str(g, "params", r->params ? r->params : "", err));
    TRY(h5_put_str(g, "permute", r->permute, err));
    TRY(h5_put_i64(g, "seed", (int64_t)r->seed, err));
out:
    return rc;
}

static void cell_free(struct open_cell *c)
{
    h5_close(c->out);
    h5_close(c->lse);
    h5_close(c->group);
    hash_free(c->out_hash);
    hash_free(c->lse_hash);
    free(c->key);
}

static int create_cell(struct outfile *f, const struct record *r, int64_t dv, struct open_cell *c,
                       struct err *err)
{
    int rc = 0;
    hid_t f32 = h5_type(DT_F32), f64 = h5_type(DT_F64);
    hid_t props = h5_dataset_props(2, NULL), props1 = h5_dataset_props(1, NULL);
    int64_t dims[2] = {r->n_q, dv};

    TRY(h5_create_numbered(f->cells, f->n_cells, &c->group, err));
    TRY(put_identity(c->group, r, err));
    TRY(h5_create_dataset(c->group, "out", f32, 2, dims, NULL, props, &c->out, err));
    TRY(h5_create_dataset(c->group, "lse", f64, 1, dims, NULL, props1, &c->lse, err));
out:
    h5_close(f32);
    h5_close(f64);
    h5_close(props);
    h5_close(props1);
    return rc;
}

static int begin_cell(struct outfile *f, const struct record *r, const char *key, int64_t dv,
                      struct open_cell **cell, struct err *err)
{
    int rc = 0;
    struct open_cell c = {.group = H5I_INVALID_HID, .out = H5I_INVALID_HID, .lse = H5I_INVALID_HID};

    TRY(mem_grow(&f->open, &f->cap_open, f->n_open + 1, sizeof *f->open, "open cells", err));
    c.key = strdup(key);
    if (!c.key)
        FAIL(err, ERR_NOMEM, "open cells: out of memory");
    TRY(hash_new(&c.out_hash, err));
    TRY(hash_new(&c.lse_hash, err));
    TRY(create_cell(f, r, dv, &c, err));
    f->n_cells++;
    f->open[f->n_open] = c;
    *cell = f->open + f->n_open++;
out:
    if (rc)
        cell_free(&c);
    return rc;
}

static int write_rows(hid_t dset, int ndim, int64_t row0, int64_t n, int64_t width, hid_t memtype,
                      const void *data, struct err *err)
{
    hsize_t start[2] = {(hsize_t)row0, 0}, count[2] = {(hsize_t)n, (hsize_t)width};
    hid_t file = H5Dget_space(dset), memory = H5Screate_simple(ndim, count, NULL);
    int rc = 0;
    if (file < 0 || memory < 0 ||
        H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dwrite(dset, memtype, memory, file, H5P_DEFAULT, data) < 0)
        rc = h5_fail(err, ERR_IO, "outputs: writing rows %lld..%lld", (long long)row0,
                     (long long)(row0 + n));
    h5_close(file);
    h5_close(memory);
    return rc;
}

static struct open_cell *find_cell(struct outfile *f, const char *key)
{
    for (int64_t i = 0; i < f->n_open; i++)
        if (strcmp(f->open[i].key, key) == 0)
            return f->open + i;
    return NULL;
}

static void drop_cell(struct outfile *f, struct open_cell *c)
{
    cell_free(c);
    *c = f->open[--f->n_open];
}

static int end_cell(struct outfile *f, struct open_cell *c, struct err *err)
{
    char text[HASH_TEXT_MAX];
    int rc = 0;
    hash_text(hash_digest(c->out_hash), text);
    TRY(h5_put_str(c->group, "out_xxh3", text, err));
    hash_text(hash_digest(c->lse_hash), text);
    TRY(h5_put_str(c->group, "lse_xxh3", text, err));
    drop_cell(f, c);
out:
    return rc;
}

/* A cell whose method failed on the way: what it has is no result. */
static void remove_cell(struct outfile *f, struct open_cell *c)
{
    char path[64];
    if (H5Iget_name(c->group, path, sizeof path) > 0)
        H5Ldelete(f->part.file, path, H5P_DEFAULT);
    drop_cell(f, c);
}

int outfile_put(struct outfile *f, const struct record *r, int64_t dv, int64_t row0, int64_t row1,
                const double *out, const double *lse, struct err *err)
{
    int rc = 0;
    struct buf key = {0};
    float *rows = NULL;
    struct open_cell *c;
    int64_t n = row1 - row0;

    pthread_mutex_lock(&f->lock);
    h5_lock();
    record_key(r, &key);
    TRY(mem_alloc(&rows, n * dv, sizeof *rows, "output rows", err));
    for (int64_t i = 0; i < n * dv; i++)
        rows[i] = (float)out[i];
    TRY(buf_check(&key, "key of a cell", err));
    c = find_cell(f, buf_str(&key));
    if (c && row0 == 0) { /* the cell is computed again */
        remove_cell(f, c);
        c = NULL;
    }
    if (!c)
        TRY(begin_cell(f, r, buf_str(&key), dv, &c, err));
    if (row0 != c->next_row)
        FAIL(err, ERR_RUN, "rows %lld..%lld of an output come after row %lld", (long long)row0,
             (long long)row1, (long long)c->next_row);
    TRY(write_rows(c->out, 2, row0, n, dv, H5T_NATIVE_FLOAT, rows, err));
    TRY(write_rows(c->lse, 1, row0, n, 1, H5T_NATIVE_DOUBLE, lse, err));
    hash_update(c->out_hash, rows, (size_t)(n * dv) * sizeof *rows);
    hash_update(c->lse_hash, lse, (size_t)n * sizeof *lse);
    c->next_row = row1;
    if (row1 == r->n_q)
        TRY(end_cell(f, c, err));
out:
    h5_unlock();
    pthread_mutex_unlock(&f->lock);
    free(rows);
    buf_free(&key);
    return rc ? err_prefix(err, "%s", f->part.path) : 0;
}

static void release(struct outfile *f)
{
    while (f->n_open)
        remove_cell(f, f->open);
    h5_close(f->cells);
}

int outfile_commit(struct outfile **f, struct err *err)
{
    h5_lock();
    release(*f);
    int rc = h5_part_commit(&(*f)->part, err);
    h5_unlock();
    pthread_mutex_destroy(&(*f)->lock);
    free((*f)->open);
    free(*f);
    *f = NULL;
    return rc;
}

void outfile_abort(struct outfile **f)
{
    if (!*f)
        return;
    h5_lock();
    release(*f);
    h5_part_abort(&(*f)->part);
    h5_unlock();
    pthread_mutex_destroy(&(*f)->lock);
    free((*f)->open);
    free(*f);
    *f = NULL;
}
