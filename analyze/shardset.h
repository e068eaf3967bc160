/*
 * shardset.h - the shards of a run that its directories know nothing of: they were never started,
 * or lie elsewhere.
 */
#ifndef LACUNA_SHARDSET_H
#define LACUNA_SHARDSET_H

#include "core/err.h"
#include "core/text.h"

#include <stdint.h>

/* n of the `of` shards of a run have no manifest; `first` is the lowest of them. */
struct absent_shards {
    int64_t n, of, first;
    const char *dir; /* of `dirs`: one that lacks them */
};

/* A directory with the manifest of an undivided run, or of all shards of some number, lacks
 * nothing. Others may complete each other: shards were given directories of their own. out->n is 0
 * where nothing is lacking; paths that are no directories are passed over. ERR_NOMEM. */
int shards_absent(const struct str_list *dirs, struct absent_shards *out, struct err *err);

/* Warn of them; `so` ends the sentence. */
int shards_warn_absent(const struct str_list *dirs, const char *so, struct err *err);

#endif
