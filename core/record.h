/*
 * record.h - results: one JSON line per cell. A replay's cell is (trace, run, step, branch,
 * layer, head, method, canonical parameters), scope `head`, or all heads of a call that were run
 * together, scope `call`; a head in the decode phase has scope `decode`; the cell of a model that
 * ran with a method inside it is (weights, task, setting, method, canonical parameters), scope
 * `model`. Append-only; a torn last line is dropped on resume. Every line carries its checksum
 * (core/sealed.h); lines without one, from older versions, are read too.
 */
#pragma once

#include "core/err.h"
#include "core/buf.h"
#include "core/json.h"
#include "core/text.h"

#include <stdbool.h>
#include <stdint.h>

#define METRIC_NAME 48 /* bytes of a metric's name, with its end */

/* The metrics of a record, in their order. Records of a set that measure the same share one. */
struct metric_names {
    char (*name)[METRIC_NAME]; /* owned */
    int64_t n, cap;
};

#define RECORD_MODEL 128 /* bytes of these texts, with their end */
#define RECORD_REASON 512

enum record_status { RECORD_OK, RECORD_SKIP, RECORD_ERROR };

enum record_scope { RECORD_OF_HEAD, RECORD_OF_MODEL, RECORD_OF_CALL, RECORD_OF_DECODE };

struct record {
    /* identity */
    enum record_scope scope;
    char trace[64];    /* trace id: name-independent content id of the file. RECORD_OF_MODEL: of the
                        * model's weights */
    const char *model; /* model name of the trace; record_text sets it */
    int run, step, layer, head,
        kv_head; /* RECORD_OF_MODEL: 0 0 -1 -1 -1; RECORD_OF_CALL: no head */
    char *heads; /* RECORD_OF_CALL: the query heads, "0-3,6"; owned, NULL = "" = all of the trace */
    char branch[16];
    char method[32];
    char *params;         /* canonical parameters, owned, "" = defaults */
    char *task, *setting; /* RECORD_OF_MODEL: what was asked,
                           * "needle:tokens=2048:depth=0.5:sample=3", and how the method stands in
                           * the model, "dense_layers=0:decode=dense"; owned, NULL = "" */
    bool tells_text; /* set by readers of several: texts of other content have this task's name */
    uint64_t seed;
    char backend[8];   /* "cpu", "cuda" */
    char precision[8]; /* "f64", "f32" */
    char permute[32];  /* token order, "none" */
    /* shape */
    int64_t n_q, n_k;
    int d;
    bool causal;
    double timestep; /* NAN for text */
    int64_t ordinal; /* of the cell in its run: dumps have the cells in this order */
    /* outcome */
    enum record_status status;
    const char *reason;         /* of skip or error; record_text sets it */
    struct metric_names *names; /* owned; NULL: no metric */
    double *values;             /* owned, one for each name */
    struct buf notes;           /* "key=value;..." free-form notes, owned */
    bool pooled;                /* texts and names are of a record_pool; they stay as they are */
};

void record_init(struct record *r);

/* Is it of a head, in the prefill or in the decode phase? */
static inline bool record_of_head(const struct record *r)
{
    return r->scope == RECORD_OF_HEAD || r->scope == RECORD_OF_DECODE;
}

/* Make it a record of scope `model`, or of scope `call`. */
void record_of_model(struct record *r);
void record_of_call(struct record *r);
void record_free(struct record *r);

/* A copy of the identity and shape of a head's record, which is released with record_free. */
int record_identity(const struct record *r, struct record *out, struct err *err);

