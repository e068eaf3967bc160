#include "core/human.h"

#include <math.h>
#include <stdio.h>

void bytes_text(double bytes, char text[24])
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB"};
    int u = -1;
    while (bytes >= 999.5 && u < 4) {
        bytes /= 1000;
        u++;
    }
    if (u < 0)
        snprintf(text, 24, "%.0f B", bytes);
    else
        snprintf(text, 24, bytes < 9.95 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
}

/* Two significant digits below 10, whole numbers above: 0.5, 2, 8.5, 30. */
static double rounded(double x)
{
    return x < 9.75 ? round(2 * x) / 2 : round(x);
}

void estimate_text(double seconds, char text[48])
{
    static const struct {
        double seconds;
        const char *name;
    } units[] = {{1, "s"}, {60, "min"}, {3600, "h"}, {86400, "days"}};
    static const double most[] = {120, 120 * 60.0, 72 * 3600.0, INFINITY};
    double low = seconds, high = seconds * 4;
    int u = 0;
    if (high < 2) {
        snprintf(text, 48, "under 2 s");
        return;
    }
    while (high > most[u])
        u++;
    snprintf(text, 48, "%g to %g %s", rounded(low / units[u].seconds),
             rounded(high / units[u].seconds), units[u].name);
}
