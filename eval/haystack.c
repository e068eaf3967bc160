/*
 * haystack.c - see haystack.h.
 */
#include "eval/haystack.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/rng.h"
#include "eval/evaltask.h"
#include "eval/haysource.h"

#include <stdlib.h>
#include <string.h>

/* ---- random numbers and words --------------------------------------------------------------- */

struct draws draws_of(uint64_t seed, enum draw_task task, int purpose, int64_t sample)
{
    uint64_t stream = ((uint64_t)task << 48) + ((uint64_t)purpose << 40) + (uint64_t)sample;
    return (struct draws){seed, stream, 0};
}

uint64_t draw(struct draws *d, uint64_t n)
{
    return rng_below(d->seed, d->stream, d->count++, n);
}

int64_t draw_number(struct draws *d, int digits)
{
    int64_t low = 1;
    for (int i = 1; i < digits; i++)
        low *= 10;
    return low + (int64_t)draw(d, (uint64_t)(9 * low));
}

double draw_place(struct draws *d)
{
    return (double)draw(d, (uint64_t)1 << 32) * 0x1p-32;
}

void draw_word(struct draws *d, int syllables, char word[16])
{
    static const char consonants[] = "bdfghklmnprstvwz", vowels[] = "aeiou";
    int n = 0, m = syllables ? syllables : 2 + (int)draw(d, 2);
    for (int i = 0; i < m; i++) {
        uint64_t k = draw(d, 80);
        word[n++] = consonants[k / 5];
        word[n++] = vowels[k % 5];
    }
    word[n] = '\0';
}

/* ---- lines ---------------------------------------------------------------------------------- */

void lines_free(struct lines *l)
{
    buf_free(&l->text);
    free(l->start);
    memset(l, 0, sizeof *l);
}

int lines_add(struct lines *l, const char *text, size_t len, struct err *err)
{
    int rc = 0;
    TRY(mem_grow(&l->start, &l->cap, l->n + 2, sizeof *l->start, "lines", err));
    l->start[l->n++] = (int64_t)l->text.len;
    buf_put(&l->text, text, len);
    TRY(buf_check(&l->text, "lines", err));
    l->start[l->n] = (int64_t)l->text.len;
out:
    return rc;
}

int lines_read(struct lines *l, const char *path, char hash[40], struct err *err)
{
    struct buf text = {0};
    int rc = 0;

    TRY(buf_read_file(&text, path, EVAL_TEXT_MAX, err));
    hash_text(hash_bytes(buf_str(&text), text.len), hash);
    for (size_t at = 0; at < text.len;) {
        const char *end = memchr(text.data + at, '\n', text.len - at);
        if (!end) { /* a last line without a newline gets one */
            buf_puts(&text, "\n");
            TRY(buf_check(&text, path, err));
            end = text.data + text.len - 1;
        }
        size_t len = (size_t)(end - (text.data + at)) + 1;
        TRY(lines_add(l, text.data + at, len, err));
        at += len;
    }
    if (l->n == 0)
        FAIL(err, ERR_INPUT, "%s: no line to hide anything between", path);
out:
    buf_free(&text);
    return rc;
}

/* ---- generated text ------------------------------------------------------------------------- */

static int add_line(struct haystack *h, struct buf *b, struct err *err)
{
    buf_puts(b, "\n");
    int rc = buf_check(b, "haystack", err);
    rc = rc ? rc : lines_add(&h->lines, b->data, b->len, err);
    buf_reset(b);
    return rc;
}

/* One statement of a function, a line or two. */
static int add_statement(struct haystack *h, const char *p, const char *a, const char *i,
                         struct buf *b, struct err *err)
{
    char w[16];
    int k = (int)draw(&h->d, 6), rc = 0;
    draw_word(&h->d, 0, w);
    int n = (int)draw(&h->d, 256);

    switch (k) {
    case 0:
        buf_printf(b, "\t%s->%s = %d;", p, w, n);
        break;
    case 1:
        buf_printf(b, "\tif (%s->%s > %d)", p, w, n);
        TRY(add_line(h, b, err));
        buf_puts(b, "\t\treturn -1;");
        break;
    case 2:
        buf_printf(b, "\t%s->%s += %s;", p, w, a);
        break;
    case 3:
        buf_printf(b, "\tfor (%s = 0; %s < %d; %s++)", i, i, n, i);
        TRY(add_line(h, b, err));
        buf_printf(b, "\t\t%s->%s ^= %s;", p, w, i);
        break;
    case 4:
        buf_printf(b, "\t%s = %s(%s, %d);", a, w, p, n);
        break;
    default:
        buf_printf(b, "\twhile (%s > %d)", a, n);
        TRY(add_line(h, b, err));
        buf_printf(b, "\t\t%s -= %s->%s;", a, p, w);
        break;
    }
    TRY(add_line(h, b, err));
out:
    return rc;
}

