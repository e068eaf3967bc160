/*
 * h5guard_message.c - messages that describe a dataset, an attribute or a link, and the global heap
 * that holds variable-length strings.
 */
#include "core/h5guard/guard.h"

#include "core/mem.h"

#include <string.h>

/* ---- datatype (IV.A.2.d) ----------------------------------------------------------------------
 *
 * libhdf5 decodes them without any bound and converts values by what they say, so every field is
 * held against the size of the type. */

#define TYPE "datatype"
#define MEMBERS_MAX 512

enum {
    CLASS_INTEGER,
    CLASS_FLOAT,
    CLASS_TIME,
    CLASS_STRING,
    CLASS_BITFIELD,
    CLASS_OPAQUE,
    CLASS_COMPOUND,
    CLASS_REFERENCE,
    CLASS_ENUM,
    CLASS_VLEN,
    CLASS_ARRAY,
};

/* One type while it is decoded; `version` is 1 to 3, `flags` the 24 bits of the class. */
struct typing {
    struct h5guard *g;
    struct guard_cur *c;
    struct guard_type *out;
    uint64_t at;
    unsigned version, flags;
    int depth;
};

static int decode(struct h5guard *g, struct guard_cur *c, int depth, struct guard_type *out,
                  unsigned *version, struct err *err);

/* ---- numbers --------------------------------------------------------------------------------- */

static int bits(struct typing *t, struct err *err)
{
    unsigned offset = (unsigned)guard_take(t->c, 2), precision = (unsigned)guard_take(t->c, 2);

    if (t->out->size > 16)
        return guard_bad(TYPE, t->at, err, "a number of %lld bytes", (long long)t->out->size);
    if (precision < 1 || offset + precision > 8 * t->out->size)
        return guard_bad(TYPE, t->at, err, "%u bits at bit %u of %lld bytes", precision, offset,
                         (long long)t->out->size);
    return 0;
}

static bool overlap(unsigned a, unsigned na, unsigned b, unsigned nb)
{
    return a < b + nb && b < a + na;
}

static int real(struct typing *t, struct err *err)
{
    unsigned sign = t->flags >> 8 & 0xff, norm = t->flags >> 4 & 3;
    int rc = bits(t, err);
    if (rc)
        return rc;
    unsigned epos = (unsigned)guard_take(t->c, 1), esize = (unsigned)guard_take(t->c, 1);
    unsigned mpos = (unsigned)guard_take(t->c, 1), msize = (unsigned)guard_take(t->c, 1);
    unsigned all = (unsigned)(8 * t->out->size);
    guard_take(t->c, 4); /* bias */

    if (t->version >= 3 && (t->flags & 0x40))
        return guard_foreign(TYPE, t->at, err, "floats in the VAX byte order");
    if (norm == 1)
        return guard_foreign(TYPE, t->at, err, "floats whose first mantissa bit is set and stored");
    if (norm == 3 || esize < 1 || esize > 30 || msize < 1 || epos + esize > all ||
        mpos + msize > all || sign >= all || overlap(epos, esize, mpos, msize) ||
        overlap(sign, 1, mpos, msize) || overlap(sign, 1, epos, esize))
        return guard_bad(TYPE, t->at, err,
                         "a float of %u bits with sign %u, exponent %u+%u, mantissa %u+%u", all,
                         sign, epos, esize, mpos, msize);
    return 0;
}

/* ---- types of types -------------------------------------------------------------------------- */

/* A name that ends with NUL and, before version 3, is padded to a multiple of 8. */
static int name(struct typing *t, struct err *err)
{
    size_t len = 0;
    if (!guard_string(t->c, &len))
        return guard_bad(TYPE, t->at, err, "a name has no end");
    if (t->version < 3)
        guard_bytes(t->c, 7 - len % 8);
    return 0;
}

/* The type below another one, which must not be of a later version. */
static int base(struct typing *t, struct guard_type *out, struct err *err)
{
    unsigned version = 0;
    int rc = decode(t->g, t->c, t->depth + 1, out, &version, err);
    if (rc == 0 && version > t->version)
        rc = guard_foreign(TYPE, t->at, err, "types of different versions in each other");
    t->out->indirect |= rc == 0 && out->indirect;
    return rc;
}

