/*
 * h5guard_object.c - object headers of versions 1 and 2 (IV.A.1), and what the messages of a header
 * mean together.
 */
#include "core/h5guard/guard.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    MSG_NIL,
    MSG_SPACE,
    MSG_LINK_INFO,
    MSG_TYPE,
    MSG_OLD_FILL,
    MSG_FILL,
    MSG_LINK,
    MSG_EXTERNAL,
    MSG_LAYOUT,
    MSG_GROUP_INFO = 10,
    MSG_FILTERS,
    MSG_ATTRIBUTE,
    MSG_COMMENT,
    MSG_OLD_TIME,
    MSG_SHARED_TABLE,
    MSG_CONTINUATION,
    MSG_SYMBOLS,
    MSG_TIME,
    MSG_ATTRIBUTE_INFO = 21,
    MSG_REFERENCES,
    MSG_KINDS,
};

enum { FLAG_SHARED = 2, FLAG_DONT_SHARE = 4, FLAG_WAS_UNKNOWN = 32, FLAG_SHAREABLE = 64 };

struct message {
    unsigned type, flags;
    struct guard_cur body;
};

/* A header while it is read. */
struct header {
    struct h5guard *g;
    uint64_t at;
    unsigned version;
    bool ordered; /* version 2: messages have a creation index */
    struct message *v;
    int64_t n, cap;
    int64_t seen[MSG_KINDS]; /* messages of each type */
    int64_t next;            /* first message whose continuation was not followed */
};

#define WHAT "object header"

/* ---- header ---------------------------------------------------------------------------------- */

static int add_message(struct header *h, unsigned type, unsigned flags, struct guard_cur body,
                       struct err *err)
{
    bool shareable = type == MSG_SPACE || type == MSG_TYPE || type == MSG_OLD_FILL ||
                     type == MSG_FILL || type == MSG_FILTERS || type == MSG_ATTRIBUTE;
    if ((flags & FLAG_WAS_UNKNOWN) || ((flags & FLAG_SHAREABLE) && !shareable) ||
        ((flags & FLAG_SHARED) && (flags & FLAG_DONT_SHARE)))
        return guard_bad(WHAT, body.at, err, "message of type %u has flags 0x%x", type, flags);
    if ((flags & FLAG_SHARED) && type != MSG_TYPE)
        return guard_foreign(WHAT, body.at, err, "a shared message of type %u", type);
    PASS_ON(mem_grow(&h->v, &h->cap, h->n + 1, sizeof *h->v, "messages", err));
    h->v[h->n++] = (struct message){type, flags, body};
    if (type < MSG_KINDS)
        h->seen[type]++;
    return 0;
}

/* The messages of one block of the header. Version 1 fills its blocks; version 2 may leave a gap
 * that is too small for a message. */
static int read_block(struct header *h, struct guard_cur *c, struct err *err)
{
    size_t head = h->version == 1 ? 8 : h->ordered ? 6 : 4;
    while (c->n - c->i >= head) {
        unsigned type = (unsigned)guard_take(c, h->version == 1 ? 2 : 1);
        size_t size = (size_t)guard_take(c, 2);
        unsigned flags = (unsigned)guard_take(c, 1);
        guard_bytes(c, head - (h->version == 1 ? 5 : 4));
        struct guard_cur body = guard_part(c, size);
        if (c->over || (h->version == 1 && size % 8))
            return guard_bad(WHAT, h->at, err, "message of type %u has %zu bytes", type, size);
        PASS_ON(add_message(h, type, flags, body, err));
    }
    if (c->i < c->n && (h->version == 1 || c->i == 0))
        return guard_bad(WHAT, h->at, err, "%zu bytes after its messages", c->n - c->i);
    return 0;
}

static int follow(struct header *h, struct guard_cur c, struct err *err)
{
    uint64_t at = guard_take(&c, 8), n = guard_take(&c, 8);
    struct guard_cur block = {0};
    if (c.over)
        return guard_bad(WHAT, h->at, err, "a continuation is cut off");
    if (n < 8)
        return guard_bad(WHAT, h->at, err, "a continuation of %llu bytes", (unsigned long long)n);
    PASS_ON(h->version == 1
                ? guard_claim(h->g, "continuation of an object header", at, n, &block, err)
                : guard_claim_summed(h->g, "continuation of an object header", at, n, &block, err));
    if (h->version == 2 && memcmp(guard_bytes(&block, 4), "OCHK", 4) != 0)
        return guard_bad(WHAT, h->at, err, "its continuation at offset %llu has no signature",
                         (unsigned long long)at);
    return read_block(h, &block, err);
}

