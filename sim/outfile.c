/*
 * outfile.c - dumped outputs (HDF5), see replay.h. doc/trace-format.md describes the layout.
 */
#include "sim/replay.h"

#include "core/h5util.h"
#include "core/hash.h"
#include "core/mem.h"

#include <stdlib.h>

#define OUTFILE_FORMAT "lacuna-outputs"
#define OUTFILE_MAJOR 1
#define OUTFILE_MINOR 1 /* minor version 1 added the checksums of a cell */

struct outfile {
    struct h5_part part;
    hid_t cells; /* group */
    int64_t n_cells;
};

int outfile_create(const char *path, bool force, struct outfile **out, struct err *err)
{
    int rc = 0;
    struct outfile *f = NULL;

    TRY(mem_zalloc(&f, 1, sizeof *f, "output file", err));
    f->cells = H5I_INVALID_HID;
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

static int put_hash(hid_t g, const char *name, const void *data, int64_t bytes, struct err *err)
{
    char text[HASH_TEXT_MAX];
    hash_text(hash_bytes(data, (size_t)bytes), text);
    return h5_put_str(g, name, text, err);
}

int outfile_put(struct outfile *f, const struct record *r, int64_t dv, const float *out,
                const double *lse, struct err *err)
{
    const int64_t dims[2] = {r->n_q, dv};
    hid_t g = H5I_INVALID_HID;
    int rc = 0;
    h5_lock();
    TRY(h5_create_numbered(f->cells, f->n_cells++, &g, err));
    TRY(put_identity(g, r, err));
    TRY(h5_put_array(g, "out", DT_F32, 2, dims, out, err));
    TRY(h5_put_array(g, "lse", DT_F64, 1, dims, lse, err));
    TRY(put_hash(g, "out_xxh3", out, r->n_q * dv * (int64_t)sizeof *out, err));
    TRY(put_hash(g, "lse_xxh3", lse, r->n_q * (int64_t)sizeof *lse, err));
out:
    h5_close(g);
    h5_unlock();
    return rc ? err_prefix(err, "%s", f->part.path) : 0;
}

int outfile_commit(struct outfile **f, struct err *err)
{
    h5_lock();
    h5_close((*f)->cells);
    int rc = h5_part_commit(&(*f)->part, err);
    h5_unlock();
    free(*f);
    *f = NULL;
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
    free(*f);
    *f = NULL;
}
