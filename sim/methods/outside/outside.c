/*
 * outside.c - the method mask: a mask that was made elsewhere: measured like that of any method.
 *
 *   the file decides which pairs are kept; exact softmax over them, all metrics
 *
 * No paper. Files: masks that lacuna replay --dump-masks wrote, boolean or block arrays, compressed
 * rows (FlashInfer's BSR), the lists of a FlexAttention BlockMask, and MInference's table of
 * patterns, which the method minference then reads. doc/methods/mask.md has the rules of names.
 *
 * Own arithmetic of the method that made a mask (8-bit products, weights, skipped P V) is not
 * repeated: the mask of spargeattn is measured with exact softmax.
 */
#include "core/fileio.h"
#include "core/h5util.h"
#include "core/hash.h"
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/sort.h"
#include "sim/methods/outside/maskset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- names ---------------------------------------------------------------------------------- */

/* The last word of a name says what the array is. */
static const struct {
    const char *word;
    size_t offset; /* of the array in struct mask_arrays */
} roles[] = {
    {"mask", offsetof(struct mask_arrays, mask)},
    {"indptr", offsetof(struct mask_arrays, indptr)},
    {"indices", offsetof(struct mask_arrays, indices)},
    {"blocksize", offsetof(struct mask_arrays, blocksize)},
    {"BLOCK_SIZE", offsetof(struct mask_arrays, blocksize)},
    {"kv_num_blocks", offsetof(struct mask_arrays, count)},
    {"kv_indices", offsetof(struct mask_arrays, index)},
    {"full_kv_num_blocks", offsetof(struct mask_arrays, full_count)},
    {"full_kv_indices", offsetof(struct mask_arrays, full_index)},
};
enum { N_ROLES = sizeof roles / sizeof *roles };

static int role_of(const char *word)
{
    for (int i = 0; i < N_ROLES; i++)
        if (strcmp(word, roles[i].word) == 0)
            return i;
    return -1;
}

/* The entry with this beginning of names, made when it is new. */
static int entry_of(struct maskset *s, const char *name, size_t len, struct mask_arrays **out,
                    struct err *err)
{
    struct mask_arrays a = {.call = {-1, -1, ""}, .head = -1};
    size_t n = 0;
    snprintf(a.label, sizeof a.label, "%.*s", (int)len, name);
    for (int64_t i = 0; i < s->n; i++)
        if (strcmp(s->arrays[i].label, a.label) == 0) {
            *out = &s->arrays[i];
            return 0;
        }
    const char *word = call_name_parse(name, len, &a.call, &a.head, &n);
    if (word)
        return err_set(err, ERR_INPUT, "%s: array '%s': '%.*s' is no step, branch, layer or head",
                       s->path, name, (int)n, word);
    PASS_ON(mem_grow(&s->arrays, &s->cap, s->n + 1, sizeof *s->arrays, "masks", err));
    *out = &s->arrays[s->n++];
    **out = a;
    return 0;
}

static int add_array(struct maskset *s, const struct array_at *at, bool only, struct err *err)
{
    const char *dot = strrchr(at->name, '.'), *word = dot ? dot + 1 : at->name;
    int role = role_of(word);
    size_t len = (size_t)(word - at->name);
    struct mask_arrays *a = NULL;
    if (role < 0 && !only) {
        log_debug("%s: array '%s' is no part of a mask", s->path, at->name);
        return 0;
    }
    if (role < 0) { /* the one array of a .npy file is the mask, whatever its file is called */
        role = 0;
        len = 0;
    }
    PASS_ON(entry_of(s, at->name, len, &a, err));
    const struct array_at **place = (void *)((char *)a + roles[role].offset);
    if (*place)
        return err_set(err, ERR_INPUT, "%s: arrays '%s' and '%s' say the same", s->path,
                       (*place)->name, at->name);
    *place = at;
    return 0;
}

