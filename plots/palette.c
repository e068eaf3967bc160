/*
 * palette.c - palettes as `set palette defined` (gnuplot 5.4 has no viridis of its own) and styles.
 */
#include "plots/palette.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void palette_viridis(struct buf *script)
{
    buf_puts(script, "set palette defined (0 '#440154', 1 '#482878', 2 '#3e4a89', 3 '#31688e', "
                     "4 '#26828e', 5 '#1f9e89', 6 '#35b779', 7 '#6ece58', 8 '#fde725')\n");
}

void palette_diverging(struct buf *script)
{
    buf_puts(script, "set palette defined (0 '#2166ac', 1 '#67a9cf', 2 '#d1e5f0', 3 '#f7f7f7', "
                     "4 '#fddbc7', 5 '#ef8a62', 6 '#b2182b')\n");
}

void palette_grade(bool low_is_good, struct buf *script)
{
    /* Lightness rises all the way, for grey print and for eyes that take red for green. */
    static const char *const colors[] = {"#de2d26", "#fb6a4a", "#fdae6b", "#f3dc8c", "#d9f0d3"};
    enum { N = sizeof colors / sizeof *colors };
    for (int i = 0; i < N; i++)
        buf_printf(script, "%s%d '%s'", i ? ", " : "set palette defined (", i,
                   colors[low_is_good ? N - 1 - i : i]);
    buf_puts(script, ")\n");
}

static const struct {
    const char *method;
    struct line_style style;
} styles[] = {
#define STYLE(method, color, point, dash) {method, {color, point, dash}},
#include "plots/styles.def"
#undef STYLE
};

#define N_STYLES (sizeof styles / sizeof *styles)

static const struct line_style *find_style(const char *method)
{
    for (size_t i = 0; i < N_STYLES; i++)
        if (strcmp(styles[i].method, method) == 0)
            return &styles[i].style;
    return NULL;
}

/* ---- derived styles ------------------------------------------------------------------------ */

/* CIE lightness of a colour in linear light, 0 black to 100 white. */
static double lightness(const double rgb[3])
{
    double y = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
    return y > 0.008856 ? 116 * cbrt(y) - 16 : 903.3 * y;
}

static double to_linear(double c)
{
    return c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4);
}

static double to_display(double c)
{
    return c <= 0.0031308 ? 12.92 * c : 1.055 * pow(c, 1 / 2.4) - 0.055;
}

static double style_lightness(const struct line_style *s)
{
    long rgb = strtol(s->color + 1, NULL, 16);
    double c[3];
    for (int i = 0; i < 3; i++)
        c[i] = to_linear((double)(rgb >> (16 - 8 * i) & 255) / 255);
    return lightness(c);
}

/* The pure colour of a hue (in turns), darkened or whitened until it has the lightness. */
static void color_of(double hue, double wanted, char color[8])
{
    double low = 0, high = 2, c[3], x;
    for (int step = 0; step < 40; step++) {
        x = (low + high) / 2;
        for (int i = 0; i < 3; i++) {
            double turn = fmod(hue + (3 - i) / 3.0, 1) * 6;
            double pure = fmin(1, fmax(0, fabs(turn - 3) - 1));
            c[i] = to_linear(x < 1 ? pure * x : pure + (x - 1) * (1 - pure));
        }
        *(lightness(c) < wanted ? &low : &high) = x;
    }
    snprintf(color, 8, "#%02x%02x%02x", (int)lround(255 * to_display(c[0])),
             (int)lround(255 * to_display(c[1])), (int)lround(255 * to_display(c[2])));
}

#define LIGHT_LEAST 24 /* darker is black, lighter fades into the paper */
#define LIGHT_MOST 82
#define LIGHT_GAP 16 /* one more than promised, for what 8 bits round */

