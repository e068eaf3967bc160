/*
 * hash.c - XXH3-128 through libxxhash. The text form is the canonical big-endian one, so that it
 * equals what `xxhsum -H2` prints.
 */
#include "core/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

struct hash_state {
    XXH3_state_t *xxh;
};

static struct hash128 from_xxh(XXH128_hash_t h)
{
    return (struct hash128){.hi = h.high64, .lo = h.low64};
}

struct hash128 hash_bytes(const void *data, size_t len)
{
    return from_xxh(XXH3_128bits(data, len));
}

int hash_new(struct hash_state **out, struct err *err)
{
    struct hash_state *s = malloc(sizeof *s);
    XXH3_state_t *xxh = s ? XXH3_createState() : NULL;
    if (!xxh) {
        free(s);
        return err_set(err, ERR_NOMEM, "hash state: out of memory");
    }
    XXH3_128bits_reset(xxh);
    s->xxh = xxh;
    *out = s;
    return 0;
}

void hash_update(struct hash_state *s, const void *data, size_t len)
{
    if (len)
        XXH3_128bits_update(s->xxh, data, len);
}

struct hash128 hash_digest(const struct hash_state *s)
{
    return from_xxh(XXH3_128bits_digest(s->xxh));
}

void hash_free(struct hash_state *s)
{
    if (!s)
        return;
    XXH3_freeState(s->xxh);
    free(s);
}

void hash_text(struct hash128 h, char text[HASH_TEXT_MAX])
{
    snprintf(text, HASH_TEXT_MAX, "xxh3:%016llx%016llx", (unsigned long long)h.hi,
             (unsigned long long)h.lo);
}

int hash_file(const char *path, struct hash128 *out, struct err *err)
{
    enum { CHUNK = 1 << 20 };
    int rc = 0;
    struct hash_state *s = NULL;
    char *chunk = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, ERR_INPUT, "%s: cannot open", path);
    TRY(hash_new(&s, err));
    if (!(chunk = malloc(CHUNK)))
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = err_sys(err, ERR_IO, "%s: cannot read", path);
            goto out;
        }
        if (n == 0)
            break;
        hash_update(s, chunk, (size_t)n);
    }
    *out = hash_digest(s);
out:
    close(fd);
    free(chunk);
    hash_free(s);
    return rc;
}
