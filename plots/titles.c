/*
 * titles.c - shares that are not rounded away and parameters without what does not differ.
 */
#include "plots/titles.h"

#include "analyze/params.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void title_share(double x, int digits, char text[16])
{
    double step = 1;
    for (int i = 0; i < digits; i++)
        step /= 10;
    snprintf(text, 16, "%.*f", digits, x);
    if (x > 0 && strtod(text, NULL) == 0)
        snprintf(text, 16, "<%.*f", digits, step);
    else if (x < 1 && strtod(text, NULL) == 1)
        snprintf(text, 16, ">%.*f", digits, 1 - step);
}

void title_sentence(const char *title, struct buf *out)
{
    size_t word = strcspn(title, " ,;:");
    bool name = memchr(title, '_', word) != NULL;
    char first[2] = {(char)(name ? title[0] : toupper((unsigned char)title[0])), '\0'};
    buf_puts(out, first);
    buf_puts(out, title[0] ? title + 1 : "");
}

void title_cut(const char *text, size_t most, struct buf *out)
{
    size_t len = strlen(text), tail = most > 3 ? (most - 3) / 2 : 0;
    if (len <= most || most <= 3) {
        buf_puts(out, text);
        return;
    }
    buf_put(out, text, most - 3 - tail);
    buf_puts(out, "...");
    buf_puts(out, text + len - tail);
}

/* ---- parameters ---------------------------------------------------------------------------- */

#define KEYS_MOST 64 /* more parameters than any method has */

/* A key, "tau", that stands in a text of the caller. */
struct key {
    const char *at;
    size_t len;
    bool hidden;
};

struct keys {
    struct key k[KEYS_MOST];
    int n;
};

static const char *params_of(const struct title_params *t)
{
    return t->params ? t->params : "";
}

static bool has_word(const char *params, const char *word, size_t len)
{
    size_t n;
    for (const char *w; (w = params_next(&params, &n));)
        if (n == len && strncmp(w, word, len) == 0)
            return true;
    return false;
}

static bool all_have(const struct title_params *t, int n, const char *word, size_t len)
{
    for (int i = 0; i < n; i++)
        if (!has_word(params_of(&t[i]), word, len))
            return false;
    return true;
}

static void write_shared(const struct title_params *t, int n, struct buf *shared)
{
    const char *p = params_of(&t[0]);
    size_t len;
    for (const char *w; (w = params_next(&p, &len));)
        if (all_have(t, n, w, len)) {
            buf_puts(shared, shared->len ? ":" : "");
            buf_put(shared, w, len);
        }
}

static struct key *find_key(struct keys *keys, const char *word, size_t len)
{
    size_t k = strcspn(word, "=");
    k = k < len ? k : len;
    for (int i = 0; i < keys->n; i++)
        if (keys->k[i].len == k && strncmp(keys->k[i].at, word, k) == 0)
            return &keys->k[i];
    if (keys->n == KEYS_MOST)
        return NULL;
    keys->k[keys->n] = (struct key){word, k, false};
    return &keys->k[keys->n++];
}

/* Parameters of a panel that not all have, in place of hidden ones an ellipsis. */
static void write_params(const struct title_params *t, const char *shared, struct keys *keys,
                         struct buf *b)
{
    const char *p = params_of(t);
    bool gap = false;
    size_t len;
    buf_reset(b);
    for (const char *w; (w = params_next(&p, &len));) {
        if (has_word(shared, w, len))
            continue;
        const struct key *key = find_key(keys, w, len);
        bool hide = key && key->hidden;
        if (!hide || !gap) {
            buf_puts(b, b->len ? ":" : "");
            buf_put(b, hide ? "..." : w, hide ? 3 : len);
        }
        gap = hide;
    }
}

/* Write all texts; the length of the longest, or 0 when two panels that differ look the same. */
static size_t write_all(struct title_params *t, int n, const char *shared, struct keys *keys)
{
    struct buf b = {0};
    size_t longest = 1;
    bool same = false;
    for (int i = 0; i < n; i++) {
        write_params(&t[i], shared, keys, &b);
        longest = b.len > longest ? b.len : longest;
        snprintf(t[i].text, sizeof t[i].text, "%s", buf_str(&b));
        for (int k = 0; k < i; k++)
            same |= strcmp(t[i].text, t[k].text) == 0 && strcmp(t[i].above, t[k].above) == 0 &&
                    strcmp(params_of(&t[i]), params_of(&t[k])) != 0;
    }
    buf_free(&b);
    return same ? 0 : longest;
}

void title_params(struct title_params *t, int n, size_t most, struct buf *shared)
{
    struct keys keys = {0};
    struct buf own = {0}, cut = {0};
    if (n < 1)
        return;
    write_shared(t, n, &own);
    size_t longest = write_all(t, n, buf_str(&own), &keys);
    for (int i = keys.n - 1; i >= 0 && longest > most; i--) {
        keys.k[i].hidden = true;
        size_t now = write_all(t, n, buf_str(&own), &keys);
        keys.k[i].hidden = now > 0;
        longest = now ? now : longest;
    }
    for (int i = 0; i < keys.n && longest <= most; i++) { /* what was hidden in vain */
        bool was = keys.k[i].hidden;
        keys.k[i].hidden = false;
        keys.k[i].hidden = was && write_all(t, n, buf_str(&own), &keys) > most;
    }
    write_all(t, n, buf_str(&own), &keys);
    for (int i = 0; i < n; i++) {
        buf_reset(&cut);
        title_cut(t[i].text, most, &cut);
        snprintf(t[i].text, sizeof t[i].text, "%s", buf_str(&cut));
    }
    buf_puts(shared, buf_str(&own));
    buf_free(&own);
    buf_free(&cut);
}
