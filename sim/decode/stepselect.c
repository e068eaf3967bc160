#include "sim/decode/stepselect.h"

#include "core/mem.h"
#include "core/method_run.h"

#include <string.h>

/* A row of a head as a head of its own. Not to be moved: in.exact points into it. */
struct row_head {
    struct group_rows r;
    struct exact exact;
};

static int queries_of_rows(const struct head_in *in, int g, float *q, struct err *err)
{
    const struct group_rows *r = in->queries_from;
    (void)err;
    memcpy(q, r->group[g]->x.q + r->row * in->x.d, (size_t)(in->x.nq * in->x.d) * sizeof *q);
    return 0;
}

/* r is not to be moved. */
static void set_group(struct group_rows *r, const struct head_in *in,
                      const struct head_in *const *group, int64_t row)
{
    *r = (struct group_rows){*in, group, row};
    r->in.queries = queries_of_rows;
    r->in.queries_from = r;
}

static int make_row(const struct head_in *in, const struct head_in *const *group, int64_t row,
                    const struct cached_kv *kv, struct row_head *h, struct err *err)
{
    struct attn_in *x = &h->r.in.x;
    set_group(&h->r, in, group, row);
    h->r.in.exact = &h->exact;
    h->r.in.operand = NULL;
    x->nq = 1;
    x->q = in->x.q + row * x->d;
    x->nk = kv ? kv->n : in->x.nk - in->x.nq + row + 1;
    x->k = kv ? kv->k : x->k;
    x->v = kv ? kv->v : x->v;
    exact_init(&h->exact, x, in->exact->prec);
    return kv ? 0 : exact_view_row(&h->exact, in->exact, row, err);
}

/* The set of row i of the mask, in positions of the sequence. */
static int add_row(const struct mask *m, int64_t i, const struct cached_kv *kv, struct keysets *out,
                   struct err *err)
{
    OWN(free_at) struct span *s = NULL;
    OWN(free_at) int32_t *at = NULL;
    PASS_ON(mem_alloc(&s, mask_max_spans(m), sizeof *s, "kept keys of a row", err));
    struct keyset set = {s, mask_row_spans(m, i, s)};
    if (!kv)
        return keysets_add(out, s, set.n, err);
    PASS_ON(mem_alloc(&at, kv->n, sizeof *at, "kept keys of a row", err));
    int64_t n = keyset_list(set, 0, kv->n, false, at);
    for (int64_t e = 0; e < n; e++)
        at[e] = kv->at[at[e]];
    return keysets_add_positions(out, at, n, err);
}

static int select_of(const struct sim_cell *cell, const struct head_in *in, void *state,
                     int64_t row0, int64_t row1, const struct cached_kv *kv, struct keysets *out,
                     struct err *err)
{
    struct arithmetic arith = {.kind = ARITH_SOFTMAX};
    OWN(mask_free) struct mask m = {0};
    char why[160];
    method_arithmetic(cell->method, state, &arith, why);
    if (arith.kind != ARITH_SOFTMAX)
        return method_skip(cell->ctx,
                           "%s has an arithmetic of its own; the decode phase attends by exact "
                           "softmax over the kept keys",
                           cell->method->name);
    PASS_ON(cell->method->select(state, row0, row1, &m, err));
    mask_within(&m, &in->x.reach);
    PASS_ON(mask_check(&m, err));
    for (int64_t i = row0; i < row1; i++)
        PASS_ON(add_row(&m, i, kv, out, err));
    return 0;
}

/* What the choices of a state read; nothing where the mask is static or keeps every key. */
static void add_cost(struct step_state *s, const struct method *m, void *state)
{
    struct select_cost c = {0, 0};
    if (m->flags & METHOD_KEEPS_ALL || method_origin(m, state).source != SOURCE_OWN)
        return;
    if (m->decode.step_bytes)
        s->bytes += m->decode.step_bytes(state);
    else if (m->cost && m->cost(state, &c))
        s->bytes += c.bytes;
    else
        s->unknown = true;
}

void step_state_end(struct step_state *s, const struct method *m)
{
    if (s->once)
        add_cost(s, m, s->once);
    method_release(m, s->once);
    s->once = NULL;
}

/* The row alone, as the only query. */
static int select_alone(const struct sim_cell *cell, const struct head_in *const *group,
                        struct step_state *s, int64_t row, const struct cached_kv *kv,
                        struct keysets *out, struct err *err)
{
    struct row_head h;
    void *state = NULL;
    int rc = 0;
    TRY(make_row(cell->in, group, row, kv, &h, err));
    TRY(method_prepare(cell->method, cell->ctx, cell->params, &h.r.in, &state, err));
    TRY(select_of(cell, &h.r.in, state, 0, 1, kv, out, err));
    add_cost(s, cell->method, state);
out:
    method_release(cell->method, state);
    exact_free(&h.exact);
    return rc;
}

int step_select(const struct sim_cell *cell, const struct head_in *const *group,
                struct step_state *s, int64_t row0, int64_t row1, const struct cached_kv *kv,
                struct keysets *out, struct err *err)
{
    bool (*each_row)(const void *params) = cell->method->decode.each_row;
    int rc = 0;
    if (cell->method->flags & METHOD_NEEDS_STEPS)
        return method_skip(cell->ctx, "%s carries state over denoising steps", cell->method->name);
    if (kv && !attn_is_plain(&cell->in->x))
        return method_skip(cell->ctx, "a head with a window, chunk, cap, bias or sink: then= needs "
                                      "keys whose place does not count");
    if (kv || !each_row || !each_row(cell->params)) {
        for (int64_t row = row0; row < row1 && !rc; row++)
            rc = select_alone(cell, group, s, row, kv, out, err);
        return rc;
    }
    if (!s->once) {
        set_group(&s->all, cell->in, group, 0);
        rc = method_prepare(cell->method, cell->ctx, cell->params, &s->all.in, &s->once, err);
    }
    return rc ? rc : select_of(cell, cell->in, s->once, row0, row1, kv, out, err);
}
