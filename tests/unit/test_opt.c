/* Option tables: defaults, parsing, ranges, canonical form, command line, help. */
#include "tests/harness/suite.h"

#include "core/indexlist.h"
#include "core/opt.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sample {
    bool flag, on;
    int64_t count, bytes, length, later;
    double alpha, limit, free_num;
    int kind;
    char *name, *path;
    struct share keep;
    struct str_list items;
};

static const char *const kinds[] = {"mean", "max", "antidiagonal", NULL};

static const struct opt table[] = {
    OPT_BOOL(struct sample, flag, "0", "A flag.", .short_name = 'f'),
    OPT_BOOL(struct sample, on, "1", "On by default."),
    OPT_INT(struct sample, count, "8", 1, 100, "tokens", "A count.", .short_name = 'n', .arg = "N"),
    OPT_INT(struct sample, bytes, "4096", 0, 1e12, "bytes", "A size.", .flags = OPT_IDENTITY_NOT),
    OPT_INT(struct sample, later, NULL, 0, 10, "", "Unset."),
    OPT_NUM(struct sample, alpha, "0.95", 0, 1, "mass share", "A share.", .flags = OPT_MIN_OPEN,
            .short_name = 'a'),
    OPT_NUM(struct sample, limit, "off", 0, 10, "", "A limit.", .flags = OPT_OFF),
    OPT_AS("free", OPT_NUM, struct sample, free_num, "0", .min = -INFINITY, .max = INFINITY,
           .help = "Any."),
    OPT_ENUM(struct sample, kind, "max", kinds, "A kind.", .short_name = 'k'),
    OPT_STR(struct sample, name, "x", NULL, "A name."),
    OPT_STR(struct sample, path, NULL, "FILE", "A path.", .flags = OPT_IDENTITY_NOT,
            .short_name = 'o'),
    OPT_SHARE(struct sample, keep, "8%", 1, 1e6, "", "A budget."),
    OPT_AS("item", OPT_LIST, struct sample, items, "one", .help = "Items.", .short_name = 'm'),
    OPT_INT(struct sample, length, "2K", 1, 1e9, "tokens", "A length."),
    {0},
};

static struct sample s;
static struct err e;

static void begin(void)
{
    memset(&s, 0, sizeof s);
    memset(&e, 0, sizeof e);
    assert_ok(opt_defaults(table, &s, &e), &e);
}

static void end(void)
{
    opt_free(table, &s);
}
FIXTURE(begin, end)

TEST(defaults_fill_every_field)
{
    ck_assert(!s.flag && s.on && s.count == 8 && s.bytes == 4096 && s.later == INT64_MIN &&
              s.length == 2048);
    ck_assert(s.alpha == 0.95 && isinf(s.limit) && s.kind == 1 && !s.path);
    ck_assert_str_eq(s.name, "x");
    ck_assert(s.keep.is_share && s.keep.value == 0.08);
    ck_assert(s.items.n == 1 && strcmp(s.items.items[0], "one") == 0);
}

static const struct {
    const char *key, *value;
    /* clang-format off */
} good[] = {
    {"flag", "yes"},     {"flag", "off"},      {"count", "1"},      {"count", "100"},
    {"alpha", "1"},
    {"alpha", "1e-9"},   {"limit", "off"},     {"limit", "0"},      {"free", "-1e300"},
    {"free", "inf"},     {"kind", "mean"},     {"keep", "100%"},    {"keep", "0.5%"},
    {"keep", "7"},       {"later", "unset"},   {"later", "3"},      {"name", ""},
    {"length", "953M"},
}, bad[] = {
    {"flag", "2"},       {"flag", ""},         {"count", "0"},      {"count", "101"},
    {"count", "1.5"},    {"count", "7x"},      {"count", ""},       {"count", " 7"},
    {"count", "99999999999999999999"},
    {"alpha", "0"},      {"alpha", "1.0001"},  {"alpha", "nan"},    {"alpha", "0x1p-1"},
    {"alpha", "inf"},    {"alpha", "1e999"},   {"alpha", "0.5,"},   {"limit", "inf"},
    {"kind", "MAX"},     {"kind", ""},         {"keep", "0"},       {"keep", "101%"},
    {"keep", "0%"},      {"keep", "-1%"},      {"keep", "1.5"},     {"keep", "%"},
    {"count", "unset"},  {"count", "1K"},      {"length", "K"},     {"length", "1k"},
    {"length", "0K"},    {"length", "954M"},   {"length", "1KK"},   {"length", "1.5K"},
    {"length", "-1K"},   {"bytes", "1K"},      {"length", "9007199254740993K"},
    {"length", "99999999999999999999999999999999999K"},
};
/* clang-format on */

