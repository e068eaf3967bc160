/*
 * maskfile.h - dumped masks (HDF5, doc/trace-format.md): one group per cell, in the mask's own
 * form.
 */
#pragma once

#include "core/cellfile.h"
#include "core/err.h"
#include "core/mask.h"
#include "core/record.h"

#define MASKFILE_VERSION_MAJOR 1
/* Minor version 1 added the attribute order of a cell, 2 window_left, window_right and chunk. */
#define MASKFILE_VERSION_MINOR 2
#define MASKFILE_ORDER 64 /* bytes of the attribute order */

struct maskfile;

/* Begin a file (h5_part_create) or open one for reading. */
int maskfile_create(const char *path, bool force, struct maskfile **out, struct err *err);
int maskfile_open(const char *path, struct maskfile **out, struct err *err);

/* Append the mask of a row range of the cell r. Thread-safe.
 * - Ranges of one cell come in ascending order; ranges of several cells may be interleaved.
 * - The range with row1 == nq is the last. A cell that never gets it is not in the file.
 * - A range that starts at row 0 again starts the cell anew.
 * - Cells are written in the order of r->ordinal.
 * - All ranges of a cell have the same form and geometry, otherwise ERR_RUN. MASK_FULL may stand
 *   among MASK_LISTS; it is written as lists of all units.
 * - order: the token order of rows and keys (permute.h), which a method may choose itself; NULL or
 *   "none" = the order of the trace. */
int maskfile_put(struct maskfile *f, const struct record *r, const char *order,
                 const struct mask *m, struct err *err);

/* The file that is being written, for cellfile_end and cellfile_next. */
struct cellfile *maskfile_cellfile(struct maskfile *f);

int maskfile_commit(struct maskfile **f, struct err *err);
void maskfile_abort(struct maskfile **f);
void maskfile_close(struct maskfile **f); /* of a file opened for reading */

/* Cells of a file, and the whole mask of one. The record's identity fields are filled (release with
 * record_free, the mask with mask_free). A mask whose checksum or lists are wrong is ERR_INPUT. */
int64_t maskfile_cells(const struct maskfile *f);
int maskfile_cell(const struct maskfile *f, int64_t i, struct record *id, struct err *err);
int maskfile_read(const struct maskfile *f, int64_t i, struct mask *out, struct err *err);

/* Token order of the rows and keys of cell i; "none" = the order of the trace. */
int maskfile_order(const struct maskfile *f, int64_t i, char order[MASKFILE_ORDER],
                   struct err *err);

/* ---- what a file holds, by step, branch, layer, head and method ------------------------------ */

/* A method with its parameters, in the order in which the file has them first. */
struct mask_setting {
    char method[32];
    char *params; /* owned; "" = defaults */
    int64_t cells;
};

struct mask_entry {
    int64_t cell; /* for maskfile_read */
    int setting;  /* index */
    int step, layer, head;
    char branch[16], trace[64], order[MASKFILE_ORDER];
    int64_t nq, nk;
    bool causal;
};

struct mask_index {
    struct mask_setting *settings; /* owned, like entries */
    int64_t n_settings, cap_settings;
    struct mask_entry *entries; /* by step, branch, layer, head, setting, then as in the file */
    int64_t n, cap;
};

int mask_index_make(const struct maskfile *f, struct mask_index *out, struct err *err);
void mask_index_free(struct mask_index *x); /* also of a zeroed one */

/* First entry of the cell, whatever its trace; NULL: none. More of them (other traces) follow it.
 */
const struct mask_entry *mask_index_find(const struct mask_index *x, int step, const char *branch,
                                         int layer, int head, int setting);

/* Do the entries belong to the same cell? */
bool mask_entry_same(const struct mask_entry *a, const struct mask_entry *b);

/* "streaming:sink=4", "dense": a setting as -m takes it. */
void mask_setting_text(const struct mask_setting *s, struct buf *b);
