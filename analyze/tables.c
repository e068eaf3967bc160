/*
 * tables.c - groups and statistics as tables, from the definitions in tables.def.
 */
#include "analyze/tables.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "analyze/query.h"
#include "analyze/sheet.h"
#include "core/mem.h"
#include "core/sort.h"
#include "core/strmap.h"
#include "core/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- registry ------------------------------------------------------------------------------ */

static table_builder build_groups, build_status;
static table_check has_records;

enum {
#define TABLE(id, ...) TABLE_##id,
#define BUILT(id, ...) TABLE_##id,
#include "analyze/tables.def"
#undef TABLE
#undef BUILT
};

const struct table_def table_defs[] = {
#define TABLE(id, name, title, keys, metrics, brief, where, flags)                                 \
    {{name, title, "rows: " keys "; metrics: " metrics},                                           \
     keys,                                                                                         \
     metrics,                                                                                      \
     brief,                                                                                        \
     where,                                                                                        \
     flags,                                                                                        \
     build_groups,                                                                                 \
     NULL},
#define BUILT(id, name, title, details, keys, metrics, brief, build, has)                          \
    {{name, title, details}, keys, metrics, brief, "", 0, build, has},
#include "analyze/tables.def"
#undef TABLE
#undef BUILT
    {{NULL, NULL, NULL}, NULL, NULL, NULL, NULL, 0, NULL, NULL},
};

const struct listed *const table_list[] = {
#define TABLE(id, ...) &table_defs[TABLE_##id].listed,
#define BUILT(id, ...) &table_defs[TABLE_##id].listed,
#include "analyze/tables.def"
#undef TABLE
#undef BUILT
    NULL};

const struct table_def *table_def_find(const char *name, struct err *err)
{
    struct names all = {0};
    for (const struct table_def *t = table_defs; t->build; t++) {
        if (strcmp(t->listed.name, name) == 0)
            return t;
        names_add(&all, t->listed.name);
    }
    names_unknown(&all, "table", name, err);
    return NULL;
}

static void first_metric(const struct table_def *def, char first[64])
{
    snprintf(first, 64, "%.*s", (int)strcspn(def->metrics, ","), def->metrics);
}

/* A density stands in many tables beside their own numbers, and every record has it: alone it fills
 * only those that begin with it. */
static bool fills(const struct table_def *def, const char *metric)
{
    return strncmp(metric, "density_elem", 12) != 0 ||
           strncmp(def->metrics, "density_elem", 12) == 0;
}

#define WHERE_MOST 4 /* conditions of a table */

/* The records of a table. */
struct table_filter {
    unsigned flags;
    struct condition where[WHERE_MOST];
    int n_where;
    char first[64]; /* metric */
    const struct str_list *metrics;
    const struct metric_names *names; /* of the last record, and whether it has one of them */
    bool has;
    const struct recset *set; /* of a table by token order, and what counts once: */
    bool *repeated;           /* owned: of its records, then of its calls; else NULL */
};

/* The name of a cell in the order that its method saw. */
static void put_cell_in_order(const struct record *r, struct buf *key)
{
    struct record seen = *r;
    OWN(buf_free) struct buf order = {0};
    key_text(r, KEY_ORDER, &order);
    snprintf(seen.permute, sizeof seen.permute, "%s", buf_str(&order));
    record_key(&seen, key);
    key->failed |= order.failed;
}

/* A cell that was replayed both as tokens are stored and in the order `row` is one cell: its last
 * record stays. */
static int find_repeated(const struct recset *set, struct table_filter *f, struct err *err)
{
    OWN(strmap_free) struct strmap cells = {0}; /* to the last record of each */
    OWN(buf_free) struct buf key = {0};
    int64_t n = set->n + set->n_calls;
    f->set = set;
    PASS_ON(mem_zalloc(&f->repeated, n, sizeof *f->repeated, "repeated cells", err));
    for (int64_t i = 0; i < n; i++) {
        buf_reset(&key);
        put_cell_in_order(i < set->n ? &set->r[i] : &set->calls[i - set->n], &key);
        PASS_ON(buf_check(&key, "record key", err));
        int64_t before = strmap_get(&cells, buf_str(&key));
        if (before >= 0)
            f->repeated[before] = true;
        PASS_ON(strmap_put(&cells, buf_str(&key), i, err));
    }
    return 0;
}

static bool is_repeated(const struct table_filter *f, const struct record *r)
{
    const struct recset *s = f->set;
    return f->repeated &&
           f->repeated[r >= s->r && r < s->r + s->n ? r - s->r : s->n + (r - s->calls)];
}