TEST_EACH(values_in_range_are_taken_and_read_back, good)
{
    const struct opt *o = opt_find(table, good[_i].key);
    struct sample again = {0};
    OWN(buf_free) struct buf text = {0}, back = {0};
    assert_ok(opt_set(table, &s, "who", good[_i].key, good[_i].value, &e), &e);
    opt_value_text(o, &s, &text);
    assert_ok(opt_defaults(table, &again, &e), &e);
    assert_ok(opt_set(table, &again, "who", good[_i].key, buf_str(&text), &e), &e);
    opt_value_text(o, &again, &back);
    ck_assert_str_eq(buf_str(&text), buf_str(&back));
    opt_free(table, &again);
}

TEST_EACH(bad_values_are_usage_errors_that_name_the_key, bad)
{
    assert_fails(opt_set(table, &s, "method x", bad[_i].key, bad[_i].value, &e), &e, ERR_USAGE,
                 bad[_i].key);
    ck_assert(s.count == 8 && s.alpha == 0.95 && s.kind == 1 && s.keep.value == 0.08);
}

TEST(messages_say_what_was_expected_and_the_nearest_name)
{
    assert_fails(opt_set(table, &s, "method x", "alhpa", "1", &e), &e, ERR_USAGE,
                 "method x: unknown parameter 'alhpa'; did you mean 'alpha'?");
    assert_fails(opt_set(table, &s, "m", "qqqqqq", "1", &e), &e, ERR_USAGE, "unknown parameter");
    assert_fails(opt_set(table, &s, "m", "alpha", "2", &e), &e, ERR_USAGE, "a number in (0, 1]");
    assert_fails(opt_set(table, &s, "m", "count", "0", &e), &e, ERR_USAGE,
                 "an integer or 8K (K = 1024) in [1, 100]");
    assert_fails(opt_set(table, &s, "m", "limit", "-1", &e), &e, ERR_USAGE, "or off");
    assert_fails(opt_set(table, &s, "m", "kind", "maen", &e), &e, ERR_USAGE,
                 "one of mean, max, antidiagonal; did you mean 'mean'?");
}

/* Equal bounds fix a value, 0 and 0 leave it free; INT64_MIN is kept for "not given". */
TEST(equal_bounds_fix_a_value)
{
    struct {
        int64_t fixed, any;
    } v = {0};
    const struct opt two[] = {
        {"fixed", OPT_INT, 0, "32", 32, 32, 0, "", "Fixed.", NULL, 0, NULL, NULL, NULL},
        {"any", OPT_INT, sizeof(int64_t), "0", 0, 0, 0, "", "Any.", NULL, 0, NULL, NULL, NULL},
        {.type = OPT_END},
    };
    assert_ok(opt_defaults(two, &v, &e), &e);
    assert_ok(opt_set(two, &v, "m", "fixed", "32", &e), &e);
    assert_fails(opt_set(two, &v, "m", "fixed", "31", &e), &e, ERR_USAGE, "fixed");
    assert_fails(opt_set(two, &v, "m", "fixed", "33", &e), &e, ERR_USAGE, "fixed");
    assert_ok(opt_set(two, &v, "m", "any", "-9223372036854775807", &e), &e);
    assert_fails(opt_set(two, &v, "m", "any", "-9223372036854775808", &e), &e, ERR_USAGE, "any");
    ck_assert_int_eq(v.any, -INT64_MAX);
}

