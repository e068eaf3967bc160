#include "core/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* `out` is a pointer to any object pointer; memcpy keeps strict aliasing rules. */
static void put_pointer(void *out, void *p)
{
    memcpy(out, &p, sizeof p);
}

int mem_alloc(void *out, int64_t n, size_t size, const char *what, struct err *err)
{
    int64_t bytes;
    if (!mul_ok(n, (int64_t)size, &bytes) || bytes > INT64_MAX - 64)
        return err_set(err, ERR_NOMEM, "%s: %lld x %zu bytes is more than can be addressed", what,
                       (long long)n, size);
    void *p = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64 + (bytes == 0 ? 64 : 0));
    if (!p)
        return err_set(err, ERR_NOMEM, "%s: cannot allocate %lld bytes", what, (long long)bytes);
    put_pointer(out, p);
    return 0;
}

int mem_zalloc(void *out, int64_t n, size_t size, const char *what, struct err *err)
{
    void *p = NULL;
    PASS_ON(mem_alloc(&p, n, size, what, err));
    memset(p, 0, (size_t)n * size);
    put_pointer(out, p);
    return 0;
}

int mem_dup(void *out, const char *text, const char *what, struct err *err)
{
    char *p = strdup(text);
    put_pointer(out, p);
    return p ? 0 : err_set(err, ERR_NOMEM, "%s: out of memory", what);
}

int mem_grow(void *p, int64_t *cap, int64_t need, size_t size, const char *what, struct err *err)
{
    if (need <= *cap)
        return 0;
    int64_t n = *cap > 0 ? *cap : 16, bytes;
    while (n < need)
        n = n > INT64_MAX / 2 ? need : n * 2;
    void *old;
    memcpy(&old, p, sizeof old);
    void *grown = mul_ok(n, (int64_t)size, &bytes) ? realloc(old, (size_t)bytes) : NULL;
    if (!grown)
        return err_set(err, ERR_NOMEM, "%s: cannot grow to %lld elements", what, (long long)n);
    put_pointer(p, grown);
    *cap = n;
    return 0;
}

static _Atomic bool was_short;

void mem_note_short(void)
{
    was_short = true;
}

int mem_check_short(struct err *err)
{
    return was_short ? err_set(err, ERR_NOMEM, "out of memory: something would be missing") : 0;
}

void mem_return_large_blocks(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    mallopt(M_TRIM_THRESHOLD, 16 << 20);
#endif
}

int64_t mem_peak_rss(void)
{
    struct rusage ru;
    return getrusage(RUSAGE_SELF, &ru) == 0 ? (int64_t)ru.ru_maxrss * 1024 : 0;
}
