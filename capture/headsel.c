/*
 * headsel.c - some of a model's heads (trace_tools.h).
 */
#include "capture/trace/trace_tools.h"

#include "capture/nn.h"
#include "core/indexlist.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

void head_select_free(struct head_select *s)
{
    free(s->head);
    free(s->kv);
    memset(s, 0, sizeof *s);
}

/* The kv heads of the chosen heads: each once if all are used equally often, else one per head. */
static void choose_kv(struct head_select *s)
{
    int group = s->model_heads / s->model_kv, at = 0;
    bool even = true;
    for (int i = 0; i < s->n; i++) {
        int kv = s->head[i] / group;
        if (s->n_kv == 0 || s->kv[s->n_kv - 1] != kv)
            s->kv[s->n_kv++] = kv;
    }
    for (int k = 0; k < s->n_kv; k++) {
        int used = 0;
        for (; at < s->n && s->head[at] / group == s->kv[k]; at++)
            used++;
        even = even && used * s->n_kv == s->n;
    }
    if (even)
        return;
    s->n_kv = s->n;
    for (int i = 0; i < s->n; i++)
        s->kv[i] = s->head[i] / group;
}

int head_select_parse(const char *list, int heads, int kv_heads, struct head_select *s,
                      struct err *err)
{
    int64_t n = -1;
    OWN(free_at) int64_t *index = NULL;
    memset(s, 0, sizeof *s);
    s->model_heads = heads;
    s->model_kv = kv_heads;
    PASS_ON(index_list_parse(list, heads, "--heads", &index, &n, err));
    s->n = index ? (int)n : heads;
    s->all = s->n == heads;
    PASS_ON(mem_alloc(&s->head, s->n, sizeof *s->head, "heads", err));
    PASS_ON(mem_alloc(&s->kv, s->n, sizeof *s->kv, "heads", err));
    for (int i = 0; i < s->n; i++)
        s->head[i] = index ? (int)index[i] : i;
    choose_kv(s);
    return 0;
}

/* "0,4-7" */
static int ids_text(const int *id, int n, char *text, size_t size, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    for (int i = 0, last; i < n; i = last + 1) {
        for (last = i; last + 1 < n && id[last + 1] == id[last] + 1; last++)
            ;
        buf_printf(&b, last > i ? "%s%d-%d" : "%s%d", i ? "," : "", id[i], id[last]);
    }
    PASS_ON(buf_check(&b, "head numbers", err));
    if (b.len >= size)
        return err_set(err, ERR_USAGE,
                       "--heads: the list of %d heads is too long for a trace; choose ranges", n);
    memcpy(text, buf_str(&b), b.len + 1);
    return 0;
}

int head_select_meta(const struct head_select *s, struct trace_meta *m, struct err *err)
{
    const struct trace_meta of = *m;
    OWN(free_at) int *id = NULL;
    m->heads = s->n;
    m->kv_heads = s->n_kv;
    if (s->all)
        return 0;
    PASS_ON(mem_alloc(&id, s->n, sizeof *id, "heads", err));
    for (int i = 0; i < s->n; i++)
        id[i] = trace_head_number(&of, s->head[i]);
    PASS_ON(ids_text(id, s->n, m->head_ids, sizeof m->head_ids, err));
    for (int i = 0; i < s->n_kv; i++)
        id[i] = trace_kv_number(&of, s->kv[i]);
    return ids_text(id, s->n_kv, m->kv_head_ids, sizeof m->kv_head_ids, err);
}

int head_select_stored(const char *list, const struct trace_meta *m, struct head_select *s,
                       struct err *err)
{
    int64_t n = -1;
    OWN(free_at) int64_t *number = NULL;
    if (!m->head_ids[0] || strcmp(list, "all") == 0)
        return head_select_parse(list, m->heads, m->kv_heads, s, err);
    memset(s, 0, sizeof *s);
    s->model_heads = m->heads;
    s->model_kv = m->kv_heads;
    PASS_ON(index_list_parse(list, -1, "--heads", &number, &n, err));
    PASS_ON(mem_alloc(&s->head, n, sizeof *s->head, "heads", err));
    PASS_ON(mem_alloc(&s->kv, n, sizeof *s->kv, "heads", err));
    for (int64_t i = 0; i < n; i++) {
        int at = trace_head_find(m, number[i]);
        if (at < 0)
            return err_set(err, ERR_USAGE, "--heads: head %lld is not stored; stored are %s",
                           (long long)number[i], m->head_ids);
        s->head[s->n++] = at;
    }
    s->all = s->n == m->heads;
    choose_kv(s);
    return 0;
}

int head_select_put(const struct head_select *s, struct trace_writer *w, enum trace_what what,
                    int64_t tok0, int64_t n, const float *x, int dim, struct err *err)
{
    bool query = what == TRACE_Q;
    int total = query ? s->model_heads : s->model_kv, count = query ? s->n : s->n_kv;
    const int *head = query ? s->head : s->kv;
    OWN(free_at) float *rows = NULL;
    if (s->all)
        return trace_put(w, what, tok0, n, x, (int64_t)total * dim, err);
    PASS_ON(mem_alloc(&rows, n * dim, sizeof *rows, "rows of a head", err));
    for (int i = 0; i < count; i++) {
        nn_take_head(x, n, total, dim, head[i], rows);
        PASS_ON(trace_put_head(w, what, i, tok0, n, rows, err));
    }
    return 0;
}