static int read_old(struct header *h, struct err *err)
{
    uint8_t raw[16];
    struct guard_cur c = {.p = raw, .at = h->at, .n = sizeof raw};
    PASS_ON(guard_peek(h->g, WHAT, h->at, sizeof raw, raw, err));
    guard_bytes(&c, 2);
    int64_t count = (int64_t)guard_take(&c, 2);
    guard_bytes(&c, 4);
    uint64_t size = guard_take(&c, 4);
    if (raw[0] != 1)
        return guard_bad(WHAT, h->at, err, "there is none");
    h->version = 1;
    PASS_ON(guard_claim(h->g, WHAT, h->at, 16 + size, &c, err));
    guard_bytes(&c, 16);
    struct guard_cur block = guard_part(&c, (size_t)size);
    PASS_ON(read_block(h, &block, err));
    for (; h->next < h->n; h->next++)
        if (h->v[h->next].type == MSG_CONTINUATION)
            PASS_ON(follow(h, h->v[h->next].body, err));
    if (h->n != count)
        return guard_bad(WHAT, h->at, err, "%lld messages, %lld are announced", (long long)h->n,
                         (long long)count);
    return 0;
}

static int read_new(struct header *h, const uint8_t raw[16], struct err *err)
{
    unsigned flags = raw[5];
    size_t prefix = 6 + (flags & 32 ? 16 : 0) + (flags & 16 ? 4 : 0),
           width = (size_t)1 << (flags & 3);
    uint8_t bytes[8];
    struct guard_cur c = {.p = bytes, .n = width};
    if (raw[4] != 2 || (flags & 0xc0))
        return guard_bad(WHAT, h->at, err, "version %u, flags 0x%x", raw[4], flags);
    h->version = 2;
    h->ordered = flags & 4;
    PASS_ON(guard_peek(h->g, WHAT, h->at + prefix, width, bytes, err));
    uint64_t size = guard_take(&c, width);
    if (size > GUARD_CLAIM_MAX)
        return guard_bad(WHAT, h->at, err, "%llu bytes", (unsigned long long)size);
    PASS_ON(guard_claim_summed(h->g, WHAT, h->at, prefix + width + size + 4, &c, err));
    guard_bytes(&c, prefix + width);
    PASS_ON(read_block(h, &c, err));
    for (; h->next < h->n; h->next++)
        if (h->v[h->next].type == MSG_CONTINUATION)
            PASS_ON(follow(h, h->v[h->next].body, err));
    return 0;
}

/* ---- meaning --------------------------------------------------------------------------------- */

static const struct message *find(const struct header *h, unsigned type)
{
    for (int64_t i = 0; i < h->n; i++)
        if (h->v[i].type == type)
            return &h->v[i];
    return NULL;
}

enum kind { GROUP = 1, DATASET = 2, TYPE = 4, ANY = 7 };

/* Which objects may have a message, and how often. The others are foreign or do not belong there.
 */
static const struct rule {
    unsigned in;
    bool once;
    const char *foreign;
} rules[MSG_KINDS] = {
    [MSG_NIL] = {ANY, false, NULL},
    [MSG_SPACE] = {DATASET, true, NULL},
    [MSG_LINK_INFO] = {GROUP, true, NULL},
    [MSG_TYPE] = {DATASET | TYPE, true, NULL},
    [MSG_OLD_FILL] = {DATASET, true, NULL},
    [MSG_FILL] = {DATASET, true, NULL},
    [MSG_LINK] = {GROUP, false, NULL},
    [MSG_EXTERNAL] = {0, true, "elements that are stored in another file"},
    [MSG_LAYOUT] = {DATASET, true, NULL},
    [MSG_GROUP_INFO] = {GROUP, true, NULL},
    [MSG_FILTERS] = {DATASET, true, NULL},
    [MSG_ATTRIBUTE] = {ANY, false, NULL},
    [MSG_COMMENT] = {ANY, true, NULL},
    [MSG_OLD_TIME] = {0, true, "a modification time of HDF5 1.4"},
    [MSG_SHARED_TABLE] = {0, true, "a table of shared messages"},
    [MSG_CONTINUATION] = {ANY, false, NULL},
    [MSG_SYMBOLS] = {GROUP, true, NULL},
    [MSG_TIME] = {ANY, true, NULL},
    [MSG_ATTRIBUTE_INFO] = {ANY, true, NULL},
    [MSG_REFERENCES] = {ANY, true, NULL},
};

