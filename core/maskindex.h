/*
 * maskindex.h - what a file of dumped masks holds, by step, branch, layer, head and method.
 */
#ifndef LACUNA_MASKINDEX_H
#define LACUNA_MASKINDEX_H

#include "core/maskfile.h"

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

#endif
