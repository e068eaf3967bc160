/*
 * metricdef.c - look-up in the metric definitions.
 */
#include "core/metricdef.h"

#include <stddef.h>
#include <string.h>

const struct metric_def metric_defs[] = {
#define METRIC(name, unit, definition, section) {name, unit, definition, section},
#include "core/metrics.def"
#undef METRIC
    {NULL, NULL, NULL, NULL},
};

static const struct metric_def *find(const char *name, size_t len)
{
    for (const struct metric_def *m = metric_defs; m->name; m++)
        if (strncmp(m->name, name, len) == 0 && m->name[len] == '\0')
            return m;
    return NULL;
}

const struct metric_def *metric_def_find(const char *name)
{
    static const char modelled[] = "_model"; /* a cost model's value of the same number */
    size_t len = strcspn(name, "@"), tail = sizeof modelled - 1;
    const struct metric_def *m = find(name, len);
    if (!m && len > tail && strncmp(name + len - tail, modelled, tail) == 0)
        m = find(name, len - tail);
    return m;
}
