/*
 * load.h - the records of several directories as one set in which every cell stands once.
 */
#pragma once

#include "core/opt.h"
#include "core/record.h"

struct recset {
    struct record *r; /* owned; of heads and of models */
    int64_t n, cap;
    int64_t n_ok, n_skip, n_error;
    struct record *calls; /* owned; of scope `call`: times of all heads of a call. They stand beside
                           * the others and are never counted or averaged with them (group.h) */
    int64_t n_calls, n_calls_ok;
    struct record_pool *pool; /* owned; of the records that were read, NULL of others */
    uint64_t varying; /* bits of the keys that take more than one value in r; if keys_known */
    bool keys_known;
    int64_t repeated; /* cells that several directories held: the last directory's was kept */
};

/* Read the records of every path (directory or file), in order. No path: ERR_USAGE; no record at
 * all: ERR_INPUT. */
int recset_load(const struct str_list *paths, struct recset *out, struct err *err);
void recset_free(struct recset *s);

/* Take over the array r of n records (malloc'd) as a set, dropping repeated cells; for callers that
 * have records already. On failure r is freed. */
int recset_from(struct record *r, int64_t n, struct recset *out, struct err *err);

/* The calls as a set of their own; its records stay the set's. */
struct recset recset_calls(const struct recset *s);

/* All records of a set, heads and models first. Release *out with free(out->r): the records stay
 * the set's. */
int recset_all(const struct recset *s, struct recset *out, struct err *err);

/* Where no other record is left, the calls are what the set is of. */
void recset_settle(struct recset *s);