static int kind_of(const struct header *h, enum kind *kind, struct err *err)
{
    bool group = h->seen[MSG_SYMBOLS] || h->seen[MSG_LINK_INFO];
    bool dataset = h->seen[MSG_SPACE] && h->seen[MSG_TYPE];
    if (group && h->seen[MSG_TYPE])
        return guard_bad(WHAT, h->at, err, "it is a group and a dataset");
    if (!group && !h->seen[MSG_TYPE])
        return guard_bad(WHAT, h->at, err, "it is no group, dataset or datatype");
    *kind = group ? GROUP : dataset ? DATASET : TYPE;
    return 0;
}

static int check_rules(const struct header *h, enum kind kind, struct err *err)
{
    for (int64_t i = 0; i < h->n; i++) {
        const struct message *m = &h->v[i];
        if (m->type >= MSG_KINDS)
            return guard_foreign(WHAT, m->body.at, err, "messages of type %u", m->type);
        const struct rule *r = &rules[m->type];
        if (r->foreign)
            return guard_foreign(WHAT, m->body.at, err, "%s", r->foreign);
        if (!(r->in & kind) || (r->once && h->seen[m->type] > 1))
            return guard_bad(WHAT, m->body.at, err, "message of type %u does not belong there",
                             m->type);
    }
    return 0;
}

static int check_index(const struct header *h, const struct message *m, struct err *err)
{
    struct guard_cur c = m->body;
    bool links = m->type == MSG_LINK_INFO;
    unsigned version = (unsigned)guard_take(&c, 1), flags = (unsigned)guard_take(&c, 1);
    if (flags & 1)
        guard_bytes(&c, links ? 8 : 2); /* largest creation index */
    uint64_t heap = guard_take(&c, 8), names = guard_take(&c, 8);
    uint64_t order = flags & 2 ? guard_take(&c, 8) : GUARD_NOWHERE;
    if (c.over || version != 0 || (flags & ~3u) || (!links && h->version == 1))
        return guard_bad(links ? "link info" : "attribute info", m->body.at, err,
                         "version %u, flags 0x%x", version, flags);
    if (heap == GUARD_NOWHERE)
        return 0;
    if (h->seen[links ? MSG_LINK : MSG_ATTRIBUTE])
        return guard_bad(links ? "link info" : "attribute info", m->body.at, err,
                         "messages beside a heap");
    return guard_check_dense(h->g, links, heap, names, order, err);
}

static int check_small(const struct header *h, const struct message *m, struct err *err)
{
    struct guard_cur c = m->body;
    size_t len = 0;
    unsigned flags;
    bool ok = true;
    switch (m->type) {
    case MSG_GROUP_INFO:
        ok = guard_take(&c, 1) == 0;
        flags = (unsigned)guard_take(&c, 1);
        guard_bytes(&c, (flags & 1 ? 4 : 0) + (flags & 2 ? 4 : 0));
        ok = ok && !(flags & ~3u);
        break;
    case MSG_COMMENT:
        ok = guard_string(&c, &len) != NULL;
        break;
    case MSG_TIME:
        ok = guard_take(&c, 1) == 1;
        guard_bytes(&c, 7);
        break;
    case MSG_REFERENCES:
        ok = h->version == 2 && guard_take(&c, 1) == 0;
        guard_bytes(&c, 4);
        break;
    }
    return ok && !c.over
               ? 0
               : guard_bad(WHAT, m->body.at, err, "message of type %u is damaged", m->type);
}

