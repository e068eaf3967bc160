/*
 * headsel.h - `--heads`: storing some of a model's query heads.
 *
 * A trace needs head h to read kv head h div (heads / kv_heads). Where the chosen heads use every
 * kv head that they use equally often, each of these is stored once; otherwise each query head gets
 * its kv head beside it (some are then stored more than once). The trace says which heads of the
 * model its heads are (head_ids, kv_head_ids).
 */
#ifndef LACUNA_HEADSEL_H
#define LACUNA_HEADSEL_H

#include "core/trace.h"

struct head_select {
    int model_heads, model_kv; /* of the model */
    int n, n_kv;               /* stored */
    int *head, *kv;            /* [n], [n_kv]: heads of the model, ascending; owned */
    bool all;
};

/* list: "all" or as in 0,4-7. */
int head_select_parse(const char *list, int heads, int kv_heads, struct head_select *s,
                      struct err *err);
void head_select_free(struct head_select *s);

/* The same of a trace that may have some of its model's heads: the list names the model's, s->head
 * and s->kv are places in the file. */
int head_select_stored(const char *list, const struct trace_meta *m, struct head_select *s,
                       struct err *err);

/* heads, kv_heads, head_ids and kv_head_ids of the metadata. */
int head_select_meta(const struct head_select *s, struct trace_meta *m, struct err *err);

/* The chosen heads' tokens [tok0, tok0 + n) of x [n][heads of the model * dim] into the trace. */
int head_select_put(const struct head_select *s, struct trace_writer *w, enum trace_what what,
                    int64_t tok0, int64_t n, const float *x, int dim, struct err *err);

#endif
