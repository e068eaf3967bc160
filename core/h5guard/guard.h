/*
 * guard.h - what the parts of the guard share: the claimed bytes of a file, cursors over
 * them, decoded types and dataspaces, and one function per family of structures.
 *
 * Numbers of the HDF5 File Format Specification 3.0 (sections in Roman numerals below). All files
 * have 8-byte offsets and lengths; the superblock check sees to that.
 */
#pragma once

#include "core/h5guard/h5guard.h"

#define GUARD_NOWHERE UINT64_MAX /* the undefined address */
#define GUARD_MAX_RANK 32
#define GUARD_MAX_DEPTH 8           /* nesting of datatypes, of committed types, of B-trees */
#define GUARD_CLAIM_MAX (64u << 20) /* bytes of one structure */
#define GUARD_PAGE 8192             /* bytes that are read at a time */
#define GUARD_PAGES 8               /* that are kept */

/* ---- bytes ----------------------------------------------------------------------------------- */

/* A place in claimed bytes. A take past the end sets `over` and gives zeros, so that a decoder asks
 * once, at its end. */
struct guard_cur {
    const uint8_t *p;
    uint64_t at; /* offset of p[0] in the file */
    size_t n, i;
    bool over;
};

/* Little-endian integer of n <= 8 bytes. */
uint64_t guard_take(struct guard_cur *c, size_t n);

/* The next n bytes, or NULL past the end. */
const uint8_t *guard_bytes(struct guard_cur *c, size_t n);

/* A cursor of the next n bytes; its `over` is set past the end. */
struct guard_cur guard_part(struct guard_cur *c, size_t n);

/* A string that ends with NUL inside the cursor, or NULL. *len is without the NUL. */
const char *guard_string(struct guard_cur *c, size_t *len);

/* Position of the highest bit; 0 for 0. */
static inline unsigned guard_log2(uint64_t n)
{
    unsigned b = 0;
    while (n >>= 1)
        b++;
    return b;
}

/* The checksum of HDF5's metadata: Jenkins lookup3 of the bytes, initial value 0. */
uint32_t guard_checksum(const void *data, size_t n);

/* ---- the guard ------------------------------------------------------------------------------- */

enum guard_state { GUARD_UNKNOWN, GUARD_OPEN, GUARD_ADMITTED };

/* A decoded datatype. */
struct guard_type {
    int class; /* of the file format: 0 integer, 1 float, 3 string, ... */
    int64_t size;
    bool indirect; /* contains references or variable-length parts */
};

/* An object header that was met. */
struct guard_object {
    uint64_t at;
    enum guard_state state;
    bool is_type; /* a committed type: `type` is set */
    struct guard_type type;
};

/* Bytes of the file that were read last; number 0: none yet, else that of the page and 1. */
struct guard_page {
    uint64_t number;
    uint8_t data[GUARD_PAGE];
};

struct guard_claim {
    uint64_t at;
    size_t n;
    uint8_t data[];
};

struct h5guard {
    int fd;
    uint64_t size, end;      /* of the file; of what the superblock says */
    unsigned leaf_k, node_k; /* symbol table nodes, B-trees of groups */
    unsigned chunk_k;        /* B-trees of chunks */
    uint64_t btree, heap;    /* the symbol table that was checked last */
    struct guard_page pages[GUARD_PAGES];
    void *claimed, *objects;     /* trees (search.h) of claims and objects, owned */
    struct guard_claim **claims; /* in the order in which they were made */
    int64_t n_claims, cap_claims;
    int depth; /* of admissions in each other */
};

/* Copy n bytes at `at` without claiming them; ERR_INPUT names `what` when the file ends before. */
int guard_peek(struct h5guard *g, const char *what, uint64_t at, size_t n, void *out,
               struct err *err);

/* Claim n bytes at `at` for a structure: they must lie inside the file and belong to no other one.
 * The cursor is good until the claim is given back. */
