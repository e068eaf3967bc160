/*
 * cellfile.c - see cellfile.h: lists aside, cells in their order.
 */
#include "core/cellfile.h"

#include "core/mem.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIST_BYTES (16 << 20) /* of a list in memory, about */

struct cellfile {
    struct h5_part part;
    hid_t cells; /* group */
    int64_t n_cells;
    int64_t next;            /* all cells with a smaller ordinal have ended */
    struct h5_cell *waiting; /* by ordinal; without `write`: ended, and not in the file */
    int aside;               /* descriptor of the file without a name, -1: none */
    int64_t aside_end;
    bool failed;
};

int cellfile_create(const char *path, const char *format, int major, int minor, bool force,
                    struct cellfile **out, struct err *err)
{
    H5_LOCKED;
    OWN(cellfile_abort) struct cellfile *f = NULL;
    PASS_ON(mem_zalloc(&f, 1, sizeof *f, "file of cells", err));
    f->cells = H5I_INVALID_HID;
    f->aside = -1;
    PASS_ON(h5_part_create(&f->part, path, format, major, minor, force, err));
    PASS_ON(h5_create_group(f->part.file, "cells", &f->cells, err));
    *out = HAND_OVER(f);
    return 0;
}

const char *cellfile_path(const struct cellfile *f)
{
    return f->part.path;
}

/* ---- cells ----------------------------------------------------------------------------------- */

int h5_cell_new(const struct record *r, int64_t size, void *out, struct err *err)
{
    struct h5_cell *c = NULL;
    int rc = 0;
    TRY(mem_zalloc(&c, 1, (size_t)size, "cell of a dump", err));
    TRY(record_identity(r, &c->id, err));
    memcpy(out, &c, sizeof c);
    c = NULL;
out:
    h5_cell_free(c);
    return rc;
}

