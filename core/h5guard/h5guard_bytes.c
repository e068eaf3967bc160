/*
 * h5guard_bytes.c - bytes of a guarded file: read once, claimed by one structure each, and served
 * to libhdf5 from there. Claims lie in a tree whose order finds those that overlap.
 */
#include "core/h5guard/guard.h"

#include "core/dtype.h"
#include "core/mem.h"

#include <errno.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- messages -------------------------------------------------------------------------------- */

int guard_bad(const char *what, uint64_t at, struct err *err, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(err, ERR_INPUT,
                   "the file is damaged: HDF5 %s at offset %llu: %s; copy it again from where it "
                   "is whole, or write it again",
                   what, (unsigned long long)at, text);
}

int guard_foreign(const char *what, uint64_t at, struct err *err, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(err, ERR_INPUT,
                   "the file uses %s (HDF5 %s at offset %llu), which lacuna does not read: "
                   "rewrite it with h5repack, or with h5py and libver=('earliest', 'v108')",
                   text, what, (unsigned long long)at);
}

/* ---- cursors --------------------------------------------------------------------------------- */

const uint8_t *guard_bytes(struct guard_cur *c, size_t n)
{
    if (c->over || n > c->n - c->i) {
        c->over = true;
        return NULL;
    }
    c->i += n;
    return c->p + c->i - n;
}

uint64_t guard_take(struct guard_cur *c, size_t n)
{
    const uint8_t *p = guard_bytes(c, n);
    return p ? little_endian(p, (int64_t)n) : 0;
}

struct guard_cur guard_part(struct guard_cur *c, size_t n)
{
    uint64_t at = c->at + c->i;
    const uint8_t *p = guard_bytes(c, n);
    return (struct guard_cur){.p = p, .at = at, .n = p ? n : 0, .over = !p};
}

const char *guard_string(struct guard_cur *c, size_t *len)
{
    const uint8_t *end = c->over || c->i == c->n ? NULL : memchr(c->p + c->i, 0, c->n - c->i);
    if (!end) {
        c->over = true;
        return NULL;
    }
    *len = (size_t)(end - (c->p + c->i));
    return (const char *)guard_bytes(c, *len + 1);
}

#define ROT(x, k) ((x) << (k) | (x) >> (32 - (k)))

