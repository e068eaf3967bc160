/*
 * grid.c - rows and columns of a page: those of the printed table in its order, beside them one per
 * model of ours that is none of the paper's, lengths that the paper does not print, and entries
 * that the recipe adds.
 */
#include "reproduce/page.h"

#include "core/mem.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void free_axis(struct grid_axis *a)
{
    for (int i = 0; i < a->n; i++) {
        for (int k = 0; k < a->e[i].levels; k++)
            free(a->e[i].level[k]);
        free(a->e[i].path);
    }
    free(a->e);
}

void grid_free(struct page *p)
{
    for (int i = 0; i < p->n_blocks; i++) {
        struct page_block *b = &p->blocks[i];
        for (int k = 0; b->cell && k < b->rows.n * b->columns.n; k++) {
            struct page_cell *c = &b->cell[k];
            free(c->printed);
            free(c->ours);
            free(c->reason);
            json_decref(c->where);
        }
        free(b->cell);
        free_axis(&b->rows);
        free_axis(&b->columns);
    }
    free(p->blocks);
    p->blocks = NULL;
    p->n_blocks = 0;
}

int page_first_model(const struct page *p, int job)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));)
        if (s->model >= 0 && (job < 0 || s->job == job))
            return s->model;
    return -1;
}

bool page_uses(const struct page *p, int job, int model)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));)
        if (s->model == model && (job < 0 || s->job == job))
            return true;
    return false;
}

bool page_has_files(const struct page *p)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));)
        if (s->task && s->task->path)
            return true;
    return false;
}

struct page_cell *next_cell(const struct page *p, const struct page_cell *c)
{
    const struct page_block *b = c ? c->block : p->blocks, *end = p->blocks + p->n_blocks;
    int64_t at = c ? c - b->cell + 1 : 0;
    while (b < end && at >= (int64_t)b->rows.n * b->columns.n) {
        b++;
        at = 0;
    }
    return b < end ? &b->cell[at] : NULL;
}

struct page_cell *page_cell_at(const struct page_block *b, int row, int column)
{
    return &b->cell[row * b->columns.n + column];
}

bool entry_field(const struct grid_entry *e, const char *field, char *text, size_t size)
{
    if (strcmp(field, "length") == 0 && isfinite(e->length))
        return (size_t)snprintf(text, size, "%.0f", e->length) < size;
    return json_text(e->j, field, text, size);
}

bool axis_has_models(const struct grid_axis *a)
{
    for (int i = 0; i < a->n; i++)
        if (a->e[i].model >= 0 && !a->e[i].named)
            return true;
    return false;
}

/* "ours, least (layer 2, head 5)/Sparsity": the levels, with the head that was picked. */
static int name_entries(const struct page *p, struct grid_axis *a, struct err *err)
{
    for (int i = 0; i < a->n; i++) {
        struct grid_entry *e = &a->e[i];
        char **last = &e->level[e->levels - 1];
        struct buf path = {0}, label = {0};
        if (e->picked) {
            buf_printf(&label, "%s (layer %d, head %d)", *last, e->layer, e->head);
            free(*last);
            *last = label.data;
        }
        for (int k = 0; k < e->levels; k++)
            buf_printf(&path, "%s%s", k ? "/" : "", e->level[k] ? e->level[k] : "");
        buf_puts(&path, "");
        e->path = path.data;
        PASS_ON(buf_check(&label, "label", err));
        PASS_ON(buf_check(&path, "label", err));
        if (!e->named)
            continue;
        label = (struct buf){0};
        buf_printf(&label, "%s, %s", *last, p->plan->models->m[e->model].name);
        free(*last);
        *last = label.data;
        PASS_ON(buf_check(&label, "label", err));
    }
    return 0;
}

/* A zeroed entry at place `at`; without memory a spare one, and the axis has failed. */
static struct grid_entry *insert(struct grid_axis *a, int at, const json_t *j)
{
    struct err ignored = {0};
    struct grid_entry *e = &a->spare;
    if (mem_grow(&a->e, &a->cap, a->n + 1, sizeof *a->e, "rows and columns", &ignored) == 0) {
        memmove(&a->e[at + 1], &a->e[at], (size_t)(a->n - at) * sizeof *a->e);
        a->n++;
        e = &a->e[at];
    }
    a->failed = a->failed || e == &a->spare;
    *e = (struct grid_entry){.j = j, .length = NAN, .model = -1};
    return e;
}

/* A label is a text, or a list of texts, one per level. */
static void set_label(struct grid_entry *e, const json_t *label)
{
    size_t n = json_is_string(label) ? 1 : json_array_size(label);
    for (size_t i = 0; i < n && i < LABEL_LEVELS; i++)
        e->level[e->levels++] =
            strdup(json_string_value(json_is_string(label) ? label : json_array_get(label, i)));
}

