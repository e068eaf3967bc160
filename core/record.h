/*
 * record.h - results: one JSON line per cell (trace, run, step, branch, layer, head, method,
 * canonical parameters). Append-only; a torn last line is dropped on resume.
 */
#ifndef LACUNA_RECORD_H
#define LACUNA_RECORD_H

#include "core/err.h"
#include "core/buf.h"
#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

struct metric {
    char name[48];
    double value;
};

enum record_status { RECORD_OK, RECORD_SKIP, RECORD_ERROR };

struct record {
    /* identity */
    char trace[64]; /* trace id: name-independent content id of the file */
    char model[128]; /* model name of the trace */
    int run, step, layer, head, kv_head;
    char branch[16];
    char method[32];
    char *params; /* canonical parameters, owned, "" = defaults */
    uint64_t seed;
    char backend[8];   /* "cpu", "cuda" */
    char precision[8]; /* "f64", "f32" */
    char permute[32];  /* token order, "none" */
    /* shape */
    int64_t n_q, n_k;
    int d;
    bool causal;
    double timestep; /* NAN for text */
    /* outcome */
    enum record_status status;
    char reason[512];       /* of skip or error */
    struct metric *metrics; /* owned */
    int64_t n_metrics, cap_metrics;
    struct buf notes; /* "key=value;..." free-form notes, owned */
};

void record_init(struct record *r);
void record_free(struct record *r);
/* Append or replace a metric. The name must fit and must not be one of the record's own keys. */
int record_metric(struct record *r, const char *name, double value, struct err *err);
double record_get(const struct record *r, const char *name); /* NAN if absent */
void record_note(struct record *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Identity key of a record: text that is equal iff the cells are equal. */
void record_key(const struct record *r, struct buf *b);

void record_json(const struct record *r, struct buf *line); /* one line with '\n' */
int record_parse(const char *line, size_t len, const char *where, struct record *out,
                 struct err *err);

/* ---- a file of records -------------------------------------------------------------------- */

struct record_file; /* open for appending */

/* Open a file for appending, creating it; a second process gets ERR_RUN. A torn last line (no '\n')
 * is cut off first. Keys of the records already there are loaded for record_file_has. */
int record_file_open(const char *path, struct record_file **out, struct err *err);

/* The same for a file that is to be written anew: nothing of it is read, and nothing is lost before
 * record_file_clear, which empties it. */
int record_file_reopen(const char *path, struct record_file **out, struct err *err);
int record_file_clear(struct record_file *f, struct err *err);

/* Is the cell finished: its last record is ok or skip? (An error is worth another try.) */
bool record_file_has(const struct record_file *f, const char *key);

/* Thread-safe; one write() of the whole line. */
int record_file_append(struct record_file *f, const struct record *r, struct err *err);
void record_file_close(struct record_file **f);

/* Read all records*.jsonl of a directory (or one file). A torn last line is ignored, any other bad
 * line is ERR_INPUT with file and line number. *out is an array of n records; the last record of
 * equal keys wins. */
int records_load(const char *path, struct record **out, int64_t *n, struct err *err);
void records_free(struct record *r, int64_t n);

#endif