/* Least distance in lightness to the styles of the same point. */
static double gap_to(const struct line_style *s, int n, int point, double light)
{
    double least = 100;
    for (int i = 0; i < n; i++)
        if (s[i].point == point)
            least = fmin(least, fabs(style_lightness(&s[i]) - light));
    return least;
}

/* Add the point and lightness that stand farthest from those of `s`; false when all are near. */
static bool add_farthest(struct line_style *s, int n, double hue, int dash)
{
    static const int points[] = {13, 15, 9, 11, 7, 5};
    double best = LIGHT_GAP, light = -1;
    int point = 0;
    for (size_t p = 0; p < sizeof points / sizeof *points; p++)
        for (int l = LIGHT_LEAST; l <= LIGHT_MOST; l++) {
            double gap = gap_to(s, n, points[p], l);
            if (gap >= best + (light < 0 ? 0 : 1)) {
                best = gap;
                light = l;
                point = points[p];
            }
        }
    if (light < 0)
        return false;
    s[n] = (struct line_style){.point = point, .dash = dash};
    color_of(hue, light, s[n].color);
    return true;
}

/* First what styles.def leaves free, in a dash that it does not have; when that is used up, a dash
 * of which no style is near. */
struct line_style style_derived(int k)
{
    static const int dashes[] = {3, 5};
    struct line_style s[N_STYLES + STYLES_DERIVED];
    int n = 0, round = 0, made = 0;
    for (; n < (int)N_STYLES; n++)
        s[n] = styles[n].style;
    for (k %= STYLES_DERIVED; made <= k; made++) {
        double hue = fmod(0.55 + made * 0.381966, 1);
        while (!add_farthest(s, n, hue, dashes[round])) {
            n = 0; /* the next dash is free of all before */
            round++;
            assert(round < (int)(sizeof dashes / sizeof *dashes)); /* STYLES_DERIVED fit */
        }
        n++;
    }
    return s[n - 1];
}

/* ---- styles of methods --------------------------------------------------------------------- */

/* Length of an id at the beginning of a name, as a word or as a part of "LikeThis"; 0: it is none.
 */
static size_t begins(const char *name, const char *id)
{
    size_t n = id ? strlen(id) : 0;
    char next = n && strncasecmp(name, id, n) == 0 ? name[n] : 'a';
    return islower((unsigned char)next) || isdigit((unsigned char)next) ? 0 : n;
}

const char *style_method(const struct method *const *methods, const char *name)
{
    const char *found = name;
    size_t longest = 0;
    for (int i = 0; methods && methods[i]; i++) {
        size_t n = begins(name, methods[i]->name), alias = begins(name, methods[i]->alias);
        n = alias > n ? alias : n;
        if (n > longest) {
            longest = n;
            found = methods[i]->name;
        }
    }
    return found;
}

struct line_style style_of(const struct method *const *methods, const char *method)
{
    unsigned hash = 2166136261u;
    const struct line_style *listed = find_style(method);
    if (listed)
        return *listed;
    for (int i = 0, place = 0; methods && methods[i]; i++) {
        if (strcmp(methods[i]->name, method) == 0)
            return style_derived(place);
        place += find_style(methods[i]->name) == NULL;
    }
    const char *own = style_method(methods, method);
    if (own != method)
        return style_of(methods, own);
    for (const char *p = method; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    struct line_style s = styles[hash % N_STYLES].style;
    s.dash = 5; /* tells it from the method whose colour it shares */
    return s;
}

void style_shade(struct line_style s, int k, int n, double most, char color[8])
{
    long rgb = strtol(s.color + 1, NULL, 16);
    double mix = n > 1 ? most * k / (n - 1) : 0; /* share of white */
    int part[3];
    for (int i = 0; i < 3; i++) {
        int c = (int)(rgb >> (16 - 8 * i)) & 255;
        part[i] = (int)(c + mix * (255 - c) + 0.5);
    }
    snprintf(color, 8, "#%02x%02x%02x", part[0] & 255, part[1] & 255, part[2] & 255);
}