/* Width of the offset of a member: as many bytes as the size of the compound needs. */
static size_t offset_bytes(const struct typing *t)
{
    size_t n = 1;
    for (int64_t rest = t->out->size >> 8; rest > 0; rest >>= 8)
        n++;
    return t->version >= 3 ? n : 4;
}

static int compound(struct typing *t, struct err *err)
{
    unsigned n = t->flags & 0xffff;
    int64_t from[MEMBERS_MAX], to[MEMBERS_MAX];
    int rc;

    if (n == 0)
        return guard_bad(TYPE, t->at, err, "a compound without members");
    if (n > MEMBERS_MAX)
        return guard_foreign(TYPE, t->at, err, "a compound of %u members", n);
    for (unsigned i = 0; i < n; i++) {
        struct guard_type member = {0};
        if ((rc = name(t, err)) != 0)
            return rc;
        from[i] = (int64_t)guard_take(t->c, offset_bytes(t));
        if (t->version == 1) {
            unsigned dims = (unsigned)guard_take(t->c, 1);
            guard_bytes(t->c, 27);
            if (dims)
                return guard_foreign(TYPE, t->at, err, "arrays of compounds of version 1");
        }
        if ((rc = base(t, &member, err)) != 0)
            return rc;
        to[i] = from[i] + member.size;
        if (to[i] > t->out->size)
            return guard_bad(TYPE, t->at, err, "member %u lies outside the compound", i);
        for (unsigned j = 0; j < i; j++)
            if (from[i] < to[j] && from[j] < to[i])
                return guard_bad(TYPE, t->at, err, "members %u and %u overlap", j, i);
    }
    return 0;
}

static int enumeration(struct typing *t, struct err *err)
{
    unsigned n = t->flags & 0xffff;
    struct guard_type parent = {0};
    int rc = base(t, &parent, err);

    if (rc)
        return rc;
    if (parent.class != CLASS_INTEGER || parent.size != t->out->size)
        return guard_bad(TYPE, t->at, err, "an enumeration of something else than integers");
    for (unsigned i = 0; i < n; i++)
        if ((rc = name(t, err)) != 0)
            return rc;
    guard_bytes(t->c, (size_t)(n * parent.size));
    return 0;
}

static int variable(struct typing *t, struct err *err)
{
    unsigned kind = t->flags & 15;
    struct guard_type element = {0};
    int rc = base(t, &element, err);

    if (rc)
        return rc;
    if (kind > 1 || t->out->size != 16)
        return guard_bad(TYPE, t->at, err, "variable length of kind %u with %lld bytes", kind,
                         (long long)t->out->size);
    if (kind == 1 && (element.size != 1 || (t->flags >> 4 & 15) > 2 || (t->flags >> 8 & 15) > 1))
        return guard_bad(TYPE, t->at, err, "a variable-length string of %lld-byte characters",
                         (long long)element.size);
    t->out->text = kind == 1;
    t->out->indirect = true;
    return 0;
}

static int array(struct typing *t, struct err *err)
{
    unsigned n = (unsigned)guard_take(t->c, 1);
    int64_t count = 1;
    struct guard_type element = {0};
    int rc;

    if (t->version < 2 || n < 1 || n > GUARD_MAX_RANK)
        return guard_bad(TYPE, t->at, err, "an array of rank %u in version %u", n, t->version);
    if (t->version < 3)
        guard_bytes(t->c, 3);
    for (unsigned i = 0; i < n; i++)
        if (!mul_ok(count, (int64_t)guard_take(t->c, 4), &count))
            return guard_bad(TYPE, t->at, err, "the size of an array overflows");
    if (t->version < 3)
        guard_bytes(t->c, 4 * n);
    if ((rc = base(t, &element, err)) != 0)
        return rc;
    if (!mul_ok(count, element.size, &count) || count != t->out->size)
        return guard_bad(TYPE, t->at, err, "an array of %lld bytes has elements of %lld",
                         (long long)t->out->size, (long long)element.size);
    return 0;
}

