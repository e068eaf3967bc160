/*
 * h5guard_bytes.c - bytes of a guarded file: read once into pages of the guard, claimed by one
 * structure each, and served to libhdf5 from there.
 *
 * A page holds its bytes and one bit per byte: claimed or not. The bits find structures that
 * overlap, and keep unclaimed metadata away from libhdf5.
 */
#include "core/h5guard/guard.h"

#include "core/dtype.h"
#include "core/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 8192

struct guard_page {
    uint64_t number;
    uint64_t claimed[PAGE / 64];
    uint8_t data[PAGE];
};

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

/* ---- pages ----------------------------------------------------------------------------------- */

static size_t slot_of(uint64_t key, int bits)
{
    return (size_t)(key * 0x9e3779b97f4a7c15u >> (64 - bits));
}

static struct guard_page *find_page(const struct h5guard *g, uint64_t number)
{
    if (g->page_bits == 0)
        return NULL;
    size_t mask = ((size_t)1 << g->page_bits) - 1, i = slot_of(number, g->page_bits);
    while (g->pages[i] && g->pages[i]->number != number)
        i = (i + 1) & mask;
    return g->pages[i];
}

static bool grow_pages(struct h5guard *g)
{
    int bits = g->page_bits ? g->page_bits + 1 : 6;
    size_t n = (size_t)1 << bits, old = g->page_bits ? (size_t)1 << g->page_bits : 0;
    struct guard_page **fresh = calloc(n, sizeof *fresh);

    if (!fresh)
        return false;
    for (size_t k = 0; k < old; k++) {
        if (!g->pages[k])
            continue;
        size_t i = slot_of(g->pages[k]->number, bits);
        while (fresh[i])
            i = (i + 1) & (n - 1);
        fresh[i] = g->pages[k];
    }
    free(g->pages);
    g->pages = fresh;
    g->page_bits = bits;
    return true;
}

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

static int get_page(struct h5guard *g, uint64_t number, struct guard_page **out, struct err *err)
{
    struct guard_page *page = find_page(g, number);

    *out = page;
    if (page)
        return 0;
    if (2 * (g->n_pages + 1) >= (int64_t)1 << g->page_bits && !grow_pages(g))
        return err_set(err, ERR_NOMEM, "pages of metadata");
    page = calloc(1, sizeof *page);
    if (!page)
        return err_set(err, ERR_NOMEM, "pages of metadata");
    page->number = number;
    if (read_file(g, number * PAGE, PAGE, page->data) < 0) {
        free(page);
        return err_sys(err, ERR_IO, "reading metadata at offset %llu",
                       (unsigned long long)number * PAGE);
    }
    size_t mask = ((size_t)1 << g->page_bits) - 1, i = slot_of(number, g->page_bits);
    while (g->pages[i])
        i = (i + 1) & mask;
    g->pages[i] = page;
    g->n_pages++;
    *out = page;
    return 0;
}

/* The bits of one word that belong to bytes [from, to) of the page. */
static uint64_t word_mask(size_t word, size_t from, size_t to)
{
    size_t base = word * 64;
    if (from >= base + 64 || to <= base)
        return 0;
    size_t first = base > from ? 0 : from - base;
    size_t last = base + 64 < to ? 64 : to - base;
    uint64_t below = last == 64 ? UINT64_MAX : ((uint64_t)1 << last) - 1;
    return below & (UINT64_MAX << first);
}

static bool is_claimed(const struct guard_page *page, size_t from, size_t to)
{
    for (size_t w = from / 64; w * 64 < to; w++)
        if (page->claimed[w] & word_mask(w, from, to))
            return true;
    return false;
}

static void set_claimed(struct guard_page *page, size_t from, size_t to, bool yes)
{
    for (size_t w = from / 64; w * 64 < to; w++) {
        uint64_t mask = word_mask(w, from, to);
        page->claimed[w] = yes ? page->claimed[w] | mask : page->claimed[w] & ~mask;
    }
}

/* ---- claims ---------------------------------------------------------------------------------- */

bool guard_inside(const struct h5guard *g, uint64_t at, uint64_t n)
{
    return at <= g->end && n <= g->end - at;
}

int guard_peek(struct h5guard *g, const char *what, uint64_t at, size_t n, void *out,
               struct err *err)
{
    uint8_t *to = out;
    struct guard_page *page;

    if (!guard_inside(g, at, n))
        return guard_bad(what, at, err, "it lies past the end of the file (%llu bytes)",
                         (unsigned long long)g->end);
    while (n > 0) {
        size_t from = (size_t)(at % PAGE), part = PAGE - from < n ? PAGE - from : n;
        int rc = get_page(g, at / PAGE, &page, err);
        if (rc)
            return rc;
        memcpy(to, page->data + from, part);
        to += part;
        at += part;
        n -= part;
    }
    return 0;
}

static int remember_claim(struct h5guard *g, uint64_t at, size_t n, struct err *err)
{
    int rc =
        mem_grow(&g->claims, &g->cap_claims, g->n_claims + 1, sizeof *g->claims, "claims", err);
    if (rc == 0)
        g->claims[g->n_claims++] = (struct guard_claim){at, n};
    return rc;
}

static int mark(struct h5guard *g, const char *what, uint64_t at, size_t n, struct err *err)
{
    struct guard_page *page;
    uint64_t first = at;
    int rc;

    while (n > 0) {
        size_t from = (size_t)(at % PAGE), part = PAGE - from < n ? PAGE - from : n;
        if ((rc = get_page(g, at / PAGE, &page, err)) != 0)
            return rc;
        if (is_claimed(page, from, from + part))
            return guard_bad(what, first, err, "it overlaps another structure");
        if ((rc = remember_claim(g, at, part, err)) != 0)
            return rc;
        set_claimed(page, from, from + part, true);
        at += part;
        n -= part;
    }
    return 0;
}