static void take_axis(const json_t *all, const char *label, struct grid_axis *a)
{
    size_t i;
    json_t *o;
    json_array_foreach(all, i, o)
    {
        struct grid_entry *e = insert(a, a->n, o);
        e->printed = true;
        set_label(e, json_object_get(o, label));
    }
}

/* ---- our models ------------------------------------------------------------------------------ */

/* Is the label one that some model of the role fills? */
static bool fills(const json_t *map, const char *label)
{
    const char *id;
    json_t *v;
    json_object_foreach((json_t *)map, id, v)
    {
        if (json_has_text(v, label))
            return true;
    }
    return false;
}

/* What a model fills; NULL: no cells of the paper. */
static const json_t *cells_of(const json_t *map, const struct model_use *m)
{
    return json_object_get(map, json_str_or(m->fills, "id", ""));
}

/* The role whose model the label of an added entry names; NULL: none. */
static const char *label_role(const struct recipe *r, const json_t *entry)
{
    const json_t *label = json_object_get(entry, "label"), *v;
    const char *role, *found = NULL;
    char name[40];
    size_t k;
    json_object_foreach((json_t *)r->roles, role, v)
    {
        json_t *part;
        snprintf(name, sizeof name, "{%s}", role);
        if (json_is_string(label) && strstr(json_string_value(label), name))
            found = role;
        json_array_foreach(label, k, part) found =
            strstr(json_string_value(part), name) ? role : found;
    }
    return found;
}

/* Does the recipe add entries with the name of a role's model? */
static bool has_extra(const struct recipe *r, const char *role)
{
    size_t i;
    json_t *o;
    json_array_foreach(r->extra, i, o)
    {
        const char *named = label_role(r, o);
        if (named && strcmp(named, role) == 0)
            return true;
    }
    return false;
}

/* The level of an axis at which the models of the papers stand, -1: none. */
static int model_level(const struct grid_axis *a, const json_t *map)
{
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < a->e[i].levels; k++)
            if (fills(map, a->e[i].level[k]))
                return k;
    return -1;
}

/* Is there an entry of this model already with the same other levels? */
static bool has_own(const struct grid_axis *a, int model, const struct grid_entry *like, int level)
{
    for (int i = 0; i < a->n; i++) {
        bool same = a->e[i].model == model && !a->e[i].printed && a->e[i].levels == like->levels;
        for (int k = 0; same && k < like->levels; k++)
            same = k == level || (strcmp(a->e[i].level[k], like->level[k]) == 0 &&
                                  (!strstr(like->level[k], "{label}") || a->e[i].j == like->j));
        if (same)
            return true;
    }
    return false;
}

/* A copy for a model, with its name at a level, or as one level more. */
static void copy_entry(struct grid_axis *a, int from, int to, int level, const char *name,
                       int model)
{
    struct grid_entry *e = insert(a, to, a->e[from].j);
    const struct grid_entry *like = &a->e[from]; /* which stands before */
    e->levels = like->levels + (level == like->levels);
    for (int k = 0; k < e->levels; k++)
        e->level[k] = strdup(k == level ? name : like->level[k]);
    e->model = model;
}

/* Where the run of filled siblings that begins at i ends. */
static int siblings_end(const struct grid_axis *a, int i, int level, const json_t *map)
{
    int k = i;
    while (k < a->n &&
           (!a->e[k].printed || (level < a->e[k].levels && fills(map, a->e[k].level[level]))) &&
           (level == 0 || strcmp(a->e[k].level[0], a->e[i].level[0]) == 0))
        k++;
    return k;
}

/* A model of the papers fills its own entries; with `copies` any other gets entries beside them. */
static void place_model(struct grid_axis *a, int level, const char *name, int model,
                        const json_t *map, const json_t *own, bool copies)
{
    for (int i = 0; i < a->n; i++) {
        struct grid_entry *e = &a->e[i];
        if (!e->printed || level >= e->levels || !fills(map, e->level[level]))
            continue;
        if (own && json_has_text(own, e->level[level]))
            e->model = model;
        else if (!own && copies && !has_own(a, model, e, level))
            copy_entry(a, i, siblings_end(a, i, level, map), level, name, model);
    }
}

/* The table is of this model alone. */
static void fill_all(struct grid_axis *a, int model)
{
    for (int i = 0; i < a->n; i++)
        a->e[i].model = a->e[i].printed ? model : a->e[i].model;
}

/* The paper's table names no model: every column gets one of ours beside it. */
static void place_beside_all(struct grid_axis *a, const struct model_use *m, int model)
{
    for (int i = 0; i < a->n; i++) {
        int to = i + 1;
        if (!a->e[i].printed || a->e[i].levels == LABEL_LEVELS)
            continue;
        while (to < a->n && !a->e[to].printed)
            to++;
        copy_entry(a, i, to, a->e[i].levels, m->name, model);
    }
}