static int other(struct typing *t, struct err *err)
{
    unsigned low = t->flags & 15, high = t->flags >> 4 & 15;

    switch (t->out->class) {
    case CLASS_STRING:
        if (low > 2 || high > 1)
            return guard_bad(TYPE, t->at, err, "a string of padding %u, character set %u", low,
                             high);
        return 0;
    case CLASS_OPAQUE:
        guard_bytes(t->c, t->flags & 0xff);
        return 0;
    case CLASS_REFERENCE:
        if (low > 1)
            return guard_foreign(TYPE, t->at, err, "references of HDF5 1.12");
        if (t->out->size != (low ? 12 : 8))
            return guard_bad(TYPE, t->at, err, "a reference of %lld bytes",
                             (long long)t->out->size);
        t->out->indirect = true;
        return 0;
    default:
        return guard_foreign(TYPE, t->at, err, "a datatype of class %d", t->out->class);
    }
}

static int decode_class(struct typing *t, struct err *err)
{
    switch (t->out->class) {
    case CLASS_INTEGER:
    case CLASS_BITFIELD:
        return bits(t, err);
    case CLASS_FLOAT:
        return real(t, err);
    case CLASS_COMPOUND:
        return compound(t, err);
    case CLASS_ENUM:
        return enumeration(t, err);
    case CLASS_VLEN:
        return variable(t, err);
    case CLASS_ARRAY:
        return array(t, err);
    default:
        return other(t, err);
    }
}

static int decode(struct h5guard *g, struct guard_cur *c, int depth, struct guard_type *out,
                  unsigned *version, struct err *err)
{
    struct typing t = {.g = g, .c = c, .out = out, .at = c->at + c->i, .depth = depth};
    uint64_t head = guard_take(c, 4);

    *out = (struct guard_type){.class = (int)(head & 15), .size = (int64_t)guard_take(c, 4)};
    t.version = *version = head >> 4 & 15;
    t.flags = (unsigned)(head >> 8);
    if (c->over)
        return guard_bad(TYPE, t.at, err, "it is cut off");
    if (t.version > 3)
        return guard_foreign(TYPE, t.at, err, "datatypes of version %u (HDF5 1.12 or later)",
                             t.version);
    if (t.version < 1 || out->size < 1 || out->size > INT32_MAX)
        return guard_bad(TYPE, t.at, err, "version %u, %lld bytes", t.version,
                         (long long)out->size);
    if (depth > GUARD_MAX_DEPTH)
        return guard_foreign(TYPE, t.at, err, "types nested more than %d deep", GUARD_MAX_DEPTH);
    int rc = decode_class(&t, err);
    if (rc == 0 && c->over)
        rc = guard_bad(TYPE, t.at, err, "it is cut off");
    return rc;
}

static int decode_type(struct h5guard *g, struct guard_cur *c, struct guard_type *out,
                       struct err *err)
{
    unsigned version;
    return decode(g, c, 0, out, &version, err);
}

int guard_type_or_shared(struct h5guard *g, struct guard_cur *c, bool shared,
                         struct guard_type *out, struct err *err)
{
    uint64_t where = c->at + c->i;
    struct guard_object o;

    if (!shared)
        return decode_type(g, c, out, err);
    unsigned version = (unsigned)guard_take(c, 1), kind = (unsigned)guard_take(c, 1);
    if (version == 1)
        guard_bytes(c, 14);
    uint64_t at = guard_take(c, 8);
    if (c->over || version < 1 || version > 3)
        return guard_bad("shared datatype", where, err, "version %u", version);
    if (version == 3 && kind != 2)
        return guard_foreign("shared datatype", where, err, "a heap of shared messages");
    int rc = guard_admit(g, at, &o, err);
    if (rc == 0 && !o.is_type)
        rc = guard_bad("shared datatype", where, err, "there is no committed type at offset %llu",
                       (unsigned long long)at);
    if (rc == 0)
        *out = o.type;
    return rc;
}

/* ---- dataspace (IV.A.2.b) -------------------------------------------------------------------- */

static int space_shape(struct h5guard *g, struct guard_cur *c, bool has_max, struct guard_space *s,
                       struct err *err)
{
    uint64_t at = c->at;

