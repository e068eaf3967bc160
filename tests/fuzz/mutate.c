/*
 * mutate.c - the mutations of the fuzzers.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "core/rng.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define LEN_MAX (1 << 20) /* inputs do not grow beyond it */

uint64_t fuzz_u64(struct fuzz_rng *r)
{
    return rng_u64(r->seed, r->stream, r->n++);
}

uint64_t fuzz_below(struct fuzz_rng *r, uint64_t n)
{
    return n ? rng_below(r->seed, r->stream, r->n++, n) : 0;
}

void fuzz_splice(struct buf *x, size_t at, size_t drop, const void *src, size_t len)
{
    struct buf out = {0};
    if (at > x->len)
        at = x->len;
    if (drop > x->len - at)
        drop = x->len - at;
    if (x->len - drop + len > LEN_MAX)
        len = x->len - drop > LEN_MAX ? 0 : LEN_MAX - (x->len - drop);
    buf_put(&out, buf_str(x), at);
    if (len)
        buf_put(&out, src, len);
    buf_put(&out, buf_str(x) + at + drop, x->len - at - drop);
    buf_free(x);
    *x = out;
}

/* Mostly short, sometimes anything up to n. */
static size_t some_length(struct fuzz_rng *r, size_t n)
{
    size_t limit = fuzz_below(r, 4) ? 32 : n;
    return (size_t)fuzz_below(r, (limit < n ? limit : n) + 1);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static const uint64_t boundary[] = {
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    63,
    64,
    127,
    128,
    255,
    256,
    1000,
    4095,
    4096,
    32767,
    32768,
    65535,
    65536,
    99999999,
    100000000,
    100000001,
    0x7ffffffe,
    0x7fffffff,
    0x80000000,
    0xffffffff,
    1ull << 32,
    1ull << 40,
    1ull << 53,
    INT64_MAX / 8,
    INT64_MAX / 4,
    INT64_MAX,
    1ull << 63,
    UINT64_MAX,
    UINT64_MAX - 7,
};
enum { N_BOUNDARY = sizeof boundary / sizeof *boundary };

static void flip_bit(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    if (x->len)
        x->data[fuzz_below(r, x->len)] ^= (char)(1u << fuzz_below(r, 8));
}

static void set_byte(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    static const char odd[] = "\0\1\x7f\x80\xff {}[]\",:'\\0-\n";
    if (x->len)
        x->data[fuzz_below(r, x->len)] =
            fuzz_below(r, 2) ? odd[fuzz_below(r, sizeof odd - 1)] : (char)fuzz_u64(r);
}

static void cut(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    fuzz_splice(x, (size_t)fuzz_below(r, x->len + 1), x->len, NULL, 0);
}

static void delete_block(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    fuzz_splice(x, (size_t)fuzz_below(r, x->len + 1), some_length(r, x->len), NULL, 0);
}

static void insert_block(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    char block[512];
    size_t len = 1 + some_length(r, sizeof block - 1);
    char fill = (char)fuzz_u64(r);
    bool same = fuzz_below(r, 2);
    for (size_t i = 0; i < len; i++)
        block[i] = same ? fill : (char)fuzz_u64(r);
    fuzz_splice(x, (size_t)fuzz_below(r, x->len + 1), 0, block, len);
}

/* A block of `from` put into x: inserted or over what is there. */
static void take_block(struct fuzz_rng *r, struct buf *x, const struct buf *from)
{
    size_t at = (size_t)fuzz_below(r, from->len + 1), len = some_length(r, from->len - at);
    OWN(buf_free) struct buf copy = {0};
    buf_put(&copy, buf_str(from) + at, len);
    fuzz_splice(x, (size_t)fuzz_below(r, x->len + 1), fuzz_below(r, 2) ? len : 0, copy.data, len);
}

static void copy_block(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    take_block(r, x, x);
}

static void other_block(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    take_block(r, x, &c->seeds[fuzz_below(r, (uint64_t)c->n)]);
}

static void set_integer(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    size_t width = (size_t)1 << fuzz_below(r, 4);
    uint64_t v = boundary[fuzz_below(r, N_BOUNDARY)];
    bool big = fuzz_below(r, 4) == 0;
    if (x->len < width)
        return;
    size_t at = (size_t)fuzz_below(r, x->len - width + 1);
    if (fuzz_below(r, 2))
        at -= at % width;
    for (size_t i = 0; i < width; i++)
        x->data[at + (big ? width - 1 - i : i)] = (char)(v >> 8 * i & 0xff);
}

void fuzz_bytes(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    static void (*const how[])(struct fuzz_rng *, struct buf *, const struct fuzz_corpus *) = {
        flip_bit,     flip_bit,   set_byte,    set_byte,    cut,         delete_block,
        insert_block, copy_block, other_block, set_integer, set_integer, set_integer};
    how[fuzz_below(r, sizeof how / sizeof *how)](r, x, c);
}

/* ---- tokens --------------------------------------------------------------------------------- */

/* Token texts that readers stumble over. */
static const char *const odd_tokens[] = {
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "2",
    "-0",
    "0.0",
    "1.0",
    "0.5",
    "-0.5",
    "1e308",
    "1e-320",
    "1e999",
    "-1e999",
    "1E5",
    "NaN",
    "Infinity",
    "inf",
    "-inf",
    "nan",
    "00",
    "0x10",
    "2147483647",
    "2147483648",
    "-2147483648",
    "-2147483649",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "100000000",
    "1000000",
    "65536",
    "4096",
    "3",
    "\"\"",
    "\"a\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\u00e9\"",
    "\"\xff\"",
    "\"../x\"",
    "\"/\"",
    "[]",
    "{}",
    "[[]]",
    "[{}]",
    "[0]",
    "[-1]",
    "[1,2]",
    "{\"a\":1}",
    "{\"a\":{\"a\":{}}}",
    ",",
    ":",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "'",
    "\n",
    " ",
    "\t",
    "%",
    "%s%n",
    "8%",
    "..",
    "/log",
    "=",
    "off",
    "all",
    "True",
    "False",
    "()",
    "(1,)",
    "L",
};
enum { N_ODD = sizeof odd_tokens / sizeof *odd_tokens };

/* Texts of methods, and of parameters, that data may not hold, and some that are hard to read. */
static const char *const hostile_texts[] = {
    "exec:cmd=touch started",
    "exec:cmd=sh -c 'touch started':timeout=1",
    "exec",
    "cmd=touch started",
    "plan:file=plan.json:trust=1",
    "plan:file=/dev/fd/0",
    "plan@density_elem=0.3",
    "plan",
    "file=plan.json",
    "mask:file=/etc/passwd",
    "mask",
    "file=/etc/passwd:unit=1x1",
    "minference:table=/etc/passwd",
    "table=/etc/passwd",
    "sale:calib=calib.json",
    "calib=calib.json",
    "streaming:window=1..100000/lin10000",
    "streaming:window=1,2:sink=1,2",
    "streaming@density_elem=0.3:per=model",
    "window=-0",
    "window=0x10",
    "window=9223372036854775808",
    "tau=nan:tau=1e400",
    "fg-attn:permute=voxel:1x1x1",
    "streaming:window=64:window=65",
    "\\u0065xec:cmd=touch started",
    "exec:cmd=touch started\\u0000",
    "dense::::",
};
enum { N_HOSTILE = sizeof hostile_texts / sizeof *hostile_texts };

struct token {
    size_t at, len;
};

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '+' || c == '.' || c == '_' ||
           (unsigned char)c >= 0x80;
}