/* Claimed bytes as one piece: in their page, or as a copy when they cross pages. */
static int as_one(struct h5guard *g, uint64_t at, size_t n, const uint8_t **out, struct err *err)
{
    struct guard_page *page;
    void *copy = NULL;
    int rc = 0;

    if (at % PAGE + n <= PAGE) {
        TRY(get_page(g, at / PAGE, &page, err));
        *out = page->data + at % PAGE;
        return 0;
    }
    TRY(mem_grow(&g->copies, &g->cap_copies, g->n_copies + 1, sizeof *g->copies, "metadata", err));
    TRY(mem_alloc(&copy, (int64_t)n, 1, "metadata", err));
    g->copies[g->n_copies++] = copy;
    TRY(guard_peek(g, "bytes", at, n, copy, err));
    *out = copy;
out:
    return rc;
}

int guard_claim(struct h5guard *g, const char *what, uint64_t at, uint64_t n, struct guard_cur *out,
                struct err *err)
{
    const uint8_t *p = NULL;
    int rc = 0;

    if (!guard_inside(g, at, n))
        return guard_bad(what, at, err, "%llu bytes reach past the end of the file (%llu bytes)",
                         (unsigned long long)n, (unsigned long long)g->end);
    if (n > GUARD_CLAIM_MAX)
        return guard_bad(what, at, err, "it has %llu bytes", (unsigned long long)n);
    TRY(mark(g, what, at, (size_t)n, err));
    TRY(as_one(g, at, (size_t)n, &p, err));
    *out = (struct guard_cur){.p = p, .at = at, .n = (size_t)n};
out:
    return rc;
}

int guard_claim_summed(struct h5guard *g, const char *what, uint64_t at, uint64_t n,
                       struct guard_cur *out, struct err *err)
{
    int rc = guard_claim(g, what, at, n, out, err);
    if (rc)
        return rc;
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
        struct guard_claim c = g->claims[--g->n_claims];
        size_t from = (size_t)(c.at % PAGE);
        set_claimed(find_page(g, c.at / PAGE), from, from + c.n, false);
    }
}

/* ---- objects --------------------------------------------------------------------------------- */

static bool grow_objects(struct h5guard *g)
{
    int bits = g->object_bits ? g->object_bits + 1 : 6;
    size_t n = (size_t)1 << bits, old = g->object_bits ? (size_t)1 << g->object_bits : 0;
    struct guard_object *fresh = malloc(n * sizeof *fresh);

    if (!fresh)
        return false;
    for (size_t i = 0; i < n; i++)
        fresh[i] = (struct guard_object){.at = GUARD_NOWHERE};
    for (size_t k = 0; k < old; k++) {
        if (g->objects[k].at == GUARD_NOWHERE)
            continue;
        size_t i = slot_of(g->objects[k].at, bits);
        while (fresh[i].at != GUARD_NOWHERE)
            i = (i + 1) & (n - 1);
        fresh[i] = g->objects[k];
    }
    free(g->objects);
    g->objects = fresh;
    g->object_bits = bits;
    return true;
}

struct guard_object *guard_object(struct h5guard *g, uint64_t at)
{
    if (2 * (g->n_objects + 1) >= (int64_t)1 << g->object_bits && !grow_objects(g))
        return NULL;
    size_t mask = ((size_t)1 << g->object_bits) - 1, i = slot_of(at, g->object_bits);
    while (g->objects[i].at != GUARD_NOWHERE && g->objects[i].at != at)
        i = (i + 1) & mask;
    if (g->objects[i].at == GUARD_NOWHERE) {
        g->objects[i].at = at;
        g->n_objects++;
    }
    return &g->objects[i];
}

/* ---- the driver's side ---------------------------------------------------------------------- */

/* Claimed bytes of a page over `out`; with `sieve`, zeros over the others. */
static void lay_over(const struct guard_page *page, size_t from, size_t n, bool sieve, uint8_t *out)
{
    if (!page && sieve)
        memset(out, 0, n);
    for (size_t i = 0; page && i < n;) {
        size_t b = from + i, word = b / 64;
        size_t run = 64 - b % 64 < n - i ? 64 - b % 64 : n - i;
        uint64_t mask = word_mask(word, b, b + run), bits = page->claimed[word] & mask;
        if (bits == mask)
            memcpy(out + i, page->data + b, run);
        else if (bits == 0 && sieve)
            memset(out + i, 0, run);
        for (size_t k = 0; bits != mask && (bits || sieve) && k < run; k++) {
            bool yes = page->claimed[word] >> ((b + k) % 64) & 1;
            if (yes || sieve)
                out[i + k] = yes ? page->data[b + k] : 0;
        }
        i += run;
    }
}

bool h5guard_read(struct h5guard *g, bool payload, uint64_t at, size_t n, void *out)
{
    uint8_t *to = out;

    errno = 0;
    if (at > g->size || n > g->size - at)
        return false;
    if (payload && read_file(g, at, n, to) != (ssize_t)n)
        return false;
    while (n > 0) {
        size_t from = (size_t)(at % PAGE), part = PAGE - from < n ? PAGE - from : n;
        lay_over(find_page(g, at / PAGE), from, part, !payload, to);
        to += part;
        at += part;
        n -= part;
    }
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
    for (size_t i = 0; g->page_bits && i < (size_t)1 << g->page_bits; i++)
        free(g->pages[i]);
    for (int64_t i = 0; i < g->n_copies; i++)
        free(g->copies[i]);
    free(g->pages);
    free(g->objects);
    free(g->claims);
    free(g->copies);
    close(g->fd);
    free(g);
}
