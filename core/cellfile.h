/*
 * cellfile.h - writing dumps of cells (HDF5, doc/trace-format.md): masks, outputs.
 *
 * Threads finish cells in any order. The file has them in the order of their ordinals, so that
 * equal runs make equal bytes: a cell is written when all cells before it have ended. Lists of a
 * cell that waits, and those beyond 16 MB, lie in a file without a name; memory holds some hundred
 * bytes for each waiting cell.
 */
#pragma once

#include "core/h5util.h"
#include "core/record.h"

/* A dataset of a cell, of one or two dimensions; the elements come one after the other. */
struct h5_cell_list {
    const char *name; /* NULL: none */
    enum dtype type;
    int64_t width;        /* second dimension; 0: there is none */
    void *data;           /* owned: the last `kept` elements */
    int64_t n, kept, cap; /* elements: all, in data, room of data */
    struct h5_extent {
        int64_t at, bytes;
    } * aside; /* owned: those before, in the file without a name */
    int64_t n_aside, cap_aside;
};

struct h5_cell {
    struct record id; /* its identity; owned */
    struct h5_cell_list lists[2];
    int (*write)(hid_t group, const struct h5_cell *c, struct err *err); /* attributes */
    struct h5_cell *next;
};

struct cellfile;

/* Begin a file (h5_part_create). */
int cellfile_create(const char *path, const char *format, int major, int minor, bool force,
                    struct cellfile **out, struct err *err);

/* A zeroed struct of `size` bytes that begins with a struct h5_cell, for the cell of r. */
int h5_cell_new(const struct record *r, int64_t size, void *out, struct err *err);
void h5_cell_free(struct h5_cell *c); /* accepts NULL */

/* Append n elements to a list of a cell. Thread-safe, as the next ones. */
int h5_cell_add(struct cellfile *f, struct h5_cell_list *l, const void *data, int64_t n,
                struct err *err);

/* The cell is whole: write it, or keep it for its turn. It is the file's from here on. An ordinal
 * that has passed is taken as it comes. */
int cellfile_put(struct cellfile *f, struct h5_cell *c, struct err *err);

/* A cell has ended, put or not: those behind it need not wait for it. */
int cellfile_end(struct cellfile *f, int64_t ordinal, struct err *err);

/* The ordinal behind all cells, when none is in flight. */
int64_t cellfile_next(const struct cellfile *f);

int cellfile_commit(struct cellfile **f, struct err *err);
void cellfile_abort(struct cellfile **f); /* accepts NULL */
const char *cellfile_path(const struct cellfile *f);
