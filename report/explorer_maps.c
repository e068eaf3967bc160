/*
 * explorer_maps.c - the pictures of the explorer: attention maps out of the traces, masks out of
 * the files of dumped masks. Of the steps, branches and traces of a scope one call is shown.
 */
#include "report/explorer.h"

#include "core/log.h"
#include "core/maskfile.h"
#include "core/mem.h"
#include "core/pool.h"
#include "plots/gp.h"
#include "report/shots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAPS_MOST 1200000 /* bytes of pictures */
#define MASKS_MOST 1800000

/* ---- maps ----------------------------------------------------------------------------------- */

/* The call of a trace that a scope's pictures are of: the first of its first record's trace. */
struct view {
    const char *path; /* NULL: the trace is not among the inputs */
    const struct record *first;
    bool exact;
};

static const char *path_of(const struct report *r, const char *id)
{
    const char *found = NULL;
    for (int64_t i = 0; i < r->traces.n && !found; i++) {
        struct trace *t = NULL;
        if (trace_open(r->traces.items[i], &t, NULL) == 0 && strcmp(trace_id(t), id) == 0)
            found = r->traces.items[i];
        trace_close(&t);
    }
    return found;
}

static struct view view_of(const struct explorer *e, int scope)
{
    const struct recset *set = &e->scopes.s[scope].set;
    struct view v = {0};
    for (int64_t i = 0; i < set->n && !v.path; i++)
        if (explorer_takes(NULL, &set->r[i]) &&
            (i == 0 || strcmp(set->r[i].trace, set->r[i - 1].trace) != 0)) {
            v.first = &set->r[i];
            v.path = path_of(e->r, v.first->trace);
        }
    return v;
}

struct map_job {
    const struct explorer *e;
    const struct view *v;
    const struct trace *t;
    int64_t side;
    struct buf *png; /* [cells] */
};

static int draw_map(void *ctx, int64_t i, int worker, struct err *err)
{
    const struct map_job *j = ctx;
    int layer = (int)j->e->layers[i / j->e->n_heads];
    struct cells c = {0};
    int64_t call = trace_find(j->t, j->v->first->step, j->v->first->branch, layer);
    int head = trace_head_find(trace_meta(j->t), j->e->heads[i % j->e->n_heads]), rc;
    (void)worker;
    if (call < 0 || head < 0)
        return 0;
    rc = shot_cells(j->t, call, head, j->side, j->v->exact, &c, err);
    if (!rc)
        rc = shot_of_map(&c, &j->png[i], err);
    cells_free(&c);
    return rc;
}

static int64_t side_for(int64_t pictures)
{
    return pictures <= 100 ? 128 : pictures <= 1600 ? 64 : 32;
}

static void put_key(struct explorer *e, int64_t layer, int64_t head)
{
    char key[48];
    snprintf(key, sizeof key, "%lld,%lld", (long long)layer, (long long)head);
    jw_key(&e->w, key);
}

static void put_maps(struct explorer *e, const struct view *v, const struct buf *png, int64_t n)
{
    struct buf path = {0};
    size_t bytes = 0;
    shell_word(v->path, &path);
    jw_kstr(&e->w, "trace", buf_str(&path));
    jw_kstr(&e->w, "scale", "largest weight of a cell, 1e-6 (dark) to 1 (yellow)");
    for (int64_t i = 0; i < n && bytes + png[i].len < MAPS_MOST; i++)
        if (png[i].len) {
            put_key(e, e->layers[i / e->n_heads], e->heads[i % e->n_heads]);
            jw_str(&e->w, png[i].data);
            bytes += png[i].len;
        }
    e->json.failed |= path.failed;
    buf_free(&path);
}

/* A trace that cannot be drawn is no failure of the report: the explorer says that it has no map.
 */
static int maps_of(struct explorer *e, struct view *v, struct err *err)
{
    int64_t n = e->n_layers * e->n_heads;
    struct trace *t = NULL;
    struct buf *png = NULL;
    int rc = 0;
    TRY(trace_open(v->path, &t, err));
    v->exact = !trace_is_padded(t) && shots_are_cheap(t, n);
    TRY(mem_zalloc(&png, n, sizeof *png, "pictures", err));
    struct map_job job = {e, v, t, side_for(n), png};
    rc = pool_run(cpu_count(), n, draw_map, &job, err);
    if (!rc)
        put_maps(e, v, png, n);
    else if (rc == ERR_INPUT) {
        log_warn("no maps for the explorer: %s", err->msg);
        err_clear(err);
        rc = 0;
    }
out:
    for (int64_t i = 0; png && i < n; i++)
        buf_free(&png[i]);
    free(png);
    trace_close(&t);
    return rc;
}

/* ---- masks ---------------------------------------------------------------------------------- */

static int64_t setting_of(const struct explorer *e, const struct view *views,
                          const struct record *id)
{
    for (int64_t i = 0; i < e->n_s; i++) {
        const struct record *r = e->s[i].first, *v = views[e->s[i].scope].first;
        if (v && strcmp(id->method, r->method) == 0 && strcmp(id->params, r->params) == 0 &&
            strcmp(id->trace, v->trace) == 0 && strcmp(id->permute, v->permute) == 0 &&
            id->step == v->step && strcmp(id->branch, v->branch) == 0 && id->run == v->run)
            return i;
    }
    return -1;
}

