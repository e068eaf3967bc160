/*
 * sealed.c - the checksum is looked for at the end of the text, byte by byte as it is written here:
 * so it covers how the object is written, and no parser decides what it covers.
 */
#include "core/sealed.h"

#include "core/hash.h"

#include <stdio.h>
#include <string.h>

#define DIGEST_LEN 37  /* "xxh3:" and 32 digits */
#define FEW_WRONG 2    /* characters that damage may have changed in a sum that is still seen */
#define SUM_LEN_MAX 64 /* of the longer form */

/* What stands before and behind the digest: on one line, and indented by two. */
static const struct form {
    const char *open, *close;
} forms[] = {{",\"sum\":\"", "\"}"}, {",\n  \"sum\": \"", "\"\n}"}};

void seal_put(struct buf *b, size_t start)
{
    char digest[HASH_TEXT_MAX];
    if (b->failed)
        return;
    size_t end = b->len - 1; /* of the members */
    const struct form *f = &forms[end > start && b->data[end - 1] == '\n'];
    end -= f == &forms[1];
    hash_text(hash_bytes(b->data + start, end - start), digest);
    b->len = end;
    buf_printf(b, "%s%s%s", f->open, digest, f->close);
}

/* Characters of the tail that no sum in this form has there; all of them where the tail is too
 * short. */
static size_t wrong_characters(const struct form *f, const char *tail)
{
    static const char any_digest[] = "xxh3:hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh";
    char want[SUM_LEN_MAX];
    size_t wrong = 0, opens = strlen(f->open), n = opens + DIGEST_LEN + strlen(f->close);
    snprintf(want, sizeof want, "%s%s%s", f->open, any_digest, f->close);
    for (size_t i = 0; i < n; i++) {
        bool digit = i >= opens + 5 && i < opens + DIGEST_LEN;
        wrong += digit ? !tail[i] || !strchr("0123456789abcdef", tail[i]) : tail[i] != want[i];
    }
    return wrong;
}

enum seal seal_state(const char *text, size_t len)
{
    enum seal state = SEAL_ABSENT;
    len -= len && text[len - 1] == '\n';
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char digest[HASH_TEXT_MAX];
        const struct form *f = &forms[i];
        size_t n = strlen(f->open) + DIGEST_LEN + strlen(f->close);
        if (len < n)
            continue;
        size_t wrong = wrong_characters(f, text + len - n);
        if (wrong == 0) {
            hash_text(hash_bytes(text, len - n), digest);
            bool fits = memcmp(digest, text + len - n + strlen(f->open), DIGEST_LEN) == 0;
            return fits ? SEAL_FITS : SEAL_BROKEN;
        }
        if (wrong <= FEW_WRONG)
            state = SEAL_BROKEN;
    }
    return state;
}

int seal_json(const char *text, size_t len, const char *name, json_t **out, struct err *err)
{
    json_t *doc = NULL;
    PASS_ON(json_read_text(text, len, name, &doc, err));
    enum seal state = seal_state(text, len);
    const json_t *sum = json_object_get(doc, "sum");
    if (state == SEAL_ABSENT && sum && !json_is_null(sum))
        state = SEAL_BROKEN;
    if (state == SEAL_BROKEN) {
        json_decref(doc);
        return err_set(err, ERR_INPUT,
                       "%s: its checksum does not fit: it was damaged, or edited (then set \"sum\" "
                       "to null)",
                       name);
    }
    json_object_del(doc, "sum");
    *out = doc;
    return 0;
}

int seal_json_file(const char *path, size_t max, json_t **out, struct err *err)
{
    return json_file_by(seal_json, path, max, out, err);
}
