/*
 * maskset.c - see maskset.h: the file as such, and dumps of lacuna.
 */
#include "sim/methods/outside/maskset.h"

#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening -------------------------------------------------------------------------------- */

static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* A dump if it is one, otherwise arrays; the message of the more likely one. */
static int open_file(struct maskset *s, struct err *err)
{
    struct err dump = {0}, arrays = {0};
    int rc = 0;

    if (array_file_open(s->path, &s->file, &arrays) == 0) {
        s->kind = MASKSET_ARRAYS;
        return mask_arrays_list(s, err);
    }
    if (!strstr(arrays.msg, "lacuna-"))
        return err_set(err, arrays.code, "%s", arrays.msg);
    s->kind = MASKSET_DUMP;
    if ((rc = maskfile_open(s->path, &s->dump, &dump)) != 0)
        return err_set(err, rc, "%s", dump.msg);
    rc = mask_index_make(s->dump, &s->index, err);
    if (!rc && s->index.n == 0)
        rc = err_set(err, ERR_INPUT, "%s: it holds no mask", s->path);
    return rc;
}

int maskset_open(const char *path, struct maskset **out, struct err *err)
{
    struct maskset *s = NULL;
    int rc = 0;

    TRY(mem_zalloc(&s, 1, sizeof *s, "masks", err));
    if (!(s->path = strdup(path)))
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    if (ends_with(path, ".json"))
        s->kind = MASKSET_TABLE;
    else
        TRY(open_file(s, err));
    *out = s;
    s = NULL;
out:
    maskset_close(&s);
    return rc;
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

int maskset_setting(const struct maskset *s, int64_t pick, int *setting, struct err *err)
{
    const struct mask_index *x = &s->index;
    struct buf list = {0};
    int rc;

    *setting = pick == INT64_MIN ? 0 : (int)pick;
    if (pick == INT64_MIN ? x->n_settings == 1 : pick < x->n_settings)
        return 0;
    for (int64_t i = 0; i < x->n_settings && list.len < 400; i++) {
        buf_printf(&list, "%s%lld = ", i ? ", " : "", (long long)i);
        mask_setting_text(&x->settings[i], &list);
    }
    rc = err_set(err, ERR_USAGE, "%s has masks of %lld settings: choose with pick=N (%s)", s->path,
                 (long long)x->n_settings, buf_str(&list));
    buf_free(&list);
    return rc;
}

/* ---- dumps ---------------------------------------------------------------------------------- */

static int no_dump(const struct maskset *s, struct method_ctx *ctx, const struct head_in *in)
{
    return method_skip(ctx, "%.100s has no mask of step %d, branch %s, layer %d, head %d", s->path,
                       in->step, in->branch, in->layer, in->head);
}

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
        return no_dump(s, ctx, in);
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
