/*
 * h5guard_super.c - the superblock (II.A): where the check of a file begins.
 */
#include "core/h5guard/guard.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHAT "superblock"

static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

/* What the versions have in common. */
struct super {
    unsigned version;
    uint64_t base, extension, end, driver, root;
    bool cached;          /* version 0: the entry of the root group has a symbol table */
    uint64_t btree, heap; /* that one */
};

static int check_sizes(const struct h5guard *g, unsigned offsets, unsigned lengths, struct err *err)
{
    if (offsets == 8 && lengths == 8)
        return 0;
    return guard_foreign(WHAT, 0, err, "offsets of %u and lengths of %u bytes", offsets, lengths);
}

/* The entry of the root group in version 0. libhdf5 believes the symbol table that is cached there:
 * h5guard_open holds it against the one that the root group has. */
static int check_root_entry(struct h5guard *g, struct guard_cur *c, struct super *s,
                            struct err *err)
{
    guard_bytes(c, 8); /* name */
    s->root = guard_take(c, 8);
    unsigned kind = (unsigned)guard_take(c, 4);
    guard_bytes(c, 4);
    s->cached = kind == 1;
    s->btree = guard_take(c, 8);
    s->heap = guard_take(c, 8);
    if (c->over || kind > 1)
        return guard_bad(WHAT, 0, err, "the entry of the root group is of kind %u", kind);
    return 0;
}

static int read_old(struct h5guard *g, struct super *s, struct err *err)
{
    struct guard_cur c;
    PASS_ON(guard_claim(g, WHAT, 0, 96, &c, err));
    guard_bytes(&c, 9);
    unsigned space = (unsigned)guard_take(&c, 1), root = (unsigned)guard_take(&c, 1);
    guard_bytes(&c, 1);
    unsigned shared = (unsigned)guard_take(&c, 1), offsets = (unsigned)guard_take(&c, 1);
    unsigned lengths = (unsigned)guard_take(&c, 1);
    guard_bytes(&c, 1);
    g->leaf_k = (unsigned)guard_take(&c, 2);
    g->node_k = (unsigned)guard_take(&c, 2);
    unsigned flags = (unsigned)guard_take(&c, 4);
    if (space || root || shared || flags > 3)
        return guard_bad(WHAT, 0, err, "versions %u, %u, %u, flags 0x%x", space, root, shared,
                         flags);
    PASS_ON(check_sizes(g, offsets, lengths, err));
    if (g->leaf_k < 1 || g->leaf_k > 4096 || g->node_k < 1 || g->node_k > 4096)
        return guard_bad(WHAT, 0, err, "nodes of groups have %u and %u entries", g->leaf_k,
                         g->node_k);
    s->base = guard_take(&c, 8);
    s->extension = guard_take(&c, 8); /* free space */
    s->end = guard_take(&c, 8);
    s->driver = guard_take(&c, 8);
    g->end = s->end < g->size ? s->end : g->size;
    return check_root_entry(g, &c, s, err);
}

static int read_new(struct h5guard *g, struct super *s, struct err *err)
{
    struct guard_cur c;
    PASS_ON(guard_claim_summed(g, WHAT, 0, 48, &c, err));
    guard_bytes(&c, 9);
    unsigned offsets = (unsigned)guard_take(&c, 1), lengths = (unsigned)guard_take(&c, 1);
    guard_bytes(&c, 1); /* flags: libhdf5 checks them */
    PASS_ON(check_sizes(g, offsets, lengths, err));
    s->base = guard_take(&c, 8);
    s->extension = guard_take(&c, 8);
    s->end = guard_take(&c, 8);
    s->root = guard_take(&c, 8);
    s->driver = GUARD_NOWHERE;
    g->leaf_k = 4;
    g->node_k = 16;
    return 0;
}

static int check_super(struct h5guard *g, struct super *s, struct err *err)
{
    uint8_t head[12];
    PASS_ON(guard_peek(g, WHAT, 0, sizeof head, head, err));
    if (memcmp(head, signature, sizeof signature) != 0)
        return err_set(err, ERR_INPUT, "it is not an HDF5 file");
    s->version = head[8];
    g->chunk_k = 32;
    if (s->version != 0 && s->version != 2 && s->version != 3)
        return guard_foreign(WHAT, 0, err, "a superblock of version %u", s->version);
    PASS_ON(s->version == 0 ? read_old(g, s, err) : read_new(g, s, err));
    if (s->base != 0)
        return guard_foreign(WHAT, 0, err, "a user block");
    if (s->extension != GUARD_NOWHERE)
        return guard_foreign(WHAT, 0, err,
                             "a superblock extension (files with pages have one; "
                             "`h5repack -S FSM_AGGR -P 0` takes them out)");
    if (s->driver != GUARD_NOWHERE)
        return guard_foreign(WHAT, 0, err, "several files as one");
    if (s->end > g->size)
        return err_set(err, ERR_INPUT,
                       "the file is damaged or truncated: truncated file: eof = %llu, stored_eof = "
                       "%llu; copy it again from where it is whole, or write it again",
                       (unsigned long long)g->size, (unsigned long long)s->end);
    g->end = s->end;
    return 0;
}

int h5guard_open(int fd, struct h5guard **out, struct err *err)
{
    struct h5guard *g = calloc(1, sizeof *g);
    struct super s = {0};
    struct stat st;
    int rc = 0;
    if (!g) {
        close(fd);
        return err_set(err, ERR_NOMEM, "metadata");
    }
    g->fd = fd;
    if (fstat(fd, &st) != 0) {
        rc = err_sys(err, ERR_INPUT, "size of the file");
        goto out;
    }
    g->size = g->end = (uint64_t)st.st_size;
    TRY(check_super(g, &s, err));
    TRY(h5guard_admit(g, s.root, err));
    if (s.cached && !g->btree) {
        rc = guard_foreign(WHAT, 0, err, "an old root group with links of a newer kind");
        goto out;
    }
    if (s.cached && (s.btree != g->btree || s.heap != g->heap)) {
        rc = guard_bad(WHAT, 0, err, "the root group has another symbol table");
        goto out;
    }
    *out = HAND_OVER(g);
out:
    h5guard_free(g);
    return rc;
}