/* Every entry has the arrays of one form, all of them. */
static int check_entry(const struct maskset *s, const struct mask_arrays *a, struct err *err)
{
    bool csr = a->indptr || a->indices,
         lists = a->count || a->index || a->full_count || a->full_index;
    if ((a->mask != NULL) + csr + lists != 1)
        return err_set(err, ERR_INPUT,
                       "%s: '%s' has arrays of several kinds of mask, or a block size alone; "
                       "expected mask, or indptr and indices, or kv_num_blocks and kv_indices",
                       s->path, a->label);
    if ((csr && !(a->indptr && a->indices)) || (lists && !(a->count && a->index)) ||
        !a->full_count != !a->full_index)
        return err_set(err, ERR_INPUT, "%s: '%s' lacks %s", s->path, a->label,
                       csr                      ? (a->indptr ? "indices" : "indptr")
                       : !a->count || !a->index ? (a->count ? "kv_indices" : "kv_num_blocks")
                       : a->full_count          ? "full_kv_indices"
                                                : "full_kv_num_blocks");
    return 0;
}

static int mask_arrays_list(struct maskset *s, struct err *err)
{
    int64_t n = array_file_count(s->file);
    for (int64_t i = 0; i < n; i++)
        PASS_ON(add_array(s, array_file_at(s->file, i), n == 1, err));
    if (s->n == 0)
        return err_set(
            err, ERR_INPUT,
            "%s: none of its %lld arrays is a mask; names end with mask, indptr and indices, or "
            "kv_num_blocks and kv_indices, after words such as layer-05.",
            s->path, (long long)n);
    for (int64_t i = 0; i < s->n; i++)
        PASS_ON(check_entry(s, &s->arrays[i], err));
    return 0;
}

/* How many words of the name fit the head; -1: one does not. */
static int fit(const struct mask_arrays *a, const struct head_in *in)
{
    const struct call_name *c = &a->call;
    if ((c->step >= 0 && c->step != in->step) || (c->layer >= 0 && c->layer != in->layer) ||
        (a->head >= 0 && a->head != in->head) ||
        (c->branch[0] && strcmp(c->branch, in->branch) != 0))
        return -1;
    return (c->step >= 0) + (c->layer >= 0) + (a->head >= 0) + (c->branch[0] != 0);
}

/* ---- shapes --------------------------------------------------------------------------------- */

/* A place in the file for messages. */
static int fail_at(const struct maskset *s, const struct array_at *a, const struct head_in *in,
                   int rc, struct err *err)
{
    if (rc < 0 && !strstr(err->msg, s->path))
        err_prefix(err, "%s: '%s', layer %d, head %d", s->path, a->name, in->layer, in->head);
    return rc;
}

/* Split the shape of `a` into leading heads and `tail` dimensions: *first element of this head.
 * Leading dimensions: none, [heads], or [1][heads]; one head stands for all. As many as the trace
 * has kv heads are of those, also for the query heads that they reach; others may be the first
 * heads, as in an export of these. */
static int find_head(const struct array_at *a, int tail, const struct head_in *in, bool one_head,
                     int64_t *first, struct err *err)
{
    int lead = a->ndim - tail;
    char text[160];
    int64_t size = 1, heads = lead > 0 ? a->shape[lead - 1] : 1;
    array_shape_text(a, text);
    if (lead < 0 || lead > 2 || (lead == 2 && a->shape[0] != 1))
        return err_set(err, ERR_INPUT, "shape %s, expected %s%d dimensions behind the heads", text,
                       lead == 2 ? "a batch of 1, and " : "", tail);
    for (int i = lead; i < a->ndim; i++)
        size *= a->shape[i];
    if (heads != 1 &&
        (one_head || in->head >= heads || (heads == in->n_kv_heads && heads < in->n_heads)))
        return err_set(err, ERR_INPUT, "shape %s has %lld heads, expected %s", text,
                       (long long)heads,
                       one_head ? "one, which its name says" : "1 or one per query head");
    *first = heads == 1 ? 0 : in->head * size;
    return 0;
}

