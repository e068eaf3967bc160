/* JSON: what the reader refuses, what the writer guarantees. */
#include "tests/harness/suite.h"

#include "core/json.h"
#include "core/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int parse(const char *text, json_t **out, struct err *e)
{
    return json_read_text(text, strlen(text), "doc", out, e);
}

/* clang-format off */
static const char *const refused[] = {
    "", "{", "{} x", "{\"a\":1,\"a\":2}", "{\"a\":01}", "{\"a\":1e999}", "{\"a\":9223372036854775808}",
    "{\"a\":\"\\u0000\"}", "{\"a\":\"\xff\"}", "{\"a\":\"\xc0\xaf\"}", "{\"a\":NaN}", "[1,]", "{'a':1}",
    "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\n\"}",
};
/* clang-format on */

TEST_EACH(bad_documents_are_refused_with_name_and_place, refused)
{
    json_t *v = NULL;
    struct err e = {0};
    const char *place = strchr(refused[_i], '\n') ? "doc: line 1 column " : "doc: column ";
    assert_fails(parse(refused[_i], &v, &e), &e, ERR_INPUT, place);
    ck_assert_ptr_null(v);
}

/* ---- files of other programs ----------------------------------------------------------------- */

TEST(what_python_writes_is_read_and_refused_by_key_where_it_is_used)
{
    OWN(json_decrefp) json_t *v = NULL;
    struct err e = {0};
    int64_t i = 0;
    double x = 0;
    const char *s = NULL;
    static const char text[] =
        "\xEF\xBB\xBF{\"big\":1000000000000000019884624838656,\"low\":-9223372036854775809,\n"
        "\"most\":9223372036854775807,\"huge\":1e400,\"digits\":-1e999,\"nan\":NaN,"
        "\"inf\":[-Infinity,Infinity],\"nul\":\"a\\u0000b\",\"half\":\"\\uD83D!\","
        "\"low half\":\"\\ude00\",\"pair\":\"\\uD83D\\uDE00\",\"slash\":\"\\\\u0000\","
        "\"\\u0000\":1,\"quote\":\"NaN 1e400 \\\"\\ud800x\"}";
    assert_ok(json_read_foreign_text(text, sizeof text - 1, "doc", &v, &e), &e);
    assert_ok(jget_int(v, "most", "doc", &i, &e), &e);
    ck_assert(i == INT64_MAX);
    assert_ok(jget_num(v, "big", "doc", &x, &e), &e);
    ck_assert(x == 1000000000000000019884624838656.0);
    assert_ok(jget_num(v, "low", "doc", &x, &e), &e);
    ck_assert(x == -0x1p63);
    assert_fails(jget_int(v, "big", "doc", &i, &e), &e, ERR_INPUT, "\"big\": an integer");
    assert_fails(jget_num(v, "huge", "doc", &x, &e), &e, ERR_INPUT, "\"huge\": a number");
    assert_fails(jget_num(v, "digits", "doc", &x, &e), &e, ERR_INPUT, "found -1e999");
    assert_fails(jget_num_opt(v, "nan", "doc", &x, &e), &e, ERR_INPUT, "found NaN");
    assert_fails(jget_str(v, "nan", "doc", &s, &e), &e, ERR_INPUT, "found NaN");
    assert_fails(jget_str(v, "nul", "doc", &s, &e), &e, ERR_INPUT,
                 "\"nul\": a string was expected");
    assert_fails(jget_str_opt(v, "half", "doc", &s, &e), &e, ERR_INPUT, "\"half\"");
    assert_fails(jget_str(v, "low half", "doc", &s, &e), &e, ERR_INPUT, "\"low half\"");
    assert_fails(jget_str(v, "quote", "doc", &s, &e), &e, ERR_INPUT, "\"quote\"");
    assert_ok(jget_str(v, "pair", "doc", &s, &e), &e);
    ck_assert_str_eq(s, "\xf0\x9f\x98\x80");
    assert_ok(jget_str(v, "slash", "doc", &s, &e), &e);
    ck_assert_str_eq(s, "\\u0000");
}

static const char *const never[] = {
    "",     "{",        "{\"a\":1e}", "{\"a\":nan}", "{\"a\":0x1}",
    "[1,]", "[\"\\u00", "[\"a",       "{\"a\":01}",  "[\"\\u0x00\"]"};

TEST_EACH(what_no_program_writes_is_refused_in_foreign_files_too, never)
{
    json_t *v = NULL;
    struct err e = {0};
    assert_fails(json_read_foreign_text(never[_i], strlen(never[_i]), "doc", &v, &e), &e, ERR_INPUT,
                 "doc: column ");
}

