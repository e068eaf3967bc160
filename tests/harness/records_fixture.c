#include "tests/harness/records_fixture.h"

#include "core/fileio.h"
#include "core/mem.h"
#include "tests/harness/suite.h"

#include <stdio.h>
#include <string.h>

struct record *fixture_record(struct fixture_records *f, const char *method, const char *params,
                              int layer, int head)
{
    struct err e = {0};
    assert_ok(mem_grow(&f->r, &f->cap, f->n + 1, sizeof *f->r, "records", &e), &e);
    struct record *r = &f->r[f->n++];
    record_init(r);
    snprintf(r->trace, sizeof r->trace, "xxh3:a");
    record_text(r, &r->model, "toy");
    snprintf(r->method, sizeof r->method, "%s", method);
    r->params = strdup(params);
    ck_assert_ptr_nonnull(r->params);
    r->layer = layer;
    r->head = head;
    r->kv_head = head;
    r->n_q = r->n_k = 64;
    r->d = 8;
    r->causal = true;
    r->status = RECORD_OK;
    return r;
}

void fixture_metric(struct record *r, const char *name, double value)
{
    struct err e = {0};
    assert_ok(record_metric(r, name, value, &e), &e);
}

/* What "NAME=A..B" or "NAME=A" of a line ranges over; without the name 0 alone. */
struct range {
    bool given;
    int from, n;
};

static struct range range_of(const char *line, const char *name)
{
    char word[16];
    struct range r = {false, 0, 1};
    int to;
    snprintf(word, sizeof word, " %s=", name);
    const char *at = strstr(line, word);
    if (at && sscanf(at + strlen(word), "%d..%d", &r.from, &to) == 2)
        r.n = to - r.from + 1;
    r.given = at != NULL;
    return r;
}

/* A word of the i-th record of its line. */
static void take_word(struct record *r, const char *name, const char *value, int i)
{
    if (strcmp(name, "layer") == 0 || strcmp(name, "step") == 0 || strcmp(name, "head") == 0 ||
        strcmp(name, "copy") == 0)
        return;
    if (strcmp(name, "n") == 0)
        r->n_q = r->n_k = atoi(value);
    else if (strcmp(name, "kv_head") == 0)
        r->kv_head = atoi(value);
    else if (strcmp(name, "status") == 0)
        r->status = strcmp(value, "skip") == 0 ? RECORD_SKIP : RECORD_ERROR;
    else if (strcmp(name, "backend") == 0)
        snprintf(r->backend, sizeof r->backend, "%s", value);
    else if (strcmp(name, "trace") == 0)
        snprintf(r->trace, sizeof r->trace, "%s", value);
    else if (strcmp(name, "precision") == 0)
        snprintf(r->precision, sizeof r->precision, "%s", value);
    else if (strcmp(name, "reason") == 0)
        record_text(r, &r->reason, "%s", value);
    else if (strcmp(name, "note") == 0)
        record_note(r, "%s", value);
    else if (strcmp(name, "task") == 0) {
        record_of_model(r);
        r->task = strdup(value);
    } else {
        char *end;
        double x = strtod(value, &end), by = *end ? strtod(end, &end) : 0;
        ck_assert_msg(*end == '\0' || *end == 'i', "%s=%s is no number", name, value);
        fixture_metric(r, name, x + by * i);
    }
}

static void add_line(struct fixture_records *f, const char *line)
{
    struct range layer = range_of(line, "layer"), step = range_of(line, "step"),
                 head = range_of(line, "head"), copy = range_of(line, "copy");
    for (int i = 0; i < layer.n * step.n * head.n * copy.n; i++) {
        OWN(buf_free) struct buf b = {0};
        char method[32], *save = NULL;
        for (const char *p = line; *p; p++)
            if (*p == '#')
                buf_printf(&b, "%d", copy.from + i % copy.n);
            else
                buf_put(&b, p, 1);
        char *word = strtok_r(b.data, " ", &save);
        size_t len = strcspn(word, ":@");
        snprintf(method, sizeof method, "%.*s", (int)len, word);
        struct record *r = fixture_record(f, method, word + len + (word[len] == ':'),
                                          layer.from + i / (copy.n * head.n * step.n),
                                          head.from + i / copy.n % head.n);
        if (step.given)
            fixture_video_record(r, step.from + i / (copy.n * head.n) % step.n);
        while ((word = strtok_r(NULL, " ", &save)) != NULL) {
            char *value = word + strcspn(word, "=");
            ck_assert_msg(*value == '=', "%s: NAME=VALUE was expected", word);
            *value = '\0';
            take_word(r, word, value + 1, i);
        }
    }
}

