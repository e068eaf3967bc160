/*
 * h5guard_type.c - datatype messages (IV.A.2.d).
 *
 * libhdf5 decodes them without any bound and converts values by what they say, so every field is
 * held against the size of the type.
 */
#include "core/h5guard/guard.h"

#include "core/mem.h"

#define WHAT "datatype"
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
        return guard_bad(WHAT, t->at, err, "a number of %lld bytes", (long long)t->out->size);
    if (precision < 1 || offset + precision > 8 * t->out->size)
        return guard_bad(WHAT, t->at, err, "%u bits at bit %u of %lld bytes", precision, offset,
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
        return guard_foreign(WHAT, t->at, err, "floats in the VAX byte order");
    if (norm == 1)
        return guard_foreign(WHAT, t->at, err, "floats whose first mantissa bit is set and stored");
    if (norm == 3 || esize < 1 || esize > 30 || msize < 1 || epos + esize > all ||
        mpos + msize > all || sign >= all || overlap(epos, esize, mpos, msize) ||
        overlap(sign, 1, mpos, msize) || overlap(sign, 1, epos, esize))
        return guard_bad(WHAT, t->at, err,
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
        return guard_bad(WHAT, t->at, err, "a name has no end");
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
        rc = guard_foreign(WHAT, t->at, err, "types of different versions in each other");
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
        return guard_bad(WHAT, t->at, err, "a compound without members");
    if (n > MEMBERS_MAX)
        return guard_foreign(WHAT, t->at, err, "a compound of %u members", n);
    for (unsigned i = 0; i < n; i++) {
        struct guard_type member = {0};
        if ((rc = name(t, err)) != 0)
            return rc;
        from[i] = (int64_t)guard_take(t->c, offset_bytes(t));
        if (t->version == 1) {
            unsigned dims = (unsigned)guard_take(t->c, 1);
            guard_bytes(t->c, 27);
            if (dims)
                return guard_foreign(WHAT, t->at, err, "arrays of compounds of version 1");
        }
        if ((rc = base(t, &member, err)) != 0)
            return rc;
        to[i] = from[i] + member.size;
        if (to[i] > t->out->size)
            return guard_bad(WHAT, t->at, err, "member %u lies outside the compound", i);
        for (unsigned j = 0; j < i; j++)
            if (from[i] < to[j] && from[j] < to[i])
                return guard_bad(WHAT, t->at, err, "members %u and %u overlap", j, i);
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
        return guard_bad(WHAT, t->at, err, "an enumeration of something else than integers");
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
        return guard_bad(WHAT, t->at, err, "variable length of kind %u with %lld bytes", kind,
                         (long long)t->out->size);
    if (kind == 1 && (element.size != 1 || (t->flags >> 4 & 15) > 2 || (t->flags >> 8 & 15) > 1))
        return guard_bad(WHAT, t->at, err, "a variable-length string of %lld-byte characters",
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
        return guard_bad(WHAT, t->at, err, "an array of rank %u in version %u", n, t->version);
    if (t->version < 3)
        guard_bytes(t->c, 3);
    for (unsigned i = 0; i < n; i++)
        if (!mul_ok(count, (int64_t)guard_take(t->c, 4), &count))
            return guard_bad(WHAT, t->at, err, "the size of an array overflows");
    if (t->version < 3)
        guard_bytes(t->c, 4 * n);
    if ((rc = base(t, &element, err)) != 0)
        return rc;
    if (!mul_ok(count, element.size, &count) || count != t->out->size)
        return guard_bad(WHAT, t->at, err, "an array of %lld bytes has elements of %lld",
                         (long long)t->out->size, (long long)element.size);
    return 0;
}

static int other(struct typing *t, struct err *err)
{
    unsigned low = t->flags & 15, high = t->flags >> 4 & 15;

    switch (t->out->class) {
    case CLASS_STRING:
        if (low > 2 || high > 1)
            return guard_bad(WHAT, t->at, err, "a string of padding %u, character set %u", low,
                             high);
        return 0;
    case CLASS_OPAQUE:
        guard_bytes(t->c, t->flags & 0xff);
        return 0;
    case CLASS_REFERENCE:
        if (low > 1)
            return guard_foreign(WHAT, t->at, err, "references of HDF5 1.12");
        if (t->out->size != (low ? 12 : 8))
            return guard_bad(WHAT, t->at, err, "a reference of %lld bytes",
                             (long long)t->out->size);
        t->out->indirect = true;
        return 0;
    default:
        return guard_foreign(WHAT, t->at, err, "a datatype of class %d", t->out->class);
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
        return guard_bad(WHAT, t.at, err, "it is cut off");
    if (t.version > 3)
        return guard_foreign(WHAT, t.at, err, "datatypes of version %u (HDF5 1.12 or later)",
                             t.version);
    if (t.version < 1 || out->size < 1 || out->size > INT32_MAX)
        return guard_bad(WHAT, t.at, err, "version %u, %lld bytes", t.version,
                         (long long)out->size);
    if (depth > GUARD_MAX_DEPTH)
        return guard_foreign(WHAT, t.at, err, "types nested more than %d deep", GUARD_MAX_DEPTH);
    int rc = decode_class(&t, err);
    if (rc == 0 && c->over)
        rc = guard_bad(WHAT, t.at, err, "it is cut off");
    return rc;
}

int guard_decode_type(struct h5guard *g, struct guard_cur *c, struct guard_type *out,
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
        return guard_decode_type(g, c, out, err);
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