static int filter_make(const struct table_def *def, const struct str_list *metrics,
                       struct table_filter *f, struct err *err)
{
    *f = (struct table_filter){.flags = def->flags, .metrics = metrics};
    first_metric(def, f->first);
    return where_parse(def->listed.name, def->where, f->where, WHERE_MOST, &f->n_where, err);
}

/* ctx: a table_filter, which remembers its last answer. */
static bool takes_part(const void *ctx, const struct record *r)
{
    struct table_filter *f = (struct table_filter *)(uintptr_t)ctx;
    if (!where_holds(f->where, f->n_where, r) || is_repeated(f, r))
        return false;
    if (!(f->flags & (TABLE_HAVING | TABLE_PER_HEAD)))
        return true;
    if (r->status == RECORD_OK && (!f->names || f->names != r->names)) {
        f->names = r->names;
        f->has = f->flags & TABLE_HAVING && record_has(r, f->first);
        for (int64_t i = 0; f->flags & TABLE_PER_HEAD && !f->has && i < f->metrics->n; i++)
            f->has = record_has(r, f->metrics->items[i]);
    }
    return r->status == RECORD_OK && f->has;
}

static bool any_fills(const struct table_def *def, const struct record *r, int64_t n)
{
    struct lists_met met = {0};
    struct table_filter f;
    struct err ignored = {0};
    if (filter_make(def, NULL, &f, &ignored))
        return false;
    const char *patterns = def->flags & (TABLE_HAVING | TABLE_FIRST) ? f.first : def->metrics;
    for (int64_t i = 0; i < n; i++) {
        if (r[i].status != RECORD_OK || !where_holds(f.where, f.n_where, &r[i]) ||
            !list_is_new(&met, &r[i]))
            continue;
        for (int64_t k = 0; k < record_metrics(&r[i]); k++)
            if (fills(def, record_metric_name(&r[i], k)) &&
                name_matches(patterns, record_metric_name(&r[i], k)))
                return true;
    }
    return false;
}

bool table_has_data(const struct table_def *def, const struct recset *set)
{
    if (def->has_data)
        return def->has_data(set);
    return any_fills(def, set->r, set->n) || any_fills(def, set->calls, set->n_calls);
}

const struct table_def *table_of_set(const struct recset *set)
{
    static const int of_models[] = {TABLE_eval, TABLE_eval_clips, TABLE_eval_tasks};
    enum record_scope scope = set->n ? set->r[0].scope : RECORD_OF_HEAD;
    const struct table_def *first =
        &table_defs[scope == RECORD_OF_CALL ? TABLE_time : TABLE_summary];
    for (int64_t i = 0; i < set->n; i++)
        if (record_of_head(&set->r[i]))
            return &table_defs[TABLE_summary];
    for (int i = 0; i < 3 && scope == RECORD_OF_MODEL; i++)
        if (table_has_data(&table_defs[of_models[i]], set))
            return &table_defs[of_models[i]];
    for (int i = 0; table_defs[i].build && set->n_ok && !table_has_data(first, set); i++)
        first = &table_defs[i];
    return first;
}

/* ---- what the records are of ---------------------------------------------------------------- */

/* Different values of a key, as texts; few, so that a list will do. */
static void values_of(const struct recset *set, enum group_key key, struct str_list *out)
{
    OWN(buf_free) struct buf b = {0};
    int64_t n = set->n && !recset_varies(set, key) ? 1 : set->n;
    for (int64_t i = 0; i < n; i++) {
        if (i && key_compare(&set->r[i - 1], &set->r[i], key) == 0)
            continue;
        buf_reset(&b);
        key_text(&set->r[i], key, &b);
        if (!str_list_has(out, buf_str(&b)))
            str_list_add(out, buf_str(&b));
    }
}

static int64_t count_of(const struct recset *set, enum group_key key)
{
    OWN(str_list_free) struct str_list values = {0};
    values_of(set, key, &values);
    return values.n;
}

static void put_values(const struct recset *set, enum group_key key, const char *one,
                       const char *many, struct buf *b)
{
    OWN(str_list_free) struct str_list values = {0};
    values_of(set, key, &values);
    if (values.n == 1 && strcmp(values.items[0], "none") != 0)
        buf_printf(b, "%s%s%s", b->len ? ", " : "", values.items[0], one);
    else if (values.n > 1)
        buf_printf(b, "%s%lld %s", b->len ? ", " : "", (long long)values.n, many);
}

