/*
 * hash.c - XXH3-128 through libxxhash. The text form is the canonical big-endian one, so that it
 * equals what `xxhsum -H2` prints.
 */
#include "core/hash.h"

#include <stdio.h>
#include <xxhash.h>

/* struct hash_state is the library's XXH3_state_t. */

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
    XXH3_state_t *xxh = XXH3_createState();
    if (!xxh)
        return err_set(err, ERR_NOMEM, "hash state: out of memory");
    XXH3_128bits_reset(xxh);
    *out = (struct hash_state *)xxh;
    return 0;
}

void hash_update(struct hash_state *s, const void *data, size_t len)
{
    if (len)
        XXH3_128bits_update((XXH3_state_t *)s, data, len);
}

struct hash128 hash_digest(const struct hash_state *s)
{
    return from_xxh(XXH3_128bits_digest((const XXH3_state_t *)s));
}

void hash_free(struct hash_state *s)
{
    XXH3_freeState((XXH3_state_t *)s);
}

void hash_text(struct hash128 h, char text[HASH_TEXT_MAX])
{
    snprintf(text, HASH_TEXT_MAX, "xxh3:%016llx%016llx", (unsigned long long)h.hi,
             (unsigned long long)h.lo);
}
