/*
 * h5guard_group.c - groups of the old kind: a B-tree of version 1 whose leaves are symbol table
 * nodes, with the names in a local heap. The B-tree of chunks has the same nodes.
 */
#include "core/h5guard/guard.h"

#include <string.h>

#define HEAP "local heap"
#define NODE "symbol table node"
#define TREE "B-tree of version 1"

struct names {
    const uint8_t *p;
    uint64_t n;
};

static bool is_name(const struct names *h, uint64_t at)
{
    return at < h->n && memchr(h->p + at, 0, (size_t)(h->n - at));
}

/* The chain of free blocks, each with the offset of the next one (1: the last) and its size. */
static int check_free(struct h5guard *g, uint64_t head, const struct names *h, uint64_t where,
                      struct err *err)
{
    uint64_t steps = 0, at = head;
    while (at != 1) {
        struct guard_cur c = {.p = h->p, .n = (size_t)h->n, .i = (size_t)at};
        if (at > h->n || h->n - at < 16 || ++steps > h->n / 16)
            return guard_bad(HEAP, where, err, "its free list leads to %llu",
                             (unsigned long long)at);
        uint64_t next = guard_take(&c, 8), size = guard_take(&c, 8);
        if (size > h->n - at || next == 0)
            return guard_bad(HEAP, where, err, "a free block of %llu bytes at %llu",
                             (unsigned long long)size, (unsigned long long)at);
        at = next;
    }
    return 0;
}

static int open_heap(struct h5guard *g, uint64_t at, struct names *out, struct err *err)
{
    struct guard_cur c, data;
    PASS_ON(guard_claim(g, HEAP, at, 32, &c, err));
    const uint8_t *magic = guard_bytes(&c, 4);
    if (memcmp(magic, "HEAP", 4) != 0 || guard_take(&c, 1) != 0)
        return guard_bad(HEAP, at, err, "its signature or version is wrong");
    guard_bytes(&c, 3);
    uint64_t size = guard_take(&c, 8), first = guard_take(&c, 8), where = guard_take(&c, 8);
    if (size == 0)
        return guard_bad(HEAP, at, err, "it has no bytes");
    PASS_ON(guard_claim(g, HEAP, where, size, &data, err));
    *out = (struct names){data.p, size};
    return check_free(g, first, out, at, err);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static int check_entry(struct h5guard *g, struct guard_cur *c, const struct names *h,
                       struct err *err)
{
    uint64_t where = c->at + c->i, name = guard_take(c, 8), at = guard_take(c, 8);
    unsigned kind = (unsigned)guard_take(c, 4);
    guard_bytes(c, 4);
    struct guard_cur cached = guard_part(c, 16);
    if (!is_name(h, name) || h->p[name] == 0)
        return guard_bad(NODE, where, err, "an entry has no name");
    if (kind > 2)
        return guard_bad(NODE, where, err, "an entry is of kind %u", kind);
    if (kind == 2 ? !is_name(h, guard_take(&cached, 4)) : !guard_inside(g, at, 16))
        return guard_bad(NODE, where, err, "an entry leads nowhere");
    return 0;
}

static int check_node(struct h5guard *g, uint64_t at, const struct names *h, struct err *err)
{
    struct guard_cur c;
    PASS_ON(guard_claim(g, NODE, at, 8 + 2 * (uint64_t)g->leaf_k * 40, &c, err));
    const uint8_t *magic = guard_bytes(&c, 4);
    unsigned version = (unsigned)guard_take(&c, 1);
    guard_bytes(&c, 1);
    unsigned n = (unsigned)guard_take(&c, 2);
    if (memcmp(magic, "SNOD", 4) != 0 || version != 1 || n > 2 * g->leaf_k)
        return guard_bad(NODE, at, err, "version %u, %u entries", version, n);
    for (unsigned i = 0; i < n; i++)
        PASS_ON(check_entry(g, &c, h, err));
    return 0;
}

/* ---- B-tree ---------------------------------------------------------------------------------- */

/* Either over names (a group) or over chunks. */
struct tree {
    const struct names *names;
    const struct guard_chunks *chunks;
    unsigned two_k;
    size_t key; /* bytes of a key */
};

static int check_key(struct h5guard *g, const struct tree *t, struct guard_cur key, struct err *err)
{
    if (t->names)
        return is_name(t->names, guard_take(&key, 8))
                   ? 0
                   : guard_bad(TREE, key.at, err, "a key is no name");
    guard_bytes(&key, 8);
    for (int i = 0; i < t->chunks->ndims; i++) {
        uint64_t at = guard_take(&key, 8);
        if (at % t->chunks->dim[i])
            return guard_bad(TREE, key.at, err, "a chunk begins at element %llu of dimension %d",
                             (unsigned long long)at, i);
    }
    return 0;
}

static int walk(struct h5guard *g, const struct tree *t, uint64_t at, int level, struct err *err);

static int check_child(struct h5guard *g, const struct tree *t, struct guard_cur key, uint64_t at,
                       int level, struct err *err)
{
    if (level > 0)
        return walk(g, t, at, level - 1, err);
    return t->names ? check_node(g, at, t->names, err)
                    : guard_check_chunk(g, t->chunks, at, guard_take(&key, 4), TREE, key.at, err);
}

/* A node and what is below it. level = -1: the root, whose level counts. */
static int walk(struct h5guard *g, const struct tree *t, uint64_t at, int level, struct err *err)
{
    struct guard_cur c, key;
    PASS_ON(guard_claim(g, TREE, at, 24 + t->two_k * 8 + (t->two_k + 1) * t->key, &c, err));
    const uint8_t *magic = guard_bytes(&c, 4);
    unsigned type = (unsigned)guard_take(&c, 1);
    int here = (int)guard_take(&c, 1);
    unsigned n = (unsigned)guard_take(&c, 2);
    guard_bytes(&c, 16); /* siblings: libhdf5 does not follow them when it reads */
    if (memcmp(magic, "TREE", 4) != 0 || type != (t->chunks != NULL) || n > t->two_k)
        return guard_bad(TREE, at, err, "type %u, %u entries", type, n);
    if (level >= 0 ? here != level : here > GUARD_MAX_DEPTH)
        return guard_bad(TREE, at, err, "level %d", here);
    if (n == 0)
        return level < 0 && here == 0 ? 0 : guard_bad(TREE, at, err, "it has no entries");
    for (unsigned i = 0; i <= n; i++) {
        key = guard_part(&c, t->key);
        PASS_ON(check_key(g, t, key, err));
        if (i < n)
            PASS_ON(check_child(g, t, key, guard_take(&c, 8), here, err));
    }
    return 0;
}

int guard_check_symbols(struct h5guard *g, uint64_t btree, uint64_t heap, struct err *err)
{
    struct names names = {0};
    struct tree t = {.names = &names, .two_k = 2 * g->node_k, .key = 8};
    int rc = open_heap(g, heap, &names, err);
    g->btree = btree;
    g->heap = heap;
    return rc ? rc : walk(g, &t, btree, -1, err);
}

int guard_chunk_btree1(struct h5guard *g, const struct guard_chunks *ch, uint64_t at,
                       struct err *err)
{
    struct tree t = {.chunks = ch, .two_k = 2 * g->chunk_k, .key = 8 + 8 * (size_t)ch->ndims};
    return walk(g, &t, at, -1, err);
}