    for (int i = 0; i < s->rank; i++) {
        uint64_t n = guard_take(c, 8);
        s->dims[i] = (int64_t)n;
        s->max[i] = n;
        if (n > INT64_MAX || !mul_ok(s->count, s->dims[i], &s->count))
            return guard_bad("dataspace", at, err, "the number of elements overflows");
    }
    for (int i = 0; i < s->rank && has_max; i++) {
        s->max[i] = guard_take(c, 8);
        if (s->max[i] < (uint64_t)s->dims[i])
            return guard_bad("dataspace", at, err, "dimension %d exceeds its maximum", i);
    }
    return c->over ? guard_bad("dataspace", at, err, "it is cut off") : 0;
}

int guard_decode_space(struct h5guard *g, struct guard_cur *c, struct guard_space *out,
                       struct err *err)
{
    uint64_t at = c->at + c->i;
    unsigned version = (unsigned)guard_take(c, 1), rank = (unsigned)guard_take(c, 1);
    unsigned flags = (unsigned)guard_take(c, 1), kind = (unsigned)guard_take(c, 1);

    memset(out, 0, sizeof *out);
    if (version < 1 || version > 2 || rank > GUARD_MAX_RANK)
        return guard_bad("dataspace", at, err, "version %u, rank %u", version, rank);
    if (flags & ~1u)
        return guard_foreign("dataspace", at, err, "permuted dimensions");
    if (version == 1) {
        guard_bytes(c, 4);
        kind = rank > 0;
    }
    if (kind > 2 || (kind == 1) != (rank > 0))
        return guard_bad("dataspace", at, err, "kind %u, rank %u", kind, rank);
    out->rank = (int)rank;
    out->null = kind == 2;
    out->count = 1;
    int rc = space_shape(g, c, flags & 1, out, err);
    if (out->null)
        out->count = 0;
    return rc;
}

/* ---- filter pipeline (IV.A.2.l) -------------------------------------------------------------- */

int guard_decode_filters(struct h5guard *g, struct guard_cur *c, int *n, struct err *err)
{
    unsigned version = (unsigned)guard_take(c, 1), count = (unsigned)guard_take(c, 1);

    if (version < 1 || version > 2 || count > 32)
        return guard_bad("filter pipeline", c->at, err, "version %u, %u filters", version, count);
    if (version == 1)
        guard_bytes(c, 6);
    for (unsigned i = 0; i < count; i++) {
        unsigned id = (unsigned)guard_take(c, 2);
        size_t name = version == 2 && id < 256 ? 0 : (size_t)guard_take(c, 2), len = 0;
        guard_bytes(c, 2); /* flags */
        size_t values = (size_t)guard_take(c, 2);
        struct guard_cur text = guard_part(c, name);
        if ((name && !guard_string(&text, &len)) || (version == 1 && name % 8))
            return guard_bad("filter pipeline", c->at, err, "filter %u: its name has no end", i);
        guard_bytes(c, 4 * values + (version == 1 && values % 2 ? 4 : 0));
    }
    *n = (int)count;
    return c->over ? guard_bad("filter pipeline", c->at, err, "it is cut off") : 0;
}

/* ---- fill value (IV.A.2.e, f) ---------------------------------------------------------------- */

static int check_fill(struct h5guard *g, struct guard_cur *c, uint64_t size,
                      const struct guard_type *type, struct err *err)
{
    guard_bytes(c, (size_t)size);
    if (c->over || (size && size != (uint64_t)type->size))
        return guard_bad("fill value", c->at, err, "it has %llu bytes, an element has %lld",
                         (unsigned long long)size, (long long)type->size);
    if (size && type->indirect)
        return guard_foreign("fill value", c->at, err, "a fill value of variable length");
    return 0;
}

int guard_decode_fill(struct h5guard *g, struct guard_cur *c, const struct guard_type *type,
                      struct err *err)
{
    unsigned version = (unsigned)guard_take(c, 1), first = (unsigned)guard_take(c, 1);
    unsigned alloc = first & 3, when = first >> 2 & 3;
    bool has = false;

    if (version < 1 || version > 3)
        return guard_bad("fill value", c->at, err, "version %u", version);
    if (version == 3) {
        has = first & 0x20;
        if ((first & 0xc0) || (has && (first & 0x10)))
            return guard_bad("fill value", c->at, err, "flags 0x%x", first);
    } else {
        alloc = first;
        when = (unsigned)guard_take(c, 1);
        has = guard_take(c, 1);
    }
    if (alloc < 1 || alloc > 3 || when > 2)
        return guard_bad("fill value", c->at, err, "allocation %u, writing %u", alloc, when);
    uint64_t size = has ? guard_take(c, 4) : 0;
    if (version == 3 && has && size == 0)
        return guard_bad("fill value", c->at, err, "it has no bytes");
    return check_fill(g, c, size, type, err);
}

