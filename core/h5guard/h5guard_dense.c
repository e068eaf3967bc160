/*
 * h5guard_dense.c - groups and attributes of the new kind when they are many: messages in a fractal
 * heap (III.G), found through B-trees of version 2 (III.A.2).
 */
#include "core/h5guard/guard.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- B-tree of version 2 --------------------------------------------------------------------- */

#define TREE "B-tree of version 2"

/* `visit` gets every record. */
struct records {
    int type;       /* as stored: 5 and 6 links, 8 and 9 attributes */
    unsigned bytes; /* of a record */
    int (*visit)(struct h5guard *g, struct guard_cur *rec, void *ctx, struct err *err);
    void *ctx;
};

/* What a level can hold; level 0 are the leaves. */
struct level {
    uint64_t max, max_below; /* records of a node; of a node and all below it */
    size_t below_bytes;      /* width of a stored max_below; 0 for leaves */
};

struct tree {
    const struct records *r;
    size_t node, count_bytes; /* bytes of a node; width of a node's number of records */
    struct level level[GUARD_MAX_DEPTH + 1];
    uint64_t n; /* records met */
};

/* Bytes that a number up to `max` takes. */
static size_t width(uint64_t max)
{
    size_t n = 1;
    while (max >>= 8)
        n++;
    return n;
}

#define NODE_FRAME 10  /* prefix of 6 bytes, checksum of 4 */
#define NODE_ADDRESS 8 /* in a child pointer */

/* Capacities of each level, after libhdf5's B-tree 2: a child pointer has an address and one or two
 * counts. false: impossible sizes. */
static bool fill_levels(struct tree *t, unsigned depth)
{
    struct level *l = t->level;
    l[0].max = l[0].max_below = (t->node - NODE_FRAME) / t->r->bytes;
    t->count_bytes = width(l[0].max);
    for (unsigned d = 1; d <= depth; d++) {
        size_t pointer = NODE_ADDRESS + t->count_bytes + l[d - 1].below_bytes;
        if (t->node < NODE_FRAME + pointer)
            return false;
        l[d].max = (t->node - NODE_FRAME - pointer) / (t->r->bytes + pointer);
        if (l[d - 1].max_below > UINT64_MAX / 2 / (l[d].max + 1))
            return false;
        l[d].max_below = (l[d].max + 1) * l[d - 1].max_below + l[d].max;
        l[d].below_bytes = width(l[d].max_below);
    }
    return l[0].max >= 1 && l[0].max <= UINT16_MAX && l[depth].max >= 1;
}

static int walk_node(struct h5guard *g, struct tree *t, uint64_t at, unsigned depth, uint64_t n,
                     uint64_t all, struct err *err);

static int walk_children(struct h5guard *g, struct tree *t, struct guard_cur *c, unsigned depth,
                         uint64_t n, struct err *err)
{
    for (uint64_t i = 0; i <= n; i++) {
        uint64_t at = guard_take(c, 8), count = guard_take(c, t->count_bytes);
        uint64_t all = depth > 1 ? guard_take(c, t->level[depth - 1].below_bytes) : count;
        PASS_ON(walk_node(g, t, at, depth - 1, count, all, err));
    }
    return 0;
}

/* A node of n records, with `all` in it and below it. */
static int walk_node(struct h5guard *g, struct tree *t, uint64_t at, unsigned depth, uint64_t n,
                     uint64_t all, struct err *err)
{
    size_t records = (size_t)n * t->r->bytes, sum = 6 + records;
    uint64_t before = t->n;
    struct guard_cur c;
    if (n < 1 || n > t->level[depth].max)
        return guard_bad(TREE, at, err, "a node of %llu records", (unsigned long long)n);
    PASS_ON(guard_claim(g, TREE, at, t->node, &c, err));
    if (depth > 0)
        sum += ((size_t)n + 1) *
               (8 + t->count_bytes + (depth > 1 ? t->level[depth - 1].below_bytes : 0));
    const uint8_t *head = guard_bytes(&c, 6);
    struct guard_cur stored = {.p = c.p + sum, .n = 4};
    if (memcmp(head, depth ? "BTIN" : "BTLF", 4) != 0 || head[4] != 0 || head[5] != t->r->type)
        return guard_bad(TREE, at, err, "the signature, version or type of a node is wrong");
    if (guard_take(&stored, 4) != guard_checksum(c.p, sum))
        return guard_bad(TREE, at, err, "the checksum of a node is wrong");
    for (uint64_t i = 0; i < n; i++) {
        struct guard_cur rec = guard_part(&c, t->r->bytes);
        PASS_ON(t->r->visit(g, &rec, t->r->ctx, err));
    }
    t->n += n;
    if (depth > 0)
        PASS_ON(walk_children(g, t, &c, depth, n, err));
    if (t->n - before != all)
        return guard_bad(TREE, at, err, "%llu records below a node, %llu are announced",
                         (unsigned long long)(t->n - before), (unsigned long long)all);
    return 0;
}

