#include "sim/outfile.h"

#include "core/h5util.h"
#include "core/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTFILE_FORMAT "lacuna-outputs"
#define OUTFILE_MAJOR 1
#define OUTFILE_MINOR 0

/* A cell whose rows are still coming. */
struct open_cell {
    char *key;      /* record_key, owned */
    hid_t out, lse; /* datasets */
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

static int begin_cell(struct outfile *f, const struct record *r, const char *key, int64_t dv,
                      struct open_cell **cell, struct err *err)
{
    int rc = 0;
    hid_t g = H5I_INVALID_HID, f32 = h5_type(DT_F32), f64 = h5_type(DT_F64);
    hid_t props = h5_dataset_props(2, NULL), props1 = h5_dataset_props(1, NULL);
    int64_t dims[2] = {r->n_q, dv};

    struct open_cell c = {NULL, H5I_INVALID_HID, H5I_INVALID_HID};
    TRY(mem_grow(&f->open, &f->cap_open, f->n_open + 1, sizeof *f->open, "open cells", err));
    c.key = strdup(key);
    if (!c.key)
        FAIL(err, ERR_NOMEM, "open cells: out of memory");
    TRY(h5_create_numbered(f->cells, f->n_cells, &g, err));
    TRY(put_identity(g, r, err));
    TRY(h5_create_dataset(g, "out", f32, 2, dims, NULL, props, &c.out, err));
    TRY(h5_create_dataset(g, "lse", f64, 1, dims, NULL, props1, &c.lse, err));
    f->n_cells++;
    f->open[f->n_open] = c;
    *cell = f->open + f->n_open++;
out:
    h5_close(g);
    h5_close(f32);
    h5_close(f64);
    h5_close(props);
    h5_close(props1);
    if (rc) {
        h5_close(c.out);
        h5_close(c.lse);
        free(c.key);
    }
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

static void end_cell(struct outfile *f, struct open_cell *c)
{
    h5_close(c->out);
    h5_close(c->lse);
    free(c->key);
    *c = f->open[--f->n_open];
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
    c = find_cell(f, buf_str(&key));
    if (!c)
        TRY(begin_cell(f, r, buf_str(&key), dv, &c, err));
    TRY(write_rows(c->out, 2, row0, n, dv, H5T_NATIVE_FLOAT, rows, err));
    TRY(write_rows(c->lse, 1, row0, n, 1, H5T_NATIVE_DOUBLE, lse, err));
    if (row1 == r->n_q)
        end_cell(f, c);
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
        end_cell(f, f->open);
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
