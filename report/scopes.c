/*
 * scopes.c - the records of a report by scope: model, length, token order and whatever else no mean
 * goes across.
 */
#include "report/report.h"

#include "analyze/group.h"
#include "analyze/tables.h"
#include "core/mem.h"
#include "plots/gp.h"

#include <stdlib.h>

static char *take(struct buf *b)
{
    char *text = b->data;
    *b = (struct buf){0};
    return text;
}

static int fill(const struct report_scopes *all, const struct recset *set, const struct group *g,
                struct report_scope *out, struct err *err)
{
    struct buf name = {0}, where = {0}, word = {0};
    int rc = 0;
    TRY(mem_alloc(&out->set.r, g->n, sizeof *out->set.r, "records of a scope", err));
    for (int64_t i = 0; i < g->n; i++)
        out->set.r[i] = set->r[g->at[i]];
    out->set.n = g->n;
    out->set.n_ok = g->n_ok;
    out->set.n_skip = g->n_skip;
    out->set.n_error = g->n_error;
    buf_puts(&name, "");
    buf_puts(&where, "");
    for (int k = 0; k < all->n_keys; k++) {
        buf_reset(&word);
        buf_printf(&word, "%s=", key_name(all->keys[k]));
        size_t value = word.len;
        key_text(g->first, all->keys[k], &word);
        buf_printf(&name, "%s%s %s", k ? ", " : "", key_name(all->keys[k]), buf_str(&word) + value);
        buf_puts(&where, " -w ");
        shell_word(buf_str(&word), &where);
    }
    TRY(buf_check(&name, "name of a scope", err));
    TRY(buf_check(&where, "conditions of a scope", err));
    TRY(buf_check(&word, "value of a key", err));
    out->name = take(&name);
    out->where = take(&where);
out:
    buf_free(&name);
    buf_free(&where);
    buf_free(&word);
    return rc;
}

int report_scopes(const struct recset *set, struct report_scopes *out, struct err *err)
{
    struct report_scopes all = {0};
    struct grouping gs = {0};
    int rc = 0;
    TRY(recset_scope(set, all.keys, &all.n_keys, err));
    TRY(grouping_make(set, all.keys, all.n_keys, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++) {
        if (all.n == SCOPES_MOST) {
            all.left_out = gs.n - i;
            break;
        }
        TRY(fill(&all, set, &gs.g[i], &all.s[all.n++], err));
    }
out:
    grouping_free(&gs);
    if (rc)
        report_scopes_free(&all);
    else
        *out = all;
    return rc;
}

void report_scopes_free(struct report_scopes *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->s[i].set.r); /* the records' own memory is the report's */
        free(s->s[i].name);
        free(s->s[i].where);
    }
    s->n = 0;
}
