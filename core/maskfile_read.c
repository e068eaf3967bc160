/*
 * maskfile_read.c - reading dumped masks back.
 */
#include "core/maskfile_internal.h"

#include "core/hash.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int maskfile_open(const char *path, struct maskfile **out, struct err *err)
{
    struct maskfile *f = NULL;
    struct stat st;
    int rc = 0;

    h5_lock();
    TRY(mem_zalloc(&f, 1, sizeof *f, "mask file", err));
    f->file = f->cells = H5I_INVALID_HID;
    TRY(h5_open_file(path, MASKFILE_FORMAT, MASKFILE_VERSION_MAJOR, &f->file, err));
    if (!(f->path = strdup(path)))
        FAIL(err, ERR_NOMEM, "name of %s", path);
    if (stat(path, &st) != 0) {
        rc = err_sys(err, ERR_INPUT, "%s", path);
        goto out;
    }
    f->file_size = st.st_size;
    rc = h5_open_group(f->file, "cells", &f->cells, err);
    if (rc == 0)
        rc = h5_get_i64(f->cells, "count", &f->n_cells, err);
    if (rc == 0 && (f->n_cells < 0 || f->n_cells > INT32_MAX))
        rc = err_set(err, ERR_INPUT, "/cells: count = %lld", (long long)f->n_cells);
    if (rc) {
        err_prefix(err, "%s", path);
        goto out;
    }
    *out = f;
    f = NULL;
out:
    maskfile_close(&f);
    h5_unlock();
    return rc;
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

static int open_cell(const struct maskfile *f, int64_t i, hid_t *out, struct err *err)
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
    TRY(open_cell(f, i, &group, err));
    TRY(maskfile_get_identity(group, id, err));
    TRY(maskfile_get_geometry(group, &m, err));
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
    TRY(open_cell(f, i, &group, err));
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
    void *data = NULL;
    hid_t dset = H5I_INVALID_HID, t = h5_type(type);
    int rc = 0;

    TRY(h5_open_dataset(group, name, &dset, err));
    TRY(h5_dataset_info(dset, type, &info, err));
    if (info.nfilters > 0)
        FAIL(err, ERR_INPUT, "'%s' is packed; `h5repack -l CONTI -f NONE` unpacks the file", name);
    if (info.ndim != 1 || info.dims[0] > f->file_size / (int64_t)dtype_size(type))
        FAIL(err, ERR_INPUT, "'%s' is not a list that fits the file", name);
    TRY(mem_alloc(&data, info.dims[0], dtype_size(type), name, err));
    if (info.dims[0] > 0 && H5Dread(dset, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
        rc = h5_fail(err, ERR_INPUT, "reading '%s'", name);
        goto out;
    }
    memcpy(out, &data, sizeof data);
    *n = info.dims[0];
    data = NULL;
out:
    free(data);
    h5_close(dset);
    h5_close(t);
    return rc;
}

static int check_hash(hid_t group, const struct mask *m, struct err *err)
{
    struct hash_state *h = NULL;
    char want[HASH_TEXT_MAX], have[HASH_TEXT_MAX];
    int rc = 0;

    TRY(h5_get_str(group, "xxh3", want, sizeof want, err));
    TRY(hash_new(&h, err));
    hash_update(h, m->col, (size_t)m->col_cap * sizeof *m->col);
    hash_update(h, m->ptr, (size_t)(m->ngroups + 1) * sizeof *m->ptr);
    hash_text(hash_digest(h), have);
    if (strcmp(want, have) != 0)
        FAIL(err, ERR_INPUT, "the checksum of the lists is %s, stored is %s", have, want);
out:
    hash_free(h);
    return rc;
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
    TRY(open_cell(f, i, &group, err));
    TRY(maskfile_get_geometry(group, &m, err));
    if (m.form == MASK_LISTS)
        TRY(read_lists(f, group, &m, err));
    *out = m;
    memset(&m, 0, sizeof m);
out:
    mask_free(&m);
    h5_close(group);
    h5_unlock();
    return fail_in(f, i, rc, err);
}