TEST(shares_resolve_to_the_ceiling)
{
    struct share p7 = {0.07, true}, p8 = {0.08, true}, n5 = {5, false}, none = {0, true};
    ck_assert_int_eq(share_resolve(p7, 100), 7);
    ck_assert_int_eq(share_resolve(p7, 101), 8);
    ck_assert_int_eq(share_resolve(p8, 1), 1);
    ck_assert_int_eq(share_resolve(p8, 0), 0);
    ck_assert_int_eq(share_resolve(n5, 3), 5);
    ck_assert_int_eq(share_resolve(none, 1000), 0);
    for (int p = 1; p <= 100; p++)
        ck_assert_int_eq(share_resolve((struct share){p / 100.0, true}, 100000), p * 1000);
}

TEST(canonical_form_holds_only_what_differs)
{
    OWN(buf_free) struct buf b = {0};
    assert_ok(opt_canonical(table, &s, &b, &e), &e);
    ck_assert_str_eq(buf_str(&b), "");
    static const char *const sets[][2] = {{"alpha", "0.950"}, {"kind", "mean"}, {"path", "p"},
                                          {"bytes", "1"},     {"keep", "5%"},   {"count", "+9"},
                                          {"limit", "2.50"},  {"later", "3"}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        assert_ok(opt_set(table, &s, "m", sets[i][0], sets[i][1], &e), &e);
    assert_ok(opt_canonical(table, &s, &b, &e), &e);
    ck_assert_str_eq(buf_str(&b), "count=9:later=3:limit=2.5:kind=mean:keep=5%");
}

static bool same(const struct opt *o, const struct sample *a, const struct sample *b)
{
    bool is = false;
    assert_ok(opt_same(o, a, b, &is, &e), &e);
    return is;
}

TEST(fields_are_compared_by_value)
{
    static const char *const sets[][2] = {{"on", "0"},      {"bytes", "1"},   {"later", "3"},
                                          {"alpha", "0.5"}, {"kind", "mean"}, {"path", "p"},
                                          {"keep", "5%"},   {"item", "two"}};
    struct sample other = {0};
    assert_ok(opt_defaults(table, &other, &e), &e);
    for (const struct opt *o = table; o->type != OPT_END; o++)
        ck_assert_msg(same(o, &s, &other), "%s", o->name);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const struct opt *o = opt_find(table, sets[i][0]);
        assert_ok(opt_set(table, &other, "m", sets[i][0], sets[i][1], &e), &e);
        ck_assert_msg(!same(o, &s, &other), "%s", o->name);
        assert_ok(opt_set(table, &s, "m", sets[i][0], sets[i][1], &e), &e);
        ck_assert_msg(same(o, &s, &other), "%s", o->name);
    }
    opt_free(table, &other);
}

TEST(copies_are_deep)
{
    struct sample copy = {0};
    assert_ok(opt_set(table, &s, "m", "path", "here", &e), &e);
    assert_ok(opt_copy(table, &s, &copy, &e), &e);
    ck_assert_ptr_ne(copy.path, s.path);
    ck_assert_str_eq(copy.path, "here");
    ck_assert_ptr_ne(copy.items.items, s.items.items);
    ck_assert_str_eq(copy.items.items[0], "one");
    opt_free(table, &copy);
    ck_assert(!copy.path && copy.items.n == 0);
    ck_assert_str_eq(s.path, "here");
}

/* ---- command line ---------------------------------------------------------------------------- */

static struct str_list rest;

static int line(int n, const char *const *words)
{
    char *argv[16];
    for (int i = 0; i < n; i++)
        argv[i] = (char *)(uintptr_t)words[i];
    str_list_free(&rest);
    return opt_parse_argv(table, &s, "replay", n, argv, &rest, &e);
}

#define LINE(...)                                                                                  \
    line((int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)),                       \
         (const char *const[]){__VA_ARGS__})

