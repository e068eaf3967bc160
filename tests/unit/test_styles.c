/* Styles of methods: every one has its own, and print without colours tells them apart. */
#include "tests/harness/suite.h"

#include "plots/palette.h"
#include "tests/harness/testmethods.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const listed[] = {
#define STYLE(method, color, point, dash) method,
#include "plots/styles.def"
#undef STYLE
};

#define N_LISTED (sizeof listed / sizeof *listed)

/* CIE lightness, 0 black to 100 white. */
static double lightness(const char *color)
{
    static const double weight[] = {0.2126, 0.7152, 0.0722};
    long rgb = strtol(color + 1, NULL, 16);
    double y = 0;
    for (int i = 0; i < 3; i++) {
        double c = (double)(rgb >> (16 - 8 * i) & 255) / 255;
        y += weight[i] * (c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4));
    }
    return y > 0.008856 ? 116 * cbrt(y) - 16 : 903.3 * y;
}

/* In colour, or by point and dash at once; without colours by point with lightness or dash, or of
 * one point by lightness or, where it may tell, by dash. */
static void assert_apart(const char *a, struct line_style x, const char *b, struct line_style y,
                         double least, double least_of_point, bool dash_tells)
{
    double d = fabs(lightness(x.color) - lightness(y.color));
    bool point = x.point != y.point, dash = x.dash != y.dash;
    ck_assert_msg(strcmp(x.color, y.color) != 0 || (point && dash),
                  "%s and %s have one colour and no other point and dash", a, b);
    ck_assert_msg(point ? d >= least || dash : d >= least_of_point || (dash_tells && dash),
                  "%s and %s differ by %.1f in lightness, points %d and %d, dashes %d and %d", a, b,
                  d, x.point, y.point, x.dash, y.dash);
}

TEST(every_method_has_a_style_of_its_own)
{
    for (int i = 0; test_methods[i]; i++)
        for (int k = 0; k < i; k++) {
            const char *a = test_methods[i]->name, *b = test_methods[k]->name;
            assert_apart(a, style_of(test_methods, a), b, style_of(test_methods, b), 0, 15, true);
        }
}

TEST(derived_styles_differ_from_each_other_and_from_those_set_by_hand)
{
    for (int i = 0; i < STYLES_DERIVED; i++) {
        struct line_style s = style_derived(i);
        char name[32], other[32];
        snprintf(name, sizeof name, "derived style %d", i);
        ck_assert(s.point >= 5 && s.point <= 15 && s.point % 2 == 1);
        for (size_t k = 0; k < N_LISTED; k++)
            assert_apart(name, s, listed[k], style_of(NULL, listed[k]), 0, 15, true);
        for (int k = 0; k < i; k++) {
            snprintf(other, sizeof other, "derived style %d", k);
            assert_apart(name, s, other, style_derived(k), 0, 15, true);
        }
    }
}

TEST(a_method_without_a_line_gets_the_style_of_its_place)
{
    static const struct method known = {.name = "dense"}, first = {.name = "first"},
                               second = {.name = "second"};
    static const struct method *const registry[] = {&first, &known, &second, NULL};
    struct line_style a = style_derived(0), b = style_derived(1), x = style_of(registry, "first"),
                      y = style_of(registry, "second"), foreign = style_of(registry, "foreign");
    ck_assert(strcmp(x.color, a.color) == 0 && x.point == a.point && x.dash == a.dash);
    ck_assert(strcmp(y.color, b.color) == 0 && y.point == b.point && y.dash == b.dash);
    ck_assert_str_eq(style_of(registry, "dense").color, "#000000");
    ck_assert_int_eq(foreign.dash, 5);
}

TEST(methods_of_one_study_are_told_apart_without_colours)
{
    static const char *const names[] = {
        "dense",           "oracle",     "sale",        "streaming",  "spargeattn",
        "sampleattention", "minference", "flexprefill", "xattention", "fg-attn",
        "radial",          "svg1",       "svg2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < i; k++)
            assert_apart(names[i], style_of(NULL, names[i]), names[k], style_of(NULL, names[k]), 4,
                         30, true);
}

TEST(a_listed_style_is_that_of_a_method)
{
    for (size_t i = 0; i < N_LISTED; i++) {
        bool found = false;
        for (int k = 0; test_methods[k]; k++)
            found |= strcmp(test_methods[k]->name, listed[i]) == 0;
        ck_assert_msg(found, "%s is no method", listed[i]);
    }
}