void h5_cell_free(struct h5_cell *c)
{
    if (!c)
        return;
    for (int i = 0; i < 2; i++) {
        free(c->lists[i].data);
        free(c->lists[i].aside);
    }
    record_free(&c->id);
    free(c);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static int64_t element(const struct h5_cell_list *l)
{
    return (int64_t)dtype_size(l->type);
}

static int put_aside(struct cellfile *f, struct h5_cell_list *l, struct err *err)
{
    int64_t bytes = l->kept * element(l);
    if (f->aside < 0)
        PASS_ON(io_unnamed(f->part.path, &f->aside, err));
    PASS_ON(
        mem_grow(&l->aside, &l->cap_aside, l->n_aside + 1, sizeof *l->aside, "lists aside", err));
    PASS_ON(io_write_at(f->aside, "lists aside", l->data, bytes, f->aside_end, err));
    l->aside[l->n_aside++] = (struct h5_extent){f->aside_end, bytes};
    f->aside_end += bytes;
    free(l->data);
    l->data = NULL;
    l->kept = l->cap = 0;
    return 0;
}

int h5_cell_add(struct cellfile *f, struct h5_cell_list *l, const void *data, int64_t n,
                struct err *err)
{
    int64_t size = element(l);
    PASS_ON(mem_grow(&l->data, &l->cap, l->kept + n, (size_t)size, "lists of a cell", err));
    if (n)
        memcpy((char *)l->data + l->kept * size, data, (size_t)(n * size));
    l->kept += n;
    l->n += n;
    if (l->kept * size < LIST_BYTES)
        return 0;
    H5_LOCKED;
    return put_aside(f, l, err);
}

/* What lies aside goes to its place in the file. */
static int fetch(struct cellfile *f, const struct h5_cell_list *l, int64_t at, struct err *err)
{
    OWN(free_at) char *data = NULL;
    for (int64_t i = 0; i < l->n_aside; i++) {
        const struct h5_extent *e = l->aside + i;
        char *grown = realloc(data, (size_t)e->bytes);
        if (!grown)
            return err_set(err, ERR_NOMEM, "lists aside: out of memory");
        data = grown;
        PASS_ON(io_read_at(f->aside, "lists aside", f->aside_end, e->at, data, e->bytes, err));
        fallocate(f->aside, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, e->at, e->bytes);
        PASS_ON(io_write_at(f->part.out.fd, l->name, data, e->bytes, at, err));
        at += e->bytes;
    }
    return io_write_at(f->part.out.fd, l->name, l->data, l->kept * element(l), at, err);
}

static int write_list(struct cellfile *f, hid_t group, const struct h5_cell_list *l,
                      struct err *err)
{
    int64_t dims[2] = {l->width ? l->n / l->width : l->n, l->width};
    int ndim = l->width ? 2 : 1;
    OWN(h5_close_at)
    hid_t type = h5_type(l->type), props = h5_dataset_props(ndim, NULL), dset = H5I_INVALID_HID;
    PASS_ON(h5_create_dataset(group, l->name, type, ndim, dims, props, &dset, err));
    if (l->n)
        return fetch(f, l, (int64_t)H5Dget_offset(dset), err);
    return 0;
}

/* ---- cells in their order -------------------------------------------------------------------- */

static int write_cell(struct cellfile *f, const struct h5_cell *c, struct err *err)
{
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;
    PASS_ON(h5_create_numbered(f->cells, f->n_cells, &group, err));
    PASS_ON(c->write(group, c, err));
    for (int i = 0; i < 2; i++)
        if (c->lists[i].name)
            PASS_ON(write_list(f, group, c->lists + i, err));
    f->n_cells++;
    return 0;
}

/* Write what waits up to the first cell that has not ended, or all. */
static int write_waiting(struct cellfile *f, bool all, struct err *err)
{
    int rc = 0;
    while (!rc && f->waiting && (all || f->waiting->id.ordinal <= f->next)) {
        struct h5_cell *c = f->waiting;
        f->waiting = c->next;
        f->next = c->id.ordinal < f->next ? f->next : c->id.ordinal + 1;
        rc = c->write ? write_cell(f, c, err) : 0;
        h5_cell_free(c);
    }
    f->failed |= rc != 0;
    return rc;
}

/* Insert it, and write whose turn it is. */
static int add(struct cellfile *f, struct h5_cell *c, struct err *err)
{
    struct h5_cell **at = &f->waiting;
    while (*at && (*at)->id.ordinal <= c->id.ordinal)
        at = &(*at)->next;
    c->next = *at;
    *at = c;
    return write_waiting(f, false, err);
}

int cellfile_put(struct cellfile *f, struct h5_cell *c, struct err *err)
{
    int64_t ordinal = c->id.ordinal;
    H5_LOCKED;
    PASS_ON(add(f, c, err));
    for (int i = 0; i < 2 && ordinal >= f->next; i++) /* it waits */
        if (c->lists[i].kept)
            PASS_ON(put_aside(f, c->lists + i, err));
    return 0;
}

int cellfile_end(struct cellfile *f, int64_t ordinal, struct err *err)
{
    struct h5_cell *c;
    int rc = 0;
    h5_lock();
    for (c = f->waiting; c && c->id.ordinal < ordinal;)
        c = c->next;
    if (ordinal < f->next || (c && c->id.ordinal == ordinal))
        goto out;
    TRY(mem_zalloc(&c, 1, sizeof *c, "cell of a dump", err));
    c->id.ordinal = ordinal;
    TRY(add(f, c, err));
out:
    h5_unlock();
    return rc ? err_prefix(err, "%s", f->part.path) : 0;
}

int64_t cellfile_next(const struct cellfile *f)
{
    return f->next;
}

/* ---- end ------------------------------------------------------------------------------------- */

void cellfile_abort(struct cellfile **fp)
{
    struct cellfile *f = *fp;
    if (!f)
        return;
    h5_lock();
    for (struct h5_cell *c; (c = f->waiting); h5_cell_free(c))
        f->waiting = c->next;
    if (f->aside >= 0)
        close(f->aside);
    h5_close(f->cells);
    h5_part_abort(&f->part);
    h5_unlock();
    free(f);
    *fp = NULL;
}

int cellfile_commit(struct cellfile **fp, struct err *err)
{
    struct cellfile *f = *fp;
    int rc = 0;
    h5_lock();
    if (f->failed)
        FAIL(err, ERR_RUN, "%s: writing failed before", f->part.path);
    if ((rc = write_waiting(f, true, err)) != 0)
        err_prefix(err, "%s", f->part.path);
    TRY(rc);
    TRY(h5_put_i64(f->cells, "count", f->n_cells, err));
    h5_close(f->cells);
    f->cells = H5I_INVALID_HID;
    TRY(h5_part_commit(&f->part, err));
out:
    cellfile_abort(fp);
    h5_unlock();
    return rc;
}