int guard_decode_old_fill(struct h5guard *g, struct guard_cur *c, const struct guard_type *type,
                          struct err *err)
{
    return check_fill(g, c, guard_take(c, 4), type, err);
}

/* ---- global heap (III.E) --------------------------------------------------------------------- */

#define COLLECTION "global heap collection"

static uint64_t padded(uint64_t n)
{
    return (n + 7) & ~(uint64_t)7;
}

/* The objects of a collection; with index > 0 the size of that one goes to *size. */
static int walk_collection(struct h5guard *g, struct guard_cur *c, unsigned index, uint64_t *size,
                           struct err *err)
{
    uint8_t seen[65536 / 8] = {0};
    bool found = index == 0;

    while (c->n - c->i >= 16) {
        size_t left = c->n - c->i;
        unsigned i = (unsigned)guard_take(c, 2);
        guard_bytes(c, 6);
        uint64_t n = guard_take(c, 8), need = i ? padded(n) : n - 16;
        if (n > left || (i == 0 && n < 16) || need > left - 16 || seen[i / 8] >> i % 8 & 1)
            return guard_bad(COLLECTION, c->at, err, "object %u has %llu bytes", i,
                             (unsigned long long)n);
        seen[i / 8] |= (uint8_t)(1 << i % 8);
        if (i == index && i > 0) {
            *size = n;
            found = true;
        }
        guard_bytes(c, (size_t)need);
    }
    if (c->n > c->i && (seen[0] & 1))
        return guard_bad(COLLECTION, c->at, err, "two free spaces");
    return found ? 0 : guard_bad(COLLECTION, c->at, err, "object %u is missing", index);
}

static int open_collection(struct h5guard *g, uint64_t at, struct guard_cur *c, struct err *err)
{
    uint8_t raw[16];
    struct guard_object *o = guard_object(g, at);
    int rc = o ? 0 : err_set(err, ERR_NOMEM, "metadata");

    if (rc == 0)
        rc = guard_peek(g, COLLECTION, at, sizeof raw, raw, err);
    if (rc)
        return rc;
    struct guard_cur head = {.p = raw, .at = at, .n = sizeof raw};
    const uint8_t *magic = guard_bytes(&head, 4);
    uint64_t version = guard_take(&head, 4), n = guard_take(&head, 8);
    if (memcmp(magic, "GCOL", 4) != 0 || version != 1 || n < 4096 || n > GUARD_CLAIM_MAX || n % 8)
        return guard_bad(COLLECTION, at, err, "its head is wrong");
    if (o->state == GUARD_UNKNOWN) {
        rc = guard_claim(g, COLLECTION, at, n, c, err);
        o->state = rc == 0 ? GUARD_ADMITTED : GUARD_UNKNOWN;
    } else {
        rc = guard_copy(g, COLLECTION, at, (size_t)n, c, err);
    }
    if (rc == 0)
        guard_bytes(c, 16);
    return rc;
}