int guard_claim(struct h5guard *g, const char *what, uint64_t at, uint64_t n, struct guard_cur *out,
                struct err *err);

/* As guard_claim, and the last four bytes are the checksum of those before; `out` is without it. */
int guard_claim_summed(struct h5guard *g, const char *what, uint64_t at, uint64_t n,
                       struct guard_cur *out, struct err *err);

/* Give claims back, those from number `first` on: their bytes read as zero again. */
void guard_unclaim(struct h5guard *g, int64_t first);

/* The entry of an address, made when there is none; NULL: no memory. */
struct guard_object *guard_object(struct h5guard *g, uint64_t at);

/* Is [at, at + n) inside the file? */
bool guard_inside(const struct h5guard *g, uint64_t at, uint64_t n);

/* "the file is damaged: HDF5 WHAT at offset N: ..."; returns ERR_INPUT. */
int guard_bad(const char *what, uint64_t at, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* "the file uses ... (HDF5 WHAT at offset N), which lacuna does not read"; returns ERR_INPUT. */
int guard_foreign(const char *what, uint64_t at, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- messages of object headers (IV.A.2) ----------------------------------------------------- */

struct guard_space {
    bool null;
    int rank;
    int64_t count; /* elements */
};

/* Each decodes the body of one message. */
int guard_decode_space(struct h5guard *g, struct guard_cur *c, struct guard_space *out,
                       struct err *err);
int guard_decode_filters(struct h5guard *g, struct guard_cur *c, int *n, struct err *err);
int guard_decode_fill(struct h5guard *g, struct guard_cur *c, const struct guard_type *type,
                      struct err *err);
int guard_decode_old_fill(struct h5guard *g, struct guard_cur *c, const struct guard_type *type,
                          struct err *err);
int guard_decode_attribute(struct h5guard *g, struct guard_cur *c, struct err *err);
int guard_decode_link(struct h5guard *g, struct guard_cur *c, struct err *err);

/* A datatype, or with `shared` a reference to a committed one, which is admitted. */
int guard_type_or_shared(struct h5guard *g, struct guard_cur *c, bool shared,
                         struct guard_type *out, struct err *err);

/* ---- storage --------------------------------------------------------------------------------- */

struct guard_dataset {
    const struct guard_type *type;
    const struct guard_space *space;
    int n_filters;
};

/* Layout message and, of chunked datasets, the index of the chunks (IV.A.2.i, III.A.1). */
int guard_check_layout(struct h5guard *g, struct guard_cur *c, const struct guard_dataset *d,
                       struct err *err);

/* A dataset in chunks. */
struct guard_chunks {
    const struct guard_dataset *d;
    int ndims;                        /* rank + 1: the last is the size of an element */
    uint32_t dim[GUARD_MAX_RANK + 1]; /* of a chunk */
    uint64_t bytes;                   /* of a chunk */
};

/* One stored chunk: n bytes at `at`, found in the index structure `what` at `where`. */
int guard_check_chunk(struct h5guard *g, const struct guard_chunks *ch, uint64_t at, uint64_t n,
                      const char *what, uint64_t where, struct err *err);

int guard_chunk_btree1(struct h5guard *g, const struct guard_chunks *ch, uint64_t at,
                       struct err *err);

/* ---- groups ---------------------------------------------------------------------------------- */

/* Symbol table: B-tree of version 1, local heap, symbol table nodes (III.A.1, III.B, III.D). */
int guard_check_symbols(struct h5guard *g, uint64_t btree, uint64_t heap, struct err *err);

/* Dense links or attributes: fractal heap and B-trees over it; corder = GUARD_NOWHERE: none. */
int guard_check_dense(struct h5guard *g, bool links, uint64_t heap, uint64_t names, uint64_t corder,
                      struct err *err);

/* ---- objects --------------------------------------------------------------------------------- */

/* As h5guard_admit; *out describes the object. */
int guard_admit(struct h5guard *g, uint64_t at, struct guard_object *out, struct err *err);