static int add_function(struct haystack *h, struct buf *b, struct err *err)
{
    char f1[16], f2[16], t[16], p[16], a[16], i[16];
    int rc = 0;

    draw_word(&h->d, 0, f1);
    draw_word(&h->d, 0, f2);
    draw_word(&h->d, 0, t);
    draw_word(&h->d, 2, p);
    draw_word(&h->d, 2, a);
    draw_word(&h->d, 2, i);
    int statements = 2 + (int)draw(&h->d, 4);
    buf_printf(b, "static int %s_%s(struct %s *%s, int %s)", f1, f2, t, p, a);
    TRY(add_line(h, b, err));
    buf_puts(b, "{");
    TRY(add_line(h, b, err));
    buf_printf(b, "\tint %s = 0;", i);
    TRY(add_line(h, b, err));
    TRY(add_line(h, b, err));
    for (int k = 0; k < statements; k++)
        TRY(add_statement(h, p, a, i, b, err));
    buf_printf(b, "\treturn %s;", a);
    TRY(add_line(h, b, err));
    buf_puts(b, "}");
    TRY(add_line(h, b, err));
    TRY(add_line(h, b, err));
out:
    return rc;
}

static int add_sentence(struct haystack *h, struct buf *b, struct err *err)
{
    static const char *const adjectives[] = {
        "old",   "quiet",   "bright", "narrow", "heavy",  "gentle", "distant",  "empty",
        "early", "careful", "broken", "golden", "simple", "hidden", "northern", "patient"};
    static const char *const nouns[] = {
        "river",  "garden", "teacher", "machine", "window", "letter", "market", "engine",
        "bridge", "farmer", "station", "picture", "doctor", "forest", "harbor", "kitchen"};
    static const char *const verbs[] = {
        "follows", "reaches", "watches", "repairs",   "remembers", "crosses", "measures", "paints",
        "visits",  "carries", "changes", "describes", "leaves",    "answers", "guards",   "finds"};
    static const char *const ends[] = {"", " every morning", " before the winter",
                                       " without a word"};
    const char *a = adjectives[draw(&h->d, 16)], *n = nouns[draw(&h->d, 16)];
    const char *v = verbs[draw(&h->d, 16)], *a2 = adjectives[draw(&h->d, 16)];
    const char *n2 = nouns[draw(&h->d, 16)], *x = ends[draw(&h->d, 4)];
    buf_printf(b, "The %s %s %s the %s %s%s.", a, n, v, a2, n2, x);
    return add_line(h, b, err);
}

void haystack_init(struct haystack *h, enum domain domain, const struct lines *file, uint64_t seed,
                   int64_t sample)
{
    static const int purposes[] = {
        [DOMAIN_C] = DRAW_C, [DOMAIN_EN] = DRAW_EN, [DOMAIN_SOURCE] = DRAW_SOURCE};
    int purpose = file ? DRAW_START : purposes[domain];
    *h = (struct haystack){.domain = domain, .file = file};
    h->d = draws_of(seed, DRAW_HAYSTACK, purpose, sample);
    if (file)
        h->next = (int64_t)draw(&h->d, (uint64_t)file->n);
}

void haystack_free(struct haystack *h)
{
    lines_free(&h->lines);
}

int haystack_need(struct haystack *h, int64_t n, struct err *err)
{
    struct buf b = {0};
    int rc = 0;

    while (h->lines.n < n) {
        if (h->file) {
            size_t len;
            const char *line = line_at(h->file, h->next, &len);
            TRY(lines_add(&h->lines, line, len, err));
            h->next = (h->next + 1) % h->file->n;
        } else if (h->domain == DOMAIN_SOURCE) {
            TRY(haystack_add_source(h, err));
        } else if (h->domain == DOMAIN_C) {
            TRY(add_function(h, &b, err));
        } else {
            TRY(add_sentence(h, &b, err));
        }
    }
out:
    buf_free(&b);
    return rc;
}