static int get_unit(const struct maskset *s, const struct mask_arrays *a,
                    const struct mask_lookup *how, int64_t *bq, int64_t *bk, struct err *err)
{
    int64_t size[2] = {0};
    *bq = how->bq;
    *bk = how->bk;
    if (!a->blocksize)
        return 0;
    if (a->blocksize->count < 1 || a->blocksize->count > 2)
        return err_set(err, ERR_INPUT, "%s: '%s' has %lld numbers, expected queries and keys",
                       s->path, a->blocksize->name, (long long)a->blocksize->count);
    PASS_ON(array_read_i64(s->file, a->blocksize, 0, a->blocksize->count, size, err));
    size[1] = a->blocksize->count == 1 ? size[0] : size[1];
    if (size[0] < 1 || size[1] < 1 || size[0] > 1 << 20 || size[1] > 1 << 20)
        return err_set(err, ERR_INPUT, "%s: '%s' is %lld x %lld, expected 1..1048576", s->path,
                       a->blocksize->name, (long long)size[0], (long long)size[1]);
    if (how->bq && (how->bq != size[0] || how->bk != size[1]))
        return err_set(err, ERR_USAGE, "unit=%lldx%lld, but %s says %lldx%lld in '%s'",
                       (long long)how->bq, (long long)how->bk, s->path, (long long)size[0],
                       (long long)size[1], a->blocksize->name);
    *bq = size[0];
    *bk = size[1];
    return 0;
}

static int need_unit(const struct array_at *a, int64_t bq, struct err *err)
{
    return bq ? 0
              : err_set(err, ERR_USAGE,
                        "'%s' is in blocks and no array says of which size: give unit=QUERIESxKEYS",
                        a->name);
}

/* ---- the three forms ------------------------------------------------------------------------ */

static int read_row(void *ctx, int64_t g, uint8_t *keep, struct err *err)
{
    const struct mask_rows *r = ctx;
    return array_read_bool(r->file, r->array, r->first + g * r->width, r->width, keep, err);
}

/* Pairs, or blocks of the unit. */
static int from_bool(const struct maskset *s, const struct mask_arrays *a, int64_t bq, int64_t bk,
                     const struct head_in *in, struct given *g, struct mask_rows *rows,
                     struct err *err)
{
    const struct array_at *m = a->mask;
    int64_t nq = in->x.nq, nk = in->x.nk, first;
    char text[160];
    PASS_ON(find_head(m, 2, in, a->head >= 0, &first, err));
    int64_t height = m->shape[m->ndim - 2], width = m->shape[m->ndim - 1];
    if (!bq)
        bq = bk = 1;
    array_shape_text(m, text);
    if (height != ceil_div(nq, bq) || width != ceil_div(nk, bk))
        return err_set(
            err, ERR_INPUT,
            "shape %s, expected [%lld][%lld]: %lld queries and %lld keys in units of %lldx%lld%s",
            text, (long long)ceil_div(nq, bq), (long long)ceil_div(nk, bk), (long long)nq,
            (long long)nk, (long long)bq, (long long)bk,
            bq == 1 && bk == 1 ? " (give unit=QUERIESxKEYS if it is in blocks)" : "");
    *rows = (struct mask_rows){s->file, m, first, width};
    PASS_ON(given_init(g, &in->x, bq, bk, err));
    g->row = read_row;
    g->ctx = rows;
    return 0;
}

/* n numbers as int32; a number beyond that becomes -1, which no column is. */
static int read_columns(const struct maskset *s, const struct array_at *a, int64_t first, int64_t n,
                        int32_t *col, struct err *err)
{
    enum { STEP = 4096 };
    int64_t x[STEP];
    for (int64_t i = 0; i < n; i += STEP) {
        int64_t m = n - i < STEP ? n - i : STEP;
        PASS_ON(array_read_i64(s->file, a, first + i, m, x, err));
        for (int64_t k = 0; k < m; k++)
            col[i + k] = x[k] < 0 || x[k] > INT32_MAX ? -1 : (int32_t)x[k];
    }
    return 0;
}

