/*
 * ours.c - the numbers of ours in the cells of a page, and why there are none: statistics of
 * records, or what calibrations found.
 */
#include "reproduce/page.h"

#include "analyze/query.h"
#include "core/mem.h"
#include "core/sealed.h"

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

/* ---- what a cell is of ----------------------------------------------------------------------- */

/* Replace {row} and {col}. */
static void expand(const char *text, const char *row, const char *column, char *out, size_t size)
{
    OWN(buf_free) struct buf b = {0};
    struct template_word w;
    while (template_next(&text, &w)) {
        buf_put(&b, w.literal, w.len);
        buf_puts(&b, w.name[0] ? w.name[0] == 'r' ? row : column : "");
    }
    snprintf(out, size, "%s", buf_str(&b));
}

bool cell_printed(const struct page *p, const struct page_cell *c, int k, struct paper_number *out)
{
    const json_t *part = json_array_get(json_object_get(c->block->j, "cell"), (size_t)k);
    const json_t *at = json_object_get(c->row->j, "at"); /* of a list */
    char row[300], column[300];
    if (!part || !c->row->printed || !c->column->printed)
        return false;
    if (at)
        return k == 0 && paper_number_at(p->data, p->recipe->item, json_integer_value(at), out);
    const char *row_key = json_str_or(c->row->j, "csv", "");
    const char *column_key = json_str_or(c->column->j, "csv", "");
    expand(json_str_or(part, "row", ""), row_key, column_key, row, sizeof row);
    expand(json_str_or(part, "column", ""), row_key, column_key, column, sizeof column);
    return paper_number_find(p->data, p->recipe->item, row, column, out);
}

/* The object of an added row, or else of an added column; NULL: the cell is of neither. */
static const json_t *extra_of(const struct page_cell *c)
{
    return c->row->extra ? c->row->j : c->column->extra ? c->column->j : NULL;
}

/* A rule's own metric goes before that of the place in the table, where an added row has its own in
 * every column. */
const char *cell_metric(const struct page_cell *c, int k)
{
    const json_t *own = json_object_get(c->rule, "metric");
    const char *of_rule = json_string_value(json_is_array(own) ? json_array_get(own, (size_t)k)
                                            : k == 0           ? own
                                                               : NULL);
    const char *of_row = json_str_or(c->row->j, "ours", NULL);
    const char *of_place =
        c->row->extra && of_row ? of_row : json_str_or(c->column->j, "ours", of_row);
    if (of_rule || of_place || own)
        return of_rule ? of_rule : k == 0 ? of_place : NULL;
    return c->rule ? json_str_or(json_array_get(json_object_get(c->block->j, "cell"), (size_t)k),
                                 "ours", NULL)
                   : NULL;
}

/* "{row.permute}" to the field's text; false: there is no cell, or it has no such field. */
static bool fill_field(const char *text, const struct page_cell *c, char *out, size_t size)
{
    const char *dot = strchr(text, '.');
    char field[64];
    if (!c || !dot)
        return false;
    snprintf(field, sizeof field, "%.*s", (int)strcspn(dot + 1, "}"), dot + 1);
    return entry_field(strncmp(text, "{row.", 5) == 0 ? c->row : c->column, field, out, size);
}

json_t *rule_where(const json_t *rule, const struct page_cell *c)
{
    const struct grid_entry *head = !c ? NULL : c->row->picked ? c->row : c->column;
    json_t *out = json_object(), *v;
    const char *key;
    char text[300];
    json_object_foreach(json_object_get(rule, "where"), key, v)
    {
        const char *s = json_is_string(v) ? json_string_value(v) : "";
        if (strncmp(s, "{row.", 5) != 0 && strncmp(s, "{column.", 8) != 0)
            json_object_set(out, key, v);
        else if (fill_field(s, c, text, sizeof text))
            json_object_set_new(out, key, json_string(text));
        else if (c)
            json_object_set_new(out, key, json_string("no such field"));
    }
    if (head && head->picked) {
        json_object_set_new(out, "layer", json_integer(head->layer));
        json_object_set_new(out, "head", json_integer(head->head));
    }
    return out;
}

