/*
 * metricdef.c - look-up in the metric definitions.
 */
#include "core/metricdef.h"

#include "core/method.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct metric_def metric_defs[] = {
#define METRIC(...) {__VA_ARGS__},
#include "core/metrics.def"
#undef METRIC
    {.name = NULL},
};

static const struct method *const *own_metrics; /* methods that declare some */

void metric_def_methods(const struct method *const *methods)
{
    own_metrics = methods;
}

const struct method *const *metric_def_known_methods(void)
{
    return own_metrics;
}

static const struct metric_def *find_in(const struct metric_def *m, const char *name, size_t len)
{
    for (; m && m->name; m++)
        if (strncmp(m->name, name, len) == 0 && m->name[len] == '\0')
            return m;
    return NULL;
}

static const struct metric_def *find(const char *name, size_t len)
{
    const struct metric_def *m = find_in(metric_defs, name, len);
    for (int i = 0; !m && own_metrics && own_metrics[i]; i++)
        m = find_in(own_metrics[i]->metrics, name, len);
    return m;
}

const struct metric_def *metric_def_find(const char *name)
{
    return find(name, strcspn(name, "@~"));
}

double metric_level(const char *name)
{
    const char *at = strchr(name, '@');
    const struct metric_def *m = metric_def_find(name);
    if (at)
        return strtod(at + 1, NULL);
    return m && m->level != 0 ? m->level : NAN;
}
