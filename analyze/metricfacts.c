/*
 * metricfacts.c - facts of the first metric of an expression, and names and units for people.
 */
#include "analyze/metricfacts.h"

#include "core/record.h"

#include <stdio.h>
#include <string.h>

static bool is_complement(const char *name)
{
    return strncmp(name, "1-", 2) == 0;
}

/* Definition of the first metric; NULL if it has none. */
static const struct metric_def *first_def(const char *name)
{
    const char *p = is_complement(name) ? name + 2 : name;
    size_t len = strcspn(p, "+/");
    char one[METRIC_NAME];
    if (len >= sizeof one)
        return NULL;
    snprintf(one, sizeof one, "%.*s", (int)len, p);
    return metric_def_find(one);
}

enum metric_better metric_better(const char *name)
{
    const struct metric_def *def = first_def(name);
    enum metric_better better = def ? def->better : BETTER_LOWER;
    if (!is_complement(name) || better == BETTER_NEITHER)
        return better;
    return better == BETTER_HIGHER ? BETTER_LOWER : BETTER_HIGHER;
}

enum metric_axis metric_axis(const char *name)
{
    const struct metric_def *def = first_def(name);
    bool log = def && def->axis == AXIS_LOG;
    return !def || (log && is_complement(name)) ? AXIS_PLAIN : def->axis;
}

enum metric_per metric_per(const char *name)
{
    const struct metric_def *def = first_def(name);
    return def ? def->per : PER_HEAD;
}

enum metric_noise metric_noise(const char *name)
{
    const struct metric_def *def = first_def(name);
    return def ? def->noise : NOISE_NONE;
}

/* NULL for an expression and for a name with a size or level. */
static const struct metric_def *plain_def(const char *name)
{
    const struct metric_def *def = strpbrk(name, "@+/") ? NULL : metric_def_find(name);
    return def && !is_complement(name) ? def : NULL;
}

const char *metric_head(const char *name)
{
    const struct metric_def *def = plain_def(name);
    return def && def->head ? def->head : name;
}

const char *metric_label(const char *name)
{
    const struct metric_def *def = plain_def(name);
    return def && def->label ? def->label : name;
}

bool metric_percent(const char *name)
{
    const struct metric_def *def = first_def(name);
    return def && def->percent && !strpbrk(name, "+/");
}

bool metric_of_model(const char *name)
{
    const struct metric_def *def = first_def(name);
    return def && def->section &&
           (strcmp(def->section, "model") == 0 || strcmp(def->section, "task") == 0);
}

bool metric_yes_no(const char *name)
{
    const struct metric_def *def = metric_def_find(name);
    return def && def->yes_no;
}

bool metric_timed(const char *name)
{
    const struct metric_def *def = first_def(name);
    return def && def->section && strcmp(def->section, "time") == 0;
}

double metric_worst(const char *name, const struct stats *s)
{
    return metric_better(name) == BETTER_HIGHER ? s->min : s->max;
}

const char *metric_unit(const char *name)
{
    const struct metric_def *def = metric_def_find(name);
    if (!def)
        return "";
    if (def->denominator_at && strchr(name, '@'))
        return def->denominator_at;
    if (def->denominator)
        return def->denominator;
    return strcmp(def->unit, "1") == 0 ? "" : def->unit;
}

double metric_scale(const char *name, const char **unit)
{
    *unit = metric_unit(name);
    if (strcmp(*unit, "ns") != 0 && strcmp(*unit, "B") != 0)
        return 1;
    *unit = **unit == 'n' ? "ms" : "MB";
    return 1e-6;
}

/* The unit at the end of a name. */
static size_t unit_at(const char *p)
{
    size_t n = strncmp(p, "_ns", 3) == 0 ? 3 : strncmp(p, "_bytes", 6) == 0 ? 6 : 0;
    return n && (!p[n] || p[n] == '_') ? n : 0;
}

void metric_title(const char *name, struct buf *b)
{
    const char *unit;
    bool scaled = metric_scale(name, &unit) != 1;
    for (const char *p = name; *p;) {
        size_t skip = scaled ? unit_at(p) : 0;
        if (skip)
            p += skip;
        else
            buf_put(b, p++, 1);
    }
}