/* FlashInfer's order: block columns of row block 0, 1, ...; one pattern, or the head's by name. */
static int from_csr(const struct maskset *s, const struct mask_arrays *a, int64_t bq, int64_t bk,
                    const struct head_in *in, struct given *g, struct err *err)
{
    int64_t n = a->indices->count;
    OWN(free_at) int64_t *ptr = NULL;
    OWN(free_at) int32_t *col = NULL;
    int rc = 0;
    PASS_ON(need_unit(a->indptr, bq, err));
    PASS_ON(given_init(g, &in->x, bq, bk, err));
    int64_t want = g->whole.ngroups + 1;
    if (a->indptr->ndim != 1 || a->indices->ndim != 1 || a->indptr->count != want)
        return err_set(
            err, ERR_INPUT,
            "'%s' has %lld numbers in %d dimensions, expected %lld in one (%lld queries in units "
            "of %lld); masks of several heads have names such as head-03.indptr",
            a->indptr->name, (long long)a->indptr->count, a->indptr->ndim, (long long)want,
            (long long)in->x.nq, (long long)bq);
    PASS_ON(mem_alloc(&ptr, want, sizeof *ptr, "row pointers", err));
    PASS_ON(mem_alloc(&col, n, sizeof *col, "columns", err));
    PASS_ON(array_read_i64(s->file, a->indptr, 0, want, ptr, err));
    PASS_ON(read_columns(s, a->indices, 0, n, col, err));
    rc = given_lists(g, ptr, col, n, err);
    ptr = NULL;
    col = NULL;
    return rc;
}

/* One of a BlockMask's two pairs of arrays, for one head. */
struct flex_lists {
    int64_t *count; /* [rows], owned */
    int32_t *index; /* [width], owned: one row */
    const struct array_at *at;
    int64_t first, width;
};

static void flex_free(struct flex_lists *l)
{
    free(l->count);
    free(l->index);
}

static int flex_open(const struct maskset *s, const struct array_at *count,
                     const struct array_at *index, int64_t rows, int64_t cols, bool one_head,
                     const struct head_in *in, struct flex_lists *l, struct err *err)
{
    char text[160];
    int64_t first;
    if (!count)
        return 0;
    array_shape_text(index, text);
    PASS_ON(find_head(count, 1, in, one_head, &first, err));
    PASS_ON(find_head(index, 2, in, one_head, &l->first, err));
    l->at = index;
    l->width = index->shape[index->ndim - 1];
    if (count->shape[count->ndim - 1] != rows || index->shape[index->ndim - 2] != rows)
        return err_set(err, ERR_INPUT,
                       "'%s' of shape %s and its counts: expected %lld rows of blocks", index->name,
                       text, (long long)rows);
    PASS_ON(mem_alloc(&l->count, rows, sizeof *l->count, "counts of blocks", err));
    PASS_ON(mem_alloc(&l->index, l->width, sizeof *l->index, "row of blocks", err));
    PASS_ON(array_read_i64(s->file, count, first, rows, l->count, err));
    for (int64_t r = 0; r < rows; r++)
        if (l->count[r] < 0 || l->count[r] > l->width || l->count[r] > cols)
            return err_set(err, ERR_INPUT, "'%s': row %lld has %lld blocks, expected 0..%lld",
                           count->name, (long long)r, (long long)l->count[r],
                           (long long)(l->width < cols ? l->width : cols));
    return 0;
}

/* Row r of both lists, in ascending order, behind col[*n]. Their order in the file is free: a
 * kernel visits the blocks in any order. What is out of range or listed twice given_lists finds. */
static int flex_row(const struct maskset *s, struct flex_lists l[2], int64_t r, int32_t **col,
                    int64_t *cap, int64_t *n, struct err *err)
{
    int64_t from = *n;
    for (int k = 0; k < 2; k++) {
        int64_t m = l[k].count ? l[k].count[r] : 0;
        if (m == 0)
            continue;
        PASS_ON(mem_grow(col, cap, *n + m, sizeof **col, "columns", err));
        PASS_ON(read_columns(s, l[k].at, l[k].first + r * l[k].width, m, *col + *n, err));
        *n += m;
    }
    if (*n > from)
        qsort(*col + from, (size_t)(*n - from), sizeof **col, compare_i32);
    return 0;
}

static int from_flex(const struct maskset *s, const struct mask_arrays *a, int64_t bq, int64_t bk,
                     const struct head_in *in, struct given *g, struct err *err)
{
    struct flex_lists l[2] = {{0}, {0}};
    int64_t *ptr = NULL, n = 0, cap = 0;
    int32_t *col = NULL;
    int rc = 0;
    TRY(need_unit(a->count, bq, err));
    TRY(given_init(g, &in->x, bq, bk, err));
    int64_t rows = g->whole.ngroups, cols = ceil_div(in->x.nk, bk);
    bool one = a->head >= 0;
    TRY(flex_open(s, a->count, a->index, rows, cols, one, in, &l[0], err));
    TRY(flex_open(s, a->full_count, a->full_index, rows, cols, one, in, &l[1], err));
    TRY(mem_zalloc(&ptr, rows + 1, sizeof *ptr, "row pointers", err));
    TRY(mem_grow(&col, &cap, 1, sizeof *col, "columns", err));
    for (int64_t r = 0; r < rows; r++) {
        TRY(flex_row(s, l, r, &col, &cap, &n, err));
        ptr[r + 1] = n;
    }
    rc = given_lists(g, ptr, col, n, err);
    ptr = NULL;
    col = NULL;
out:
    flex_free(&l[0]);
    flex_free(&l[1]);
    free(ptr);
    free(col);
    return rc;
}

