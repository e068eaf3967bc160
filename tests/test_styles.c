/* Styles of methods: every one has its own, and print without colours tells them apart. */
#include "tests/suite.h"

#include "plots/palette.h"
#include "sim/registry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const listed[] = {
#define STYLE(method, color, point, dash) method,
#include "plots/styles.def"
#undef STYLE
};

#define N_LISTED (sizeof listed / sizeof *listed)

static bool is_listed(const char *method)
{
    for (size_t i = 0; i < N_LISTED; i++)
        if (strcmp(listed[i], method) == 0)
            return true;
    return false;
}

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

static void assert_apart(const char *a, const char *b, double least, double least_of_point)
{
    struct line_style x = style_of(a), y = style_of(b);
    double d = fabs(lightness(x.color) - lightness(y.color));
    ck_assert_msg(strcmp(x.color, y.color) != 0, "%s and %s have one colour", a, b);
    ck_assert_msg(d >= (x.point == y.point ? least_of_point : least),
                  "%s and %s differ by %.1f in lightness, points %d and %d", a, b, d, x.point,
                  y.point);
}

START_TEST(every_method_has_a_style_of_its_own)
{
    for (int i = 0; sim_methods[i]; i++) {
        const char *name = sim_methods[i]->name;
        ck_assert_msg(is_listed(name), "%s has no style", name);
        for (int k = 0; k < i; k++)
            assert_apart(name, sim_methods[k]->name, 0, 15);
    }
}
END_TEST

START_TEST(methods_of_one_study_are_told_apart_without_colours)
{
    static const char *const names[] = {
        "dense",           "oracle",     "sale",        "streaming",  "spargeattn",
        "sampleattention", "minference", "flexprefill", "xattention", "fg-attn",
        "radial",          "svg1",       "svg2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < i; k++)
            assert_apart(names[i], names[k], 4, 30);
}
END_TEST

START_TEST(a_listed_style_is_that_of_a_method)
{
    for (size_t i = 0; i < N_LISTED; i++) {
        bool found = false;
        for (int k = 0; sim_methods[k]; k++)
            found |= strcmp(sim_methods[k]->name, listed[i]) == 0;
        ck_assert_msg(found, "%s is no method", listed[i]);
    }
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("styles");
    TCase *c = tcase_create("styles");
    tcase_add_test(c, every_method_has_a_style_of_its_own);
    tcase_add_test(c, methods_of_one_study_are_told_apart_without_colours);
    tcase_add_test(c, a_listed_style_is_that_of_a_method);
    suite_add_tcase(s, c);
    return s;
}