double cell_scale(const struct page_cell *c)
{
    const json_t *v = json_object_get(extra_of(c), "scale");
    if (!json_is_number(v))
        v = json_object_get(c->row->j, "scale");
    if (!json_is_number(v))
        v = json_object_get(c->block->j, "scale");
    return json_is_number(v) ? json_number_value(v) : 1;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static const char *suffix_of(const struct page_cell *c)
{
    const json_t *b = c->block->j, *extra = extra_of(c);
    const char *all = json_str_or(b, "suffix", "");
    const char *by = json_str_or(json_object_get(b, "suffix_by_column"),
                                 json_str_or(c->column->j, "csv", ""), NULL);
    return extra ? json_str_or(extra, "suffix", all)
                 : json_str_or(c->row->j, "suffix", by ? by : all);
}

/* How near a printed cell stands to another: the same, in columns of one head of its row, in its
 * row, in its column, elsewhere in the block. */
enum nearness { SAME_CELL, SAME_GROUP, SAME_ROW, SAME_COLUMN, SAME_BLOCK, FAR };

static enum nearness nearness(const struct page_cell *a, const struct page_cell *b)
{
    if (a->block != b->block)
        return FAR;
    if (a->row == b->row)
        return a == b                                                  ? SAME_CELL
               : strcmp(a->column->level[0], b->column->level[0]) == 0 ? SAME_GROUP
                                                                       : SAME_ROW;
    return a->column == b->column ? SAME_COLUMN : SAME_BLOCK;
}

/* Digits behind the point as the nearest cells are printed: of a row or a column the first one's,
 * else the most. */
static int digits_of(const struct page *p, const struct page_cell *c)
{
    const json_t *own = json_object_get(c->row->extra ? c->row->j : NULL, "digits");
    enum nearness best = FAR;
    struct paper_number x;
    int digits = 3;
    if (!own)
        own = json_object_get(c->column->extra ? c->column->j : NULL, "digits");
    if (json_is_integer(own))
        return (int)json_integer_value(own);
    for (const struct page_cell *o = NULL; (o = next_cell(p, o));) {
        enum nearness n = nearness(c, o);
        if (n > best || n == FAR || !cell_printed(p, o, 0, &x))
            continue;
        int d = printed_digits(x.value);
        bool most = n == SAME_GROUP || n == SAME_BLOCK;
        digits = n < best || (most && d > digits) ? d : digits;
        best = n;
    }
    return digits;
}

static int put_printed(const struct page *p, struct page_cell *c, struct err *err)
{
    struct buf text = {0};
    struct paper_number x;
    int n = 0;
    c->number = NAN;
    for (int k = 0; k < CELL_PARTS; k++) {
        if (!cell_printed(p, c, k, &x))
            continue;
        const char *end;
        buf_printf(&text, "%s%s", n++ ? json_str_or(c->block->j, "sep", " / ") : "", x.value);
        if (!num_read(x.value, &c->number, &end) || n > 1)
            c->number = NAN;
    }
    if (n)
        buf_puts(&text, suffix_of(c));
    c->printed = text.data;
    return buf_check(&text, "cell", err);
}

static int set_reason(struct page_cell *c, const char *text, struct err *err)
{
    if (c->reason || !text)
        return 0;
    return mem_dup(&c->reason, text, "cell", err);
}

/* ---- what calibrations found ----------------------------------------------------------------- */

const json_t *setting_rule(const struct recipe *r, const char *name)
{
    size_t i;
    json_t *o;
    json_array_foreach(r->ours, i, o)
    {
        if (strcmp(json_str_or(json_object_get(o, "setting"), "name", ""), name) == 0)
            return o;
    }
    return NULL;
}

const json_t *setting_jobs(const struct recipe *r, const char *name)
{
    return json_object_get(json_object_get(setting_rule(r, name), "setting"), "jobs");
}

/* The value that all heads have; NAN: they differ, or have none. */
static double shared_value(const json_t *doc, const char *name)
{
    size_t i;
    json_t *h;
    double x = NAN;
    json_array_foreach(json_object_get(doc, "heads"), i, h)
    {
        const json_t *v = json_object_get(h, name);
        if (!json_is_number(v) || (i && json_number_value(v) != x))
            return NAN;
        x = json_number_value(v);
    }
    return x;
}

/* Has a step these values of its variables? */
static bool step_fits(const struct step *s, const json_t *where)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)where, key, v)
    {
        const char *have = step_value(s, key);
        if (have && json_is_string(v) && !value_fits(key, have, json_string_value(v)))
            return false;
    }
    return true;
}

static const struct step *step_of(const struct page *p, int model, const char *job,
                                  const json_t *where)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));)
        if (s->model == model && strcmp(step_job(p->plan, s)->name, job) == 0 &&
            step_fits(s, where))
            return s;
    return NULL;
}

