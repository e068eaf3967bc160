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