static int check_texts(struct h5guard *g, struct guard_cur *c, int64_t n, struct err *err)
{
    for (int64_t k = 0; k < n; k++) {
        uint64_t where = c->at + c->i, len = guard_take(c, 4), at = guard_take(c, 8), size = 0;
        unsigned index = (unsigned)guard_take(c, 4);
        struct guard_cur heap = {0};
        if (at == 0 && len == 0)
            continue;
        if (at == 0 || index == 0 || index > UINT16_MAX)
            return guard_bad("variable-length string", where, err, "%llu bytes in object %u",
                             (unsigned long long)len, index);
        int rc = open_collection(g, at, &heap, err);
        if (rc == 0)
            rc = walk_collection(g, &heap, index, &size, err);
        if (rc == 0 && size != len)
            rc = guard_bad("variable-length string", where, err, "%llu bytes, its object has %llu",
                           (unsigned long long)len, (unsigned long long)size);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- attribute (IV.A.2.m) -------------------------------------------------------------------- */

static struct guard_cur attribute_part(struct guard_cur *c, unsigned version, size_t n)
{
    struct guard_cur part = guard_part(c, n);
    if (version == 1)
        guard_bytes(c, (size_t)(padded(n) - n));
    return part;
}

int guard_decode_attribute(struct h5guard *g, struct guard_cur *c, struct err *err)
{
    unsigned version = (unsigned)guard_take(c, 1), flags = (unsigned)guard_take(c, 1);
    size_t name = (size_t)guard_take(c, 2), type = (size_t)guard_take(c, 2);
    size_t space = (size_t)guard_take(c, 2), len = 0;
    struct guard_type t = {0};
    struct guard_space s = {0};
    int64_t bytes;
    int rc;

    if (version < 1 || version > 3 || (version >= 2 && (flags & ~3u)))
        return guard_bad("attribute", c->at, err, "version %u, flags 0x%x", version, flags);
    if (version >= 2 && (flags & 2))
        return guard_foreign("attribute", c->at, err, "a shared dataspace");
    if (version == 3 && guard_take(c, 1) > 1)
        return guard_bad("attribute", c->at, err, "the character set of its name is unknown");
    struct guard_cur names = attribute_part(c, version, name);
    struct guard_cur types = attribute_part(c, version, type);
    struct guard_cur spaces = attribute_part(c, version, space);
    if (c->over || !guard_string(&names, &len) || len + 1 != name)
        return guard_bad("attribute", c->at, err, "its name or its sizes are wrong");
    if ((rc = guard_type_or_shared(g, &types, version >= 2 && (flags & 1), &t, err)) != 0 ||
        (rc = guard_decode_space(g, &spaces, &s, err)) != 0)
        return rc;
    if (!mul_ok(s.count, t.size, &bytes) || bytes > UINT16_MAX + (int64_t)1)
        return guard_bad("attribute", c->at, err, "its value does not fit the message");
    struct guard_cur value = guard_part(c, (size_t)bytes);
    if (c->over)
        return guard_bad("attribute", c->at, err, "its value does not fit the message");
    return t.text ? check_texts(g, &value, s.count, err) : 0;
}

/* ---- link (IV.A.2.g) ------------------------------------------------------------------------- */

static int check_target(struct h5guard *g, struct guard_cur *c, unsigned kind, struct err *err)
{
    size_t len = 0;

    if (kind == 0)
        return guard_inside(g, guard_take(c, 8), 16) && !c->over
                   ? 0
                   : guard_bad("link", c->at, err, "it points outside the file");
    if (kind != 1 && kind != 64)
        return guard_foreign("link", c->at, err, "a link of the user-defined class %u", kind);
    size_t n = (size_t)guard_take(c, 2);
    struct guard_cur value = guard_part(c, n);
    if (c->over || n == 0)
        return guard_bad("link", c->at, err, "its target is cut off");
    if (kind == 1)
        return 0;
    guard_bytes(&value, 1); /* version and flags of an external link: file and object follow */
    return guard_string(&value, &len) && guard_string(&value, &len)
               ? 0
               : guard_bad("link", c->at, err, "its external target has no end");
}

int guard_decode_link(struct h5guard *g, struct guard_cur *c, struct err *err)
{
    unsigned version = (unsigned)guard_take(c, 1), flags = (unsigned)guard_take(c, 1);
    unsigned kind = flags & 8 ? (unsigned)guard_take(c, 1) : 0;

    if (version != 1 || (flags & ~0x1fu))
        return guard_bad("link", c->at, err, "version %u, flags 0x%x", version, flags);
    if (flags & 4)
        guard_bytes(c, 8); /* creation order */
    if ((flags & 16) && guard_take(c, 1) > 1)
        return guard_bad("link", c->at, err, "the character set of its name is unknown");
    uint64_t len = guard_take(c, (size_t)1 << (flags & 3));
    if (c->over || len == 0 || len > c->n - c->i)
        return guard_bad("link", c->at, err, "a name of %llu characters", (unsigned long long)len);
    const uint8_t *name = guard_bytes(c, (size_t)len);
    if (memchr(name, 0, (size_t)len))
        return guard_bad("link", c->at, err, "its name contains NUL");
    return check_target(g, c, kind, err);
}