/* Only what is plural: one step or one branch says nothing. */
static void put_plural(const struct recset *set, enum group_key key, const char *many,
                       struct buf *b)
{
    int64_t n = count_of(set, key);
    if (n > 1)
        buf_printf(b, ", %lld %s", (long long)n, many);
}

/* How many different values id[0..n) holds; it is sorted. */
static int64_t different(int64_t *id, int64_t n)
{
    int64_t count = 0;
    qsort(id, (size_t)n, sizeof *id, compare_i64);
    for (int64_t i = 0; i < n; i++)
        count += i == 0 || id[i] != id[i - 1];
    return count;
}

static void put_heads(const struct recset *set, struct buf *b)
{
    int64_t *id = calloc((size_t)set->n + 1, sizeof *id), cells = 0, found[3] = {0};
    b->failed |= !id;
    if (!id)
        mem_note_short(); /* captions are built on the way to something else */
    for (int pass = 0; id && pass < 3; pass++) {
        cells = 0;
        for (int64_t i = 0; i < set->n; i++)
            if (record_of_head(&set->r[i])) {
                id[cells] = (pass == 2 ? 0 : (int64_t)set->r[i].layer << 32) +
                            (pass == 1 ? 0 : set->r[i].head);
                cells += cells == 0 || id[cells] != id[cells - 1];
            }
        found[pass] = different(id, cells);
    }
    free(id);
    int64_t n = found[0], layers = found[1], heads = found[2];
    buf_printf(b, ", %lld head%s", (long long)n, n == 1 ? "" : "s");
    if (layers > 1 && layers * heads == n)
        buf_printf(b, " (%lld layers x %lld)", (long long)layers, (long long)heads);
    else if (layers > 1)
        buf_printf(b, " of %lld layers", (long long)layers);
}

static bool all_sampled(const struct recset *set)
{
    size_t len;
    for (int64_t i = 0; i < set->n; i++)
        if (set->r[i].n_q == set->r[i].n_k ||
            (set->r[i].status == RECORD_OK && !record_note_value(&set->r[i], "rows", &len)))
            return false;
    return true;
}

/* Records of calls: a head is none of them. */
static bool of_calls(const struct recset *set)
{
    return set->r[0].scope == RECORD_OF_CALL;
}

/* Calls, whatever the number of settings that ran on each, and their heads. */
static void put_calls(const struct recset *set, struct buf *b)
{
    static const enum group_key keys[] = {KEY_TRACE, KEY_RUN, KEY_STEP, KEY_BRANCH, KEY_LAYER};
    OWN(grouping_free) struct grouping calls = {0};
    double heads = record_get(&set->r[0], "call_heads");
    bool same = true;
    for (int64_t i = 1; i < set->n; i++)
        same &= record_get(&set->r[i], "call_heads") == heads;
    b->failed |= grouping_make(set, keys, 5, 0, NULL, NULL, &calls, NULL) != 0;
    buf_printf(b, ", %lld call%s", (long long)calls.n, calls.n == 1 ? "" : "s");
    if (same && heads == heads)
        buf_printf(b, " of %.0f head%s", heads, heads == 1 ? "" : "s");
}

void recset_caption(const struct recset *set, struct buf *b)
{
    OWN(str_list_free) struct str_list precision = {0};
    if (set->n == 0)
        return;
    put_values(set, KEY_MODEL, "", "models", b);
    if (all_sampled(set))
        put_values(set, KEY_N_Q, " sampled query rows", "samples of query rows", b);
    else
        put_values(set, KEY_N_Q, " tokens", "lengths", b);
    if (of_calls(set))
        put_calls(set, b);
    else if (key_number(&set->r[0], KEY_LAYER) >= 0)
        put_heads(set, b); /* else a record is of a whole model */
    put_plural(set, KEY_TRACE, "traces", b);
    put_plural(set, KEY_STEP, "steps", b);
    put_plural(set, KEY_BRANCH, "guidance branches", b);
    if (count_of(set, KEY_CAUSAL) == 1)
        buf_puts(b, set->r[0].causal ? ", causal" : ", bidirectional");
    values_of(set, KEY_PRECISION, &precision);
    if (precision.n == 1 && precision.items[0][0] == 'f' && key_number(&set->r[0], KEY_LAYER) >= 0)
        buf_printf(b, "; against dense attention in float%s", precision.items[0] + 1);
}

/* Names of the methods in the order of their first records, dense first, bounds last. */
static void find_methods(const struct recset *set, struct str_list *out)
{
    OWN(str_list_free) struct str_list all = {0};
    values_of(set, KEY_METHOD, &all);
    for (int place = 0; place < 3; place++)
        for (int64_t i = 0; i < all.n; i++) {
            bool dense = strcmp(all.items[i], "dense") == 0;
            bool bound = method_flags(all.items[i]) & METHOD_BOUND;
            if ((dense ? 0 : bound ? 2 : 1) == place)
                str_list_add(out, all.items[i]);
        }
}