TEST(deep_nesting_is_refused)
{
    json_t *v = NULL;
    struct err e = {0};
    char deep[5001];
    memset(deep, '[', 5000);
    deep[5000] = '\0';
    assert_fails(parse(deep, &v, &e), &e, ERR_INPUT, "doc");
}

TEST(integers_are_exact)
{
    OWN(json_decrefp) json_t *v = NULL;
    struct err e = {0};
    int64_t x = 0;
    assert_ok(parse("{\"a\":9007199254740993,\"b\":-9223372036854775808}", &v, &e), &e);
    assert_ok(jget_int(v, "a", "doc", &x, &e), &e);
    ck_assert_int_eq(x, 9007199254740993);
    assert_ok(jget_int(v, "b", "doc", &x, &e), &e);
    ck_assert(x == INT64_MIN);
}

TEST(look_ups_check_types)
{
    OWN(json_decrefp) json_t *v = NULL;
    struct err e = {0};
    int64_t i = 7;
    double x = 7;
    bool b = true;
    const char *s = "kept";
    assert_ok(parse("{\"s\":\"t\",\"i\":3,\"r\":1.5,\"n\":null,\"f\":false}", &v, &e), &e);
    assert_fails(jget_int(v, "r", "doc", &i, &e), &e, ERR_INPUT, "\"r\": an integer");
    assert_fails(jget_int(v, "zz", "doc", &i, &e), &e, ERR_INPUT, "\"zz\" is missing");
    assert_fails(jget_int(v, "n", "doc", &i, &e), &e, ERR_INPUT, "null");
    assert_fails(jget_num_opt(v, "s", "doc", &x, &e), &e, ERR_INPUT, "a number");
    assert_fails(jget_str_opt(v, "i", "doc", &s, &e), &e, ERR_INPUT, "a string");
    assert_fails(jget_bool_opt(v, "i", "doc", &b, &e), &e, ERR_INPUT, "a boolean");
    assert_fails(jget_num(NULL, "a", "doc", &x, &e), &e, ERR_INPUT, "nothing");
    assert_ok(jget_int_opt(v, "n", "doc", &i, &e), &e);
    assert_ok(jget_str_opt(v, "zz", "doc", &s, &e), &e);
    ck_assert_int_eq(i, 7);
    ck_assert_str_eq(s, "kept");
    assert_ok(jget_num(v, "i", "doc", &x, &e), &e);
    assert_ok(jget_bool_opt(v, "f", "doc", &b, &e), &e);
    ck_assert(x == 3 && !b);
}

TEST(writer_places_commas_and_escapes)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 0);
    jw_obj(&w);
    jw_kstr(&w, "a\"b", "line\n\t\\\x01 \xc3\xa9");
    jw_knum(&w, "x", 0.1);
    jw_kint(&w, "i", INT64_MIN);
    jw_kbool(&w, "t", true);
    jw_kstr(&w, "none", NULL);
    jw_key(&w, "list");
    jw_arr(&w);
    jw_arr(&w);
    jw_arr_end(&w);
    jw_num(&w, NAN);
    jw_num(&w, -INFINITY);
    jw_obj(&w);
    jw_obj_end(&w);
    jw_arr_end(&w);
    jw_obj_end(&w);
    ck_assert_str_eq(buf_str(&b), "{\"a\\\"b\":\"line\\n\\t\\\\\\u0001 \xc3\xa9\",\"x\":0.1,"
                                  "\"i\":-9223372036854775808,\"t\":true,\"none\":null,"
                                  "\"list\":[[],null,null,{}]}");
}

TEST(pretty_form_is_indented)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 2);
    jw_obj(&w);
    jw_key(&w, "a");
    jw_arr(&w);
    jw_int(&w, 1);
    jw_int(&w, 2);
    jw_arr_end(&w);
    jw_key(&w, "e");
    jw_arr(&w);
    jw_arr_end(&w);
    jw_obj_end(&w);
    ck_assert_str_eq(buf_str(&b), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"e\": []\n}");
}

TEST(copied_text_ends_with_a_whole_character)
{
    char out[8];
    utf8_copy(out, sizeof out, "abc");
    ck_assert_str_eq(out, "abc");
    utf8_copy(out, sizeof out, "abcdefgh");
    ck_assert_str_eq(out, "abcdefg");
    utf8_copy(out, sizeof out, "abcdef\xC3\xA9"); /* two bytes for one place */
    ck_assert_str_eq(out, "abcdef");
    utf8_copy(out, sizeof out, "a\xE9z\xC3");
    ck_assert_str_eq(out, "a?z?");
}