/* *n: number of records. */
static int btree2(struct h5guard *g, uint64_t at, const struct records *r, uint64_t *n,
                  struct err *err)
{
    struct tree t = {.r = r};
    struct guard_cur c;
    PASS_ON(guard_claim_summed(g, TREE, at, 38, &c, err));
    const uint8_t *head = guard_bytes(&c, 6);
    t.node = (size_t)guard_take(&c, 4);
    unsigned bytes = (unsigned)guard_take(&c, 2), depth = (unsigned)guard_take(&c, 2);
    unsigned split = (unsigned)guard_take(&c, 1), merge = (unsigned)guard_take(&c, 1);
    uint64_t root = guard_take(&c, 8), count = guard_take(&c, 2), all = guard_take(&c, 8);
    *n = all;
    if (memcmp(head, "BTHD", 4) != 0 || head[4] != 0 || head[5] != r->type || bytes != r->bytes)
        return guard_bad(TREE, at, err, "type %u with records of %u bytes", head[5], bytes);
    if (t.node < 64 || t.node > GUARD_CLAIM_MAX || depth > GUARD_MAX_DEPTH || split < 1 ||
        split > 100 || merge < 1 || merge > split || !fill_levels(&t, depth))
        return guard_bad(TREE, at, err, "nodes of %zu bytes, depth %u", t.node, depth);
    if (all == 0 && count == 0 && depth == 0)
        return 0;
    return walk_node(g, &t, root, depth, count, all, err);
}

/* ---- fractal heap ---------------------------------------------------------------------------- */

#define HEAP "fractal heap"

struct block {
    uint64_t offset; /* in the heap's own space */
    uint64_t size;
    struct guard_cur c;
};

struct heap {
    uint64_t at;
    bool summed; /* direct blocks have checksums */
    uint64_t width, start, max_direct, bits, max_object, used;
    unsigned first_bits, direct_rows; /* log2 of the first row; rows of direct blocks */
    size_t offset_bytes, length_bytes;
    struct block *v; /* ascending */
    int64_t n, cap;
};