int setting_found(const struct page *p, int model, const char *job, const json_t *where,
                  const char *name, double *x, const char **reason, struct err *err)
{
    const struct step *s = step_of(p, model, job, where);
    OWN(buf_free) struct buf path = {0};
    OWN(json_decrefp) json_t *doc = NULL;
    *x = NAN;
    *reason = s && s->reason[0] ? s->reason : "not calibrated at this length (--lengths)";
    if (!s || s->failed || s->left_out || !s->done)
        return 0;
    step_output(p->plan, s, &path);
    PASS_ON(buf_check(&path, "path", err));
    PASS_ON(seal_json_file(buf_str(&path), (size_t)1 << 30, &doc, err));
    *x = shared_value(doc, name);
    *reason = isfinite(*x) ? NULL : "the calibration has no setting that all heads share";
    return 0;
}

/* A cell of a rule "setting": {"name": PARAMETER, "jobs": [...]}. *reason: why there is none. */
static int put_setting(struct page *p, struct page_cell *c, const char **reason, struct err *err)
{
    const json_t *what = json_object_get(c->rule, "setting");
    const char *name = json_str_or(what, "name", "");
    int digits = digits_of(p, c);
    OWN(buf_free) struct buf text = {0};
    int64_t prompts = 0;
    size_t i;
    json_t *job;
    *reason = NULL;
    json_array_foreach(json_object_get(what, "jobs"), i, job)
    {
        double x;
        PASS_ON(
            setting_found(p, c->model, json_string_value(job), c->where, name, &x, reason, err));
        if (*reason)
            return 0;
        const struct step *s = step_of(p, c->model, json_string_value(job), c->where);
        buf_printf(&text, "%s%.*f", i ? json_str_or(c->block->j, "sep", " / ") : "", digits, x);
        if (c->n_jobs < 8)
            c->jobs[c->n_jobs++] = s->id;
        c->value[i < CELL_PARTS ? i : 0] = x;
        prompts = s->n_from;
    }
    PASS_ON(buf_check(&text, "cell", err));
    c->ours = text.data;
    text = (struct buf){0};
    c->metric[0] = name;
    c->metric[1] = NULL;
    c->state = c->printed ? CELL_BESIDE : CELL_OURS;
    c->stats =
        (struct sample_stats){c->value[0], NAN, NAN, NAN, prompts, (int64_t)i, OF_CALIBRATION};
    if (!p->plan->models->m[c->model].paper)
        add_letter(p, c, 'a');
    add_letter(p, c, 'd'); /* what is searched for, and on what, is ours */
    if (p->quick)
        add_letter(p, c, 'q');
    return 0;
}

/* ---- why there is no number ------------------------------------------------------------------ */

/* Why a printed number can have no partner here, as the recipe says it; NULL: it says nothing. */
static const char *absent_reason(const struct page *p, const struct page_cell *c)
{
    const char *pattern;
    json_t *v;
    json_object_foreach((json_t *)p->recipe->absent, pattern, v)
    {
        if (fnmatch(pattern, c->row->path, 0) == 0 || fnmatch(pattern, c->column->path, 0) == 0)
            return json_string_value(v);
    }
    return NULL;
}

/* Why nothing of ours stands in a place of the table that no given model fills: which one would. */
static int unfilled_reason(const struct page *p, struct page_cell *c, struct err *err)
{
    const char *role, *id;
    json_t *o, *label;
    json_object_foreach((json_t *)p->recipe->roles, role, o)
        json_object_foreach(json_object_get(o, "fills"), id, label)
    {
        bool all = json_has_text(label, "*");
        for (int k = 0; k < LABEL_LEVELS; k++) {
            bool row = k < c->row->levels && json_has_text(label, c->row->level[k]);
            bool column = k < c->column->levels && json_has_text(label, c->column->level[k]);
            char text[160];
            if (!row && !column && !all)
                continue;
            const json_t *m = json_with_id(p->data->models, id);
            bool runs = json_object_get(m, "gb") != NULL;
            if (!runs && c->job >= 0 && p->recipe->jobs[c->job].kind == DO_EVAL)
                snprintf(text, sizeof text, "lacuna has no runner for %s", id);
            else if (!runs)
                snprintf(text, sizeof text, "needs a trace of %s (--trace %s=T.h5)", id, role);
            else
                snprintf(text, sizeof text, "needs a checkpoint of %s (--model %s=DIR)", id, role);
            return set_reason(c, text, err);
        }
    }
    return set_reason(c, "no recipe fills this place: lacuna runs no model of it", err);
}