/* One mask that the explorer has a place for. */
struct place {
    int64_t setting, cell; /* of the grid */
    int64_t file, at;      /* which of the mask files, and where in it */
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->setting != y->setting)
        return x->setting < y->setting ? -1 : 1;
    return x->cell != y->cell ? (x->cell < y->cell ? -1 : 1) : 0;
}

struct places {
    struct place *p; /* owned */
    int64_t n, cap;
};

static int find_places(struct explorer *e, const struct view *views, int64_t file,
                       struct maskfile *m, struct places *all, struct err *err)
{
    char order[MASKFILE_ORDER];
    struct record id;
    int rc = 0;
    for (int64_t i = 0; i < maskfile_cells(m) && !rc; i++) {
        TRY(maskfile_cell(m, i, &id, err));
        int64_t s = setting_of(e, views, &id),
                layer = explorer_index(e->layers, e->n_layers, id.layer),
                head = explorer_index(e->heads, e->n_heads, id.head);
        record_free(&id);
        TRY(maskfile_order(m, i, order, err));
        if (s < 0 || layer < 0 || head < 0 || strcmp(order, "none") != 0)
            continue;
        TRY(mem_grow(&all->p, &all->cap, all->n + 1, sizeof *all->p, "masks", err));
        all->p[all->n++] = (struct place){s, layer * e->n_heads + head, file, i};
    }
out:
    return rc;
}

static int draw_mask(const struct maskfile *m, int64_t at, int64_t side, struct buf *png,
                     struct err *err)
{
    struct mask mask = {0};
    struct cells c = {0};
    int rc = 0;
    TRY(maskfile_read(m, at, &mask, err));
    TRY(cells_from_mask(&mask, NULL, cells_factor(mask.nq, mask.nk, side), &c, err));
    TRY(shot_of_mask(&c, png, err));
out:
    mask_free(&mask);
    cells_free(&c);
    return rc;
}

static int put_masks(struct explorer *e, struct places *all, struct maskfile **files,
                     struct err *err)
{
    int64_t open = -1, side = side_for(all->n);
    size_t bytes = 0;
    struct buf png = {0};
    char key[32];
    int rc = 0;
    if (all->n)
        qsort(all->p, (size_t)all->n, sizeof *all->p, by_place);
    for (int64_t i = 0; i < all->n && bytes < MASKS_MOST; i++) {
        const struct place *p = &all->p[i];
        if (i && by_place(p - 1, p) == 0)
            continue;
        buf_reset(&png);
        TRY(draw_mask(files[p->file], p->at, side, &png, err));
        if (p->setting != open) {
            if (open >= 0)
                jw_obj_end(&e->w);
            snprintf(key, sizeof key, "%lld", (long long)p->setting);
            jw_key(&e->w, key);
            jw_obj(&e->w);
            open = p->setting;
        }
        put_key(e, e->layers[p->cell / e->n_heads], e->heads[p->cell % e->n_heads]);
        jw_str(&e->w, buf_str(&png));
        bytes += png.len;
    }
    if (open >= 0)
        jw_obj_end(&e->w);
out:
    buf_free(&png);
    return rc;
}

static int masks(struct explorer *e, const struct view *views, struct err *err)
{
    const struct str_list *paths = &e->r->masks;
    struct maskfile **files = NULL;
    struct places all = {0};
    int rc = 0;
    TRY(mem_zalloc(&files, paths->n, sizeof(struct maskfile *), "mask files", err));
    for (int64_t i = 0; i < paths->n && !rc; i++) {
        if (maskfile_open(paths->items[i], &files[i], err) != 0) {
            log_warn("no masks for the explorer: %s", err->msg);
            err_clear(err);
            continue;
        }
        rc = find_places(e, views, i, files[i], &all, err);
    }
    jw_key(&e->w, "masks");
    jw_obj(&e->w);
    if (!rc)
        rc = put_masks(e, &all, files, err);
    jw_obj_end(&e->w);
out:
    for (int64_t i = 0; files && i < paths->n; i++)
        maskfile_close(&files[i]);
    free(files);
    free(all.p);
    return rc;
}

int explorer_pictures(struct explorer *e, struct err *err)
{
    struct view views[SCOPES_MOST] = {0};
    int rc = 0;
    jw_key(&e->w, "maps");
    jw_arr(&e->w);
    for (int i = 0; i < e->scopes.n; i++) {
        views[i] = view_of(e, i);
        jw_obj(&e->w);
        if (views[i].path)
            TRY(maps_of(e, &views[i], err));
        jw_obj_end(&e->w);
    }
    jw_arr_end(&e->w);
    TRY(masks(e, views, err));
    jw_kstr(&e->w, "no_map",
            "not on this page: the trace is not there, has no such head, or "
            "there is no room for its map");
    jw_kstr(&e->w, "no_mask",
            "not on this page: replay with --dump-masks M.h5, then report with --masks M.h5");
out:
    return rc;
}
