/* XXH3-128: known digests, streaming equals one call, files; the key set built on it. */
#include "tests/harness/suite.h"

#include "core/hash.h"
#include "core/strmap.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *data, *text;
} known[] = {
    /* printed by xxhsum -H2 */
    {"", "xxh3:99aa06d3014798d86001c324468d497f"},
    {"a", "xxh3:a96faf705af16834e6c632b61e964e1f"},
};

TEST(known_digests)
{
    char text[HASH_TEXT_MAX];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        hash_text(hash_bytes(known[i].data, strlen(known[i].data)), text);
        ck_assert_str_eq(text, known[i].text);
    }
}

TEST(streaming_in_any_pieces_equals_one_call)
{
    enum { N = 5000 };
    unsigned char data[N];
    struct err e = {0};
    for (int i = 0; i < N; i++)
        data[i] = (unsigned char)(i * 7 + i / 256);
    struct hash128 want = hash_bytes(data, N);
    for (int piece = 1; piece < N; piece = piece * 3 + 1) {
        struct hash_state *s = NULL;
        assert_ok(hash_new(&s, &e), &e);
        for (int at = 0; at < N; at += piece)
            hash_update(s, data + at, (size_t)(at + piece < N ? piece : N - at));
        struct hash128 got = hash_digest(s);
        ck_assert(got.hi == want.hi && got.lo == want.lo);
        hash_free(s);
    }
    hash_free(NULL);
}

TEST(key_set_finds_what_was_put_and_nothing_else)
{
    enum { N = 20000 };
    OWN(strmap_free) struct strmap s = {0};
    struct err e = {0};
    char text[32];
    ck_assert_int_eq(strmap_get(&s, "none"), -1);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "key %d", i);
        assert_ok(strmap_put(&s, text, i, &e), &e);
    }
    assert_ok(strmap_put(&s, "key 7", 0, &e), &e);
    ck_assert_int_eq(s.n, N);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "key %d", i);
        ck_assert_int_eq(strmap_get(&s, text), i == 7 ? 0 : i);
        snprintf(text, sizeof text, "kez %d", i);
        ck_assert_int_eq(strmap_get(&s, text), -1);
    }
}
