/*
 * maskexport.c - see maskexport.h. A file of tensors is written at once, so all of it is in memory.
 */
#include "analyze/maskexport.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor that is being made; data, name and shape are its own. */
struct tensor {
    char name[120];
    enum dtype dtype;
    int ndim;
    int64_t shape[ST_MAX_DIMS], bytes;
    void *data;
};

struct work {
    const struct mask_export *how;
    struct tensor *tensors;
    int64_t n, cap;
    struct mask_exported done;
};

/* A new tensor of zeros: "PREFIX.what". */
static int add(struct work *w, const char *prefix, const char *what, enum dtype dtype, int ndim,
               const int64_t *shape, void *data, struct err *err)
{
    int64_t bytes = (int64_t)dtype_size(dtype);
    PASS_ON(mem_grow(&w->tensors, &w->cap, w->n + 1, sizeof *w->tensors, "tensors", err));
    struct tensor *t = &w->tensors[w->n];
    *t = (struct tensor){.dtype = dtype, .ndim = ndim};
    snprintf(t->name, sizeof t->name, "%s%s%s", prefix, prefix[0] ? "." : "", what);
    for (int i = 0; i < ndim; i++) {
        t->shape[i] = shape[i];
        if (!mul_ok(bytes, shape[i], &bytes))
            return err_set(err, ERR_NOMEM, "%s is too large", t->name);
    }
    t->bytes = bytes;
    PASS_ON(mem_zalloc(&t->data, bytes, 1, t->name, err));
    w->n++;
    w->done.bytes += bytes;
    memcpy(data, &t->data, sizeof t->data);
    return 0;
}

/* ---- a mask as blocks ------------------------------------------------------------------------ */

/* Kept pairs per block: count [rows][cols]. */
static int count_blocks(const struct mask *m, int64_t bq, int64_t bk, int64_t *count,
                        struct err *err)
{
    int64_t cols = ceil_div(m->nk, bk);
    OWN(free_at) struct span *spans = NULL;
    PASS_ON(mem_alloc(&spans, mask_max_spans(m), sizeof *spans, "spans of a row", err));
    for (int64_t i = 0; i < m->nq; i++) {
        int64_t *row = count + i / bq * cols, n = mask_row_spans(m, i, spans);
        for (int64_t s = 0; s < n; s++)
            for (int64_t k = spans[s].lo; k < spans[s].hi;) {
                int64_t end = (k / bk + 1) * bk < spans[s].hi ? (k / bk + 1) * bk : spans[s].hi;
                row[k / bk] += end - k;
                k = end;
            }
    }
    return 0;
}

/* What whole blocks add, over the allowed pairs. */
static double added_share(const struct mask *m, int64_t bq, int64_t bk, const int64_t *count)
{
    int64_t rows = ceil_div(m->nq, bq), cols = ceil_div(m->nk, bk), more = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t end = (r + 1) * bq < m->nq ? (r + 1) * bq : m->nq;
            int64_t stop = (c + 1) * bk < m->nk ? (c + 1) * bk : m->nk;
            if (count[r * cols + c])
                more += pairs_allowed_block(m->nq, m->nk, m->causal, r * bq, end, c * bk, stop) -
                        count[r * cols + c];
        }
    return (double)more / (double)pairs_allowed(m->nq, m->nk, m->causal);
}

/* Count, and note what the blocks add. *count is the caller's. */
static int blocks_of(struct work *w, const struct mask *m, int64_t bq, int64_t bk, int64_t **count,
                     struct err *err)
{
    int64_t rows = ceil_div(m->nq, bq), cols = ceil_div(m->nk, bk);
    PASS_ON(mem_zalloc(count, rows * cols, sizeof **count, "kept pairs of blocks", err));
    PASS_ON(count_blocks(m, bq, bk, *count, err));
    double added = added_share(m, bq, bk, *count);
    w->done.added = added > w->done.added ? added : w->done.added;
    return 0;
}

/* ---- formats --------------------------------------------------------------------------------- */

/* Heads of a call that go into one tensor, and where this one is. */
struct place {
    char prefix[96];
    int64_t heads, head; /* 1, 0 where each has its own */
    int64_t first;       /* number of the call's first tensor */
};

