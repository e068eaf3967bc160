/*
 * ours.c - the numbers of ours in the cells of a page, and why there are none.
 */
#include "reproduce/page.h"

#include "core/hash.h"
#include "reproduce/expr.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cell_state_names[] = {"",       "agrees",       "differs",
                                        "beside", "printed only", "ours only"};

int printed_digits(const char *value)
{
    const char *dot = strchr(value, '.');
    return dot ? (int)strspn(dot + 1, "0123456789") : 0;
}

/* Replace {row} and {col}. */
static void expand(const char *text, const char *row, const char *column, char *out, size_t size)
{
    struct buf b = {0};
    for (const char *p = text; *p;) {
        if (strncmp(p, "{row}", 5) == 0 || strncmp(p, "{col}", 5) == 0) {
            buf_puts(&b, p[1] == 'r' ? row : column);
            p += 5;
        } else {
            buf_put(&b, p++, 1);
        }
    }
    snprintf(out, size, "%s", buf_str(&b));
    buf_free(&b);
}

bool page_printed(const struct page *p, const struct page_block *b, const struct grid_entry *row,
                  const struct grid_entry *column, int k, struct paper_number *out)
{
    const json_t *cell = json_array_get(json_object_get(b->j, "cell"), (size_t)k);
    const json_t *item = p->recipe->item;
    char r[300], c[300];
    if (!cell || !row->printed || !column->printed)
        return false;
    const char *row_key = json_str_or(row->j, "csv", ""),
               *col_key = json_str_or(column->j, "csv", "");
    expand(json_str_or(cell, "row", ""), row_key, col_key, r, sizeof r);
    expand(json_str_or(cell, "column", ""), row_key, col_key, c, sizeof c);
    return paper_number_find(p->data, json_str_or(item, "csv", ""), json_str_or(item, "table", ""),
                             r, c, out);
}

/* Has the rule's job a step on the model of this row or column? Of several roles each has jobs of
 * its own. */
static bool rule_is_of(const struct page *p, const json_t *rule, int model)
{
    int job = recipe_job_find(p->recipe, json_str_or(rule, "job", ""));
    bool any = false;
    for (int i = 0; i < p->plan->n && model >= 0; i++) {
        const struct step *s = &p->plan->s[i];
        any = any || (s->recipe == p->at && s->job == job && s->model == model);
    }
    return any || model < 0;
}

const json_t *page_rule(const struct page *p, const struct grid_entry *row,
                        const struct grid_entry *column)
{
    int model = column->model >= 0 ? column->model : row->model;
    size_t i;
    json_t *rule;
    json_array_foreach(p->recipe->ours, i, rule)
    {
        if ((p->plan->cuda || !json_object_get(rule, "needs")) &&
            fnmatch(json_str_or(rule, "column", "*"), column->path, 0) == 0 &&
            fnmatch(json_str_or(rule, "row", "*"), row->path, 0) == 0 && rule_is_of(p, rule, model))
            return rule;
    }
    return NULL;
}

/* The metric of a place in the table: an added row has its own in every column. */
static const char *layout_metric(const struct grid_entry *row, const struct grid_entry *column)
{
    const char *of_row = json_str_or(row->j, "ours", NULL);
    return row->extra && of_row ? of_row : json_str_or(column->j, "ours", of_row);
}

const char *page_metric(const struct page *p, const struct page_block *b,
                        const struct grid_entry *row, const struct grid_entry *column,
                        const json_t *rule, int k)
{
    const json_t *own = json_object_get(rule, "metric");
    (void)p;
    if (json_is_array(own))
        own = json_array_get(own, (size_t)k);
    else if (k > 0)
        own = NULL;
    if (json_is_string(own))
        return json_string_value(own);
    const char *metric = layout_metric(row, column);
    if (metric || json_object_get(rule, "metric"))
        return k == 0 ? metric : NULL;
    return json_str_or(json_array_get(json_object_get(b->j, "cell"), (size_t)k), "ours", NULL);
}

