/*
 * maskindex.c - see maskindex.h.
 */
#include "core/maskindex.h"

#include "core/mem.h"
#include "core/strmap.h"

#include <stdlib.h>
#include <string.h>

void mask_setting_text(const struct mask_setting *s, struct buf *b)
{
    buf_printf(b, "%s%s%s", s->method, s->params[0] ? ":" : "", s->params);
}

/* Number of the setting of id, entered when it is new. */
static int find_setting(struct mask_index *x, struct strmap *known, const struct record *id,
                        int *setting, struct err *err)
{
    struct mask_setting s = {0};
    struct buf text = {0};
    int rc = 0;

    memcpy(s.method, id->method, sizeof s.method);
    s.params = id->params;
    mask_setting_text(&s, &text);
    TRY(buf_check(&text, "setting of a mask", err));
    int64_t at = strmap_get(known, buf_str(&text));
    if (at < 0) {
        at = x->n_settings;
        TRY(mem_grow(&x->settings, &x->cap_settings, at + 1, sizeof *x->settings, "settings", err));
        TRY(strmap_put(known, buf_str(&text), at, err));
        if (!(s.params = strdup(id->params)))
            FAIL(err, ERR_NOMEM, "settings of masks: out of memory");
        x->settings[x->n_settings++] = s;
    }
    x->settings[at].cells++;
    *setting = (int)at;
out:
    buf_free(&text);
    return rc;
}

static int add_entry(const struct maskfile *f, struct mask_index *x, struct strmap *known,
                     int64_t cell, struct err *err)
{
    struct mask_entry e = {.cell = cell};
    struct record id;
    int rc = maskfile_cell(f, cell, &id, err);

    if (rc)
        return rc;
    TRY(find_setting(x, known, &id, &e.setting, err));
    TRY(maskfile_order(f, cell, e.order, err));
    e.step = id.step;
    e.layer = id.layer;
    e.head = id.head;
    memcpy(e.branch, id.branch, sizeof e.branch);
    memcpy(e.trace, id.trace, sizeof e.trace);
    e.nq = id.n_q;
    e.nk = id.n_k;
    e.causal = id.causal;
    x->entries[x->n++] = e;
out:
    record_free(&id);
    return rc;
}

static int compare(const struct mask_entry *a, const struct mask_entry *b)
{
    int d = (a->step > b->step) - (a->step < b->step);
    if (d == 0)
        d = strcmp(a->branch, b->branch);
    if (d == 0)
        d = (a->layer > b->layer) - (a->layer < b->layer);
    if (d == 0)
        d = (a->head > b->head) - (a->head < b->head);
    return d ? d : (a->setting > b->setting) - (a->setting < b->setting);
}

static int by_call(const void *x, const void *y)
{
    const struct mask_entry *a = x, *b = y;
    int d = compare(a, b);
    return d ? d : (a->cell > b->cell) - (a->cell < b->cell);
}

bool mask_entry_same(const struct mask_entry *a, const struct mask_entry *b)
{
    return compare(a, b) == 0;
}

int mask_index_make(const struct maskfile *f, struct mask_index *out, struct err *err)
{
    struct mask_index x = {0};
    struct strmap known = {0};
    int64_t n = maskfile_cells(f);
    int rc = 0;

    for (int64_t i = 0; i < n; i++) {
        TRY(mem_grow(&x.entries, &x.cap, i + 1, sizeof *x.entries, "index of masks", err));
        TRY(add_entry(f, &x, &known, i, err));
    }
    if (x.entries)
        qsort(x.entries, (size_t)n, sizeof *x.entries, by_call);
    *out = x;
    memset(&x, 0, sizeof x);
out:
    strmap_free(&known);
    mask_index_free(&x);
    return rc;
}

void mask_index_free(struct mask_index *x)
{
    for (int64_t i = 0; i < x->n_settings; i++)
        free(x->settings[i].params);
    free(x->settings);
    free(x->entries);
    memset(x, 0, sizeof *x);
}

const struct mask_entry *mask_index_find(const struct mask_index *x, int step, const char *branch,
                                         int layer, int head, int setting)
{
    struct mask_entry want = {.step = step, .layer = layer, .head = head, .setting = setting};
    int64_t lo = 0, hi = x->n;

    strncpy(want.branch, branch, sizeof want.branch - 1);
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (compare(&x->entries[mid], &want) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->n && mask_entry_same(&x->entries[lo], &want) ? &x->entries[lo] : NULL;
}