static int no_mask(const struct maskset *s, struct method_ctx *ctx, const struct head_in *in)
{
    return method_skip(ctx, "%.100s has no mask of step %d, branch %s, layer %d, head %d", s->path,
                       in->step, in->branch, in->layer, in->head);
}

/* The arrays whose name says most about the head. */
static int best_entry(const struct maskset *s, const struct head_in *in,
                      const struct mask_arrays **out, struct err *err)
{
    const struct mask_arrays *best = NULL, *twin = NULL;
    for (int64_t i = 0; i < s->n; i++) {
        const struct mask_arrays *a = &s->arrays[i];
        int words = fit(a, in), most = best ? fit(best, in) : -1;
        if (words > most) {
            best = a;
            twin = NULL;
        } else if (words >= 0 && words == most) {
            twin = a;
        }
    }
    *out = best;
    if (!twin)
        return 0;
    return err_set(err, ERR_INPUT, "%s: both '%s' and '%s' are masks of step %d, layer %d, head %d",
                   s->path, best->label, twin->label, in->step, in->layer, in->head);
}

static int mask_arrays_find(struct maskset *s, const struct mask_lookup *how,
                            struct method_ctx *ctx, const struct head_in *in, struct given *g,
                            struct mask_rows *rows, struct err *err)
{
    const struct mask_arrays *a = NULL;
    int64_t bq, bk;
    PASS_ON(best_entry(s, in, &a, err));
    if (!a)
        return no_mask(s, ctx, in);
    PASS_ON(get_unit(s, a, how, &bq, &bk, err));
    const struct array_at *first = a->mask ? a->mask : a->indptr ? a->indptr : a->count;
    int rc = a->mask     ? from_bool(s, a, bq, bk, in, g, rows, err)
             : a->indptr ? from_csr(s, a, bq, bk, in, g, err)
                         : from_flex(s, a, bq, bk, in, g, err);
    return fail_at(s, first, in, rc, err);
}

/* ---- opening -------------------------------------------------------------------------------- */

static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* A dump if it is HDF5, otherwise arrays. */
static int open_file(struct maskset *s, struct err *err)
{
    bool dump = false;
    PASS_ON(h5_signature(s->path, &dump, err));
    s->kind = dump ? MASKSET_DUMP : MASKSET_ARRAYS;
    if (!dump) {
        PASS_ON(array_file_open(s->path, &s->file, err));
        return mask_arrays_list(s, err);
    }
    PASS_ON(maskfile_open(s->path, &s->dump, err));
    PASS_ON(mask_index_make(s->dump, &s->index, err));
    if (s->index.n == 0)
        return err_set(err, ERR_INPUT, "%s: it holds no mask", s->path);
    return 0;
}

int maskset_open(const char *path, struct maskset **out, struct err *err)
{
    OWN(maskset_close) struct maskset *s = NULL;
    PASS_ON(mem_zalloc(&s, 1, sizeof *s, "masks", err));
    if (!(s->path = strdup(path)))
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    if (ends_with(path, ".json"))
        s->kind = MASKSET_TABLE;
    else
        PASS_ON(open_file(s, err));
    *out = HAND_OVER(s);
    return 0;
}

void maskset_close(struct maskset **ps)
{
    struct maskset *s = *ps;
    if (!s)
        return;
    if (s->taken && s->taken < s->index.n)
        log_debug("%s: %lld of %lld masks were used", s->path, (long long)s->taken,
                  (long long)s->index.n);
    maskfile_close(&s->dump);
    mask_index_free(&s->index);
    array_file_close(&s->file);
    free(s->arrays);
    free(s->path);
    free(s);
    *ps = NULL;
}