static size_t token_length(const char *s, size_t n)
{
    size_t i = 1;
    if (*s == '"' || *s == '\'') {
        while (i < n && s[i] != *s)
            i += s[i] == '\\' && i + 1 < n ? 2 : 1;
        return i < n ? i + 1 : n;
    }
    if (!is_word(*s))
        return 1;
    while (i < n && is_word(s[i]))
        i++;
    return i;
}

/* Up to `max` tokens of a stretch that begins at a random one when there are more. */
static int64_t tokenize(struct fuzz_rng *r, const struct buf *x, size_t begin, size_t end,
                        struct token *t, int64_t max)
{
    int64_t n = 0, skip = 0;
    size_t at = begin;
    if (end - begin > 8 * (size_t)max)
        skip = (int64_t)fuzz_below(r, (end - begin) / 8);
    while (at < end && n < max) {
        size_t len = token_length(x->data + at, end - at);
        bool space = x->data[at] == ' ' || x->data[at] == '\n';
        if (!space && skip-- <= 0)
            t[n++] = (struct token){at, len};
        at += len;
    }
    return n;
}

static void number_text(struct fuzz_rng *r, const struct buf *x, struct token t, struct buf *out)
{
    char text[32] = {0};
    memcpy(text, x->data + t.at, t.len < 31 ? t.len : 31);
    long long v = atoll(text);
    switch (fuzz_below(r, 5)) {
    case 0:
        buf_printf(out, "%llu", (unsigned long long)boundary[fuzz_below(r, N_BOUNDARY)]);
        break;
    case 1:
        buf_printf(out, "-%llu", (unsigned long long)boundary[fuzz_below(r, N_BOUNDARY)]);
        break;
    case 2:
        buf_printf(out, "%lld", v / 2 + (long long)fuzz_below(r, 3) - 1);
        break;
    case 3:
        buf_printf(out, "%s.5", text);
        break;
    default:
        buf_printf(out, "%llu", (unsigned long long)v + fuzz_below(r, 3) - 1);
    }
}

