/* Styles of methods: every one has its own, and print without colours tells them apart. */
#include "tests/harness/suite.h"

#include "plots/series.h"
#include "sim/registry.h"

#include <math.h>
#include <stdbool.h>
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
 * one point by lightness or dash. */
static void assert_apart(const char *a, const char *b, double least, double least_of_point)
{
    struct line_style x = style_of(NULL, a), y = style_of(NULL, b);
    double d = fabs(lightness(x.color) - lightness(y.color));
    bool point = x.point != y.point, dash = x.dash != y.dash;
    ck_assert_msg(strcmp(x.color, y.color) != 0 || (point && dash),
                  "%s and %s have one colour and no other point and dash", a, b);
    ck_assert_msg(d >= (point ? least : least_of_point) || dash,
                  "%s and %s differ by %.1f in lightness, points %d and %d, dashes %d and %d", a, b,
                  d, x.point, y.point, x.dash, y.dash);
}

TEST(every_method_has_a_style_of_its_own)
{
    for (size_t i = 0; i < N_LISTED; i++)
        for (size_t k = 0; k < i; k++)
            assert_apart(listed[i], listed[k], 0, 15);
    for (int i = 0; sim_methods[i]; i++) {
        bool found = false;
        for (size_t k = 0; k < N_LISTED; k++)
            found |= strcmp(sim_methods[i]->name, listed[k]) == 0;
        ck_assert_msg(found, "%s has no line in styles.def", sim_methods[i]->name);
    }
}

TEST(methods_of_one_study_are_told_apart_without_colours)
{
    static const char *const names[] = {
        "dense",           "oracle",     "sale",        "streaming",  "spargeattn",
        "sampleattention", "minference", "flexprefill", "xattention", "fg-attn",
        "radial",          "svg1",       "svg2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < i; k++)
            assert_apart(names[i], names[k], 4, 30);
}

TEST(a_method_keeps_its_colour)
{
    char shade[8];
    ck_assert_str_eq(style_of(NULL, "spargeattn").color, "#d55e00");
    ck_assert_str_eq(style_of(NULL, "not-listed").color, style_of(NULL, "not-listed").color);
    ck_assert_int_eq(style_of(NULL, "not-listed").dash, 5);
    style_shade(style_of(NULL, "spargeattn"), 0, 3, 0.6, shade);
    ck_assert_str_eq(shade, "#d55e00");
    style_shade(style_of(NULL, "dense"), 1, 2, 0.6, shade);
    ck_assert_str_eq(shade, "#999999"); /* 60 % white */
}

TEST(names_of_papers_have_their_methods_colours)
{
    static const char *const same[][2] = {
        {"SALE", "sale"},
        {"SALE w/o calibration", "sale"},
        {"SpargeAttn", "spargeattn"},
        {"FG-Attn-pooling", "fg-attn"},
        {"RadialAttention", "radial"},
        {"SparseVideoGen", "svg1"},
        {"MInference", "minference"},
        {"SampleAttention both", "sampleattention"},
        {"saleable", "saleable"}, /* another program's */
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        ck_assert_str_eq(style_method(sim_methods, same[i][0]), same[i][1]);
    ck_assert_str_eq(style_of(sim_methods, "SALE").color, style_of(sim_methods, "sale").color);

    OWN(series_free) struct series_list l = {.methods = sim_methods};
    struct err err = {0};
    ck_assert_int_eq(series_of(&l, "a", "SALE", &err), 0);
    ck_assert_int_eq(series_of(&l, "b", "SALE w/o calibration", &err), 1);
    ck_assert_int_eq(series_of(&l, "c", "sampleattention", &err), 2);
    series_shade(&l, TELL_DASH);
    ck_assert_int_ne(l.s[0].point, l.s[1].point);
    ck_assert_int_ne(l.s[0].dash, l.s[1].dash);
    ck_assert_str_eq(l.s[2].color, style_of(sim_methods, "sampleattention").color);
}