/* "{row.permute}" to the field's text; false: the entry is not given, or has no such field. */
static bool fill_field(const char *text, const struct grid_entry *row,
                       const struct grid_entry *column, char *out, size_t size)
{
    const struct grid_entry *e = strncmp(text, "{row.", 5) == 0 ? row : column;
    const char *dot = strchr(text, '.');
    char field[64];
    if (!e || !dot)
        return false;
    snprintf(field, sizeof field, "%.*s", (int)strcspn(dot + 1, "}"), dot + 1);
    return entry_field(e, field, out, size);
}

json_t *page_where(const json_t *rule, const struct grid_entry *row,
                   const struct grid_entry *column)
{
    json_t *out = json_object(), *v;
    const char *key;
    char text[300];
    json_object_foreach(json_object_get(rule, "where"), key, v)
    {
        const char *s = json_is_string(v) ? json_string_value(v) : "";
        if (strncmp(s, "{row.", 5) != 0 && strncmp(s, "{column.", 8) != 0)
            json_object_set(out, key, v);
        else if (fill_field(s, row, column, text, sizeof text))
            json_object_set_new(out, key, json_string(text));
        else if (row && column)
            json_object_set_new(out, key, json_string("no such field"));
    }
    const struct grid_entry *head = row && row->picked         ? row
                                    : column && column->picked ? column
                                                               : NULL;
    if (head) {
        json_object_set_new(out, "layer", json_integer(head->layer));
        json_object_set_new(out, "head", json_integer(head->head));
    }
    return out;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static const char *suffix_of(const struct page_block *b, const struct grid_entry *row,
                             const struct grid_entry *column)
{
    const char *by = json_str_or(json_object_get(b->j, "suffix_by_column"),
                                 json_str_or(column->j, "csv", ""), NULL);
    if (row->extra || column->extra)
        return json_str_or(row->extra ? row->j : column->j, "suffix",
                           json_str_or(b->j, "suffix", ""));
    return json_str_or(row->j, "suffix", by ? by : json_str_or(b->j, "suffix", ""));
}

static double scale_of(const struct page_block *b, const struct grid_entry *row,
                       const struct grid_entry *column)
{
    const json_t *v = json_object_get(row->extra      ? row->j
                                      : column->extra ? column->j
                                                      : NULL,
                                      "scale");
    if (!json_is_number(v))
        v = json_object_get(b->j, "scale");
    return json_is_number(v) ? json_number_value(v) : 1;
}

int page_digits(const struct page *p, const struct page_block *b, int row, int column)
{
    const struct grid_entry *r = &b->rows.e[row], *c = &b->columns.e[column];
    const json_t *own = json_object_get(r->extra ? r->j : NULL, "digits");
    struct paper_number x;
    int best = -1;
    if (!own)
        own = json_object_get(c->extra ? c->j : NULL, "digits");
    if (json_is_integer(own))
        return (int)json_integer_value(own);
    if (page_printed(p, b, r, c, 0, &x))
        return printed_digits(x.value);
    for (int i = 0; i < b->columns.n; i++)
        if (strcmp(b->columns.e[i].level[0], c->level[0]) == 0 &&
            page_printed(p, b, r, &b->columns.e[i], 0, &x) && printed_digits(x.value) > best)
            best = printed_digits(x.value);
    for (int i = 0; best < 0 && i < b->columns.n; i++)
        if (page_printed(p, b, r, &b->columns.e[i], 0, &x))
            best = printed_digits(x.value);
    for (int i = 0; best < 0 && i < b->rows.n; i++)
        if (page_printed(p, b, &b->rows.e[i], c, 0, &x))
            best = printed_digits(x.value);
    for (int i = 0; best < 0 && i < b->rows.n; i++)
        for (int k = 0; k < b->columns.n; k++)
            if (page_printed(p, b, &b->rows.e[i], &b->columns.e[k], 0, &x) &&
                printed_digits(x.value) > best)
                best = printed_digits(x.value);
    return best < 0 ? 3 : best;
}

static int put_printed(const struct page *p, const struct page_block *b, int row, int column,
                       struct err *err)
{
    struct page_cell *c = page_cell_at(b, row, column);
    const struct grid_entry *r = &b->rows.e[row], *e = &b->columns.e[column];
    struct buf text = {0};
    struct paper_number x;
    int n = 0;
    c->number = NAN;
    for (int k = 0; k < CELL_PARTS; k++) {
        if (!page_printed(p, b, r, e, k, &x))
            continue;
        char *end;
        buf_printf(&text, "%s%s", n++ ? json_str_or(b->j, "sep", " / ") : "", x.value);
        c->number = strtod(x.value, &end);
        if (n > 1 || end == x.value)
            c->number = NAN;
    }
    if (n)
        buf_puts(&text, suffix_of(b, r, e));
    int rc = buf_check(&text, "cell", err);
    c->printed = n ? text.data : NULL;
    if (!n)
        buf_free(&text);
    return rc;
}

/* ---- one cell -------------------------------------------------------------------------------- */

static int set_reason(struct page_cell *c, const char *text, struct err *err)
{
    if (c->reason)
        return 0;
    c->reason = strdup(text);
    return c->reason ? 0 : err_set(err, ERR_NOMEM, "cell: out of memory");
}

/* Why a printed number can have no partner here, as the recipe says it; NULL: it says nothing. */
static const char *absent_reason(const struct page *p, const struct grid_entry *row,
                                 const struct grid_entry *column)
{
    const char *pattern;
    json_t *v;
    json_object_foreach((json_t *)p->recipe->absent, pattern,
                        v) if (fnmatch(pattern, row->path, 0) == 0 ||
                               fnmatch(pattern, column->path, 0) == 0) return json_string_value(v);
    return NULL;
}

/* Is the step one of those behind a cell? */
static bool stands_behind(const struct page *p, const struct step *s, int model, int job,
                          const json_t *where)
{
    const char *key;
    json_t *v;
    bool takes = s->recipe == p->at && s->job == job && s->model == model;
    json_object_foreach((json_t *)where, key, v)
    {
        const char *have = takes ? step_value(s, key) : NULL;
        double a = have ? size_value(have) : NAN;
        double b = json_is_string(v) ? size_value(json_string_value(v)) : NAN;
        if (have && json_is_string(v))
            takes = isfinite(a) && isfinite(b) ? fabs(a - b) <= 0.02 * b
                                               : fnmatch(json_string_value(v), have, 0) == 0;
    }
    return takes;
}

/* Set as the reason all files of benchmarks behind a cell that were not given; nothing: none is
 * missing. */
static int missing_files(const struct page *p, struct page_cell *c, int model, int job,
                         const json_t *where, struct err *err)
{
    struct buf b = {0};
    const char *of = "";
    int rc = 0;
    for (int i = 0; i < p->plan->n; i++) {
        const struct step *s = &p->plan->s[i];
        if (!step_lacks_file(s) || !stands_behind(p, s, model, job, where))
            continue;
        buf_printf(&b, "%s%s", b.len ? ", " : "needs ", s->task->file);
        of = s->task->of;
    }
    if (b.len) {
        buf_printf(&b, " of %s (--tasks DIR)%s", of, p->plan->cuda ? "" : " and --backend cuda");
        rc = buf_check(&b, "cell", err);
        rc = rc ? rc : set_reason(c, buf_str(&b), err);
    }
    buf_free(&b);
    return rc;
}

/* Are the steps behind a cell finished? A reason where one failed. */
static int job_state(struct page *p, int model, int job, const json_t *where, const char **reason)
{
    int steps = 0;
    *reason = NULL;
    for (int i = 0; i < p->plan->n; i++) {
        const struct step *s = &p->plan->s[i];
        if (!stands_behind(p, s, model, job, where))
            continue;
        steps++;
        if (s->failed || s->left_out)
            *reason = s->reason;
    }
    return steps;
}

bool page_is_time(const char *metric)
{
    return strstr(metric, "time_") || strstr(metric, "ttft_") || strstr(metric, "generation_") ||
           strncmp(metric, "speed", 5) == 0 || strcmp(metric, "attn_speedup") == 0 ||
           strcmp(metric, "select_share") == 0 || strcmp(metric, "attn_share") == 0;
}

static const char *missing_reason(const char *metric, bool has_jobs)
{
    if (!metric)
        return "nothing of ours measures this";
    if (strncmp(metric, "eval:", 5) == 0)
        return "needs eval: the method inside the model, and the task's files";
    if (page_is_time(metric))
        return "needs a GPU";
    return has_jobs ? "no record has this number" : "no job of these tables gives this";
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool reads_any(const char *const *metrics, const struct record *r)
{
    for (int k = 0; k < CELL_PARTS; k++)
        if (metrics[k] && evidence_reads(metrics[k], r))
            return true;
    return false;
}

/* Those that have a number for one of the cell's parts, [CELL_PARTS] with NULL for none. */
static int collect_records(struct page *p, struct page_cell *cell, const struct choice *c,
                           const char *const *metrics, struct err *err)
{
    struct buf key = {0};
    char text[40];
    int rc = 0;
    for (int64_t i = 0; i < p->evidence.n && !rc; i++) {
        const struct proof *v = &p->evidence.v[i];
        if (!choice_takes(&p->evidence, c, v) || !reads_any(metrics, v->r))
            continue;
        buf_reset(&key);
        record_key(v->r, &key);
        hash_text(hash_bytes(buf_str(&key), key.len), text);
        text[21] = '\0';
        str_list_add(&cell->records, text + 5);
        const char *id = p->plan->s[v->step].id;
        bool known = false;
        for (int n = 0; n < cell->n_jobs; n++)
            known = known || strcmp(cell->jobs[n], id) == 0;
        if (!known && cell->n_jobs < 8)
            cell->jobs[cell->n_jobs++] = id;
        rc = buf_check(&key, "record", err);
    }
    if (cell->records.n) /* threads write them in any order */
        qsort(cell->records.items, (size_t)cell->records.n, sizeof *cell->records.items, by_text);
    buf_free(&key);
    return rc ? rc : cell->records.failed ? err_set(err, ERR_NOMEM, "cell: out of memory") : 0;
}

static int put_value(struct page *p, const struct page_block *b, int row, int column,
                     const json_t *rule, const struct choice *choice, struct err *err)
{
    struct page_cell *c = page_cell_at(b, row, column);
    const struct grid_entry *r = &b->rows.e[row], *e = &b->columns.e[column];
    const char *stat = json_str_or(rule, "stat", "mean");
    double scale = scale_of(b, r, e);
    struct buf text = {0};
    struct sample_stats s;
    const char *metrics[CELL_PARTS] = {NULL};
    int n = 0, rc = 0, digits = page_digits(p, b, row, column);

    if (r->extra || e->extra)
        stat = json_str_or(r->extra ? r->j : e->j, "stat", stat);
    c->stat = stat;
    c->pairs = choice->pairs;
    c->second = page_metric(p, b, r, e, rule, 1);
    for (int k = 0; k < CELL_PARTS; k++) {
        const char *metric = page_metric(p, b, r, e, rule, k);
        c->value[k] = NAN;
        if (!metric || strncmp(metric, "eval:", 5) == 0)
            continue;
        TRY(evidence_stat(&p->evidence, choice, metric, stat, &s, err));
        if (s.units == 0 || !isfinite(s.value))
            continue;
        double x = scale;
        metrics[k] = metric;
        c->value[k] = s.value * x;
        buf_printf(&text, "%s%.*f", n ? json_str_or(b->j, "sep", " / ") : "", digits, c->value[k]);
        if (n++ == 0) {
            s.value *= x;
            s.sd *= x;
            s.lo *= x;
            s.hi *= x;
            c->stats = s;
        }
    }
    if (n == 0)
        goto out;
    buf_puts(&text, suffix_of(b, r, e));
    TRY(buf_check(&text, "cell", err));
    c->ours = text.data;
    text = (struct buf){0};
    TRY(collect_records(p, c, choice, metrics, err));
out:
    buf_free(&text);
    return rc;
}

static bool has_model(const struct grid_axis *a)
{
    for (int i = 0; i < a->n; i++)
        if (a->e[i].model >= 0)
            return true;
    return false;
}

/* The model that the rule's job runs on; -1: no rule or no such job. */
static int model_of_job(const struct page *p, const json_t *rule)
{
    int job = rule ? recipe_job_find(p->recipe, json_str_or(rule, "job", "")) : -1;
    for (int i = 0; i < p->plan->n && job >= 0; i++)
        if (p->plan->s[i].recipe == p->at && p->plan->s[i].job == job)
            return p->plan->s[i].model;
    return -1;
}

/* Where the paper's labels leave no place for a model, ours stands in entries of its own (lengths,
 * extra rows): they are of the model that their job runs on, else of the first, and so is what a
 * recipe adds beside the models. */
static int own_model(const struct page *p, const struct page_block *b, const struct grid_entry *row,
                     const struct grid_entry *column, const json_t *rule)
{
    bool rows = has_model(&b->rows), columns = has_model(&b->columns);
    if ((rows && !row->extra) || (columns && !column->extra))
        return -1;
    int model = model_of_job(p, rule);
    return model >= 0 ? model : page_first_model(p);
}

/* Does the rule take numbers of a benchmark's files? */
static bool has_tasks(const struct page *p, const json_t *rule)
{
    int job = recipe_job_find(p->recipe, json_str_or(rule, "job", ""));
    return job >= 0 && p->recipe->jobs[job].tasks;
}

static int fill_cell(struct page *p, const struct page_block *b, int row, int column,
                     struct err *err)
{
    struct page_cell *c = page_cell_at(b, row, column);
    const struct grid_entry *r = &b->rows.e[row], *e = &b->columns.e[column];
    const json_t *rule = page_rule(p, r, e);
    const char *reason = NULL;
    json_t *where = NULL;
    struct buf text = {0};
    struct jw w;
    int rc = 0;

    c->model = e->model >= 0 ? e->model : r->model;
    if (c->model < 0 && (!r->printed || !e->printed))
        c->model = own_model(p, b, r, e, rule);
    c->job = -1;
    TRY(put_printed(p, b, row, column, err));
    c->state = c->printed ? CELL_PRINTED : CELL_EMPTY;
    if (absent_reason(p, r, e)) {
        rc = c->printed || c->model >= 0 ? set_reason(c, absent_reason(p, r, e), err) : 0;
        goto out;
    }
    const char *metric = rule ? page_metric(p, b, r, e, rule, 0) : layout_metric(r, e);
    if (c->model < 0 && c->printed && has_tasks(p, rule)) {
        where = page_where(rule, r, e);
        TRY(missing_files(p, c, page_first_model(p),
                          recipe_job_find(p->recipe, json_str_or(rule, "job", "")), where, err));
    }
    if (c->model < 0) {
        rc = c->printed ? set_reason(c,
                                     p->recipe->n_jobs ? "no checkpoint of this model was given"
                                                       : missing_reason(metric, false),
                                     err)
                        : 0;
        goto out;
    }
    if (rule && json_object_get(rule, "setting")) {
        TRY(page_setting(p, b, row, column, rule, &reason, err));
        rc = reason ? set_reason(c, reason, err) : 0;
        goto out;
    }
    if (!rule || !metric) {
        rc = set_reason(c, missing_reason(metric, false), err);
        goto out;
    }
    where = page_where(rule, r, e);
    jw_init(&w, &text, 0);
    jw_value(&w, where);
    c->where = strdup(buf_str(&text));
    buf_free(&text);
    c->metric = strdup(metric);
    c->job = recipe_job_find(p->recipe, json_str_or(rule, "job", ""));
    int steps = job_state(p, c->model, c->job, where, &reason);
    struct choice choice = {c->model, c->job, where, json_object_get(rule, "pairs")};
    TRY(missing_files(p, c, c->model, c->job, where, err));
    if (!reason)
        TRY(put_value(p, b, row, column, rule, &choice, err));
    if (c->ours)
        c->state = c->printed ? CELL_BESIDE : CELL_OURS;
    else
        rc = set_reason(c, reason ? reason : missing_reason(metric, steps > 0), err);
    p->failed = p->failed || reason;
out:
    json_decref(where);
    return rc;
}

int page_fill(struct page *p, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < p->n_blocks; i++) {
        struct page_block *b = &p->blocks[i];
        for (int r = 0; r < b->rows.n; r++)
            for (int c = 0; c < b->columns.n; c++) {
                TRY(fill_cell(p, b, r, c, err));
                if (page_cell_at(b, r, c)->records.n) /* a setting of a calibration has none */
                    TRY(page_judge(p, b, r, c, err));
            }
    }
out:
    return rc;
}
