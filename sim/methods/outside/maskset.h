/*
 * maskset.h - a file of masks from outside: which mask belongs to a head.
 */
#pragma once

#include "core/arrayfile.h"
#include "core/trace.h"
#include "core/maskfile.h"
#include "core/method.h"
#include "sim/blocks/given.h"

enum maskset_kind {
    MASKSET_DUMP,   /* of lacuna replay --dump-masks */
    MASKSET_ARRAYS, /* .npy, .npz, .safetensors */
    MASKSET_TABLE,  /* JSON: MInference's pattern per head */
};

/* Arrays of one call, of all heads or of one. -1 and "": the name does not say, so it holds for
 * every step, layer, head or branch. */
struct mask_arrays {
    struct call_name call;
    int head;
    char label[200];             /* the names' common beginning, for messages */
    const struct array_at *mask; /* the form in which the mask is given: one of these three */
    const struct array_at *indptr, *indices, *blocksize;
    const struct array_at *count, *index, *full_count, *full_index;
};

struct maskset {
    enum maskset_kind kind;
    char *path; /* owned */
    struct maskfile *dump;
    struct mask_index index; /* of the dump */
    struct array_file *file;
    struct mask_arrays *arrays; /* [n], owned */
    int64_t n, cap;
    int64_t taken; /* cells of the dump that heads asked for; atomic */
};

int maskset_open(const char *path, struct maskset **out, struct err *err);
void maskset_close(struct maskset **s);

/* How the mask of a head is looked up. */
struct mask_lookup {
    bool any_trace; /* dump: cells of other traces count as well */
    int setting;    /* dump */
    int64_t bq, bk; /* arrays: unit that was given, 0 = none */
};

/* Rows of a boolean array; ctx of the given mask, which it must outlive. */
struct mask_rows {
    const struct array_file *file;
    const struct array_at *array;
    int64_t first, width; /* first element of the head, elements of a row */
};

/* The mask of a head into *g (release with given_free, also after a failure) and *rows. 0, or
 * METHOD_SKIP with the reason, or an error that names file, array, layer and head. */
int maskset_find(struct maskset *s, const struct mask_lookup *how, struct method_ctx *ctx,
                 const struct head_in *in, struct given *g, struct mask_rows *rows,
                 struct err *err);