/* Set r->model or r->reason, cut to what a line may hold. */
void record_text(struct record *r, const char **field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Append or replace a metric. The name must fit and must not be one of the record's own keys. */
int record_metric(struct record *r, const char *name, double value, struct err *err);

/* The same for several: RECORD_ALL(r, err, {"columns", 3}, {"slashes", 4}). */
struct named_value {
    const char *name;
    double value;
};
int record_add_values(struct record *r, const struct named_value *values, struct err *err);
#define RECORD_ALL(r, err, ...)                                                                    \
    record_add_values((r), (const struct named_value[]){__VA_ARGS__, {NULL, 0}}, (err))
double record_get(const struct record *r, const char *name); /* NAN if absent */

/* Forget all metrics of a record that is not pooled. */
static inline void record_no_metrics(struct record *r)
{
    if (r->names)
        r->names->n = 0;
}

/* Number of metrics, and the name of one. */
static inline int64_t record_metrics(const struct record *r)
{
    return r->names ? r->names->n : 0;
}
const char *record_metric_name(const struct record *r, int64_t i);

/* Place of a metric among the names (NULL: none), -1 if it is not one of them. */
int64_t metric_place(const struct metric_names *names, const char *name);

void record_note(struct record *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Value of "key=..." among the notes of a record, of *len characters; NULL if there is none. */
const char *record_note_value(const struct record *r, const char *key, size_t *len);

/* Identity key of a record: text that is equal iff the cells are equal. */
void record_key(const struct record *r, struct buf *b);

/* Longest line of a record, with its newline, and largest file of records, in bytes. */
#define RECORD_LINE_MAX ((size_t)1 << 20)
#define RECORD_FILE_MAX ((int64_t)64 << 30)

void record_json(const struct record *r, struct buf *line); /* one line with '\n' */

/* ERR_INPUT with `where` in front if the line is no record or its checksum does not fit. */
int record_parse(const char *line, size_t len, const char *where, struct record *out,
                 struct err *err);

/* ---- records of a set ----------------------------------------------------------------------- */

/* Texts and lists of names that records share: what 10^6 of them hold once each would not fit into
 * memory. */
struct record_pool;
int record_pool_new(struct record_pool **out, struct err *err);
void record_pool_free(struct record_pool **p); /* after its records */

/* Append n metrics, of the pool if the record is. The names must be new to it. */
int record_pool_extend(struct record_pool *p, struct record *r, const struct named_value *v, int n,
                       struct err *err);

/* record_parse into the pool. A line as record_json writes it is read without a tree of JSON. */
int record_parse_into(struct record_pool *p, const char *line, size_t len, const char *where,
                      struct record *out, struct err *err);

/* ---- a file of records -------------------------------------------------------------------- */

struct record_file; /* open for appending */

/* Open a file for appending, creating it; a second process gets ERR_RUN. A torn last line (no '\n')
 * is cut off first. Keys of the records already there are loaded for record_file_has. */
int record_file_open(const char *path, struct record_file **out, struct err *err);

/* Open a file that a run with --force writes anew. Existing records are not read, and stay in the
 * file until record_file_clear empties it. */
int record_file_reopen(const char *path, struct record_file **out, struct err *err);
int record_file_clear(struct record_file *f, struct err *err);

/* The keys alone, for record_file_has: the file is neither locked nor changed, so that a dry run
 * may look while another process writes. No file is no key. Nothing can be appended. */
int record_file_peek(const char *path, struct record_file **out, struct err *err);

/* True if the cell's last record is ok or skip. A cell with an error is tried again. */
bool record_file_has(const struct record_file *f, const char *key);

/* The same of the cell of r. NULL: no file, and so no record. ERR_NOMEM without memory for the key.
 */
int record_file_holds(const struct record_file *f, const struct record *r, bool *holds,
                      struct err *err);

/* What a run measures only where it is asked to. */
enum record_extra {
    RECORD_LOCAL = 2, /* err_local@LAYER */
    RECORD_TIMES = 4, /* times of prefills and clips */
};

/* Is the cell of r finished and ok, and without that? As record_file_holds. */
int record_file_lacks(const struct record_file *f, const struct record *r, enum record_extra what,
                      bool *lacks, struct err *err);

/* Thread-safe; one write() of the whole line. At most every few seconds the file is synced as well:
 * that is what a power failure may cost. */
int record_file_append(struct record_file *f, const struct record *r, struct err *err);

/* What has been appended is on the disk. Call it when a run ends, also one that failed. */
int record_file_sync(struct record_file *f, struct err *err);
void record_file_close(struct record_file **f);

/* ---- reading (recordread.c) ----------------------------------------------------------------- */

/* A line of a file of records. */
struct record_line {
    const char *path;
    int64_t number, offset; /* from 1; of its first byte */
    const char *text;       /* borrowed; with the newline, if there is one */
    size_t len;
    bool torn;             /* the last line, without a newline: not parsed, no damage */
    struct record *record; /* NULL if torn or bad; whoever takes it zeroes the pointed-to record */
    const struct err *bad; /* "FILE: line N: why"; NULL for a good or torn line */
};

/* Returns 0 or a code that ends the reading. */
typedef int record_line_fn(void *ctx, struct record_line *line, struct err *err);

/* Call fn with every line of a file, damaged ones too; its records are of the pool, which may be
 * NULL. ERR_INPUT: not a file that can be read, or larger than RECORD_FILE_MAX. */
int record_lines(const char *path, struct record_pool *pool, record_line_fn *fn, void *ctx,
                 struct err *err);

/* Called with each record of a file, in order. Takes the record over. */
typedef int record_sink(void *ctx, struct record *r, struct err *err);

/* Call the sink with every record. A damaged line is ERR_INPUT that names file, line and remedy: no
 * part of a file is used as if it were all. *torn_at is the offset of a torn last line, or -1. */
int records_each(const char *path, struct record_pool *pool, record_sink *sink, void *ctx,
                 int64_t *torn_at, struct err *err);

/* The sink with every record of a directory or a file (records_files). A torn last line is left
 * out, with a warning. */
int records_read(const char *path, struct record_pool *pool, record_sink *sink, void *ctx,
                 struct err *err);

/* The paths of the files of records: of a directory all records*.jsonl, sorted, at least one (else
 * ERR_INPUT), of anything else the path itself. */
int records_files(const char *path, struct str_list *out, struct err *err);

/* All records of records_read, without a pool. *out is an array of n records; the last record of
 * equal keys wins. */
int records_load(const char *path, struct record **out, int64_t *n, struct err *err);
void records_free(struct record *r, int64_t n);