static bool is_power(uint64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static size_t prefix_bytes(const struct heap *h)
{
    return 13 + h->offset_bytes + (h->summed ? 4 : 0);
}

static int direct_block(struct h5guard *g, struct heap *h, uint64_t at, uint64_t offset,
                        uint64_t size, struct err *err)
{
    struct guard_cur c;
    PASS_ON(guard_claim(g, "direct block of a fractal heap", at, size, &c, err));
    PASS_ON(mem_grow(&h->v, &h->cap, h->n + 1, sizeof *h->v, "blocks of a heap", err));
    h->v[h->n++] = (struct block){offset, size, c};
    const uint8_t *head = guard_bytes(&c, 5);
    if (memcmp(head, "FHDB", 4) != 0 || head[4] != 0 || guard_take(&c, 8) != h->at ||
        guard_take(&c, h->offset_bytes) != offset)
        return guard_bad("direct block of a fractal heap", at, err, "its head is wrong");
    if (!h->summed)
        return 0;
    uint32_t stored = (uint32_t)guard_take(&c, 4);
    uint8_t *copy = malloc(size);
    if (!copy)
        return err_set(err, ERR_NOMEM, "metadata");
    memcpy(copy, c.p, size);
    memset(copy + c.i - 4, 0, 4); /* the sum is of the block with zeros in its place */
    uint32_t sum = guard_checksum(copy, size);
    free(copy);
    return sum == stored
               ? 0
               : guard_bad("direct block of a fractal heap", at, err, "its checksum is wrong");
}

static uint64_t row_size(const struct heap *h, unsigned row)
{
    return row < 2 ? h->start : h->start << (row - 1);
}

static int indirect_block(struct h5guard *g, struct heap *h, uint64_t at, uint64_t offset,
                          unsigned rows, struct err *err)
{
    const char *what = "indirect block of a fractal heap";
    uint64_t children = 0, n = rows * h->width;
    struct guard_cur c;
    PASS_ON(guard_claim_summed(g, what, at, 13 + h->offset_bytes + 8 * n + 4, &c, err));
    const uint8_t *head = guard_bytes(&c, 5);
    if (memcmp(head, "FHIB", 4) != 0 || head[4] != 0 || guard_take(&c, 8) != h->at ||
        guard_take(&c, h->offset_bytes) != offset)
        return guard_bad(what, at, err, "its head is wrong");
    for (unsigned row = 0; row < rows; row++) {
        uint64_t size = row_size(h, row);
        for (uint64_t col = 0; col < h->width; col++, offset += size) {
            uint64_t child = guard_take(&c, 8);
            if (child == GUARD_NOWHERE)
                continue;
            children++;
            PASS_ON(row < h->direct_rows
                        ? direct_block(g, h, child, offset, size, err)
                        : indirect_block(g, h, child, offset, guard_log2(size) - h->first_bits + 1,
                                         err));
        }
    }
    return children ? 0 : guard_bad(what, at, err, "it has no children");
}

/* The doubling table: how large the blocks of a row are, and how many rows there can be. */
static int read_table(struct h5guard *g, struct heap *h, struct guard_cur *c, size_t id_bytes,
                      struct err *err)
{
    h->width = guard_take(c, 2);
    h->start = guard_take(c, 8);
    h->max_direct = guard_take(c, 8);
    h->bits = guard_take(c, 2);
    guard_bytes(c, 2); /* rows of a new heap */
    uint64_t root = guard_take(c, 8), rows = guard_take(c, 2);
    if (!is_power(h->width) || h->width > 256 || !is_power(h->start) || h->start < 64 ||
        !is_power(h->max_direct) || h->max_direct < h->start || h->max_direct > 1 << 24 ||
        h->max_object < 1 || h->max_object > h->max_direct)
        return guard_bad(HEAP, h->at, err, "rows of %llu blocks of %llu to %llu bytes",
                         (unsigned long long)h->width, (unsigned long long)h->start,
                         (unsigned long long)h->max_direct);
    h->first_bits = guard_log2(h->start) + guard_log2(h->width);
    h->direct_rows = guard_log2(h->max_direct) - guard_log2(h->start) + 2;
    h->offset_bytes = (size_t)(h->bits + 7) / 8;
    size_t block = (guard_log2(h->max_direct) + 7) / 8, object = width(h->max_object);
    h->length_bytes = block < object ? block : object;
    if (h->bits < h->first_bits || h->bits > 56 || rows > h->bits - h->first_bits + 1 ||
        1 + h->offset_bytes + h->length_bytes > id_bytes)
        return guard_bad(HEAP, h->at, err, "%llu rows of 2^%llu bytes", (unsigned long long)rows,
                         (unsigned long long)h->bits);
    if (root == GUARD_NOWHERE)
        return 0;
    return rows ? indirect_block(g, h, root, 0, (unsigned)rows, err)
                : direct_block(g, h, root, 0, h->start, err);
}

static int open_heap(struct h5guard *g, struct heap *h, size_t id_bytes, struct err *err)
{
    struct guard_cur c;
    uint8_t raw[9];
    PASS_ON(guard_peek(g, HEAP, h->at, sizeof raw, raw, err));
    if (memcmp(raw, "FRHP", 4) != 0 || raw[4] != 0 || raw[5] != id_bytes || raw[6] != 0)
        return guard_bad(HEAP, h->at, err, "its signature, version or id length is wrong");
    if (raw[7] || raw[8])
        return guard_foreign(HEAP, h->at, err, "a heap with filters");
    PASS_ON(guard_claim_summed(g, HEAP, h->at, 146, &c, err));
    guard_bytes(&c, 9);
    unsigned flags = (unsigned)guard_take(&c, 1);
    h->summed = flags & 2;
    h->max_object = guard_take(&c, 4);
    guard_bytes(&c, 8); /* the next id of a huge object */
    uint64_t huge_tree = guard_take(&c, 8);
    guard_bytes(&c, 2 * 8); /* free space */
    h->used = guard_take(&c, 8);
    guard_bytes(&c, 4 * 8); /* other sizes, number of managed objects; bytes of huge objects */
    uint64_t huge = guard_take(&c, 8);
    guard_bytes(&c, 8);
    uint64_t tiny = guard_take(&c, 8);
    if (flags & ~3u)
        return guard_bad(HEAP, h->at, err, "flags 0x%x", flags);
    /* With none left, libhdf5 would delete the tree when it closes the file: it cannot here, and
     * the file stays open in it. */
    if (huge_tree != GUARD_NOWHERE && !huge)
        return guard_bad(HEAP, h->at, err, "a B-tree of huge objects without objects");
    if (huge || tiny)
        return guard_foreign(HEAP, h->at, err, "%s", huge ? "huge objects" : "tiny objects");
    return read_table(g, h, &c, id_bytes, err);
}

static const struct block *find_block(const struct heap *h, uint64_t offset)
{
    int64_t lo = 0, hi = h->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (h->v[mid].offset <= offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo > 0 && offset - h->v[lo - 1].offset < h->v[lo - 1].size ? &h->v[lo - 1] : NULL;
}

/* The object of an id of a record, as a cursor. */
static int find_object(struct h5guard *g, const struct heap *h, struct guard_cur id,
                       struct guard_cur *out, struct err *err)
{
    unsigned flags = (unsigned)guard_take(&id, 1);
    uint64_t offset = guard_take(&id, h->offset_bytes), n = guard_take(&id, h->length_bytes);
    const struct block *b = find_block(h, offset);
    if (flags & 0x30)
        return guard_foreign(HEAP, id.at, err, "objects outside the blocks of a heap");
    if (flags || !b || n == 0 || n > h->max_object || offset > h->used ||
        offset - b->offset < prefix_bytes(h) || n > b->size - (offset - b->offset))
        return guard_bad(HEAP, id.at, err, "there is no object of %llu bytes at %llu in it",
                         (unsigned long long)n, (unsigned long long)offset);
    *out = b->c;
    out->i = (size_t)(offset - b->offset);
    *out = guard_part(out, (size_t)n);
    return 0;
}

/* ---- links and attributes -------------------------------------------------------------------- */

struct dense {
    struct heap heap;
    bool links, decode; /* the second B-tree leads to the same messages: no need to decode again */
    size_t skip;        /* bytes of a record before the heap id */
};

static int visit(struct h5guard *g, struct guard_cur *rec, void *ctx, struct err *err)
{
    const struct dense *d = ctx;
    struct guard_cur object;
    guard_bytes(rec, d->skip);
    struct guard_cur id = guard_part(rec, d->links ? 7 : 8);
    if (!d->links && guard_take(rec, 1) & 2)
        return guard_foreign("record of an attribute", rec->at, err, "shared attributes");
    int rc = find_object(g, &d->heap, id, &object, err);
    if (rc || !d->decode)
        return rc;
    return d->links ? guard_decode_link(g, &object, err) : guard_decode_attribute(g, &object, err);
}

int guard_check_dense(struct h5guard *g, bool links, uint64_t heap, uint64_t names, uint64_t corder,
                      struct err *err)
{
    struct dense d = {.heap.at = heap, .links = links, .decode = true, .skip = links ? 4 : 0};
    struct records r = {.type = links ? 5 : 8, .bytes = links ? 11 : 17, .visit = visit, .ctx = &d};
    uint64_t n = 0, ordered = 0;
    int rc = 0;
    TRY(open_heap(g, &d.heap, links ? 7 : 8, err));
    TRY(btree2(g, names, &r, &n, err));
    if (corder == GUARD_NOWHERE)
        goto out;
    d.decode = false;
    d.skip = links ? 8 : 0;
    r.type = links ? 6 : 9;
    r.bytes = links ? 15 : 13;
    TRY(btree2(g, corder, &r, &ordered, err));
    if (n != ordered)
        rc = guard_bad(TREE, corder, err, "%llu records in creation order, %llu by name",
                       (unsigned long long)ordered, (unsigned long long)n);
out:
    free(d.heap.v);
    return rc;
}
