/*
 * h5guard_extensible.c - extensible arrays (VII.D): the index of chunks when one dimension is
 * unlimited.
 *
 * The index block holds the first elements, the addresses of the first data blocks, and those of
 * super blocks, which hold the addresses of the other data blocks. Super block u stands for
 * 2^(u/2) data blocks of 2^((u+1)/2) times `min` elements; data blocks of more than a page are
 * stored in pages, each with a checksum of its own.
 */
#include "core/h5guard/guard.h"

#include <string.h>

#define ARRAY "extensible array"

struct array {
    const struct guard_chunks *ch;
    uint64_t header;
    bool filtered;
    size_t element, offset_bytes;
    unsigned bits, first, min, pointers, page_bits; /* as in the header, in its order */
    unsigned supers, direct; /* super blocks; of these, those that the index block stands for */
};

static uint64_t blocks_of(unsigned u)
{
    return (uint64_t)1 << u / 2;
}

static uint64_t elements_of(const struct array *a, unsigned u)
{
    return ((uint64_t)1 << (u + 1) / 2) * a->min;
}

static int check_elements(struct h5guard *g, const struct array *a, struct guard_cur *c, uint64_t n,
                          struct err *err)
{
    int rc = 0;

    for (uint64_t i = 0; i < n && rc == 0; i++) {
        uint64_t where = c->at + c->i, at = guard_take(c, 8);
        uint64_t size = a->filtered ? guard_take(c, a->element - 12) : a->ch->bytes;
        if (a->filtered)
            guard_bytes(c, 4); /* filter mask */
        if (at != GUARD_NOWHERE)
            rc = guard_check_chunk(g, a->ch, at, size, ARRAY, where, err);
    }
    return rc;
}

static int check_head(struct h5guard *g, const struct array *a, struct guard_cur *c,
                      const char *magic, const char *what, struct err *err)
{
    const uint8_t *head = guard_bytes(c, 6);
    if (!head || memcmp(head, magic, 4) != 0 || head[4] != 0 || head[5] != a->filtered ||
        guard_take(c, 8) != a->header)
        return guard_bad(what, c->at, err, "its head is wrong");
    return 0;
}

/* A data block of n elements; `made` has a bit per page that was written. */
static int data_block(struct h5guard *g, const struct array *a, uint64_t at, uint64_t n,
                      const uint8_t *made, struct err *err)
{
    const char *what = "data block of an extensible array";
    uint64_t per = (uint64_t)1 << a->page_bits, pages = n > per ? n >> a->page_bits : 0;
    uint64_t head = 14 + a->offset_bytes;
    struct guard_cur c;
    int rc = guard_claim_summed(g, what, at, head + (pages ? 0 : n * a->element) + 4, &c, err);

    if (rc == 0)
        rc = check_head(g, a, &c, "EADB", what, err);
    if (rc)
        return rc;
    guard_bytes(&c, a->offset_bytes);
    if (pages == 0)
        return check_elements(g, a, &c, n, err);
    for (uint64_t i = 0; i < pages && rc == 0; i++) {
        if (!(made[i / 8] & 0x80 >> i % 8))
            continue;
        rc = guard_claim_summed(g, what, at + head + 4 + i * (per * a->element + 4),
                                per * a->element + 4, &c, err);
        if (rc == 0)
            rc = check_elements(g, a, &c, per, err);
    }
    return rc;
}

static int super_block(struct h5guard *g, const struct array *a, uint64_t at, unsigned u,
                       struct err *err)
{
    const char *what = "super block of an extensible array";
    uint64_t n = elements_of(a, u), blocks = blocks_of(u), per = (uint64_t)1 << a->page_bits;
    uint64_t map = n > per ? ((n >> a->page_bits) + 7) / 8 : 0;
    struct guard_cur c;

    if (blocks > GUARD_CLAIM_MAX || map > GUARD_CLAIM_MAX)
        return guard_bad(what, at, err, "%llu blocks", (unsigned long long)blocks);
    int rc =
        guard_claim_summed(g, what, at, 14 + a->offset_bytes + blocks * (map + 8) + 4, &c, err);
    if (rc == 0)
        rc = check_head(g, a, &c, "EASB", what, err);
    if (rc)
        return rc;
    guard_bytes(&c, a->offset_bytes);
    const uint8_t *made = guard_bytes(&c, (size_t)(blocks * map));
    for (uint64_t i = 0; i < blocks && rc == 0; i++) {
        uint64_t block = guard_take(&c, 8);
        if (block != GUARD_NOWHERE)
            rc = data_block(g, a, block, n, made + i * map, err);
    }
    return rc;
}

