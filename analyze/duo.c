/*
 * duo.c - see duo.h.
 */
#include "analyze/duo.h"

#include "analyze/group.h"
#include "analyze/keys.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/sort.h"
#include "core/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_MOST ((size_t)1 << 20)

struct duo_table {
    double *x; /* [layers * kv] minus the table, owned */
    int64_t n, cap, layers, kv;
    bool *streams; /* [layers * kv], owned */
};

static void table_free(struct duo_table *t)
{
    free(t->x);
    free(t->streams);
}

static int read_line(struct duo_table *t, const char *path, char *line, struct err *err)
{
    int64_t before = t->n;
    for (char *s = strtok(line, " \t,\r"); s; s = strtok(NULL, " \t,\r")) {
        double x;
        if (!num_fills(s, &x) || !isfinite(x))
            return err_set(err, ERR_INPUT, "%s: layer %lld: '%.20s' is not a number", path,
                           (long long)t->layers, s);
        PASS_ON(mem_grow(&t->x, &t->cap, t->n + 1, sizeof *t->x, "table of heads", err));
        t->x[t->n++] = -fmin(fmax(x, 0), 1);
    }
    if (t->n == before)
        return 0;
    if (t->layers++ == 0)
        t->kv = t->n;
    if (t->n != t->layers * t->kv)
        return err_set(err, ERR_INPUT, "%s: layer %lld has %lld numbers, layer 0 has %lld", path,
                       (long long)(t->layers - 1), (long long)(t->n - before), (long long)t->kv);
    return 0;
}

/* numpy's quantile lies at the place sparsity (n - 1) of the sorted values; what lies below it
 * streams. */
static int read_table(const struct duo_request *req, struct duo_table *t, struct err *err)
{
    OWN(buf_free) struct buf file = {0};
    OWN(free_at) int32_t *order = NULL;
    char *line, *rest;
    PASS_ON(buf_read_file(&file, req->table, TABLE_MOST, err));
    for (rest = file.data; rest && (line = rest);) {
        rest = strchr(line, '\n');
        if (rest)
            *rest++ = '\0';
        PASS_ON(read_line(t, req->table, line, err));
    }
    if (t->n == 0)
        return err_set(err, ERR_INPUT, "%s: a line of numbers per layer was expected", req->table);
    PASS_ON(mem_alloc(&order, t->n, sizeof *order, "order of heads", err));
    PASS_ON(mem_zalloc(&t->streams, t->n, sizeof *t->streams, "table of heads", err));
    PASS_ON(order_descending(t->x, t->n, order, err));
    int64_t n = req->sparsity >= 1 ? t->n : (int64_t)ceil(req->sparsity * (double)(t->n - 1));
    for (int64_t i = 0; i < n; i++)
        t->streams[order[i]] = true;
    return 0;
}

static int put_heads(const struct recset *set, const struct duo_request *req,
                     const struct duo_table *t, struct jw *w, struct choose_summary *sum,
                     struct err *err)
{
    static const enum group_key keys[] = {KEY_LAYER, KEY_HEAD};
    OWN(grouping_free) struct grouping heads = {0};
    PASS_ON(grouping_make(set, keys, 2, 0, NULL, NULL, &heads, err));
    for (int64_t i = 0; i < heads.n; i++) {
        const struct record *r = heads.g[i].first;
        if (r->layer < 0 || r->layer >= t->layers || r->kv_head < 0 || r->kv_head >= t->kv)
            return err_set(
                err, ERR_INPUT,
                "%s has %lld layers of %lld KV heads, the records one of layer %d, KV head %d",
                req->table, (long long)t->layers, (long long)t->kv, r->layer, r->kv_head);
        sum->heads++;
        sum->dense += !t->streams[r->layer * t->kv + r->kv_head];
        if (!t->streams[r->layer * t->kv + r->kv_head])
            continue;
        jw_row(w, JW_INT("layer", r->layer), JW_INT("head", r->head), JW_STR("method", "streaming"),
               JW_STR("params", req->streaming));
    }
    return 0;
}

int duo_plan(const struct recset *set, const struct duo_request *req, struct jw *w,
             struct choose_summary *sum, struct err *err)
{
    OWN(table_free) struct duo_table t = {0};
    *sum = (struct choose_summary){.cost = NAN};
    if (set->n == 0 || recset_varies(set, KEY_MODEL) || recset_varies(set, KEY_PERMUTE))
        return err_set(err, ERR_INPUT, "records of one model in one token order were expected");
    PASS_ON(read_table(req, &t, err));
    jw_obj(w);
    jw_members(w, JW_STR("format", "lacuna-plan"), JW_INT("version", 1),
               JW_STR("model", set->r[0].model), JW_STR("permute", set->r[0].permute),
               JW_STR("default", "dense"));
    jw_karr(w, "entries");
    PASS_ON(put_heads(set, req, &t, w, sum, err));
    jw_arr_end(w);
    jw_obj_end(w);
    return 0;
}