/* Does a model of this role fill all columns? */
static bool is_filled(const struct page *p, const char *role)
{
    const json_t *map = json_object_get(json_object_get(p->recipe->roles, role), "fills");
    for (int i = 0; i < p->plan->models->n; i++) {
        const struct model_use *m = &p->plan->models->m[i];
        if (strcmp(m->role, role) == 0 && json_has_text(cells_of(map, m), "*"))
            return true;
    }
    return false;
}

static void place_models(struct page *p, struct page_block *b)
{
    for (int i = 0; i < p->plan->models->n; i++) {
        const struct model_use *m = &p->plan->models->m[i];
        const json_t *role = json_object_get(p->recipe->roles, m->role);
        const json_t *map = json_object_get(role, "fills");
        const json_t *beside = json_object_get(role, "beside_all");
        const json_t *own = cells_of(map, m);
        int column = model_level(&b->columns, map), row = model_level(&b->rows, map);
        bool copies = !has_extra(p->recipe, m->role);
        if (own && json_has_text(own, "*"))
            fill_all(&b->columns, i);
        else if (column >= 0)
            place_model(&b->columns, column, m->name, i, map, own, copies);
        else if (row >= 0)
            place_model(&b->rows, row, m->name, i, map, own, copies);
        /* true: always; "tasks": when a file was given that one of the recipe's jobs reads */
        else if (json_is_true(beside) || (json_is_string(beside) && page_has_files(p)) ||
                 is_filled(p, m->role))
            place_beside_all(&b->columns, m, i);
    }
}

/* ---- our lengths ----------------------------------------------------------------------------- */

static double entry_length(const struct grid_entry *e)
{
    char text[32];
    return entry_field(e, "length", text, sizeof text) ? strtod(text, NULL) : NAN;
}

static void place_length(struct grid_axis *a, double n, const char *label)
{
    int at = 0;
    for (int i = 0; i < a->n; i++) {
        double have = entry_length(&a->e[i]);
        if (!isfinite(have) || fabs(have - n) <= 0.02 * n)
            return;
        if (have < n)
            at = i + 1;
    }
    if (a->n == 0)
        return;
    int model = a->e[0].model;
    struct grid_entry *e = insert(a, at, a->e[0].j);
    e->length = n;
    e->model = model;
    e->level[e->levels++] = strdup(label);
}

static void place_lengths(struct page *p, struct page_block *b)
{
    for (const struct step *s = NULL; (s = next_step(p->plan, p->at, s));) {
        const char *n = step_value(s, "n");
        if (!n || !isfinite(size_value(n)) || step_job(p->plan, s)->kind != DO_REPLAY)
            continue;
        place_length(&b->columns, size_value(n), n);
        place_length(&b->rows, size_value(n), n);
    }
}

static int by_mean(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    double u = unit_mean(x), v = unit_mean(y);
    if (u != v)
        return u < v ? -1 : 1;
    return x->layer != y->layer ? x->layer - y->layer : x->head - y->head;
}

/* {"by": METRIC, "job", "where", "rank": least, median or largest}: the head of that rank among
 * those of the entry's model, or of the first one; of an even number the lower of the two in the
 * middle. While there is no record no head is known. */
static int pick_head(const struct page *p, const json_t *pick, struct grid_entry *e,
                     struct err *err)
{
    struct choice c = {e->model >= 0 ? e->model : page_first_model(p, -1),
                       recipe_job_find(p->recipe, json_str_or(pick, "job", "")),
                       json_object_get(pick, "where"), NULL};
    const char *rank = json_str_or(pick, "rank", "");
    OWN(unit_values_free) struct unit_values u = {0};
    PASS_ON(evidence_units(&p->evidence, &c, json_str_or(pick, "by", ""), &u, err));
    if (u.n) {
        qsort(u.u, (size_t)u.n, sizeof *u.u, by_mean);
        const struct unit *one = &u.u[rank[0] == 'm'   ? (u.n - 1) / 2
                                      : rank[1] == 'e' ? 0
                                                       : u.n - 1];
        e->picked = true;
        e->layer = one->layer;
        e->head = one->head;
    }
    return 0;
}

/* Put names into an added entry's labels: of {role} the model's, of {variable} its value. */
static void name_extra(const struct page *p, struct grid_axis *a, struct grid_entry *e)
{
    for (int i = 0; i < e->levels; i++) {
        const char *text = e->level[i];
        struct buf b = {0};
        struct template_word w;
        while (template_next(&text, &w)) {
            const char *value = json_string_value(plan_variable(p->plan, p->at, -1, w.name));
            if (e->model >= 0 && json_object_get(p->recipe->roles, w.name))
                value = p->plan->models->m[e->model].name;
            buf_put(&b, w.literal, w.len);
            buf_puts(&b, value ? value : "");
        }
        a->failed = a->failed || b.failed;
        free(e->level[i]);
        e->level[i] = b.data;
    }
}

