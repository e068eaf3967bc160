/*
 * drawn.h - what the tests of figures share: a figure that is drawn, or refused, and what stands
 * beside its picture. Each file that includes it has a state of its own.
 */
#pragma once

#include "core/fileio.h"
#include "core/log.h"
#include "plots/figure.h"
#include "sim/registry.h"
#include "tests/harness/records_fixture.h"
#include "tests/harness/suite.h"
#include "tests/harness/trace_fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What is drawn of records (fixture_add; NULL: of the study) or of a trace, and what stands in
 * data, script and caption: the text, with '!' not the text, with "=N " the text N times. Or why
 * nothing is drawn. */
struct drawn {
    const char *name, *records, *figure;
    struct figure_args a;
    const char *texts[8];
    enum err_code fails;
    const char *suffix; /* of the picture; NULL: png */
    struct {
        int layers; /* 0: no trace; otherwise with 2 heads */
        int64_t n_q, n_k, pool;
    } trace;
    double coloured; /* the least share of the pixels that are not grey */
};

static struct err e;
static struct fixture_records f;
static struct recset set;
static struct trace *t;
static struct buf text;

static inline void begin(void)
{
    memset(&e, 0, sizeof e);
    log_set_level(LOG_ERROR);
    metric_def_methods(sim_methods);
}

static inline void end(void)
{
    recset_free(&set);
    trace_close(&t);
    buf_free(&text);
}

static inline void drawn_trace(const struct drawn *d)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 2, d->trace.n_k);
    m.n_q = d->trace.n_q;
    m.pool = d->trace.pool;
    assert_ok(fixture_write(test_path("t.h5"), &m, d->trace.layers, &e), &e);
    trace_close(&t);
    assert_ok(trace_open(test_path("t.h5"), &t, &e), &e);
}

static const char *const beside[] = {"dat", "gp", "txt", "tex"};

/* Draw fig.SUFFIX; nothing is left of an earlier one. */
static inline int draw(const struct drawn *d)
{
    char name[16];
    struct figure_args a = d->a;
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "fig.%s", beside[i]);
        unlink(test_path(name));
    }
    if (d->trace.layers)
        drawn_trace(d);
    else if (d->records)
        fixture_add(&f, d->records);
    else
        fixture_study(&f);
    recset_free(&set);
    fixture_set(&f, &set);
    snprintf(name, sizeof name, "fig.%s", d->suffix ? d->suffix : "png");
    a.output = test_path(name);
    a.set = &set;
    a.trace = t;
    a.methods = sim_methods;
    if (a.low == a.high)
        a.low = a.high = NAN;
    return figure_draw(figure_find(d->figure, &e), &a, &e);
}

static inline void read_beside(void)
{
    char name[16];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "fig.%s", beside[i]);
        if (access(test_path(name), F_OK) == 0)
            assert_ok(buf_read_file(&text, test_path(name), 1 << 20, &e), &e);
    }
}

static inline int count(const char *part)
{
    int n = 0;
    for (const char *p = buf_str(&text); (p = strstr(p, part)); p++)
        n++;
    return n;
}

static inline void assert_drawn(const struct drawn *d)
{
    int rc = draw(d);
    ck_assert_msg(rc == (int)d->fails, "%s: %d '%s'", d->name, rc, e.msg);
    if (rc)
        buf_puts(&text, e.msg);
    else
        read_beside();
    for (int i = 0; d->texts[i]; i++) {
        int want = -1, skip = 0;
        sscanf(d->texts[i], "=%d %n", &want, &skip);
        if (d->texts[i][0] == '!')
            want = 0, skip = 1;
        int n = count(d->texts[i] + skip);
        ck_assert_msg(want < 0 ? n > 0 : n == want, "%s: '%s' stands %d times in\n%s", d->name,
                      d->texts[i], n, buf_str(&text));
    }
}
