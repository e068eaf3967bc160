/*
 * records_fixture.h - records made by hand, for the tests of tables and figures.
 */
#pragma once

#include "analyze/load.h"

#include <stdbool.h>

/* A growing array of records; fixture_set hands it over to a recset. */
struct fixture_records {
    struct record *r;
    int64_t n, cap;
};

/* A record of a 64-token causal text head: model "toy", trace "xxh3:a", status ok, no metrics. */
struct record *fixture_record(struct fixture_records *f, const char *method, const char *params,
                              int layer, int head);

/* Set a metric of the record. */
void fixture_metric(struct record *r, const char *name, double value);

/* Records from text: "METHOD:PARAMS NAME=VALUE ...; ...". layer, head, step (of a video) and copy
 * may be ranges A..B, of which every combination is a record, with # for the number of the copy;
 * the i-th of them has A + B i of a metric "A+Bi". n (of tokens), kv_head, trace, backend,
 * precision, status (skip, error), reason, note and task (of a model) are the record's; other names
 * are metrics. */
void fixture_add(struct fixture_records *f, const char *text);

/* Make it a call of a bidirectional video trace: model "toy-video", trace "xxh3:v". */
void fixture_video_record(struct record *r, int step);

void fixture_set(struct fixture_records *f, struct recset *out);

/* Write the records as DIR/records.jsonl (DIR is created) and free them. */
void fixture_write_records(struct fixture_records *f, const char *dir);

/* Two sweeps, an oracle, dense, a skipped and a failed cell over 2 layers x 2 heads. */
void fixture_study(struct fixture_records *f);