/* An entry that the recipe adds, of a model or of none (-1). */
static int add_extra(struct page *p, struct grid_axis *a, const json_t *o, int model, bool named,
                     struct err *err)
{
    struct grid_entry *e = insert(a, a->n, o);
    e->extra = true;
    e->model = model;
    e->named = named;
    set_label(e, json_object_get(o, "label"));
    name_extra(p, a, e);
    return json_object_get(o, "pick") ? pick_head(p, json_object_get(o, "pick"), e, err) : 0;
}

/* Whose entries are those that the recipe adds? Of the role that the label names all models that
 * fill no cells of the paper; where several share a table without a place of their own, each. */
static bool has_entry(const struct page *p, const json_t *o, int model, bool shared)
{
    const struct model_use *m = &p->plan->models->m[model];
    const char *role = label_role(p->recipe, o);
    if (!role)
        return shared && page_uses(p, -1, model);
    return strcmp(m->role, role) == 0 &&
           !cells_of(json_object_get(json_object_get(p->recipe->roles, role), "fills"), m);
}

/* To every block, or to the one that it says, counted from 1. Entries that need a GPU are left out
 * without one: nothing is printed that they would stand beside. */
static int place_extra(struct page *p, struct page_block *b, struct err *err)
{
    bool placed = axis_has_models(&b->rows) || axis_has_models(&b->columns);
    size_t i;
    json_t *o;
    int used = 0;
    for (int m = 0; m < p->plan->models->n; m++)
        used += page_uses(p, -1, m);
    bool shared = !placed && used > 1 && json_object_size(p->recipe->roles) == 1;
    json_array_foreach(p->recipe->extra, i, o)
    {
        struct grid_axis *a =
            strcmp(json_str_or(o, "axis", ""), "column") == 0 ? &b->columns : &b->rows;
        const json_t *block = json_object_get(o, "block");
        if ((block && json_integer_value(block) != p->n_blocks) ||
            (json_object_get(o, "needs") && !p->plan->cuda))
            continue;
        for (int m = 0; m < p->plan->models->n; m++)
            if (has_entry(p, o, m, shared))
                PASS_ON(add_extra(p, a, o, m, !label_role(p->recipe, o), err));
        if (!shared && !label_role(p->recipe, o))
            PASS_ON(add_extra(p, a, o, -1, false, err));
    }
    return 0;
}

/* ---- cells ----------------------------------------------------------------------------------- */

static const json_t *find_rule(const struct page *p, const struct page_cell *c)
{
    int model = c->column->model >= 0 ? c->column->model : c->row->model;
    size_t i;
    json_t *rule;
    json_array_foreach(p->recipe->ours, i, rule)
    {
        if ((p->plan->cuda || !json_object_get(rule, "needs")) &&
            fnmatch(json_str_or(rule, "column", "*"), c->column->path, 0) == 0 &&
            fnmatch(json_str_or(rule, "row", "*"), c->row->path, 0) == 0 &&
            (model < 0 || /* of several roles each has jobs of its own */
             page_uses(p, recipe_job_find(p->recipe, json_str_or(rule, "job", "")), model)))
            return rule;
    }
    return NULL;
}

int grid_make(struct page *p, struct err *err)
{
    const json_t *blocks = json_object_get(p->recipe->item, "blocks");
    size_t i;
    json_t *o;
    PASS_ON(mem_zalloc(&p->blocks, (int64_t)json_array_size(blocks) + 1, sizeof *p->blocks,
                       "blocks", err));
    json_array_foreach(blocks, i, o)
    {
        struct page_block *b = &p->blocks[p->n_blocks++];
        b->j = o;
        take_axis(json_object_get(o, "columns"), "head", &b->columns);
        take_axis(json_object_get(o, "rows"), "label", &b->rows);
        place_models(p, b);
        place_lengths(p, b);
        PASS_ON(place_extra(p, b, err));
        if (b->rows.failed || b->columns.failed)
            return err_set(err, ERR_NOMEM, "rows and columns: out of memory");
        PASS_ON(name_entries(p, &b->columns, err));
        PASS_ON(name_entries(p, &b->rows, err));
        PASS_ON(
            mem_zalloc(&b->cell, (int64_t)b->rows.n * b->columns.n, sizeof *b->cell, "cells", err));
        for (int k = 0; k < b->rows.n * b->columns.n; k++) {
            struct page_cell *c = &b->cell[k];
            c->block = b;
            c->row = &b->rows.e[k / b->columns.n];
            c->column = &b->columns.e[k % b->columns.n];
            c->rule = find_rule(p, c);
        }
    }
    return 0;
}