TEST(all_spellings_of_options_work)
{
    assert_ok(LINE("in.h5", "--count", "3", "--alpha=0.5", "-kmean", "-f", "--no-on", "-o", "out",
                   "--", "--count", "-x"),
              &e);
    ck_assert(s.count == 3 && s.alpha == 0.5 && s.kind == 0 && s.flag && !s.on);
    ck_assert_str_eq(s.path, "out");
    ck_assert_int_eq(rest.n, 3);
    ck_assert_str_eq(rest.items[0], "in.h5");
    ck_assert_str_eq(rest.items[1], "--count");
    ck_assert_str_eq(rest.items[2], "-x");
    assert_ok(LINE("-fn7", "-", "--flag=no", "--count", "2", "--count", "4"), &e);
    ck_assert(s.count == 4 && !s.flag);
    ck_assert_str_eq(rest.items[0], "-");
    str_list_free(&rest);
}

TEST(lists_replace_their_default_and_collect)
{
    assert_ok(LINE("-m", "a", "--item=b:c=1,2", "--item", ""), &e);
    ck_assert_int_eq(s.items.n, 3);
    ck_assert_str_eq(s.items.items[0], "a");
    ck_assert_str_eq(s.items.items[1], "b:c=1,2");
    ck_assert_str_eq(s.items.items[2], "");
    str_list_free(&rest);
}

TEST(bad_lines_are_usage_errors)
{
    assert_fails(LINE("--cuont", "3"), &e, ERR_USAGE,
                 "replay: unknown option '--cuont'; did you mean '--count'?");
    assert_fails(LINE("--coun", "3"), &e, ERR_USAGE, "unknown option '--coun'");
    assert_fails(LINE("--count"), &e, ERR_USAGE, "--count needs a value: N");
    assert_fails(LINE("-n"), &e, ERR_USAGE, "-n needs a value");
    assert_fails(LINE("-z"), &e, ERR_USAGE, "unknown option '-z'");
    assert_fails(LINE("-fcount"), &e, ERR_USAGE, "two dashes");
    assert_fails(LINE("--no-count"), &e, ERR_USAGE, "no-count");
    assert_fails(LINE("--count=x"), &e, ERR_USAGE, "replay: --count: 'x' is not valid");
    str_list_free(&rest);
}

TEST(required_options_must_be_given)
{
    static const struct opt need[] = {
        {"out", OPT_STR, 0, NULL, 0, 0, OPT_REQUIRED, "", "Where to.", NULL, 'o', "DIR", NULL,
         NULL},
        {.type = OPT_END},
    };
    char *out = NULL;
    assert_ok(opt_defaults(need, &out, &e), &e);
    assert_fails(opt_check_required(need, &out, "replay", "--", &e), &e, ERR_USAGE,
                 "replay: --out is required");
    assert_ok(opt_set(need, &out, "replay", "out", "d", &e), &e);
    assert_ok(opt_check_required(need, &out, "replay", "--", &e), &e);
    opt_free(need, &out);
}

TEST(json_of_values_and_of_the_table_parses)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    OWN(json_decrefp) json_t *v = NULL;
    jw_init(&w, &b, 0);
    jw_obj(&w);
    opt_json(table, &s, &w);
    jw_key(&w, "table");
    opt_table_json(table, &w);
    jw_obj_end(&w);
    assert_ok(json_read_text(buf_str(&b), b.len, "opt", &v, &e), &e);
    ck_assert(json_integer_value(json_object_get(v, "count")) == 8);
    ck_assert(json_is_null(json_object_get(v, "later")));
    ck_assert_str_eq(json_string_value(json_object_get(v, "limit")), "off");
    ck_assert_str_eq(json_string_value(json_object_get(v, "keep")), "8%");
    ck_assert(json_is_array(json_object_get(v, "item")));
    json_t *t = json_object_get(v, "table");
    ck_assert_uint_eq(json_array_size(t), sizeof table / sizeof *table - 1);
    json_t *alpha = json_array_get(t, 5);
    ck_assert_str_eq(json_string_value(json_object_get(alpha, "name")), "alpha");
    ck_assert(json_real_value(json_object_get(alpha, "default")) == 0.95);
    ck_assert(json_is_true(json_object_get(alpha, "min_open")));
    ck_assert_str_eq(json_string_value(json_object_get(alpha, "unit")), "mass share");
}