/* Is the step one of those behind a cell of this model? */
static bool stands_behind(const struct step *s, const struct page_cell *c, int model)
{
    return s->job == c->job && s->model == model && step_fits(s, c->where);
}

/* Set as the reason all files of benchmarks behind a cell that were not given; nothing: none is
 * missing. */
static int missing_files(const struct page *p, struct page_cell *c, int model, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    const char *of = "";
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));) {
        if (!step_lacks_file(s) || !stands_behind(s, c, model))
            continue;
        buf_printf(&b, "%s%s", b.len ? ", " : "needs ", s->task->file);
        of = s->task->of;
    }
    if (b.len) {
        buf_printf(&b, " of %s (--tasks DIR)%s", of, p->plan->cuda ? "" : " and --backend cuda");
        PASS_ON(buf_check(&b, "cell", err));
        return set_reason(c, buf_str(&b), err);
    }
    return 0;
}

bool metric_is_time(const char *metric)
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
    if (metric_is_time(metric))
        return "needs a GPU";
    return has_jobs ? "no record has this number" : "no job of these tables gives this";
}

/* ---- one cell -------------------------------------------------------------------------------- */

struct choice cell_choice(const struct page_cell *c)
{
    return (struct choice){c->model, c->job, c->where, json_object_get(c->rule, "pairs")};
}

/* The jobs of those that have a number for one of the cell's parts. */
static void find_jobs(const struct page *p, struct page_cell *c, const bool *has)
{
    struct choice choice = cell_choice(c);
    for (const struct proof *v = NULL; (v = next_proof(&p->evidence, &choice, v));) {
        const char *id = p->plan->s[v->step].id;
        bool reads = false;
        for (int k = 0; k < CELL_PARTS; k++)
            reads = reads || (has[k] && isfinite(record_value(v->r, c->metric[k])));
        for (int n = 0; n < c->n_jobs; n++)
            reads = reads && strcmp(c->jobs[n], id) != 0;
        if (reads && c->n_jobs < 8)
            c->jobs[c->n_jobs++] = id;
    }
}

static int put_value(struct page *p, struct page_cell *c, struct err *err)
{
    struct choice choice = cell_choice(c);
    const json_t *extra = extra_of(c);
    double scale = cell_scale(c);
    OWN(buf_free) struct buf text = {0};
    bool has[CELL_PARTS] = {false};
    int n = 0, digits = digits_of(p, c);
    c->stat = json_str_or(extra, "stat", json_str_or(c->rule, "stat", "mean"));
    for (int k = 0; k < CELL_PARTS; k++) {
        struct sample_stats s;
        c->value[k] = NAN;
        if (!c->metric[k] || strncmp(c->metric[k], "eval:", 5) == 0)
            continue;
        PASS_ON(evidence_stat(&p->evidence, &choice, c->metric[k], c->stat, &s, err));
        if (s.units == 0 || !isfinite(s.value))
            continue;
        has[k] = true;
        c->value[k] = s.value * scale;
        buf_printf(&text, "%s%.*f", n ? json_str_or(c->block->j, "sep", " / ") : "", digits,
                   c->value[k]);
        if (n++ == 0) {
            c->stats = s;
            c->stats.value *= scale;
            c->stats.sd *= scale;
            c->stats.lo *= scale;
            c->stats.hi *= scale;
        }
    }
    if (n == 0)
        return 0;
    buf_puts(&text, suffix_of(c));
    PASS_ON(buf_check(&text, "cell", err));
    c->ours = text.data;
    text = (struct buf){0};
    c->state = c->printed ? CELL_BESIDE : CELL_OURS;
    find_jobs(p, c, has);
    return 0;
}

/* Whose number of ours stands in a cell, -1: nobody's. Where the paper's labels leave no place for
 * a model, ours stands in entries of its own (lengths, extra rows): they are of the model that
 * their job runs on, else of the first, and so is what a recipe adds beside the models. */
static int model_of(const struct page *p, const struct page_cell *c)
{
    int model = c->column->model >= 0 ? c->column->model : c->row->model;
    bool rows = axis_has_models(&c->block->rows), columns = axis_has_models(&c->block->columns);
    if (model >= 0 || (c->row->printed && c->column->printed) || (rows && !c->row->extra) ||
        (columns && !c->column->extra))
        return model;
    model = c->job >= 0 ? page_first_model(p, c->job) : -1;
    return model >= 0 ? model : page_first_model(p, -1);
}