/* The setting of the dump that `pick` (INT64_MIN: the only one) names. ERR_USAGE with the list. */
static int maskset_setting(const struct maskset *s, int64_t pick, int *setting, struct err *err)
{
    const struct mask_index *x = &s->index;
    OWN(buf_free) struct buf list = {0};
    *setting = pick == INT64_MIN ? 0 : (int)pick;
    if (pick == INT64_MIN ? x->n_settings == 1 : pick < x->n_settings)
        return 0;
    for (int64_t i = 0; i < x->n_settings && list.len < 400; i++) {
        buf_printf(&list, "%s%lld = ", i ? ", " : "", (long long)i);
        mask_setting_text(&x->settings[i], &list);
    }
    return err_set(err, ERR_USAGE, "%s has masks of %lld settings: choose with pick=N (%s)",
                   s->path, (long long)x->n_settings, buf_str(&list));
}

/* ---- dumps ---------------------------------------------------------------------------------- */

/* The entry of the head, of its own trace or of any. */
static int find_entry(const struct maskset *s, const struct mask_lookup *how,
                      struct method_ctx *ctx, const struct head_in *in,
                      const struct mask_entry **out)
{
    const struct mask_index *x = &s->index;
    const struct mask_entry *first =
        mask_index_find(x, in->step, in->branch, in->layer, in->head, how->setting);
    const struct mask_entry *end = x->entries + x->n, *e = first;
    if (!first)
        return no_mask(s, ctx, in);
    while (in->trace && e < end && mask_entry_same(e, first) && strcmp(e->trace, in->trace) != 0)
        e++;
    if (e == end || !mask_entry_same(e, first)) {
        if (!how->any_trace)
            return method_skip(
                ctx, "the masks of %.100s are of trace %.40s; match=order takes them for this one",
                s->path, first->trace);
        e = first;
    }
    if (e->nq != in->x.nq || e->nk != in->x.nk || e->causal != in->x.causal)
        return method_skip(ctx, "the mask is of %lld queries and %lld keys, %s", (long long)e->nq,
                           (long long)e->nk, e->causal ? "causal" : "bidirectional");
    *out = e;
    return 0;
}

static int check_order(const struct mask_entry *e, struct method_ctx *ctx, const struct head_in *in)
{
    const char *now = in->moved ? in->moved : "none";
    if (strcmp(e->order, now) == 0)
        return 0;
    return method_skip(ctx, "the mask is in token order %s, the head in %s", e->order, now);
}

static int find_dumped(struct maskset *s, const struct mask_lookup *how, struct method_ctx *ctx,
                       const struct head_in *in, struct given *g, struct err *err)
{
    const struct mask_entry *e = NULL;
    int rc = find_entry(s, how, ctx, in, &e);
    if (e)
        rc = check_order(e, ctx, in);
    if (!rc && e)
        rc = maskfile_read(s->dump, e->cell, &g->whole, err);
    if (!rc)
        __atomic_add_fetch(&s->taken, 1, __ATOMIC_RELAXED);
    g->as_is = true;
    return rc;
}

int maskset_find(struct maskset *s, const struct mask_lookup *how, struct method_ctx *ctx,
                 const struct head_in *in, struct given *g, struct mask_rows *rows, struct err *err)
{
    memset(g, 0, sizeof *g);
    return s->kind == MASKSET_DUMP ? find_dumped(s, how, ctx, in, g, err)
                                   : mask_arrays_find(s, how, ctx, in, g, rows, err);
}

extern const struct method method_minference;

enum match { MATCH_NAMES, MATCH_ORDER };

struct params {
    char *file, *unit, *order, *id;
    int match;
    int64_t pick;
};

