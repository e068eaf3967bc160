/* Generated prompts: the random numbers, words and items that the format fixes, and properties that
 * every prompt has. Lengths are ids of code-lm's tokenizer. */
#include "capture/tokenizer.h"
#include "core/rng.h"
#include "eval/prompt.h"
#include "tests/harness/suite.h"

#include <stdlib.h>
#include <string.h>

static struct err err;
static struct tokenizer *tok;

static int count(void *ctx, const char *text, size_t len, int64_t *n, struct err *e)
{
    int32_t *ids = NULL;
    int rc = tokenizer_encode_plain(tok, text, len, &ids, n, e);
    free(ids);
    *n += 1; /* the id of the beginning */
    return rc;
}

static void make(const char *task, int64_t tokens, double depth, int64_t sample, uint64_t seed,
                 struct prompt *p)
{
    struct prompt_spec s;
    if (!tok)
        assert_ok(tokenizer_open("datasets/models/code-lm", &tok, &err), &err);
    assert_ok(prompt_spec_parse(task, "c", &s, &err), &err);
    assert_ok(prompt_make(&s, NULL, tokens, depth, sample, seed, count, NULL, p, &err), &err);
}

TEST(random_numbers)
{
    ck_assert_uint_eq(rng_u64(0, 0, 0), 0x568a9b0b1a2c05ec);
    ck_assert_uint_eq(rng_u64(1, 2, 3), 0xb122fe6e54f918bd);
    ck_assert_uint_eq(rng_u64(7, (uint64_t)1 << 40, 0), 0xb56aad9edf2c9687);
}

TEST(haystacks)
{
    static const char begin[] = "static int kasibo_hute(struct vazonu *labe, int venu)\n{\n"
                                "\tint dofi = 0;\n\n\tlabe->wopu += venu;\n";
    struct haystack h;
    haystack_init(&h, DOMAIN_C, NULL, 7, 0);
    assert_ok(haystack_need(&h, 1000, &err), &err);
    ck_assert_int_eq(strncmp(h.lines.text.data, begin, strlen(begin)), 0);
    ck_assert_int_eq(h.lines.start[1000], 16895);
    haystack_free(&h);
    haystack_init(&h, DOMAIN_EN, NULL, 7, 0);
    assert_ok(haystack_need(&h, 1000, &err), &err);
    ck_assert_int_eq(strncmp(h.lines.text.data, "The bright bridge finds the heavy river.\n", 41),
                     0);
    ck_assert_int_eq(h.lines.start[1000], 56980);
    haystack_free(&h);
}
/* Whole files, whose functions use their own structure's fields. */
TEST(haystack_of_source)
{
    static const char begin[] = "// sound/range/map_event.c\n/*\n * Init the dirty group before "
                                "the index is remote.\n";
    OWN(haystack_free) struct haystack h;
    haystack_init(&h, DOMAIN_SOURCE, NULL, 7, 0);
    assert_ok(haystack_need(&h, 1000, &err), &err);
    ck_assert_int_eq(strncmp(h.lines.text.data, begin, strlen(begin)), 0);
    ck_assert_int_eq(h.lines.start[1000], 19619);
}

/* Lines of a file come from a drawn line on, around its end. */
TEST(haystack_of_a_file)
{
    OWN(lines_free) struct lines file = {0};
    OWN(haystack_free) struct haystack h;
    assert_ok(lines_add(&file, "a\n", 2, &err), &err);
    assert_ok(lines_add(&file, "b\n", 2, &err), &err);
    assert_ok(lines_add(&file, "c\n", 2, &err), &err);
    haystack_init(&h, DOMAIN_C, &file, 7, 3);
    assert_ok(haystack_need(&h, 7, &err), &err);
    const char *start = strstr("abcabcabc", (char[]){h.lines.text.data[0], '\0'});
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(h.lines.text.data[2 * i], start[i % 3]);
}

TEST(items)
{
    struct prompt p;
    make("needle", 512, 0.5, 0, 7, &p);
    ck_assert_str_eq(p.answers.items[0], " 85704610");
    ck_assert_ptr_nonnull(strstr(buf_str(&p.text), "/* needle 26250: 85704610 */\n"));
    prompt_free(&p);
    make("needle", 512, 0.5, 1, 7, &p);
    ck_assert_str_eq(p.answers.items[0], " 63147068");
    prompt_free(&p);
    make("multi", 1024, 0.5, 0, 7, &p);
    ck_assert_str_eq(p.answers.items[0], " 26847497");
    ck_assert_ptr_nonnull(strstr(buf_str(&p.text), "/* needle 80793: 72620108 */\n"));
    ck_assert_ptr_nonnull(strstr(buf_str(&p.text), "/* needle 27915: 89489253 */\n"));
    ck_assert_int_eq(p.wrong.n, 7);
    prompt_free(&p);
    make("chain", 512, 0, 0, 7, &p);
    ck_assert_str_eq(p.keys.items[0], "45021");
    ck_assert_str_eq(p.answers.items[0], "19059363");
    ck_assert_str_eq(p.keys.items[1], "19059");
    ck_assert_str_eq(p.answers.items[3], "93200635");
    prompt_free(&p);
}