static int index_block(struct h5guard *g, const struct array *a, uint64_t at, struct err *err)
{
    const char *what = "index block of an extensible array";
    uint64_t direct = 2 * ((uint64_t)a->pointers - 1), others = a->supers - a->direct;
    struct guard_cur c;
    int rc = guard_claim_summed(g, what, at, 14 + a->first * a->element + 8 * (direct + others) + 4,
                                &c, err);

    if (rc == 0)
        rc = check_head(g, a, &c, "EAIB", what, err);
    if (rc == 0)
        rc = check_elements(g, a, &c, a->first, err);
    for (unsigned u = 0; u < a->direct; u++)
        for (uint64_t i = 0; i < blocks_of(u) && rc == 0; i++) {
            uint64_t block = guard_take(&c, 8);
            if (block != GUARD_NOWHERE)
                rc = data_block(g, a, block, elements_of(a, u), NULL, err);
        }
    for (unsigned u = a->direct; u < a->supers && rc == 0; u++) {
        uint64_t block = guard_take(&c, 8);
        if (block != GUARD_NOWHERE)
            rc = super_block(g, a, block, u, err);
    }
    return rc;
}

/* Powers of two that fit into each other, and no pages where libhdf5 expects none. */
static bool is_sound(struct array *a)
{
    unsigned min = guard_log2(a->min), pointers = guard_log2(a->pointers);

    if (a->bits > 48 || a->min < 1 || a->min != 1u << min || a->pointers < 1 ||
        a->pointers != 1u << pointers || a->first < 1 || a->page_bits < 1 || a->page_bits > 30 ||
        a->bits < min)
        return false;
    a->supers = 1 + a->bits - min;
    a->direct = 2 * pointers;
    a->offset_bytes = (a->bits + 7) / 8;
    return a->direct <= a->supers &&
           (a->direct == 0 || elements_of(a, a->direct - 1) <= (uint64_t)1 << a->page_bits);
}

static int count_unlimited(const struct guard_space *s)
{
    int n = 0;

    for (int i = 0; i < s->rank; i++)
        n += s->max[i] == GUARD_NOWHERE;
    return n;
}

int guard_extensible_array(struct h5guard *g, const struct guard_chunks *ch,
                           struct guard_cur *layout, struct err *err)
{
    struct array a = {.ch = ch, .filtered = ch->d->n_filters > 0};
    const uint8_t *params = guard_bytes(layout, 5); /* the order is another one than below */
    uint64_t at = guard_take(layout, 8);
    struct guard_cur c;

    if (layout->over)
        return guard_bad("layout", layout->at, err, "it is cut off");
    if (count_unlimited(ch->d->space) != 1)
        return guard_bad("layout", layout->at, err,
                         "an extensible array, but %d unlimited dimensions",
                         count_unlimited(ch->d->space));
    if (at == GUARD_NOWHERE)
        return 0;
    a.header = at;
    a.element = a.filtered ? 12 + ch->size_bytes : 8;
    int rc = guard_claim_summed(g, ARRAY, at, 72, &c, err);
    if (rc)
        return rc;
    const uint8_t *head = guard_bytes(&c, 12);
    a.bits = head[7];
    a.first = head[8];
    a.min = head[9];
    a.pointers = head[10];
    a.page_bits = head[11];
    guard_bytes(&c, 32); /* numbers and sizes of blocks */
    uint64_t used = guard_take(&c, 8);
    guard_bytes(&c, 8);
    uint64_t block = guard_take(&c, 8);
    if (memcmp(head, "EAHD", 4) != 0 || head[4] != 0 || head[5] != a.filtered ||
        head[6] != a.element || params[0] != a.bits || params[1] != a.first ||
        params[2] != a.pointers || params[3] != a.min || params[4] != a.page_bits || !is_sound(&a))
        return guard_bad(ARRAY, at, err, "its head is wrong or not that of the layout");
    if (used > a.first + a.min * (((uint64_t)1 << a.supers) - 1))
        return guard_bad(ARRAY, at, err, "%llu elements", (unsigned long long)used);
    return block == GUARD_NOWHERE ? 0 : index_block(g, &a, block, err);
}