static int put_dense(struct work *w, const struct place *p, const struct mask *m, struct err *err)
{
    int64_t shape[] = {p->heads, m->nq, m->nk};
    OWN(free_at) struct span *spans = NULL;
    uint8_t *data;
    if (p->head == 0)
        PASS_ON(add(w, p->prefix, "mask", DT_BOOL, 3, shape, &data, err));
    if (!w->tensors)
        return err_set(err, ERR_RUN, "%s: its first head is missing", p->prefix);
    data = w->tensors[p->first].data;
    PASS_ON(mem_alloc(&spans, mask_max_spans(m), sizeof *spans, "spans of a row", err));
    for (int64_t i = 0; i < m->nq; i++) {
        uint8_t *row = data + (p->head * m->nq + i) * m->nk;
        int64_t n = mask_row_spans(m, i, spans);
        for (int64_t s = 0; s < n; s++)
            memset(row + spans[s].lo, 1, (size_t)(spans[s].hi - spans[s].lo));
    }
    return 0;
}

static int put_size(struct work *w, const char *prefix, const char *what, int64_t bq, int64_t bk,
                    struct err *err)
{
    int32_t *size;
    PASS_ON(add(w, prefix, what, DT_I32, 1, (int64_t[]){2}, &size, err));
    size[0] = (int32_t)bq;
    size[1] = (int32_t)bk;
    return 0;
}

/* Blocks whose pairs all exist and are all kept are full, others with a kept pair partial. */
static void put_lists(struct work *w, const struct place *p, const struct mask *m, int64_t bq,
                      int64_t bk, const int64_t *count)
{
    int64_t rows = ceil_div(m->nq, bq), cols = ceil_div(m->nk, bk);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            int64_t kept = count[r * cols + c];
            int full = kept == bq * bk;
            if (!kept)
                continue;
            int32_t *n = w->tensors[p->first + 2 * full].data;
            int32_t *index = w->tensors[p->first + 2 * full + 1].data;
            int64_t at = p->head * rows + r;
            index[at * cols + n[at]++] = (int32_t)c;
        }
    }
}

static int put_blockmask(struct work *w, const struct place *p, const struct mask *m, int64_t bq,
                         int64_t bk, struct err *err)
{
    static const char *const names[] = {"kv_num_blocks", "kv_indices", "full_kv_num_blocks",
                                        "full_kv_indices"};
    int64_t shape[] = {1, p->heads, ceil_div(m->nq, bq), ceil_div(m->nk, bk)};
    OWN(free_at) int64_t *count = NULL;
    void *data;
    for (int k = 0; k < 4 && p->head == 0; k++)
        PASS_ON(add(w, p->prefix, names[k], DT_I32, 3 + k % 2, shape, &data, err));
    if (p->head == 0)
        PASS_ON(put_size(w, p->prefix, "BLOCK_SIZE", bq, bk, err));
    PASS_ON(blocks_of(w, m, bq, bk, &count, err));
    put_lists(w, p, m, bq, bk, count);
    return 0;
}

