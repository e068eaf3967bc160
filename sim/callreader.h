/*
 * callreader.h - the heads of the attention calls of a replay, one call at a time. While one is
 * worked on, a thread reads the next one and checks its checksums and values.
 */
#ifndef LACUNA_CALLREADER_H
#define LACUNA_CALLREADER_H

#include "sim/replay.h"

/* A call of a trace, with the heads of a group. */
struct call_place {
    const struct call_group *group; /* NULL: none */
    int64_t call;
};

struct call_reader;

/* jobs: threads that read a call. ahead: read the next one meanwhile; at most two calls are in
 * memory then, else one. Release with call_reader_free, which waits for the thread. */
int call_reader_new(const struct replay *r, int jobs, bool ahead, struct call_reader **out,
                    struct err *err);
void call_reader_free(struct call_reader **rd); /* accepts NULL inside */

/* Heads of the call at `at` into *heads [at.group->n], in its order; they stay the reader's, until
 * the next take. The errors of reading are told here, also of what was read ahead. */
int call_reader_take(struct call_reader *rd, struct call_place at, struct sim_head **heads,
                     struct err *err);

/* Say which call will be taken next. */
void call_reader_expect(struct call_reader *rd, struct call_place next);

#endif