/* Lines, ids and the gap of the needle, as the format fixes them. */
TEST_N(lengths_and_depths, 3)
{
    static const struct {
        int64_t tokens, lines, ids, gap;
        double depth;
    } want[] = {
        {2048, 232, 2015, 116, 0.5}, {8192, 949, 8176, 237, 0.25}, {32768, 3805, 32735, 1903, 0.5}};
    OWN(prompt_free) struct prompt p;
    int64_t ids, line = 0;
    make("needle", want[_i].tokens, want[_i].depth, 0, 7, &p);
    ck_assert_int_eq(p.lines, want[_i].lines);
    assert_ok(count(NULL, p.text.data, p.text.len, &ids, &err), &err);
    ck_assert_int_eq(ids, want[_i].ids);
    const char *needle = strstr(p.text.data, "/* needle");
    for (const char *s = p.text.data; s < needle; s++)
        line += *s == '\n';
    ck_assert_int_eq(line, want[_i].gap);
}

static int64_t occurrences(const char *text, const char *what)
{
    int64_t n = 0;
    for (const char *s = text; (s = strstr(s, what)) != NULL; s++)
        n++;
    return n;
}

/* The prompt leaves room for the answer and one line more would not; the asked item stands once in
 * front of the question; the answer's ids follow the prompt's (not of a copy, whose answer may
 * begin with a newline that joins the prompt's last one). */
TEST_N(properties, 36)
{
    static const char *const tasks[] = {"needle",
                                        "multi:n=4",
                                        "kv",
                                        "needle:domain=en",
                                        "multi:domain=en",
                                        "kv:domain=en",
                                        "needle:domain=source",
                                        "copy",
                                        "copy:domain=en",
                                        "chain",
                                        "track:domain=en",
                                        "chain:domain=source"};
    static const double depths[] = {0, 0.3, 1};
    const char *task = tasks[_i / 3];
    struct prompt p, again;
    int64_t ids, both, alone;
    struct buf whole = {0};
    make(task, 700, depths[_i % 3], 2, 11, &p);
    assert_ok(count(NULL, p.text.data, p.text.len, &ids, &err), &err);
    ck_assert_int_le(ids, 700 - p.max_new);
    ck_assert_int_gt(ids, 700 - p.max_new - 80);
    if (_i < 21) {
        const char *value = p.answers.items[0] + 1;
        ck_assert_int_eq(occurrences(p.text.data, value), 1);
        ck_assert_int_eq(strncmp(p.text.data + p.question - 1, "\n", 1), 0);
    }
    if (_i < 21) {
        buf_puts(&whole, buf_str(&p.text));
        buf_puts(&whole, p.answers.items[0]);
        assert_ok(count(NULL, whole.data, whole.len, &both, &err), &err);
        assert_ok(count(NULL, p.answers.items[0], strlen(p.answers.items[0]), &alone, &err), &err);
        ck_assert_int_eq(both, ids + alone - 1);
        buf_free(&whole);
    }
    make(task, 700, depths[_i % 3], 3, 11, &again);
    ck_assert_str_ne(p.text.data, again.text.data);
    prompt_free(&again);
    make(task, 700, depths[_i % 3], 2, 11, &again);
    ck_assert_str_eq(p.text.data, again.text.data);
    prompt_free(&again);
    prompt_free(&p);
}

/* The same lines stand in the prompt at whatever depth. */
TEST(depth_moves_one_line)
{
    OWN(prompt_free) struct prompt a, b;
    make("needle", 600, 0, 0, 1, &a);
    make("needle", 600, 0.8, 0, 1, &b);
    ck_assert_int_eq(a.lines, b.lines);
    ck_assert_int_eq(a.text.len, b.text.len);
    const char *end = strchr(a.text.data, '\n') + 1; /* its first line is the needle */
    size_t needle = (size_t)(end - a.text.data);
    const char *at = strstr(b.text.data, "/* needle");
    size_t front = (size_t)(at - b.text.data);
    ck_assert_int_eq(strncmp(end, b.text.data, front), 0);
    ck_assert_str_eq(end + front, at + needle);
}

TEST(refused)
{
    struct prompt_spec s;
    struct prompt p;
    assert_fails(prompt_spec_parse("neddle", "c", &s, &err), &err, ERR_USAGE, "did you mean");
    assert_fails(prompt_spec_parse("needle:n=3", "c", &s, &err), &err, ERR_USAGE,
                 "no parameter 'n'");
    assert_fails(prompt_spec_parse("needle:domain=de", "c", &s, &err), &err, ERR_USAGE, "domain");
    assert_fails(prompt_spec_parse("kv:x", "c", &s, &err), &err, ERR_USAGE, "key=value");
    assert_fails(prompt_spec_parse("multi:n=0", "c", &s, &err), &err, ERR_USAGE, "n");
    assert_fails(prompt_spec_parse("chain", "en", &s, &err), &err, ERR_USAGE,
                 "domains c and source only");
    assert_fails(prompt_spec_parse("track", "c", &s, &err), &err, ERR_USAGE, "domain en only");
    assert_fails(prompt_spec_parse("copy:cue=12", "c", &s, &err), &err, ERR_USAGE, "cue 12");
    assert_ok(tokenizer_open("datasets/models/code-lm", &tok, &err), &err);
    assert_ok(prompt_spec_parse("copy", "c", &s, &err), &err);
    assert_fails(prompt_make(&s, NULL, 300, 0, 0, 0, count, NULL, &p, &err), &err, ERR_USAGE,
                 "it needs 12");
    assert_ok(prompt_spec_parse("needle", "c", &s, &err), &err);
    assert_fails(prompt_make(&s, NULL, 10, 0, 0, 0, count, NULL, &p, &err), &err, ERR_USAGE,
                 "room for 0 lines");
}
