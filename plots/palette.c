/*
 * palette.c - palettes as `set palette defined` (gnuplot 5.4 has no viridis of its own) and styles.
 */
#include "plots/palette.h"

#include <ctype.h>
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
    const char *own = style_method(methods, method);
    if (strcmp(own, method) != 0)
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