TEST(help_shows_every_option_within_the_width)
{
    OWN(buf_free) struct buf b = {0};
    for (const struct opt *o = table; o->type != OPT_END; o++) {
        char text[64];
        opt_help(o, &b);
        snprintf(text, sizeof text, "--%s", o->name);
        ck_assert_ptr_nonnull(strstr(buf_str(&b), text));
    }
    ck_assert_ptr_nonnull(strstr(buf_str(&b), "[mass share, in (0, 1], default 0.95]"));
    for (const char *p = buf_str(&b); *p; p += strcspn(p, "\n") + 1)
        ck_assert_uint_le(strcspn(p, "\n"), 100);
}

/* ---- names and index lists ------------------------------------------------------------------- */

static const struct {
    const char *text;
    double x; /* NAN: none */
    const char *rest;
} read_numbers[] = {
    {"0", 0, ""},         {"-0", 0, ""},    {"-0.0e5", 0, ""},    {"+2.5", 2.5, ""},
    {".5", 0.5, ""},      {"5.", 5, ""},    {"1e-3x", 1e-3, "x"}, {"8%", 8, "%"},
    {"3.3in", 3.3, "in"}, {"1e", 1, "e"},   {"0x10in", NAN, ""},  {"-0X1p3", NAN, ""},
    {"inf", NAN, ""},     {"nan", NAN, ""}, {"1e999", NAN, ""},   {" 1", NAN, ""},
    {"", NAN, ""},        {".", NAN, ""},   {"-", NAN, ""},       {"+-1", NAN, ""},
};

TEST_EACH(numbers_are_decimal, read_numbers)
{
    double x = 77;
    const char *end = NULL, *text = read_numbers[_i].text;
    bool is = !isnan(read_numbers[_i].x);
    ck_assert_int_eq(num_read(text, &x, &end), is);
    ck_assert_double_eq(x, is ? read_numbers[_i].x : 77);
    ck_assert(!is || strcmp(end, read_numbers[_i].rest) == 0);
    ck_assert(!is || !signbit(x) || x < 0);
    ck_assert_int_eq(num_fills(text, &x), is && !read_numbers[_i].rest[0]);
}

TEST(nearest_name_is_near_or_nothing)
{
    static const char *const names[] = {"replay", "report", "capture", "calibrate", "list", NULL};
    ck_assert_str_eq(nearest_name("repaly", names), "replay");
    ck_assert_str_eq(nearest_name("calib", names), "calibrate");
    ck_assert_str_eq(nearest_name("lst", names), "list");
    ck_assert_ptr_null(nearest_name("zzz", names));
    ck_assert_ptr_null(nearest_name("", names));
    ck_assert_ptr_null(nearest_name("frobnicate-everything-in-sight-and-more-than-that", names));
}

static void expect_list(const char *text, int64_t n, int64_t want_n, const int64_t *want)
{
    int64_t *list = NULL, count = 0;
    assert_ok(index_list_parse(text, n, "--layers", &list, &count, &e), &e);
    ck_assert_int_eq(count, want_n);
    for (int64_t i = 0; i < want_n && want; i++)
        ck_assert_int_eq(list[i], want[i]);
    free(list);
}

TEST(index_lists_are_sorted_and_unique)
{
    expect_list("0,4-7", 8, 5, (const int64_t[]){0, 4, 5, 6, 7});
    expect_list("7,3-5,4,3", 8, 4, (const int64_t[]){3, 4, 5, 7});
    expect_list("all", 3, 3, (const int64_t[]){0, 1, 2});
    expect_list("all", 0, 0, NULL);
    expect_list("all", -1, -1, NULL);
    expect_list("15,30", -1, 2, (const int64_t[]){15, 30});
}

TEST(bad_index_lists_are_refused)
{
    static const char *const texts[] = {"",    "a",     "1,", ",1",  "1-",  "-1",
                                        "3-1", "1-2-3", "8",  "0-8", "1 2", "99999999999999999999",
                                        "All"};
    int64_t *list = NULL, count = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_fails(index_list_parse(texts[i], 8, "--layers", &list, &count, &e), &e, ERR_USAGE,
                     "--layers");
    assert_fails(index_list_parse("0-99999999999", -1, "--layers", &list, &count, &e), &e,
                 ERR_USAGE, "more than");
}