/* Bob Jenkins, lookup3.c (2006, public domain), hashlittle() with byte reads. */
uint32_t guard_checksum(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint32_t a = 0xdeadbeef + (uint32_t)n, b = a, c = a;
    uint8_t last[12] = {0};
    uint32_t w[3];
    for (; n > 12; n -= 12, p += 12) {
        memcpy(w, p, sizeof w);
        a += w[0], b += w[1], c += w[2];
        a -= c, a ^= ROT(c, 4), c += b;
        b -= a, b ^= ROT(a, 6), a += c;
        c -= b, c ^= ROT(b, 8), b += a;
        a -= c, a ^= ROT(c, 16), c += b;
        b -= a, b ^= ROT(a, 19), a += c;
        c -= b, c ^= ROT(b, 4), b += a;
    }
    if (n == 0)
        return c;
    memcpy(last, p, n);
    memcpy(w, last, sizeof w);
    a += w[0], b += w[1], c += w[2];
    c ^= b, c -= ROT(b, 14);
    a ^= c, a -= ROT(c, 11);
    b ^= a, b -= ROT(a, 25);
    c ^= b, c -= ROT(b, 16);
    a ^= c, a -= ROT(c, 4);
    b ^= a, b -= ROT(a, 14);
    c ^= b, c -= ROT(b, 24);
    return c;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* What the file has of [at, at + n), the rest zero; returns how much that is, -1 on failure. */
static ssize_t read_file(const struct h5guard *g, uint64_t at, size_t n, uint8_t *out)
{
    size_t have = 0;
    while (have < n) {
        ssize_t got = pread(g->fd, out + have, n - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        have += (size_t)got;
    }
    memset(out + have, 0, n - have);
    return (ssize_t)have;
}

/* Through pages, so that what is claimed behind a peek are the bytes that were seen. */
static int read_pages(struct h5guard *g, uint64_t at, size_t n, uint8_t *out, struct err *err)
{
    while (n > 0) {
        uint64_t number = at / GUARD_PAGE;
        struct guard_page *page = &g->pages[number % GUARD_PAGES];
        size_t from = (size_t)(at % GUARD_PAGE),
               part = GUARD_PAGE - from < n ? GUARD_PAGE - from : n;
        if (page->number != number + 1) {
            page->number = 0;
            if (read_file(g, number * GUARD_PAGE, GUARD_PAGE, page->data) < 0)
                return err_sys(err, ERR_IO, "reading metadata at offset %llu",
                               (unsigned long long)at);
            page->number = number + 1;
        }
        memcpy(out, page->data + from, part);
        out += part;
        at += part;
        n -= part;
    }
    return 0;
}

bool guard_inside(const struct h5guard *g, uint64_t at, uint64_t n)
{
    return at <= g->end && n <= g->end - at;
}

int guard_peek(struct h5guard *g, const char *what, uint64_t at, size_t n, void *out,
               struct err *err)
{
    if (!guard_inside(g, at, n))
        return guard_bad(what, at, err, "it lies past the end of the file (%llu bytes)",
                         (unsigned long long)g->end);
    return read_pages(g, at, n, out, err);
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* Claims that overlap are equal. */
static int by_place(const void *a, const void *b)
{
    const struct guard_claim *x = a, *y = b;
    return x->at + x->n <= y->at ? -1 : y->at + y->n <= x->at;
}

static int add_claim(struct h5guard *g, const char *what, struct guard_claim *c, struct err *err)
{
    PASS_ON(read_pages(g, c->at, c->n, c->data, err));
    PASS_ON(
        mem_grow(&g->claims, &g->cap_claims, g->n_claims + 1, sizeof *g->claims, "claims", err));
    struct guard_claim **place = tsearch(c, &g->claimed, by_place);
    if (!place)
        return err_set(err, ERR_NOMEM, "metadata");
    if (*place != c)
        return guard_bad(what, c->at, err, "it overlaps another structure");
    g->claims[g->n_claims++] = c;
    return 0;
}

int guard_claim(struct h5guard *g, const char *what, uint64_t at, uint64_t n, struct guard_cur *out,
                struct err *err)
{
    struct guard_claim *c;
    int rc = 0;
    if (!guard_inside(g, at, n))
        return guard_bad(what, at, err, "%llu bytes reach past the end of the file (%llu bytes)",
                         (unsigned long long)n, (unsigned long long)g->end);
    if (n == 0 || n > GUARD_CLAIM_MAX)
        return guard_bad(what, at, err, "it has %llu bytes", (unsigned long long)n);
    if (!(c = malloc(sizeof *c + n)))
        return err_set(err, ERR_NOMEM, "metadata");
    c->at = at;
    c->n = (size_t)n;
    if ((rc = add_claim(g, what, c, err)) != 0)
        free(c);
    else
        *out = (struct guard_cur){.p = c->data, .at = at, .n = (size_t)n};
    return rc;
}

int guard_claim_summed(struct h5guard *g, const char *what, uint64_t at, uint64_t n,
                       struct guard_cur *out, struct err *err)
{
    PASS_ON(guard_claim(g, what, at, n, out, err));
    if (n < 4)
        return guard_bad(what, at, err, "it has %llu bytes", (unsigned long long)n);
    out->n -= 4;
    struct guard_cur sum = {.p = out->p + out->n, .n = 4};
    if (guard_take(&sum, 4) != guard_checksum(out->p, out->n))
        return guard_bad(what, at, err, "its checksum is wrong");
    return 0;
}

void guard_unclaim(struct h5guard *g, int64_t first)
{
    while (g->n_claims > first) {
        OWN(free_at) struct guard_claim *c = g->claims[--g->n_claims];
        tdelete(c, &g->claimed, by_place);
    }
}

/* ---- objects --------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    const struct guard_object *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

struct guard_object *guard_object(struct h5guard *g, uint64_t at)
{
    struct guard_object **found = tfind(&(struct guard_object){.at = at}, &g->objects, by_address);
    struct guard_object *o = found ? *found : calloc(1, sizeof *o);
    if (!o || found)
        return o;
    o->at = at;
    if (tsearch(o, &g->objects, by_address))
        return o;
    free(o);
    return NULL;
}

/* ---- the driver's side ---------------------------------------------------------------------- */

/* The claimed bytes of [at, at + n) into their places in out. */
static void lay_over(struct h5guard *g, uint64_t at, size_t n, uint8_t *out)
{
    struct guard_claim **found =
        n ? tfind(&(struct guard_claim){.at = at, .n = n}, &g->claimed, by_place) : NULL;
    if (!found)
        return;
    const struct guard_claim *c = *found;
    uint64_t from = c->at > at ? c->at : at;
    uint64_t to = c->at + c->n < at + n ? c->at + c->n : at + n;
    memcpy(out + (from - at), c->data + (from - c->at), (size_t)(to - from));
    lay_over(g, at, (size_t)(from - at), out);
    lay_over(g, to, (size_t)(at + n - to), out + (to - at));
}

bool h5guard_read(struct h5guard *g, bool payload, uint64_t at, size_t n, void *out)
{
    errno = 0;
    if (at > g->size || n > g->size - at)
        return false;
    if (payload && read_file(g, at, n, out) != (ssize_t)n)
        return false;
    if (!payload)
        memset(out, 0, n);
    lay_over(g, at, n, out);
    return true;
}

uint64_t h5guard_size(const struct h5guard *g)
{
    return g->size;
}

int *h5guard_fd(struct h5guard *g)
{
    return &g->fd;
}

void h5guard_free(struct h5guard *g)
{
    if (!g)
        return;
    tdestroy(g->claimed, free);
    tdestroy(g->objects, free);
    free(g->claims);
    close(g->fd);
    free(g);
}