static int put_bsr(struct work *w, const struct place *p, const struct mask *m, int64_t bq,
                   int64_t bk, struct err *err)
{
    OWN(free_at) int64_t *count = NULL;
    int64_t rows = ceil_div(m->nq, bq), cols = ceil_div(m->nk, bk), n = 0;
    int32_t *ptr, *index;
    PASS_ON(blocks_of(w, m, bq, bk, &count, err));
    for (int64_t i = 0; i < rows * cols; i++)
        n += count[i] > 0;
    if (n > INT32_MAX)
        return err_set(err, ERR_INPUT, "%s: %lld blocks are more than int32 pointers can say",
                       p->prefix, (long long)n);
    PASS_ON(add(w, p->prefix, "indptr", DT_I32, 1, (int64_t[]){rows + 1}, &ptr, err));
    PASS_ON(add(w, p->prefix, "indices", DT_I32, 1, (int64_t[]){n}, &index, err));
    PASS_ON(put_size(w, p->prefix, "blocksize", bq, bk, err));
    for (int64_t r = 0; r < rows; r++) {
        ptr[r + 1] = ptr[r];
        for (int64_t c = 0; c < cols; c++)
            if (count[r * cols + c])
                index[ptr[r + 1]++] = (int32_t)c;
    }
    return 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool same_call(const struct mask_entry *a, const struct mask_entry *b)
{
    return a->step == b->step && a->layer == b->layer && strcmp(a->branch, b->branch) == 0;
}

static int put_mask(struct work *w, const struct maskfile *f, const struct mask_entry *e,
                    const struct place *p, struct err *err)
{
    OWN(mask_free) struct mask m = {0};
    PASS_ON(maskfile_read(f, e->cell, &m, err));
    int64_t bq = w->how->bq ? w->how->bq : m.bq, bk = w->how->bk ? w->how->bk : m.bk;
    w->done.masks++;
    return w->how->format == MASK_AS_DENSE       ? put_dense(w, p, &m, err)
           : w->how->format == MASK_AS_BLOCKMASK ? put_blockmask(w, p, &m, bq, bk, err)
                                                 : put_bsr(w, p, &m, bq, bk, err);
}

/* Units of the masks of a call must agree where they share tensors; a mask's own unit may differ
 * from head to head (patterns of MInference). */
static int check_units(const struct maskfile *f, const struct mask_index *x,
                       const struct mask_export *how, int64_t from, int64_t to, bool *one_unit,
                       struct err *err)
{
    int64_t bq = 0, bk = 0;
    *one_unit = true;
    for (int64_t i = from; i < to && how->format != MASK_AS_DENSE && !how->bq; i++) {
        struct mask m = {0};
        PASS_ON(maskfile_read(f, x->entries[how->entries[i]].cell, &m, err));
        *one_unit = *one_unit && (i == from || (m.bq == bq && m.bk == bk));
        bq = m.bq;
        bk = m.bk;
        mask_free(&m);
    }
    return 0;
}

/* Entries [from, to) of `how` are one call. */
static int put_call(struct work *w, const struct maskfile *f, const struct mask_index *x,
                    int64_t from, int64_t to, struct err *err)
{
    bool together = w->how->format != MASK_AS_BSR, one_unit;
    int64_t first = w->n;
    int rc = check_units(f, x, w->how, from, to, &one_unit, err);
    for (int64_t i = from; i < to; i++)
        together = together && x->entries[w->how->entries[i]].head == i - from;
    together = together && one_unit;
    for (int64_t i = from; i < to && !rc; i++) {
        const struct mask_entry *e = &x->entries[w->how->entries[i]];
        struct place p = {.heads = together ? to - from : 1,
                          .head = together ? i - from : 0,
                          .first = together ? first : w->n};
        int n = snprintf(p.prefix, sizeof p.prefix, "step-%03d.%s.layer-%02d", e->step, e->branch,
                         e->layer);
        if (!together)
            snprintf(p.prefix + n, sizeof p.prefix - (size_t)n, ".head-%02d", e->head);
        rc = put_mask(w, f, e, &p, err);
    }
    return rc;
}

static int write_all(const struct work *w, const char *path, struct err *err)
{
    OWN(free_at) struct st_out *out = NULL;
    PASS_ON(mem_zalloc(&out, w->n, sizeof *out, "tensors", err));
    for (int64_t i = 0; i < w->n; i++) {
        const struct tensor *t = &w->tensors[i];
        out[i] =
            (struct st_out){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = t->data};
        memcpy(out[i].shape, t->shape, sizeof out[i].shape);
    }
    return st_write(path, out, w->n, err);
}

int mask_export(const struct maskfile *f, const struct mask_index *x, const struct mask_export *how,
                const char *path, struct mask_exported *done, struct err *err)
{
    struct work w = {.how = how};
    int rc = 0;
    for (int64_t from = 0, to; from < how->n; from = to) {
        const struct mask_entry *e = &x->entries[how->entries[from]];
        for (to = from + 1; to < how->n && same_call(e, &x->entries[how->entries[to]]); to++)
            ;
        TRY(put_call(&w, f, x, from, to, err));
    }
    TRY(write_all(&w, path, err));
    w.done.tensors = w.n;
    *done = w.done;
out:
    for (int64_t i = 0; i < w.n; i++)
        free(w.tensors[i].data);
    free(w.tensors);
    return rc;
}