/* A cell with a model and a rule. */
static int fill_ours(struct page *p, struct page_cell *c, struct err *err)
{
    const char *reason = NULL, *without = NULL;
    int steps = 0;
    if (json_object_get(c->rule, "setting")) {
        PASS_ON(put_setting(p, c, &reason, err));
        return set_reason(c, reason, err);
    }
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));) {
        bool behind = stands_behind(s, c, c->model);
        steps += behind;
        reason = behind && (s->failed || s->left_out) ? s->reason : reason;
        without = behind && s->reason[0] ? s->reason : without;
    }
    PASS_ON(missing_files(p, c, c->model, err));
    if (!reason)
        PASS_ON(put_value(p, c, err));
    if (!c->ours)
        PASS_ON(set_reason(c, without ? without : missing_reason(c->metric[0], steps > 0), err));
    if (c->ours)
        PASS_ON(page_judge(p, c, err));
    p->failed = p->failed || reason;
    return 0;
}

static int fill_cell(struct page *p, struct page_cell *c, struct err *err)
{
    const char *why = absent_reason(p, c);
    c->job = c->rule ? recipe_job_find(p->recipe, json_str_or(c->rule, "job", "")) : -1;
    c->model = model_of(p, c);
    c->where = rule_where(c->rule, c);
    for (int k = 0; k < CELL_PARTS; k++)
        c->metric[k] = cell_metric(c, k);
    PASS_ON(put_printed(p, c, err));
    c->state = c->printed ? CELL_PRINTED : CELL_EMPTY;
    if (why || c->model < 0) {
        if (!why && c->printed && c->job >= 0 && p->recipe->jobs[c->job].tasks)
            PASS_ON(missing_files(p, c, page_first_model(p, -1), err));
        if (!why && p->recipe->n_jobs && c->printed && c->rule)
            PASS_ON(unfilled_reason(p, c, err));
        if (c->printed || c->model >= 0)
            return set_reason(c, why ? why : missing_reason(c->metric[0], false), err);
    } else if (c->rule && (c->metric[0] || json_object_get(c->rule, "setting"))) {
        return fill_ours(p, c, err);
    } else {
        return set_reason(c, missing_reason(c->metric[0], false), err);
    }
    return 0;
}

/* Is it in an added row or column that the recipe says to stand in for the printed one, of the same
 * column or row? */
static bool stands_in_for(const struct page_cell *o, const struct page_cell *c)
{
    const struct grid_entry *other = o->row->extra ? o->column : o->row;
    const struct grid_entry *same = o->row->extra ? c->column : c->row;
    const struct grid_entry *printed = o->row->extra ? c->row : c->column;
    return json_has_text(json_object_get(extra_of(o), "stands_in"), printed->path) &&
           strcmp(other->level[other->levels - 1], same->level[same->levels - 1]) == 0;
}

/* Does a number of ours stand for a printed one: of the same job, conditions and metric, of another
 * model; or where heads are picked, in the same column? */
static bool stands_for(const struct page_cell *o, const struct page_cell *c)
{
    const char *a = o->metric[0], *b = c->metric[0];
    if (o->block != c->block || !o->ours)
        return false;
    if (!c->rule)
        return o->row->picked && o->column == c->column;
    return o->job == c->job && json_equal(o->where, c->where) &&
           (b ? a && strcmp(a, b) == 0 : o->rule == c->rule);
}

/* One that stands for the printed number, or else stands in for it (*in). */
static const struct page_cell *beside(const struct page *p, const struct page_cell *c, bool *in)
{
    const struct page_cell *stand_in = NULL;
    *in = false;
    for (const struct page_cell *o = NULL; (o = next_cell(p, o));) {
        if (stands_for(o, c))
            return o;
        if (o->ours && stands_in_for(o, c))
            stand_in = o;
    }
    *in = stand_in;
    return stand_in;
}

int page_fill(struct page *p, struct err *err)
{
    for (struct page_cell *c = NULL; (c = next_cell(p, c));)
        PASS_ON(fill_cell(p, c, err));
    for (struct page_cell *c = NULL; (c = next_cell(p, c));) {
        bool in;
        const struct page_cell *o = c->state == CELL_PRINTED ? beside(p, c, &in) : NULL;
        if (!o)
            continue;
        char text[600];
        snprintf(text, sizeof text, "ours stands in %s%s%.400s",
                 (in ? o->row->extra : o->column == c->column) ? o->row->path : o->column->path,
                 in ? ", a stand-in; " : "", in && c->reason ? c->reason : "");
        free(c->reason);
        c->reason = NULL;
        PASS_ON(set_reason(c, text, err));
    }
    return 0;
}