static int check_message(const struct header *h, const struct message *m, struct err *err)
{
    struct guard_cur c = m->body;
    uint64_t btree, heap;
    switch (m->type) {
    case MSG_LINK_INFO:
    case MSG_ATTRIBUTE_INFO:
        return check_index(h, m, err);
    case MSG_LINK:
        return h->seen[MSG_LINK_INFO]
                   ? guard_decode_link(h->g, &c, err)
                   : guard_bad(WHAT, m->body.at, err, "a link beside a symbol table");
    case MSG_ATTRIBUTE:
        return guard_decode_attribute(h->g, &c, err);
    case MSG_SYMBOLS:
        btree = guard_take(&c, 8);
        heap = guard_take(&c, 8);
        if (c.over || h->seen[MSG_LINK_INFO])
            return guard_bad("symbol table", m->body.at, err, "it is cut off or one of two");
        return guard_check_symbols(h->g, btree, heap, err);
    default:
        return check_small(h, m, err);
    }
}

/* The messages that describe elements; the order matters, for the later ones need the sizes. */
static int check_dataset(const struct header *h, const struct guard_type *type, struct err *err)
{
    const struct message *layout = find(h, MSG_LAYOUT), *fill = find(h, MSG_FILL);
    const struct message *old = find(h, MSG_OLD_FILL), *filters = find(h, MSG_FILTERS);
    struct guard_cur c = find(h, MSG_SPACE)->body;
    struct guard_space space;
    struct guard_dataset d = {.type = type, .space = &space};
    if (!layout)
        return guard_bad(WHAT, h->at, err, "a dataset without a layout");
    PASS_ON(guard_decode_space(h->g, &c, &space, err));
    if (filters) {
        c = filters->body;
        PASS_ON(guard_decode_filters(h->g, &c, &d.n_filters, err));
    }
    if (fill) {
        c = fill->body;
        PASS_ON(guard_decode_fill(h->g, &c, type, err));
    }
    if (old) {
        c = old->body;
        PASS_ON(guard_decode_old_fill(h->g, &c, type, err));
    }
    c = layout->body;
    return guard_check_layout(h->g, &c, &d, err);
}

static int check_header(struct header *h, struct guard_object *out, struct err *err)
{
    enum kind kind = GROUP;
    const struct message *type = find(h, MSG_TYPE);
    PASS_ON(kind_of(h, &kind, err));
    PASS_ON(check_rules(h, kind, err));
    if (type) {
        struct guard_cur c = type->body;
        PASS_ON(guard_type_or_shared(h->g, &c, type->flags & FLAG_SHARED, &out->type, err));
    }
    out->is_type = kind == TYPE;
    if (kind == DATASET)
        PASS_ON(check_dataset(h, &out->type, err));
    for (int64_t i = 0; i < h->n; i++)
        PASS_ON(check_message(h, &h->v[i], err));
    return 0;
}

/* ---- admission ------------------------------------------------------------------------------- */

static int read_object(struct h5guard *g, struct guard_object *out, struct err *err)
{
    struct header h = {.g = g, .at = out->at};
    uint8_t raw[16];
    int rc = 0;
    TRY(guard_peek(g, WHAT, out->at, sizeof raw, raw, err));
    if (memcmp(raw, "OHDR", 4) == 0)
        TRY(read_new(&h, raw, err));
    else
        TRY(read_old(&h, err));
    TRY(check_header(&h, out, err));
out:
    free(h.v);
    return rc;
}

int guard_admit(struct h5guard *g, uint64_t at, struct guard_object *out, struct err *err)
{
    struct guard_object *o = guard_object(g, at);
    int64_t before = g->n_claims;
    if (!o)
        return err_set(err, ERR_NOMEM, "metadata");
    *out = *o;
    if (o->state == GUARD_ADMITTED)
        return 0;
    if (o->state == GUARD_OPEN || g->depth >= GUARD_MAX_DEPTH)
        return guard_bad(WHAT, at, err, "committed types refer to each other in a circle");
    o->state = GUARD_OPEN;
    g->depth++;
    int rc = read_object(g, out, err);
    g->depth--;
    if (rc)
        guard_unclaim(g, before);
    out->state = rc ? GUARD_UNKNOWN : GUARD_ADMITTED;
    *o = *out;
    return rc;
}

int h5guard_admit(struct h5guard *g, uint64_t addr, struct err *err)
{
    struct guard_object o;
    return guard_admit(g, addr, &o, err);
}