static const struct opt options[] = {
    OPT_STR(struct params, file, NULL, NULL,
            "Masks: a dump of lacuna replay, .npy, .npz, .safetensors, or MInference's .json.",
            .flags = OPT_REQUIRED | OPT_OUTSIDE, .unit = "file"),
    OPT_STR(struct params, unit, NULL, NULL,
            "Size of the blocks of arrays, such as 64x64; unset: the file says it, or pairs.",
            .unit = "queries x keys"),
    OPT_INT(struct params, pick, NULL, 0, 1e6, "",
            "Which setting of a dump with several, by its number in lacuna mask list."),
    OPT_ENUM(struct params, match, "names", TEXTS("names", "order"),
             "order: take a dump's masks for another trace of the same shape."),
    OPT_STR(struct params, order, NULL, NULL,
            "Token order of the mask's rows and keys (as --permute); a dump says it itself."),
    OPT_STR(struct params, id, NULL, NULL,
            "Content of the file; filled in, and refused where the file has another.",
            .unit = "checksum"),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("pairs_dropped", "pairs of a mask from outside that were left out because their "
                                "unit lies after all its queries (causal)"),
    {0},
};

/* ---- the file ------------------------------------------------------------------------------- */

/* First half of the checksum of the whole file. */
static int content_id(const char *path, char text[17], struct err *err)
{
    enum { STEP = 4 << 20 };
    OWN(hash_free_at) struct hash_state *h = NULL;
    char full[HASH_TEXT_MAX];
    OWN(free_at) char *data = NULL;
    int64_t size = 0;
    OWN(io_close_at) int fd = -1;
    PASS_ON(io_open(path, &fd, &size, err));
    PASS_ON(hash_new(&h, err));
    PASS_ON(mem_alloc(&data, STEP, 1, path, err));
    for (int64_t at = 0; at < size; at += STEP) {
        int64_t n = size - at < STEP ? size - at : STEP;
        PASS_ON(io_read_at(fd, path, size, at, data, n, err));
        hash_update(h, data, (size_t)n);
    }
    hash_text(hash_digest(h), full);
    snprintf(text, 17, "%s", strchr(full, ':') + 1);
    return 0;
}

/* Set a text that is not given, or compare it. */
static int settle(char **text, const char *is, const char *name, const char *path, struct err *err)
{
    if (*text && strcmp(*text, is) != 0)
        return err_set(err, ERR_USAGE, "%s=%s, but %s has %s", name, *text, path, is);
    if (!*text && !(*text = strdup(is)))
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    return 0;
}

/* The setting that is picked, and the order of its masks. */
static int identify_dump(struct params *p, const struct maskset *s, struct err *err)
{
    const struct mask_index *x = &s->index;
    const char *order = NULL;
    int setting, rc = maskset_setting(s, p->pick, &setting, err);
    for (int64_t i = 0; i < x->n && !rc; i++) {
        const struct mask_entry *e = &x->entries[i];
        if (e->setting != setting)
            continue;
        if (order && strcmp(order, e->order) != 0)
            rc = err_set(err, ERR_INPUT, "%s: its masks are in the token orders %s and %s", p->file,
                         order, e->order);
        order = e->order;
    }
    if (!rc && order && strcmp(order, "none") != 0)
        rc = settle(&p->order, order, "order", p->file, err);
    return rc;
}

/* A parameter that would change nothing is refused. */
static int check_kind(const struct params *p, enum maskset_kind kind, struct err *err)
{
    bool dump = kind == MASKSET_DUMP, table = kind == MASKSET_TABLE;
    const char *idle = !dump && p->pick != INT64_MIN      ? "pick"
                       : !dump && p->match != MATCH_NAMES ? "match"
                       : (dump || table) && p->unit       ? "unit"
                       : table && p->order                ? "order"
                                                          : NULL;
    return idle ? err_set(err, ERR_USAGE, "%s has no effect on %s, which is %s", idle, p->file,
                          dump    ? "a dump of masks"
                          : table ? "a table of patterns"
                                  : "a file of arrays")
                : 0;
}

static int identify(void *params, struct err *err)
{
    struct params *p = params;
    OWN(maskset_close) struct maskset *s = NULL;
    char id[17];
    PASS_ON(content_id(p->file, id, err));
    PASS_ON(maskset_open(p->file, &s, err));
    PASS_ON(check_kind(p, s->kind, err));
    if (s->kind == MASKSET_DUMP)
        PASS_ON(identify_dump(p, s, err));
    return settle(&p->id, id, "id", p->file, err);
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    int64_t bq, bk;
    return p->unit ? unit_parse(p->unit, &bq, &bk, err) : 0;
}

static const char *order_of(const void *params)
{
    return ((const struct params *)params)->order;
}

