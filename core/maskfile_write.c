/*
 * maskfile_write.c - dumping masks while a replay runs.
 *
 * A cell's lists are collected in memory. After its last range they are written as contiguous
 * datasets of their exact size. Lists beyond SPILL_BYTES (per-row lists of long sequences) go to a
 * chunked dataset that grows, so memory depends only on the number of cells in flight.
 */
#include "core/maskfile_internal.h"

#include "core/buf.h"
#include "core/hash.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPILL_BYTES (16 << 20)
#define SPILL_CHUNK (256 << 10) /* elements */

struct open_cell {
    struct open_cell *next;
    struct buf key;
    struct mask m; /* form and geometry; ptr and col as collected so far */
    int64_t ptr_cap;
    int64_t next_row;
    int64_t kept;    /* entries of m.col */
    int64_t spilled; /* entries already in the file */
    hid_t spill;     /* group that holds them */
    char spill_name[32];
    struct hash_state *hash; /* of the entries of col, in order */
};

int maskfile_create(const char *path, bool force, struct maskfile **out, struct err *err)
{
    struct maskfile *f = NULL;
    int rc = 0;

    TRY(mem_zalloc(&f, 1, sizeof *f, "mask file", err));
    f->file = f->cells = H5I_INVALID_HID;
    TRY(h5_part_create(&f->part, path, MASKFILE_FORMAT, MASKFILE_VERSION_MAJOR,
                       MASKFILE_VERSION_MINOR, force, err));
    h5_lock();
    rc = h5_create_group(f->part.file, "cells", &f->cells, err);
    h5_unlock();
    if (rc)
        goto out;
    *out = f;
    f = NULL;
out:
    maskfile_abort(&f);
    return rc;
}

/* ---- cells in flight ------------------------------------------------------------------------- */

static void cell_free(struct open_cell *c)
{
    buf_free(&c->key);
    mask_free(&c->m);
    h5_close(c->spill);
    hash_free(c->hash);
    free(c);
}

static void drop_cell(struct maskfile *f, struct open_cell *c)
{
    struct open_cell **p = &f->open;
    while (*p != c)
        p = &(*p)->next;
    *p = c->next;
    if (c->spill_name[0])
        H5Ldelete(f->part.file, c->spill_name, H5P_DEFAULT);
    cell_free(c);
}

static struct open_cell *find_cell(struct maskfile *f, const struct buf *key)
{
    for (struct open_cell *c = f->open; c; c = c->next)
        if (strcmp(buf_str(&c->key), buf_str(key)) == 0)
            return c;
    return NULL;
}

/* The key is taken over. */
static int new_cell(struct maskfile *f, struct buf *key, const struct mask *m,
                    struct open_cell **out, struct err *err)
{
    struct open_cell *c = NULL;
    int rc = 0;

    TRY(mem_zalloc(&c, 1, sizeof *c, "mask of a cell", err));
    c->spill = H5I_INVALID_HID;
    TRY(hash_new(&c->hash, err));
    c->m = *m;
    c->m.ptr = NULL;
    c->m.col = NULL;
    c->m.ngroups = c->m.col_cap = 0;
    c->m.row0 = 0;
    c->m.row1 = m->nq;
    TRY(mem_grow(&c->m.ptr, &c->ptr_cap, 1, sizeof *c->m.ptr, "mask groups", err));
    c->m.ptr[0] = 0;
    c->key = *key;
    memset(key, 0, sizeof *key);
    c->next = f->open;
    f->open = c;
    *out = c;
    c = NULL;
out:
    if (c)
        cell_free(c);
    return rc;
}