/* ---- what sheets say of the records --------------------------------------------------------- */

/* What a replay noted of settings that keep every pair, once for each. */
static void find_reasons(const struct recset *set, struct str_list *full)
{
    OWN(buf_free) struct buf name = {0}, why = {0}, params = {0};
    for (int64_t i = 0; i < set->n; i++) {
        const struct record *r = &set->r[i];
        size_t len;
        const char *note = record_note_value(r, "full", &len);
        if (!note)
            continue;
        buf_reset(&name);
        buf_reset(&why);
        buf_reset(&params);
        params_for_people(r, &params);
        put_setting_name(r->method, buf_str(&params), &name);
        buf_put(&why, note, len);
        if (!find_reason(full, buf_str(&name))) {
            str_list_add(full, buf_str(&name));
            str_list_add(full, buf_str(&why));
        }
    }
    full->failed |= name.failed || why.failed || params.failed;
}

static void facts_for_sheets(const struct table_def *def, const struct recset *set,
                             const struct table_request *req, struct table *t)
{
    struct buf b = {0}, shown = {0};
    if (!t->brief && !req->columns && !req->pivot)
        t->brief = def->brief;
    recset_caption(set, &b);
    text_escape(&shown, buf_str(&b), ""); /* models have names from outside */
    snprintf(t->caption, sizeof t->caption, "%s", buf_str(&shown));
    buf_free(&shown);
    find_methods(set, &t->methods);
    find_reasons(set, &t->full);
    buf_free(&b);
}

int table_build(const struct table_def *def, const struct recset *set,
                const struct table_request *req, struct table *out, struct err *err)
{
    static const struct table_request none = {0};
    struct table t;
    table_init(&t, def->listed.name, def->listed.summary);
    int rc = def->build(def, set, req ? req : &none, &t, err);
    if (rc) {
        table_free(&t);
        return err_prefix(err, "table %s", def->listed.name);
    }
    facts_for_sheets(def, set, req ? req : &none, &t);
    *out = t;
    return 0;
}

/* ---- times of whole calls, beside heads or alone -------------------------------------------- */

/* Is one of the metrics taken from the calls beside the groups? */
static bool calls_in_columns(const struct grouping *gs, const struct str_list *metrics)
{
    for (int64_t i = 0; i < metrics->n; i++)
        if (group_of_calls(gs, metrics->items[i]))
            return true;
    return false;
}

/* Number of ok calls beside a group. Sets *other where they have other heads than its cells. */
static int64_t calls_beside(const struct grouping *gs, const struct group *g, bool *other)
{
    const struct grouping *calls;
    struct group own;
    struct stats heads;
    if (!group_calls(gs, g, &calls, &own))
        return 0;
    if (group_stats(calls, &own, "call_heads", &heads, NULL, NULL) == 0)
        *other |= own.n_ok && llround(heads.mean * (double)heads.n) != g->n_ok;
    return own.n_ok;
}

/* Is every metric one that only calls have, so that the table is of calls? */
static bool calls_only(const struct recset *set, const struct str_list *metrics)
{
    bool all = set->n_calls > 0 && metrics->n > 0;
    for (int64_t i = 0; i < metrics->n && all; i++)
        all = any_has(set->calls, set->n_calls, metrics->items[i]) &&
              (metric_timed(metrics->items[i]) || !any_has(set->r, set->n, metrics->items[i]));
    return all;
}

/* Metrics of calls that no row can show: why. */
static void note_hidden(const struct grouping *gs, const struct recset *set,
                        const struct str_list *metrics, struct table *t)
{
    struct recset calls = recset_calls(set);
    bool timed = false;
    for (int64_t i = 0; i < metrics->n; i++)
        timed |= metric_timed(metrics->items[i]);
    if (gs->calls || !set->n_calls || !timed || (gs->flags & GROUP_PER_HEAD))
        return;
    table_note(t,
               recset_varies(&calls, KEY_HEADS)
                   ? "the calls are in parts (shards that share heads, or different --heads): no "
                     "time of a whole call is known (--where scope=call shows the parts)"
                   : "times of whole calls stand in no row of a head");
}