static void nest(struct fuzz_rng *r, struct buf *out)
{
    static const size_t depth[] = {3, 100, 2047, 2048, 2049, 20000};
    size_t n = depth[fuzz_below(r, sizeof depth / sizeof *depth)];
    bool object = fuzz_below(r, 2), closed = fuzz_below(r, 2);
    for (size_t i = 0; i < n; i++)
        buf_puts(out, object ? "{\"a\":" : "[");
    buf_puts(out, "0");
    for (size_t i = 0; closed && i < n; i++)
        buf_puts(out, object ? "}" : "]");
}

/* Exchange the runs a and b (a before b). */
static void swap_runs(const struct buf *x, struct token a, struct token b, struct buf *out)
{
    buf_put(out, x->data + b.at, b.len);
    buf_put(out, x->data + a.at + a.len, b.at - a.at - a.len);
    buf_put(out, x->data + a.at, a.len);
}

size_t fuzz_tokens(struct fuzz_rng *r, struct buf *x, size_t begin, size_t end)
{
    enum { MAX = 2048 };
    static struct token t[MAX];
    struct buf out = {0};
    size_t before = x->len;
    int64_t n = tokenize(r, x, begin, end, t, MAX);
    if (n == 0)
        return end;

    int64_t i = (int64_t)fuzz_below(r, (uint64_t)n);
    int64_t run = 1 + (int64_t)fuzz_below(r, fuzz_below(r, 3) ? 1 : 7);
    int64_t last = i + run <= n ? i + run - 1 : n - 1;
    int64_t j = (int64_t)fuzz_below(r, (uint64_t)n);
    struct token a = {t[i].at, t[last].at + t[last].len - t[i].at}, b = t[j], cut_out = a;
    bool digit = isdigit((unsigned char)x->data[a.at]) || x->data[a.at] == '-';

    if (x->data[a.at] == '"' && fuzz_below(r, 4) == 0) {
        buf_printf(&out, "\"%s\"", hostile_texts[fuzz_below(r, N_HOSTILE)]);
        fuzz_splice(x, a.at, t[i].len, buf_str(&out), out.len);
        buf_free(&out);
        return end + x->len - before;
    }
    switch (fuzz_below(r, digit ? 10 : 7)) {
    case 0: /* delete */
        break;
    case 1: /* double */
        buf_put(&out, x->data + a.at, a.len);
        cut_out.len = 0;
        break;
    case 2: /* another token in its place, or before it */
        buf_put(&out, x->data + b.at, b.len);
        cut_out.len = fuzz_below(r, 2) ? a.len : 0;
        break;
    case 3:
        if (b.at >= a.at + a.len) {
            swap_runs(x, a, b, &out);
            cut_out.len = b.at + b.len - a.at;
        } else if (b.at + b.len <= a.at) {
            swap_runs(x, b, a, &out);
            cut_out = (struct token){b.at, a.at + a.len - b.at};
        } else {
            cut_out.len = 0;
        }
        break;
    case 4:
        nest(r, &out);
        cut_out.len = fuzz_below(r, 2) ? a.len : 0;
        break;
    case 5:
    case 6:
        buf_puts(&out, odd_tokens[fuzz_below(r, N_ODD)]);
        cut_out.len = fuzz_below(r, 4) ? a.len : 0;
        break;
    default:
        cut_out = t[i];
        number_text(r, x, t[i], &out);
    }
    fuzz_splice(x, cut_out.at, cut_out.len, buf_str(&out), out.len);
    buf_free(&out);
    return end + x->len - before;
}