/* Move the collected entries to the growing dataset. */
static int spill(struct maskfile *f, struct open_cell *c, struct err *err)
{
    int64_t zero = 0, chunk = SPILL_CHUNK, unlimited = -1;
    hid_t props = H5I_INVALID_HID, type = H5I_INVALID_HID, dset = H5I_INVALID_HID;
    hid_t space = H5I_INVALID_HID, mem = H5I_INVALID_HID;
    hsize_t start = (hsize_t)c->spilled, count = (hsize_t)c->kept, size = start + count;
    int rc = 0;

    type = h5_type(DT_I32);
    if (c->spill < 0) {
        snprintf(c->spill_name, sizeof c->spill_name, "unfinished-%06lld",
                 (long long)f->n_spills++);
        TRY(h5_create_group(f->part.file, c->spill_name, &c->spill, err));
        props = h5_dataset_props(1, &chunk);
        TRY(h5_create_dataset(c->spill, "col", type, 1, &zero, &unlimited, props, &dset, err));
    } else {
        TRY(h5_open_dataset(c->spill, "col", &dset, err));
    }
    if (H5Dset_extent(dset, &size) < 0) {
        rc = h5_fail(err, ERR_IO, "growing the lists");
        goto out;
    }
    space = H5Dget_space(dset);
    mem = H5Screate_simple(1, &count, NULL);
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL) < 0 ||
        H5Dwrite(dset, type, mem, space, H5P_DEFAULT, c->m.col) < 0)
        rc = h5_fail(err, ERR_IO, "writing the lists");
    c->spilled += c->kept;
    c->kept = 0;
out:
    h5_close(mem);
    h5_close(space);
    h5_close(dset);
    h5_close(type);
    h5_close(props);
    return rc;
}

static int add_units(struct maskfile *f, struct open_cell *c, const int32_t *col, int64_t n,
                     struct err *err)
{
    int rc = mem_grow(&c->m.col, &c->m.col_cap, c->kept + n, sizeof *col, "mask lists", err);
    if (rc)
        return rc;
    if (n)
        memcpy(c->m.col + c->kept, col, (size_t)n * sizeof *col);
    hash_update(c->hash, col, (size_t)n * sizeof *col);
    c->kept += n;
    return c->kept * (int64_t)sizeof *col >= SPILL_BYTES ? spill(f, c, err) : 0;
}

static int end_group(struct open_cell *c, struct err *err)
{
    int rc =
        mem_grow(&c->m.ptr, &c->ptr_cap, c->m.ngroups + 2, sizeof *c->m.ptr, "mask groups", err);
    if (rc == 0)
        c->m.ptr[++c->m.ngroups] = c->spilled + c->kept;
    return rc;
}

/* Lists of all units that the rows [row0, row1) may see, in the geometry of the cell. */
static int add_full(struct maskfile *f, struct open_cell *c, int64_t row0, int64_t row1,
                    struct err *err)
{
    int32_t *all = NULL;
    int64_t units = (c->m.nk + c->m.bk - 1) / c->m.bk;
    int rc = 0;

    if (row0 % c->m.bq != 0)
        return err_set(err, ERR_RUN, "rows from %lld do not start a group of %lld", (long long)row0,
                       (long long)c->m.bq);
    TRY(mem_alloc(&all, units, sizeof *all, "mask lists", err));
    for (int64_t u = 0; u < units; u++)
        all[u] = (int32_t)u;
    for (int64_t r = row0; r < row1; r += c->m.bq) {
        int64_t last = r + c->m.bq < row1 ? r + c->m.bq - 1 : row1 - 1;
        TRY(add_units(f, c, all, (mask_limit(&c->m, last) + c->m.bk - 1) / c->m.bk, err));
        TRY(end_group(c, err));
    }
out:
    free(all);
    return rc;
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
    return add_full(f, c, 0, c->next_row, err);
}

static int add_range(struct maskfile *f, struct open_cell *c, const struct mask *m, struct err *err)
{
    int rc = 0;

    if (m->row0 != c->next_row || m->nq != c->m.nq || m->nk != c->m.nk || m->causal != c->m.causal)
        FAIL(err, ERR_RUN, "rows %lld..%lld of a mask come after row %lld", (long long)m->row0,
             (long long)m->row1, (long long)c->next_row);
    if (c->m.form == MASK_FULL && m->form == MASK_LISTS)
        TRY(become_lists(f, c, m, err));
    if (c->m.form == MASK_LISTS && m->form == MASK_FULL) {
        TRY(add_full(f, c, m->row0, m->row1, err));
    } else if (!same_geometry(&c->m, m)) {
        FAIL(err, ERR_RUN, "the mask's form or unit changes at row %lld; only one can be dumped",
             (long long)m->row0);
    } else if (m->form == MASK_LISTS) {
        for (int64_t g = 0; g < m->ngroups; g++) {
            TRY(add_units(f, c, m->col + m->ptr[g], m->ptr[g + 1] - m->ptr[g], err));
            TRY(end_group(c, err));
        }
    }
    c->next_row = m->row1;
out:
    return rc;
}