static int open_session(const void *params, void **session, struct err *err)
{
    struct maskset *s = NULL;
    int rc = maskset_open(((const struct params *)params)->file, &s, err);
    *session = s;
    return rc;
}

static void close_session(void *session)
{
    OWN(maskset_close) struct maskset *s = session;
}

/* ---- a head --------------------------------------------------------------------------------- */

struct state {
    struct maskset *own, *set; /* own: opened here, without a session */
    struct given given;
    struct mask_rows rows;
    const struct mask_setting *setting; /* of a dump */
    void *table_params, *table;         /* of MInference: its parameters and state */
};

static void release(void *state)
{
    struct state *s = state;
    const struct method *m = &method_minference;
    method_release(m, s->table);
    if (s->table_params)
        opt_free(m->params.table, s->table_params);
    free(s->table_params);
    given_free(&s->given);
    maskset_close(&s->own);
}

/* MInference's table says which pattern a head has, not which pairs: its method finds these. */
static int prepare_table(struct state *s, struct method_ctx *ctx, const struct head_in *in,
                         struct err *err)
{
    const struct method *m = &method_minference;
    if (!(m->flags & (in->x.causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL)))
        return method_skip(ctx, "MInference's table needs a causal trace");
    PASS_ON(mem_zalloc(&s->table_params, 1, m->params.size, "parameters of minference", err));
    PASS_ON(opt_defaults(m->params.table, s->table_params, err));
    PASS_ON(opt_set(m->params.table, s->table_params, "mask", "table", s->set->path, err));
    PASS_ON(m->params.validate(s->table_params, err));
    return method_prepare(m, ctx, s->table_params, in, &s->table, err);
}

static int prepare_mask(struct state *s, const struct params *p, struct method_ctx *ctx,
                        const struct head_in *in, struct err *err)
{
    struct mask_lookup how = {.any_trace = p->match == MATCH_ORDER};
    int rc = 0;
    if (p->unit)
        TRY(unit_parse(p->unit, &how.bq, &how.bk, err));
    if (s->set->kind == MASKSET_DUMP) {
        TRY(maskset_setting(s->set, p->pick, &how.setting, err));
        s->setting = &s->set->index.settings[how.setting];
    } else if (strcmp(p->order ? p->order : "none", in->moved ? in->moved : "none") != 0) {
        return method_skip(ctx, "the mask is in token order %s, the head in %s",
                           p->order ? p->order : "none", in->moved ? in->moved : "none");
    }
    rc = maskset_find(s->set, &how, ctx, in, &s->given, &s->rows, err);
    ctx->unit_rows = s->given.whole.bq;
out:
    return rc;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    s->set = ctx->session;
    if (!s->set) {
        PASS_ON(maskset_open(p->file, &s->own, err));
        s->set = s->own;
    }
    return s->set->kind == MASKSET_TABLE ? prepare_table(s, ctx, in, err)
                                         : prepare_mask(s, p, ctx, in, err);
}

/* MInference's table has a pattern for any shape. */
static int takes(struct method_ctx *ctx, const void *params, const struct head_in *in,
                 struct err *err)
{
    const struct maskset *set = ctx->session;
    OWN(release) struct state s = {.set = NULL};
    return set->kind == MASKSET_TABLE ? 0 : prepare(ctx, params, in, &s, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return s->table ? method_minference.select(s->table, row0, row1, out, err)
                    : given_select(&s->given, row0, row1, out, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    struct buf of = {0};
    if (s->table)
        return method_minference.report(s->table, r, err);
    if (s->setting) {
        mask_setting_text(s->setting, &of);
        record_note(r, "of=%s", buf_str(&of));
        buf_free(&of);
        return 0;
    }
    return record_metric(r, "pairs_dropped", (double)s->given.dropped, err);
}

const struct method method_mask = {
    .name = "mask",
    .summary = "a mask from a file: a dump, arrays, BSR, a FlexAttention BlockMask",
    .paper = "none: masks from outside",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_ANY_SCORE | METHOD_PREFIX,
    .params = {.table = options,
               .size = sizeof(struct params),
               .validate = validate,
               .identify = identify,
               .order = order_of,
               .may_be_empty = method_always},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .session = {.open = open_session, .close = close_session, .takes = takes},
};
