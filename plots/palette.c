/*
 * palette.c - palettes as `set palette defined` (gnuplot 5.4 has no viridis of its own) and styles.
 */
#include "plots/palette.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static const struct {
    const char *method;
    struct line_style style;
} styles[] = {
#define STYLE(method, color, point, dash) {method, {color, point, dash}},
#include "plots/styles.def"
#undef STYLE
};

#define N_STYLES (sizeof styles / sizeof *styles)

struct line_style style_of(const char *method)
{
    unsigned hash = 2166136261u;
    for (size_t i = 0; i < N_STYLES; i++)
        if (strcmp(styles[i].method, method) == 0)
            return styles[i].style;
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