/* ---- finished cells -------------------------------------------------------------------------- */

/* Checksum of col followed by row_ptr. */
static int put_hash(hid_t group, struct open_cell *c, struct err *err)
{
    char text[HASH_TEXT_MAX];
    hash_update(c->hash, c->m.ptr, (size_t)(c->m.ngroups + 1) * sizeof *c->m.ptr);
    hash_text(hash_digest(c->hash), text);
    return h5_put_str(group, "xxh3", text, err);
}

static int put_lists(struct maskfile *f, hid_t group, struct open_cell *c, struct err *err)
{
    int64_t n = c->m.ngroups + 1;
    int rc = 0;

    TRY(h5_put_array(group, "row_ptr", DT_I64, 1, &n, c->m.ptr, err));
    if (c->spilled && c->kept)
        TRY(spill(f, c, err));
    if (!c->spilled)
        TRY(h5_put_array(group, "col", DT_I32, 1, &c->kept, c->m.col, err));
    TRY(put_hash(group, c, err));
out:
    return rc;
}

static int finish_cell(struct maskfile *f, struct open_cell *c, const struct record *r,
                       const char *order, struct err *err)
{
    hid_t fresh = H5I_INVALID_HID, group = c->spill;
    int rc = 0;

    if (group < 0) {
        TRY(h5_create_numbered(f->cells, f->n_cells, &fresh, err));
        group = fresh;
    }
    TRY(maskfile_put_identity(group, r, err));
    TRY(h5_put_str(group, "order", order ? order : "none", err));
    TRY(maskfile_put_geometry(group, &c->m, err));
    if (c->m.form == MASK_LISTS)
        TRY(put_lists(f, group, c, err));
    if (c->spill >= 0) {
        TRY(h5_move_numbered(f->part.file, c->spill_name, f->cells, f->n_cells, err));
        c->spill_name[0] = '\0';
    }
    f->n_cells++;
    drop_cell(f, c);
out:
    h5_close(fresh);
    return rc;
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
        drop_cell(f, c); /* the cell is computed again */
        c = NULL;
    }
    if (!c)
        TRY(new_cell(f, &key, m, &c, err));
    TRY(add_range(f, c, m, err));
    if (m->row1 == m->nq)
        TRY(finish_cell(f, c, r, order, err));
out:
    /* A cell that cannot be dumped leaves the file as it was; a failed write does not. */
    if (rc && rc != ERR_RUN)
        f->failed = true;
    if (rc && c)
        drop_cell(f, c);
    buf_free(&key);
    h5_unlock();
    if (rc)
        err_prefix(err, "%s: %s layer %d head %d", f->part.path, r->method, r->layer, r->head);
    return rc;
}

/* ---- end ------------------------------------------------------------------------------------- */

static void drop_all(struct maskfile *f)
{
    while (f->open)
        drop_cell(f, f->open);
    h5_close(f->cells);
    f->cells = H5I_INVALID_HID;
}

int maskfile_commit(struct maskfile **fp, struct err *err)
{
    struct maskfile *f = *fp;
    int rc = 0;

    if (f->failed) {
        rc = err_set(err, ERR_RUN, "%s: writing failed before", f->part.path);
        maskfile_abort(fp);
        return rc;
    }
    h5_lock();
    rc = h5_put_i64(f->cells, "count", f->n_cells, err);
    drop_all(f);
    if (rc == 0)
        rc = h5_part_commit(&f->part, err);
    h5_unlock();
    maskfile_abort(fp);
    return rc;
}

void maskfile_abort(struct maskfile **fp)
{
    struct maskfile *f = *fp;
    if (!f)
        return;
    h5_lock();
    drop_all(f);
    h5_part_abort(&f->part);
    h5_unlock();
    free(f);
    *fp = NULL;
}
