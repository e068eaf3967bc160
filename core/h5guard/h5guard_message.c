/*
 * h5guard_message.c - messages that describe a dataset, an attribute or a link. Strings of variable
 * length lie in a global heap, which nothing here admits: lacuna refuses such an attribute by its
 * type, and to libhdf5 its value would be zeros.
 */
#include "core/h5guard/guard.h"

#include "core/mem.h"

#include <string.h>

/* ---- datatype (IV.A.2.d) ----------------------------------------------------------------------
 *
 * libhdf5 decodes them without any bound and converts values by what they say, so every field is
 * held against the size of the type. */

#define TYPE "datatype"

enum {
    CLASS_INTEGER,
    CLASS_FLOAT,
    CLASS_TIME,
    CLASS_STRING,
    CLASS_BITFIELD,
    CLASS_OPAQUE,
    CLASS_ENUM = 8,
    CLASS_VLEN,
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
    PASS_ON(bits(t, err));
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

static int enumeration(struct typing *t, struct err *err)
{
    unsigned n = t->flags & 0xffff;
    struct guard_type parent = {0};
    PASS_ON(base(t, &parent, err));
    if (parent.class != CLASS_INTEGER || parent.size != t->out->size)
        return guard_bad(TYPE, t->at, err, "an enumeration of something else than integers");
    for (unsigned i = 0; i < n; i++)
        PASS_ON(name(t, err));
    guard_bytes(t->c, (size_t)(n * parent.size));
    return 0;
}

static int variable(struct typing *t, struct err *err)
{
    unsigned kind = t->flags & 15;
    struct guard_type element = {0};
    PASS_ON(base(t, &element, err));
    if (kind != 1)
        return guard_foreign(TYPE, t->at, err, "a variable number of elements");
    if (t->out->size != 16 || element.size != 1 || (t->flags >> 4 & 15) > 2 ||
        (t->flags >> 8 & 15) > 1)
        return guard_bad(TYPE, t->at, err, "a variable-length string of %lld-byte characters",
                         (long long)element.size);
    t->out->indirect = true;
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
    case CLASS_ENUM:
        return enumeration(t, err);
    case CLASS_VLEN:
        return variable(t, err);
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
    PASS_ON(decode_class(&t, err));
    if (c->over)
        return guard_bad(TYPE, t.at, err, "it is cut off");
    return 0;
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
    PASS_ON(guard_admit(g, at, &o, err));
    if (!o.is_type)
        PASS_ON(guard_bad("shared datatype", where, err,
                          "there is no committed type at offset %llu", (unsigned long long)at));
    *out = o.type;
    return 0;
}

/* ---- dataspace (IV.A.2.b) -------------------------------------------------------------------- */

static int space_shape(struct guard_cur *c, bool has_max, struct guard_space *s, struct err *err)
{
    uint64_t at = c->at, n[GUARD_MAX_RANK];
    for (int i = 0; i < s->rank; i++) {
        n[i] = guard_take(c, 8);
        if (n[i] > INT64_MAX || !mul_ok(s->count, (int64_t)n[i], &s->count))
            return guard_bad("dataspace", at, err, "the number of elements overflows");
    }
    for (int i = 0; i < s->rank && has_max; i++)
        if (guard_take(c, 8) < n[i])
            return guard_bad("dataspace", at, err, "dimension %d exceeds its maximum", i);
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
    int rc = space_shape(c, flags & 1, out, err);
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

/* ---- attribute (IV.A.2.m) -------------------------------------------------------------------- */

static struct guard_cur attribute_part(struct guard_cur *c, unsigned version, size_t n)
{
    struct guard_cur part = guard_part(c, n);
    if (version == 1)
        guard_bytes(c, -n % 8);
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
    guard_bytes(c, (size_t)bytes);
    return c->over ? guard_bad("attribute", c->at, err, "its value does not fit the message") : 0;
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
