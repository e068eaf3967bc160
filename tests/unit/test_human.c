/* Sizes and estimates as people say them. */
#include "tests/harness/suite.h"

#include "core/text.h"

TEST(sizes_have_two_digits_and_their_unit)
{
    static const struct {
        double bytes;
        const char *text;
    } cases[] = {{0, "0 B"},         {512, "512 B"},     {999, "999 B"},    {9500, "9.5 kB"},
                 {9.99e5, "999 kB"}, {999900, "1.0 MB"}, {8.6e10, "86 GB"}, {3e12, "3.0 TB"}};
    char text[24];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes_text(cases[i].bytes, text);
        ck_assert_str_eq(text, cases[i].text);
    }
}

TEST(estimates_are_ranges_in_the_unit_of_their_end)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "under 2 s"},    {0.4, "under 2 s"},    {10, "10 to 40 s"},
                 {30, "30 to 120 s"}, {60, "1 to 4 min"},    {1800, "30 to 120 min"},
                 {7200, "2 to 8 h"},  {86400, "1 to 4 days"}};
    char text[48];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        estimate_text(cases[i].seconds, text);
        ck_assert_str_eq(text, cases[i].text);
    }
}
