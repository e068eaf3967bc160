/*
 * maskfile_internal.h - what the writer and the reader of mask dumps share.
 */
#ifndef LACUNA_MASKFILE_INTERNAL_H
#define LACUNA_MASKFILE_INTERNAL_H

#include "core/h5util.h"
#include "core/maskfile.h"

#define MASKFILE_FORMAT "lacuna-masks"
#define PARAMS_MAX 60000 /* characters of a canonical parameter text that fit an attribute */

struct open_cell;

struct maskfile {
    struct h5_part part; /* writing */
    char *path;          /* reading, owned */
    hid_t file;          /* reading */
    hid_t cells;         /* group of the cells */
    int64_t n_cells, file_size;
    int64_t n_spills;
    bool failed;
    struct open_cell *open; /* cells that still wait for their last range */
};

/* Identity of a cell as attributes of its group. */
int maskfile_put_identity(hid_t group, const struct record *r, struct err *err);
int maskfile_get_identity(hid_t group, struct record *r, struct err *err);

/* Form and geometry (all but the lists). */
int maskfile_put_geometry(hid_t group, const struct mask *m, struct err *err);
int maskfile_get_geometry(hid_t group, struct mask *m, struct err *err);

#endif