/* Say below the table which columns are of calls, whose they are, and what is left out. */
static void calls_note(const struct grouping *gs, const struct recset *set,
                       const struct str_list *metrics, bool other, struct table *t)
{
    OWN(buf_free) struct buf b = {0};
    int64_t more = 0;
    bool copies = any_has(set->r, set->n, "time_attend_ns");
    for (int64_t i = 0; i < metrics->n; i++) {
        if (!group_of_calls(gs, metrics->items[i]))
            continue;
        if (b.len < 60)
            buf_printf(&b, "%s%s", b.len ? ", " : "", metrics->items[i]);
        else
            more++;
    }
    if (b.len)
        table_note(t, "n counts heads; `calls` counts whole calls, from which these are: %s%s",
                   buf_str(&b), more ? " and others" : "");
    if (b.len && other)
        table_note(t, "in some rows these calls are not of the heads that n counts");
    if (b.len && copies)
        table_note(t, "times of heads through copies are left out (--where scope=head has them)");
    note_hidden(gs, set, metrics, t);
}

/* ---- groups -------------------------------------------------------------------------------- */

static void drop_key(enum group_key *keys, int *n, enum group_key k)
{
    int kept = 0;
    for (int i = 0; i < *n; i++)
        if (keys[i] != k)
            keys[kept++] = keys[i];
    *n = kept;
}

/* The request's keys as they are, or the table's with the scope in front. */
static int choose_keys(const struct table_def *def, const struct recset *set,
                       const struct table_request *req, enum group_key keys[KEYS_MAX], int *n,
                       struct err *err)
{
    enum group_key own[KEYS_MAX];
    int n_own;
    if (req->group)
        return keys_parse(req->group, "--group", keys, n, err);
    PASS_ON(keys_parse(def->keys, def->listed.name, own, &n_own, err));
    PASS_ON(recset_scope(set, keys, n, err));
    if (has_key(own, n_own, KEY_ORDER)) /* says what the replay's order says */
        drop_key(keys, n, KEY_PERMUTE);
    if (recset_varies(set, KEY_TARGET) && !(def->flags & TABLE_PER_HEAD))
        keys[(*n)++] = KEY_TARGET; /* equal budgets side by side */
    for (int i = 0; i < n_own; i++)
        if (!has_key(keys, *n, own[i]))
            keys[(*n)++] = own[i];
    return 0;
}

/* Say what the rows average over although it differs in kind: an explicit --group can ask for it.
 */
static void note_mixed(const struct grouping *gs, struct table *t)
{
    bool per_head = gs->flags & GROUP_PER_HEAD; /* whatever the method */
    static const enum group_key own[] = {KEY_METHOD, KEY_PARAMS};
    int scope = n_scope_keys;
    OWN(buf_free) struct buf b = {0};
    for (int i = 0; i < (per_head ? scope : scope + 2); i++) {
        enum group_key k = i < scope ? scope_keys[i] : own[i - scope];
        if (grouping_varies(gs, k))
            buf_printf(&b, "%s%s", b.len ? ", " : "", key_name(k));
    }
    if (b.len)
        table_note(t, "rows average over cells that differ in %s", buf_str(&b));
}

static void note_status(const struct recset *set, struct table *t)
{
    table_note(t, "%lld cells: %lld ok, %lld skipped, %lld failed%s", (long long)set->n,
               (long long)set->n_ok, (long long)set->n_skip, (long long)set->n_error,
               set->n_skip + set->n_error ? " (reasons: table status)" : "");
    if (set->n_calls)
        table_note(t, "beside them %lld calls of all heads together, %lld of them ok",
                   (long long)set->n_calls, (long long)set->n_calls_ok);
    if (set->repeated)
        table_note(t, "%lld cells stood in several directories; the last one's were taken",
                   (long long)set->repeated);
}

static int put_key(struct table *t, int64_t col, const struct record *r, enum group_key k,
                   struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    if (key_is_number(k)) {
        if (!isnan(key_number(r, k)))
            table_num(t, col, key_number(r, k));
        return 0;
    }
    if (k == KEY_PARAMS)
        params_for_people(r, &b);
    else
        key_text(r, k, &b);
    PASS_ON(buf_check(&b, "table cell", err));
    return table_text(t, col, buf_str(&b), err);
}

int table_put_keys(struct table *t, const struct record *r, const enum group_key *keys, int n,
                   struct err *err)
{
    for (int i = 0; i < n; i++)
        PASS_ON(put_key(t, i, r, keys[i], err));
    return 0;
}

int table_key_columns(struct table *t, const enum group_key *keys, int n, struct err *err)
{
    for (int i = 0; i < n; i++)
        PASS_ON(table_column(t, key_name(keys[i]), key_title(keys[i]), "",
                             key_is_number(keys[i]) ? COL_INT : COL_TEXT, 1, err));
    return 0;
}