void fixture_add(struct fixture_records *f, const char *text)
{
    OWN(free_at) char *lines = strdup(text);
    char *save = NULL;
    for (char *p = strtok_r(lines, ";", &save); p; p = strtok_r(NULL, ";", &save))
        add_line(f, p);
}

void fixture_video_record(struct record *r, int step)
{
    snprintf(r->trace, sizeof r->trace, "xxh3:v");
    record_text(r, &r->model, "toy-video");
    snprintf(r->branch, sizeof r->branch, "cond");
    r->causal = false;
    r->step = step;
    r->timestep = 1000 - 20 * step;
}

void fixture_set(struct fixture_records *f, struct recset *out)
{
    struct err e = {0};
    assert_ok(recset_from(f->r, f->n, out, &e), &e);
    *f = (struct fixture_records){0};
}

void fixture_write_records(struct fixture_records *f, const char *dir)
{
    struct err e = {0};
    OWN(buf_free) struct buf b = {0}, path = {0};
    assert_ok(make_dirs(dir, &e), &e);
    for (int64_t i = 0; i < f->n; i++)
        record_json(&f->r[i], &b);
    buf_printf(&path, "%s/records.jsonl", dir);
    assert_ok(file_write_atomic(buf_str(&path), buf_str(&b), b.len, &e), &e);
    records_free(f->r, f->n);
    *f = (struct fixture_records){0};
}

static void study_metrics(struct record *r, double density, double recall, double error)
{
    fixture_metric(r, "density_elem", density);
    fixture_metric(r, "density_tile", density);
    fixture_metric(r, "sparsity_qk", 1 - density);
    fixture_metric(r, "sparsity_pv", 1 - density);
    fixture_metric(r, "sparsity_total", 1 - density);
    fixture_metric(r, "cra_min", recall - 0.1);
    fixture_metric(r, "cra_p1", recall - 0.05);
    fixture_metric(r, "cra_mean", recall);
    fixture_metric(r, "err_l1_rel", error);
    fixture_metric(r, "err_cos", 1 - error);
    fixture_metric(r, "host_select_ns", 2e6);
    fixture_metric(r, "host_attend_ns", 4e6);
}

void fixture_study(struct fixture_records *f)
{
    static const struct {
        const char *method, *params;
        double density, recall, error;
    } runs[] = {
        {"dense", "", 1, 1, 0},
        {"sale", "", 0.5, 0.95, 0.02},
        {"sale", "tau=0.02", 0.25, 0.9, 0.1},
        {"streaming", "window=8", 0.3, 0.7, 0.3},
        {"oracle", "alpha=0.9", 0.1, 0.92, 0.05},
    };
    for (int i = 0; i < 20; i++) {
        int k = i % 5, layer = i / 10, head = i / 5 % 2;
        struct record *r = fixture_record(f, runs[k].method, runs[k].params, layer, head);
        double shift = k ? 0.01 * layer + 0.02 * head : 0;
        study_metrics(r, runs[k].density + shift, runs[k].recall - shift, runs[k].error);
        if (k == 0) {
            fixture_metric(r, "below_b16", 0.4 + 0.1 * head);
            fixture_metric(r, "below_b64", 0.1);
            fixture_metric(r, "below_s64", 0.3);
        }
    }
    struct record *skip = fixture_record(f, "radial", "", 0, 0);
    skip->status = RECORD_SKIP;
    record_text(skip, &skip->reason, "bidirectional only");
    struct record *error = fixture_record(f, "chipmunk", "", 0, 0);
    error->status = RECORD_ERROR;
    record_text(error, &error->reason, "out of memory");
}
