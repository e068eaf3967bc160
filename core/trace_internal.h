/*
 * trace_internal.h - what the files of the trace reader and writer share: the table of metadata
 * fields, the shapes of the payload datasets, and the content id.
 */
#pragma once

#include "core/buf.h"
#include "core/h5util.h"
#include "core/hash.h"
#include "core/trace.h"

#define TRACE_FORMAT "lacuna-trace"
#define CHUNK_TOKENS 1024 /* rows of a chunk of a packed tensor */

/* A payload dataset: slices (heads) of rows of row_bytes, one checksum per slice. */
struct trace_array {
    const char *name;
    enum dtype type;
    bool present;
    int ndim;
    int64_t dims[3];
    int64_t slices, rows, row_bytes;
    int64_t bytes; /* of all slices */
    enum trace_storage storage;
    int64_t chunk_rows;   /* packed datasets */
    int64_t offset;       /* contiguous datasets */
    struct hash128 *sums; /* [slices], owned */
};

/* Fill name, type and shape of dataset i of call c (NULL: of one that has all, each with a slice
 * per head); false when a size overflows. */
bool trace_call_array(const struct trace_meta *m, const struct trace_call *c, int i,
                      struct trace_array *a);

/* The same for a dataset of the run with n elements. */
bool trace_run_array(int i, int64_t n, struct trace_array *a);

/* The length that a dataset of the run must have by the metadata; -1 = any. */
int64_t trace_run_length(const struct trace_meta *m, int i);

/* Do the flags of c say that the call has dataset i? */
bool trace_call_has(const struct trace_call *c, int i);

/* What every call has as attributes of its group. */
extern const struct h5_field trace_call_fields[];

#define CALL_PATH_MAX 80
void trace_call_path(const struct trace_call *c, char path[CALL_PATH_MAX]);

/* ERR_INPUT / ERR_USAGE (`code`) unless step, layer, branch, block fit the metadata. */
int trace_call_check(const struct trace_meta *m, const struct trace_call *c, int code,
                     struct err *err);

/* ---- format 1.1: what a call does to its scores (trace_score.c) ------------------------------ */

bool trace_score_any(const struct trace_score *s);

/* Is it an attribute of a call of format 1.1? */
bool trace_score_has(const char *name);

/* Attributes of the call's group; those at their defaults are not written. */
int trace_score_put(hid_t group, const struct trace_score *s, struct err *err);
int trace_score_get(hid_t group, const struct trace_meta *m, struct trace_score *s,
                    struct err *err);

/* Ranges and relations; `code` as above. */
int trace_score_check(const struct trace_meta *m, const struct trace_score *s, int code,
                      struct err *err);

/* The line "score key=value ..." of the content id, or nothing. */
void content_score(const struct trace_score *s, struct buf *b);

/* Metadata as attributes of /model, /run and, with a grid, /video. */
int trace_meta_put(hid_t file, const struct trace_meta *m, struct err *err);
int trace_meta_get(hid_t file, struct trace_meta *m, struct err *err);

/* Is it an attribute of the group "model", "run" or "video"? */
bool trace_meta_has(const char *group, const char *name);

/* Ranges and relations; v_dim and text_place are filled in. `code` as above. */
int trace_meta_validate(struct trace_meta *m, int code, struct err *err);

/* ---- content id: XXH3-128 of a text of all metadata and checksums ---------------------------- */

void content_meta(const struct trace_meta *m, struct buf *b);
void content_call(const struct trace_call *c, struct buf *b);
void content_array(const struct trace_array *a, struct buf *b);

/* A checksum as stored: 16 bytes, big-endian, the order of its hexadecimal form. */
void sum_to_bytes(struct hash128 h, uint8_t out[16]);
struct hash128 sum_from_bytes(const uint8_t in[16]);

/* ---- reader ---------------------------------------------------------------------------------- */

struct trace_entry {
    struct trace_call call;
    struct trace_array arr[CALL_ARRAYS];
};

struct trace {
    char *path;
    int fd;
    int64_t file_size;
    hid_t file; /* open only when something is packed */
    struct trace_meta meta;
    struct trace_entry *calls;
    int64_t n_calls, cap_calls;
    struct trace_array run[RUN_ARRAYS];
    int32_t *rows; /* owned: positions of sampled rows [n_q], or NULL */
    char id[HASH_TEXT_MAX], stored_id[HASH_TEXT_MAX];
    int64_t minor; /* version of the format */
    struct trace_ignored ignored;
};

/* Path of the dataset: of call i, or of the run when i < 0. */
#define DATASET_PATH_MAX (CALL_PATH_MAX + 20)
void trace_dataset_path(const struct trace *t, int64_t i, const struct trace_array *a,
                        char path[DATASET_PATH_MAX]);

/* Rows [row0, row0+n) of a slice as stored. Thread-safe. Errors name file and dataset. */
int trace_read_rows(const struct trace *t, int64_t call, const struct trace_array *a, int64_t slice,
                    int64_t row0, int64_t n, void *dst, struct err *err);

/* A whole slice as stored, checked against its checksum; a mismatch is ERR_INPUT. */
int trace_read_slice(const struct trace *t, int64_t call, const struct trace_array *a,
                     int64_t slice, void *dst, struct err *err);

/* ---- writer, as seen by the packer ----------------------------------------------------------- */

/* How a file is made; need_bytes is what the disk must have, `copy` says that the content is given
 * and cannot become smaller. */
struct trace_form {
    enum trace_storage storage;
    int jobs;
    int64_t need_bytes;
    bool force, copy;
};
int trace_create_as(const char *path, const struct trace_meta *m, const struct trace_form *form,
                    struct trace_writer **out, struct err *err);

/* What helps where a file with these contents cannot be written for reason `sys` (ENOSPC, EDQUOT,
 * EFBIG); "" for any other. */
#define TRACE_ADVICE_MAX 200
void trace_write_advice(const struct trace_meta *m, bool copy, int sys,
                        char text[TRACE_ADVICE_MAX]);

/* A whole slice of dataset i of the current call, as stored. */
int trace_put_slice(struct trace_writer *w, int i, int64_t slice, const void *data,
                    struct err *err);