static int metric_column(struct table *t, const char *metric, struct err *err)
{
    const char *unit;
    double scale = metric_scale(metric, &unit);
    OWN(buf_free) struct buf title = {0};
    metric_title(metric, &title);
    PASS_ON(buf_check(&title, "column", err));
    return table_column(t, metric, buf_str(&title), unit, COL_STATS, scale, err);
}

static int add_metric_columns(struct table *t, const struct str_list *metrics, bool calls,
                              struct err *err)
{
    static const char *const counts[] = {"n", "skip", "error", "calls"};
    for (int i = 0; i < 3 + calls; i++)
        PASS_ON(table_column(t, counts[i], counts[i], "", COL_INT, 1, err));
    for (int64_t i = 0; i < metrics->n; i++)
        PASS_ON(metric_column(t, metrics->items[i], err));
    return 0;
}

static int put_group(struct table *t, const struct grouping *gs, const struct group *g,
                     const enum group_key *keys, int n_keys, const struct str_list *metrics,
                     bool *other, struct err *err)
{
    struct stats s;
    int64_t col = n_keys + gs->has_sparse;
    PASS_ON(table_row(t, err));
    PASS_ON(table_put_keys(t, g->first, keys, n_keys, err));
    if (gs->has_sparse)
        PASS_ON(table_text(t, n_keys, g->steps == STEPS_SPARSE ? "sparse" : "all", err));
    table_num(t, col++, (double)g->n_ok);
    table_num(t, col++, (double)g->n_skip);
    table_num(t, col++, (double)g->n_error);
    if (calls_in_columns(gs, metrics))
        table_num(t, col++, (double)calls_beside(gs, g, other));
    for (int64_t i = 0; i < metrics->n; i++) {
        PASS_ON(group_stats(gs, g, metrics->items[i], &s, NULL, err));
        table_stats(t, col++, &s);
    }
    return 0;
}

/* One note per column of values that its means leave out; "inf" in a cell says it of itself. */
static int note_not_finite(const struct grouping *gs, int64_t col, const struct str_list *metrics,
                           struct table *t, struct err *err)
{
    OWN(buf_free) struct buf of = {0};
    for (int64_t i = 0; i < metrics->n; i++) {
        int64_t bad = 0;
        buf_reset(&of);
        for (int64_t g = 0; g < gs->n; g++) {
            const struct stats *s = &table_cell(t, g, col + i)->stats;
            const struct record *r = gs->g[g].first;
            if (!s->n_bad || s->all_inf)
                continue;
            const char *params = r->params ? r->params : "";
            buf_printf(&of, "%s%s%s%s", bad ? ", " : "", r->method, params[0] ? ":" : "", params);
            bad += s->n_bad;
        }
        PASS_ON(buf_check(&of, "note", err));
        if (bad)
            table_note(t, "%s: %lld values that are not finite were left out of the mean of %s",
                       metrics->items[i], (long long)bad, buf_str(&of));
    }
    return 0;
}

/* ---- pivot --------------------------------------------------------------------------------- */

/* What a target is of, up to its sign: "density_elem" of "density_elem=0.3". */
static size_t target_metric(const char *target)
{
    return strcspn(target, "<>=");
}

/* Are all targets of one metric? */
static bool one_metric(const struct grouping *by)
{
    const char *first = params_target(by->g[0].first->params);
    for (int64_t i = 1; i < by->n; i++) {
        const char *t = params_target(by->g[i].first->params);
        if (target_metric(t) != target_metric(first) ||
            strncmp(t, first, target_metric(first)) != 0)
            return false;
    }
    return *first != '\0';
}

/* "layer=3", "density_elem=0.3"; brief, where the title has the metric: "at 0.3". */
static void pivot_value(const struct record *r, enum group_key pivot, bool brief, struct buf *b)
{
    const char *target = params_target(r->params);
    if (pivot != KEY_TARGET) {
        buf_printf(b, "%s=", key_name(pivot));
        key_text(r, pivot, b);
    } else if (brief) {
        target += target_metric(target);
        buf_printf(b, "at %s", target + (*target == '='));
    } else {
        buf_puts(b, *target ? target : "no target");
    }
}

/* One column per value of the pivot key, in their order, and metric; *by is their first records. A
 * column of several metrics is headed by its metric, with the value below. */