TEST(what_is_unsafe_to_show_is_named)
{
    static const struct {
        const char *text, *fault;
    } cases[] = {
        {"", NULL},
        {"abc \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0", NULL},
        {"a\tb", "control character U+0009"},
        {"\x7f", "control character U+007F"},
        {"a\xc2\x80", "control character U+0080"},
        {"a\xc2\x9f", "control character U+009F"},
        {"\xd8\x9c", "direction mark U+061C"},
        {"\xe2\x80\x8e", "direction mark U+200E"},
        {"\xe2\x80\xaa", "direction mark U+202A"},
        {"\xe2\x80\xae", "direction mark U+202E"},
        {"\xe2\x81\xa6", "direction mark U+2066"},
        {"\xe2\x81\xa9", "direction mark U+2069"},
        {"\xe2\x80\xa8", "line separator U+2028"},
        {"a\xff", "byte 0xFF, which is not UTF-8"},
        {"\xc3", "byte 0xC3, which is not UTF-8"},
        {"\xc0\x9b", "byte 0xC0, which is not UTF-8"}, /* an overlong ESC */
    };
    char what[UTF8_FAULT_MAX];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *fault = utf8_fault(cases[i].text, what);
        if (cases[i].fault)
            ck_assert_str_eq(fault, cases[i].fault);
        else
            ck_assert_ptr_null(fault);
    }
}

TEST(unsafe_text_is_escaped)
{
    static const char text[] = "a\nb\tc\033[2J \xc2\x9b \xe2\x80\xae \xff\xc3\xa9";
    char plain[64];
    OWN(buf_free) struct buf b = {0};
    text_escape(&b, text, "\n\t");
    ck_assert_str_eq(buf_str(&b), "a\nb\tc\\x1b[2J \\u009b \\u202e \\xff\xc3\xa9");
    buf_reset(&b);
    text_escape(&b, text, "");
    ck_assert_str_eq(buf_str(&b), "a\\x0ab\\x09c\\x1b[2J \\u009b \\u202e \\xff\xc3\xa9");
    snprintf(plain, sizeof plain, "%s", text);
    utf8_make_plain(plain);
    ck_assert_str_eq(plain, "a?b?c?[2J ? ? ?\xc3\xa9");
}

/* The value is the same; a terminal that shows the file obeys nothing. */
TEST(unsafe_characters_are_escaped_in_json)
{
    static const char text[] = "a\033\x7f\xc2\x9b\xe2\x80\xae\xe2\x80\xa8\xc3\xa9";
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    struct err e = {0};
    OWN(json_decrefp) json_t *v = NULL;
    jw_init(&w, &b, 0);
    jw_arr(&w);
    jw_str(&w, text);
    jw_arr_end(&w);
    ck_assert_str_eq(buf_str(&b), "[\"a\\u001b\\u007f\\u009b\\u202e\\u2028\xc3\xa9\"]");
    assert_ok(parse(buf_str(&b), &v, &e), &e);
    ck_assert_str_eq(json_string_value(json_array_get(v, 0)), text);
}

TEST(invalid_utf8_becomes_the_replacement_character)
{
    static const char *const in[] = {
        "\xff", "\xc3", "\xe2\x82", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\x80"};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        OWN(buf_free) struct buf b = {0};
        struct jw w;
        struct err e = {0};
        OWN(json_decrefp) json_t *v = NULL;
        jw_init(&w, &b, 0);
        jw_arr(&w);
        jw_str(&w, in[i]);
        jw_arr_end(&w);
        assert_ok(parse(buf_str(&b), &v, &e), &e);
        ck_assert_ptr_nonnull(strstr(json_string_value(json_array_get(v, 0)), "\xef\xbf\xbd"));
    }
}

TEST(numbers_round_trip_in_few_digits)
{
    /* clang-format off */
    static const double x[] = {0.1, 1.0 / 3, 1e300, 5e-324, 123456789012345680.0, -0.0, 2.5,
                               0.30000000000000004, 1.7976931348623157e308};
    /* clang-format on */
    char text[32];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        num_text(x[i], text);
        double back = strtod(text, NULL);
        ck_assert_mem_eq(&back, &x[i], sizeof back);
    }
    num_text(0.1, text);
    ck_assert_str_eq(text, "0.1");
    num_text(1e6, text);
    ck_assert_str_eq(text, "1000000");
}

TEST(copying_a_value_reproduces_it)
{
    static const char text[] = "{\"a\":[1,2.0,true,false,null,\"x\"],\"b\":{\"c\":-1.5e-7}}";
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    struct err e = {0};
    OWN(json_decrefp) json_t *v = NULL, *back = NULL;
    assert_ok(parse(text, &v, &e), &e);
    jw_init(&w, &b, 0);
    jw_value(&w, v);
    assert_ok(parse(buf_str(&b), &back, &e), &e);
    ck_assert(json_equal(v, back));
}
