#include "sim/outfile.h"

#include "core/h5util.h"
#include "core/hash.h"
#include "core/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define OUTFILE_FORMAT "lacuna-outputs"
#define OUTFILE_MAJOR 1
#define OUTFILE_MINOR 1 /* minor version 1 added the checksums of a cell */

/* A cell whose rows are still coming, in ascending order. */
struct open_cell {
    char *key;   /* record_key, owned */
    float *out;  /* [n_q][dv], owned */
    double *lse; /* [n_q], owned */
    int64_t next_row;
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

static void drop_cell(struct outfile *f, struct open_cell *c)
{
    free(c->out);
    free(c->lse);
    free(c->key);
    *c = f->open[--f->n_open];
}

static struct open_cell *find_cell(struct outfile *f, const char *key)
{
    for (int64_t i = 0; i < f->n_open; i++)
        if (strcmp(f->open[i].key, key) == 0)
            return f->open + i;
    return NULL;
}

static int begin_cell(struct outfile *f, const struct record *r, const char *key, int64_t dv,
                      struct open_cell **cell, struct err *err)
{
    int rc = 0;
    struct open_cell *c;

    TRY(mem_grow(&f->open, &f->cap_open, f->n_open + 1, sizeof *f->open, "open cells", err));
    c = f->open + f->n_open++;
    *c = (struct open_cell){.key = strdup(key)};
    if (!c->key)
        FAIL(err, ERR_NOMEM, "open cells: out of memory");
    TRY(mem_alloc(&c->out, r->n_q * dv, sizeof *c->out, "output rows", err));
    TRY(mem_alloc(&c->lse, r->n_q, sizeof *c->lse, "output rows", err));
    *cell = c;
out:
    if (rc && f->n_open && !f->open[f->n_open - 1].lse)
        drop_cell(f, f->open + f->n_open - 1);
    return rc;
}

static int put_hash(hid_t g, const char *name, const void *data, int64_t bytes, struct err *err)
{
    char text[HASH_TEXT_MAX];
    hash_text(hash_bytes(data, (size_t)bytes), text);
    return h5_put_str(g, name, text, err);
}

static int write_cell(struct outfile *f, const struct record *r, int64_t dv,
                      const struct open_cell *c, struct err *err)
{
    const int64_t dims[2] = {r->n_q, dv};
    hid_t g = H5I_INVALID_HID;
    int rc = 0;
    TRY(h5_create_numbered(f->cells, f->n_cells++, &g, err));
    TRY(put_identity(g, r, err));
    TRY(h5_put_array(g, "out", DT_F32, 2, dims, c->out, err));
    TRY(h5_put_array(g, "lse", DT_F64, 1, dims, c->lse, err));
    TRY(put_hash(g, "out_xxh3", c->out, r->n_q * dv * (int64_t)sizeof *c->out, err));
    TRY(put_hash(g, "lse_xxh3", c->lse, r->n_q * (int64_t)sizeof *c->lse, err));
out:
    h5_close(g);
    return rc;
}

int outfile_put(struct outfile *f, const struct record *r, int64_t dv, int64_t row0, int64_t row1,
                const double *out, const double *lse, struct err *err)
{
    int rc = 0;
    struct buf key = {0};
    struct open_cell *c;

    pthread_mutex_lock(&f->lock);
    h5_lock();
    record_key(r, &key);
    TRY(buf_check(&key, "key of a cell", err));
    c = find_cell(f, buf_str(&key));
    if (c && row0 == 0) { /* the cell is computed again */
        drop_cell(f, c);
        c = NULL;
    }
    if (!c)
        TRY(begin_cell(f, r, buf_str(&key), dv, &c, err));
    if (row0 != c->next_row)
        FAIL(err, ERR_RUN, "rows %lld..%lld of an output come after row %lld", (long long)row0,
             (long long)row1, (long long)c->next_row);
    for (int64_t i = 0; i < (row1 - row0) * dv; i++)
        c->out[row0 * dv + i] = (float)out[i];
    memcpy(c->lse + row0, lse, (size_t)(row1 - row0) * sizeof *lse);
    c->next_row = row1;
    if (row1 == r->n_q) {
        rc = write_cell(f, r, dv, c, err);
        drop_cell(f, c);
    }
out:
    h5_unlock();
    pthread_mutex_unlock(&f->lock);
    buf_free(&key);
    return rc ? err_prefix(err, "%s", f->part.path) : 0;
}

/* A cell that is still open is one whose method failed on the way: what it has is no result. */
static void outfile_free(struct outfile **f)
{
    while ((*f)->n_open)
        drop_cell(*f, (*f)->open);
    pthread_mutex_destroy(&(*f)->lock);
    free((*f)->open);
    free(*f);
    *f = NULL;
}

int outfile_commit(struct outfile **f, struct err *err)
{
    h5_lock();
    h5_close((*f)->cells);
    int rc = h5_part_commit(&(*f)->part, err);
    h5_unlock();
    outfile_free(f);
    return rc;
}

void outfile_abort(struct outfile **f)
{
    if (!*f)
        return;
    h5_lock();
    h5_close((*f)->cells);
    h5_part_abort(&(*f)->part);
    h5_unlock();
    outfile_free(f);
}