static int pivot_columns(struct table *t, const struct recset *set, enum group_key pivot,
                         const struct str_list *metrics, struct grouping *by, struct err *err)
{
    OWN(buf_free) struct buf value = {0}, name = {0}, below = {0};
    int rc = grouping_make(set, &pivot, 1, 0, NULL, NULL, by, err);
    bool alone = metrics->n == 1, brief = !rc && pivot == KEY_TARGET && by->n && one_metric(by);
    for (int64_t k = 0; !rc && k < metrics->n * by->n; k++) {
        const struct record *r = by->g[k % by->n].first;
        const char *metric = metrics->items[k / by->n], *unit;
        double scale = metric_scale(metric, &unit);
        buf_reset(&value);
        buf_reset(&name);
        buf_reset(&below);
        pivot_value(r, pivot, false, &value);
        pivot_value(r, pivot, brief, &below);
        buf_printf(&name, "%s%s%s=", alone ? "" : metric, alone ? "" : " ", key_name(pivot));
        key_text(r, pivot, &name);
        rc = table_column(t, buf_str(&name), alone ? buf_str(&value) : metric_head(metric),
                          alone ? unit : buf_str(&below), COL_STATS, scale, err);
    }
    return rc;
}

/* The keys of rows: all but the pivot, and of the parameters nothing that the pivot says. */
static int pivot_keys(const enum group_key *keys, int n_keys, enum group_key pivot,
                      enum group_key *rows)
{
    int n = 0;
    for (int i = 0; i < n_keys; i++)
        if (keys[i] != pivot)
            rows[n++] = keys[i] == KEY_PARAMS && pivot == KEY_TARGET ? KEY_BASE : keys[i];
    return n;
}

static void pivot_title(const struct str_list *metrics, enum group_key pivot, struct table *t)
{
    OWN(buf_free) struct buf b = {0};
    for (int64_t m = 0; m < metrics->n; m++)
        buf_printf(&b, "%s%s", m ? ", " : "", metrics->items[m]);
    snprintf(t->title, sizeof t->title, "%s by %s", buf_str(&b), key_name(pivot));
}

