/*
 * trace_fixture.h - small traces with known contents, for the tests of everything that reads one.
 */
#pragma once

#include "core/trace.h"

/* Metadata of a text trace (layers 3, head_dim 8, v_dim 8). */
struct trace_meta fixture_text(enum dtype dtype, int heads, int kv_heads, int64_t n);

/* Metadata of a text trace of 300 tokens that holds a sample of its query rows: one group of 128
 * and the last 44 rows. */
struct trace_meta fixture_sampled(enum dtype dtype);

/* Metadata of a text trace of 40 tokens of which the last 10 were generated, with queries of these
 * and of the 6 tokens before them; its calls have col_sum. */
struct trace_meta fixture_decode(enum dtype dtype);

/* Metadata of a video trace with grid 2 x 3 x 4 and 50 steps. */
struct trace_meta fixture_video(enum dtype dtype);

/* The value of an element before it is rounded to the trace's dtype. */
float fixture_value(int64_t call, enum trace_what what, int64_t head, int64_t token, int64_t dim);

/* Write calls 0..n_calls-1 (text: layers; video: branches, steps, layers) with out, lse and, with
 * m->pool > 0, maps. */
int fixture_write(const char *path, const struct trace_meta *m, int n_calls, struct err *err);

/* A text trace of two query heads, one kv head, 12 tokens and four calls: a window with cap and
 * sinks; a chunk with a scale of its own and a relative bias per head; ALiBi and a prefix; a window
 * and a bias of rows and keys per head. fixture_score is what they have. */
enum { SCORED_CALLS = 4 };
int fixture_write_scored(const char *path, struct trace_meta *m, struct err *err);
struct trace_score fixture_score(const struct trace_meta *m, int call);

/* A text trace whose q, k, v are standard normal, q times sigma; bad: a NaN is its last key. */
int fixture_write_random(const char *path, const struct trace_meta *m, double sigma, bool bad,
                         struct err *err);

/* The same as fixture_write up to the commit. */
int fixture_begin(const char *path, const struct trace_meta *m, int n_calls,
                  struct trace_writer **out, struct err *err);

/* Call number i of a fixture. */
struct trace_call fixture_call(const struct trace_meta *m, int i);

/* Where a head's payload lies in a file that is not packed. */
void trace_locate(const struct trace *t, int64_t call, enum trace_what what, int head,
                  int64_t *offset, int64_t *bytes);

/* HDF5 objects of any kind that are still open in this process. */
int64_t hdf5_objects_open(void);