static int build_pivot(const struct recset *set, const enum group_key *keys, int n_keys,
                       enum group_key pivot, const struct str_list *metrics, struct table *t,
                       struct err *err)
{
    enum group_key all[KEYS_MAX];
    OWN(grouping_free) struct grouping gs = {0}, by = {0};
    struct stats s;
    int n = pivot_keys(keys, n_keys, pivot, all);
    all[n] = pivot;
    if (n == 0)
        return err_set(err, ERR_USAGE, "--pivot %s: no other key is left for the rows",
                       key_name(pivot));
    PASS_ON(table_key_columns(t, all, n, err));
    PASS_ON(pivot_columns(t, set, pivot, metrics, &by, err));
    PASS_ON(grouping_make(set, all, n + 1, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++) {
        if (i == 0 || !same_keys(gs.g[i - 1].first, gs.g[i].first, all, n)) {
            PASS_ON(table_row(t, err));
            PASS_ON(table_put_keys(t, gs.g[i].first, all, n, err));
        }
        int64_t c = 0;
        while (key_compare(by.g[c].first, gs.g[i].first, pivot) != 0)
            c++;
        for (int64_t m = 0; m < metrics->n; m++) {
            PASS_ON(group_stats(&gs, &gs.g[i], metrics->items[m], &s, NULL, err));
            table_stats(t, n + m * by.n + c, &s);
        }
    }
    pivot_title(metrics, pivot, t);
    note_mixed(&gs, t);
    return 0;
}

/* ---- build --------------------------------------------------------------------------------- */

static int choose_metrics(const struct table_def *def, const struct recset *set,
                          const struct table_request *req, struct str_list *metrics,
                          struct err *err)
{
    const char *patterns = req->columns ? req->columns : def->metrics;
    int rc = req->columns ? recset_check_metrics(set, NULL, "--columns", patterns, err) : 0;
    if (!rc)
        rc = recset_metrics(set, patterns, metrics, err);
    bool alone = !rc && !req->columns && set->n_ok && !table_has_data(def, set);
    if (rc || (metrics->n && !alone) ||
        (!req->columns && set->n_ok == 0)) /* then the counts are the table */
        return rc;
    return err_set(err, ERR_INPUT, "no ok record has a metric %s", patterns);
}

static int put_groups(const struct grouping *gs, const struct recset *set,
                      const enum group_key *keys, int n_keys, const struct str_list *metrics,
                      struct table *out, struct err *err)
{
    bool other = false;
    PASS_ON(table_key_columns(out, keys, n_keys, err));
    if (gs->has_sparse)
        PASS_ON(table_column(out, "steps", "steps", "", COL_TEXT, 1, err));
    PASS_ON(add_metric_columns(out, metrics, calls_in_columns(gs, metrics), err));
    for (int64_t i = 0; i < gs->n; i++)
        PASS_ON(put_group(out, gs, &gs->g[i], keys, n_keys, metrics, &other, err));
    PASS_ON(note_not_finite(gs, out->n_cols - metrics->n, metrics, out, err));
    note_mixed(gs, out);
    calls_note(gs, set, metrics, other, out);
    out->verdict =
        n_keys == 2 && has_key(keys, n_keys, KEY_METHOD) && has_key(keys, n_keys, KEY_PARAMS);
    return 0;
}

static int build_of(const struct table_def *def, const struct recset *set,
                    const struct table_request *req, const struct str_list *metrics,
                    struct table *out, struct err *err)
{
    enum group_key keys[KEYS_MAX], pivot[KEYS_MAX];
    struct grouping gs = {0};
    struct table_filter filter = {0};
    unsigned group_flags = (def->flags & TABLE_PER_HEAD ? GROUP_PER_HEAD : 0) |
                           (def->flags & TABLE_SPLIT_STEPS ? GROUP_SPLIT_STEPS : 0);
    int n_keys, n_pivot, rc = 0;
    TRY(filter_make(def, metrics, &filter, err));
    TRY(choose_keys(def, set, req, keys, &n_keys, err));
    if (req->pivot) {
        TRY(keys_parse(req->pivot, "--pivot", pivot, &n_pivot, err));
        /* A table's own metrics: the first one alone. Those of --columns: all. */
        struct str_list one = {.items = metrics->items, .n = req->columns ? metrics->n : 1};
        TRY(build_pivot(set, keys, n_keys, pivot[0], &one, out, err));
    } else {
        if (has_key(keys, n_keys, KEY_ORDER))
            TRY(find_repeated(set, &filter, err));
        TRY(grouping_make(set, keys, n_keys, group_flags, takes_part, &filter, &gs, err));
        if (req->rows_most && gs.n > req->rows_most)
            out->left_out = gs.n;
        else
            TRY(put_groups(&gs, set, keys, n_keys, metrics, out, err));
        if (*def->where)
            table_note(out, "cells with %s; the others are left out", def->where);
    }
    note_status(set, out);
out:
    free(filter.repeated);
    grouping_free(&gs);
    return rc;
}

/* A table that only calls can fill is one of calls. */
static int build_groups(const struct table_def *def, const struct recset *set,
                        const struct table_request *req, struct table *out, struct err *err)
{
    struct recset calls = recset_calls(set);
    OWN(str_list_free) struct str_list metrics = {0};
    char first[64];
    first_metric(def, first);
    if ((def->flags & (TABLE_HAVING | TABLE_FIRST) || *def->where) && !table_has_data(def, set))
        return err_set(err, ERR_INPUT, "no ok record has a metric %s%s%s", first,
                       *def->where ? " with " : "", def->where);
    PASS_ON(choose_metrics(def, set, req, &metrics, err));
    if (req->pivot && !metrics.n)
        return err_set(err, ERR_INPUT, "no cell is ok: there is no metric to show by %s",
                       req->pivot);
    bool of_calls = calls_only(set, &metrics);
    if (of_calls)
        table_note(out, "n counts calls: a call is all heads together");
    return build_of(def, of_calls ? &calls : set, req, &metrics, out, err);
}

static bool has_records(const struct recset *set)
{
    return set->n > 0;
}

static int build_status(const struct table_def *def, const struct recset *set,
                        const struct table_request *req, struct table *out, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    struct grouping gs = {0};
    struct recset all = {0};
    int n, rc = 0;
    if (req->columns || req->pivot)
        FAIL(err, ERR_USAGE, "--columns and --pivot do not apply to this table, it counts cells");
    TRY(recset_all(set, &all, err));
    TRY(choose_keys(def, &all, req, keys, &n, err));
    if (!has_key(keys, n, KEY_STATUS))
        keys[n++] = KEY_STATUS;
    if (!has_key(keys, n, KEY_REASON))
        keys[n++] = KEY_REASON;
    TRY(grouping_make(&all, keys, n, 0, NULL, NULL, &gs, err));
    TRY(table_key_columns(out, keys, n, err));
    TRY(table_column(out, "cells", "cells", "", COL_INT, 1, err));
    for (int64_t i = 0; i < gs.n; i++) {
        TRY(table_row(out, err));
        TRY(table_put_keys(out, gs.g[i].first, keys, n, err));
        table_num(out, n, (double)gs.g[i].n);
    }
out:
    grouping_free(&gs);
    free(all.r);
    return rc;
}
