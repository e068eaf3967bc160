/*
 * jobplan.c - the steps of all recipes.
 */
#include "reproduce/jobplan.h"

#include "core/text.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

const struct step *next_step(const struct plan *p, int recipe, const struct step *s)
{
    for (s = s ? s + 1 : p->s; s && s < p->s + p->n; s++)
        if (s->recipe == recipe)
            return s;
    return NULL;
}

const struct step *next_drawing(const struct plan *p, int recipe, const struct step *s)
{
    while ((s = next_step(p, recipe, s)) && (!s->done || step_job(p, s)->kind != DO_DRAW))
        ;
    return s;
}

const struct recipe_job *step_job(const struct plan *p, const struct step *s)
{
    return &p->recipes[s->recipe].jobs[s->job];
}

const char *step_value(const struct step *s, const char *variable)
{
    for (int i = 0; i < s->n_vars; i++)
        if (strcmp(s->var[i].name, variable) == 0)
            return s->var[i].value;
    return NULL;
}

bool step_is_first(const struct plan *p, const struct step *s)
{
    const struct step *first = p->s;
    while (strcmp(first->id, s->id) != 0)
        first++;
    return first == s;
}

void step_text(const struct step *s, struct buf *b)
{
    for (int i = 0; i < s->n_vars; i++)
        buf_printf(b, "%s%s=%s", i ? " " : "", s->var[i].name, s->var[i].value);
}

/* ---- expansion ------------------------------------------------------------------------------- */

static int new_step(struct plan *p, struct step **out, struct err *err)
{
    PASS_ON(mem_grow(&p->s, &p->cap, p->n + 1, sizeof *p->s, "plan", err));
    *out = &p->s[p->n++];
    memset(*out, 0, sizeof **out);
    return 0;
}

/* The role of a job: its own, or that of the jobs it reads; NULL where they have several. */
static const char *job_role(const struct recipe *r, const struct recipe_job *j)
{
    const char *found = NULL;
    size_t i;
    json_t *v;
    if (j->role)
        return j->role;
    json_array_foreach(j->from, i, v)
    {
        const char *role = job_role(r, &r->jobs[recipe_job_find(r, json_string_value(v))]);
        if (found && role && strcmp(found, role) != 0)
            return NULL;
        found = role ? role : found;
    }
    return found;
}

/* Is the variable one that chooses what is captured? A trace that is given has one value of it. */
static bool chooses_input(const struct recipe *r, const char *variable)
{
    for (int i = 0; i < r->n_jobs; i++)
        if ((r->jobs[i].kind == DO_CAPTURE || r->jobs[i].kind == DO_PROMPT) &&
            json_has_text(r->jobs[i].each, variable))
            return true;
    return false;
}

const json_t *plan_variable(const struct plan *p, int recipe, int model, const char *name)
{
    const json_t *v = recipe_variable(&p->recipes[recipe], p->quick, name), *own = NULL;
    const struct model_use *m = model >= 0 ? &p->models->m[model] : NULL;
    if (m && !p->quick && strcmp(name, "size") == 0)
        own = json_object_get(m->fills, json_is_array(v) ? "sizes" : "size");
    return own ? own : v;
}

/* Value number i of a variable for a model; NULL behind the last. */
static const char *value_at(struct plan *p, int recipe, int model, const char *variable, size_t i)
{
    const struct model_use *m = model >= 0 ? &p->models->m[model] : NULL;
    const struct recipe *r = &p->recipes[recipe];
    const json_t *v = plan_variable(p, recipe, model, variable);
    if (m && m->trace && chooses_input(r, variable)) {
        char text[32];
        if (i)
            return NULL;
        if (strcmp(variable, "n") == 0) {
            snprintf(text, sizeof text, m->n % 1024 ? "%lld" : "%lldK",
                     (long long)(m->n % 1024 ? m->n : m->n / 1024));
            str_list_add(&p->texts, text);
            return p->texts.failed ? NULL : p->texts.items[p->texts.n - 1];
        }
    }
    if (json_is_array(v))
        v = json_array_get(v, i);
    else if (i)
        return NULL;
    return json_is_string(v) ? json_string_value(v) : NULL;
}

/* Do two steps agree in the variables that both have? */
static bool fits(const struct step *a, const struct step *b)
{
    for (int i = 0; i < a->n_vars; i++) {
        const char *other = step_value(b, a->var[i].name);
        if (other && strcmp(other, a->var[i].value) != 0)
            return false;
    }
    return a->model < 0 || b->model < 0 || a->model == b->model;
}

static int add_inputs(struct plan *p, int at, int recipe_first, int job, struct err *err)
{
    for (int i = recipe_first; i < at; i++) {
        struct step *s = &p->s[at];
        if (p->s[i].job != job || !fits(&p->s[i], s) || step_reads(s, i))
            continue;
        int *in = realloc(s->in, (size_t)(s->n_in + 1) * sizeof *in);
        if (!in)
            return err_set(err, ERR_NOMEM, "plan: out of memory");
        s->in = in;
        s->in[s->n_in++] = i;
    }
    return 0;
}

/* The outputs of jobs that a text names. */
static int add_named(struct plan *p, int at, int first, const char *text, struct err *err)
{
    const struct recipe *r = &p->recipes[p->s[at].recipe];
    struct template_word w;
    while (template_next(&text, &w))
        if (recipe_job_find(r, w.name) >= 0)
            PASS_ON(add_inputs(p, at, first, recipe_job_find(r, w.name), err));
    return 0;
}

static int connect(struct plan *p, int at, int first, struct err *err)
{
    const struct recipe *r = &p->recipes[p->s[at].recipe];
    const struct recipe_job *j = step_job(p, &p->s[at]);
    size_t i;
    json_t *v;
    json_array_foreach(j->from, i, v)
        PASS_ON(add_inputs(p, at, first, recipe_job_find(r, json_string_value(v)), err));
    p->s[at].n_from = p->s[at].n_in;
    PASS_ON(add_named(p, at, first, j->args, err));
    json_array_foreach(j->methods, i, v)
        PASS_ON(add_named(p, at, first, json_string_value(v), err));
    return 0;
}

/* Steps of one job for one model: all combinations of its variables, the last one fastest. */
static int expand_job(struct plan *p, int recipe, int job, int model, int first, struct err *err)
{
    const struct recipe *r = &p->recipes[recipe];
    const struct recipe_job *j = &r->jobs[job];
    size_t n = json_array_size(j->each), at[STEP_VARS] = {0};
    if (n > STEP_VARS)
        return err_set(err, ERR_INPUT, "%s: job '%s' repeats over more than %d variables",
                       buf_str(&r->path), j->name, STEP_VARS);
    for (;;) {
        struct step *s = NULL;
        PASS_ON(new_step(p, &s, err));
        s->recipe = recipe;
        s->job = job;
        s->model = model;
        for (size_t i = 0; i < n; i++) {
            const char *name = json_string_value(json_array_get(j->each, i));
            s->var[i] = (struct step_var){name, value_at(p, recipe, model, name, at[i])};
            if (!s->var[i].value)
                return err_set(err, ERR_INPUT, "%s: variable '%s' has no value", buf_str(&r->path),
                               name);
        }
        s->n_vars = (int)n;
        PASS_ON(step_find_task(p, s, err));
        PASS_ON(connect(p, p->n - 1, first, err));
        size_t k = n;
        while (k > 0) {
            const char *name = json_string_value(json_array_get(j->each, k - 1));
            if (value_at(p, recipe, model, name, ++at[k - 1]))
                break;
            at[--k] = 0;
        }
        if (k == 0)
            break;
    }
    return 0;
}

bool step_lacks_file(const struct step *s)
{
    return s->task && !s->task->path;
}

/* Why a job cannot be done here; NULL: it can. A file that is missing is named, in `text`. */
static const char *cannot(const struct plan *p, const struct step *s, char text[200])
{
    const struct recipe_job *j = step_job(p, s);
    if (step_lacks_file(s) || (j->tasks && !s->task)) {
        snprintf(text, 200, "needs %s of %s (--tasks DIR)%s", s->task ? s->task->file : "a file",
                 s->task ? s->task->of : "a benchmark", p->cuda ? "" : " and --backend cuda");
        return text;
    }
    if (p->cuda || !j->needs)
        return NULL;
    return j->needs == 'K' ? "needs a GPU (--backend cuda)"
                           : "needs eval, the method inside the model (--backend cuda)";
}

/* A model's positions end its lengths: the step goes without longer ones, or is left out. */
static int end_lengths(const struct plan *p, struct step *s, struct err *err)
{
    OWN(buf_free) struct buf fit = {0}, beyond = {0};
    PASS_ON(step_lengths(p, s, &fit, &beyond, err));
    if (beyond.len) {
        const struct model_use *m = &p->models->m[s->model];
        snprintf(s->reason, sizeof s->reason, "beyond the %lld positions of %s (%s tokens)",
                 (long long)m->positions, m->name, buf_str(&beyond));
        s->left_out = !fit.len;
    }
    return 0;
}

bool step_reads(const struct step *s, int input)
{
    for (int i = 0; i < s->n_in; i++)
        if (s->in[i] == input)
            return true;
    return false;
}

/* Do without inputs that are left out where another of the same job is made. The reason of one
 * that is missed; NULL: none is. */
static const char *drop_inputs(const struct plan *p, struct step *s)
{
    int n = 0, n_from = 0;
    const char *why = NULL;
    for (int i = 0; i < s->n_in; i++) {
        const struct step *in = &p->s[s->in[i]];
        bool other = false;
        for (int k = 0; k < s->n_in && in->left_out; k++)
            other = other || (p->s[s->in[k]].job == in->job && !p->s[s->in[k]].left_out);
        if (in->left_out && !other)
            why = in->reason;
    }
    for (int i = 0; i < s->n_in && !why; i++)
        if (!p->s[s->in[i]].left_out) {
            n_from += i < s->n_from;
            s->in[n++] = s->in[i];
        }
    if (!why) {
        s->n_in = n;
        s->n_from = n_from;
    }
    return why;
}

/* Leave out what cannot be done here, what reads it, and inputs that nothing else reads. */
static int leave_out(struct plan *p, struct err *err)
{
    for (int i = 0; i < p->n; i++) {
        struct step *s = &p->s[i];
        char text[200];
        const char *why = cannot(p, s, text);
        if (!why)
            PASS_ON(end_lengths(p, s, err));
        if (!why && !s->left_out)
            why = drop_inputs(p, s);
        if (why) {
            s->left_out = true;
            snprintf(s->reason, sizeof s->reason, "%s", why);
        }
    }
    for (int i = p->n - 1; i >= 0; i--) {
        struct step *s = &p->s[i];
        enum job_do kind = step_job(p, s)->kind;
        int readers = 0, out = 0, last = -1;
        for (int k = i + 1; k < p->n && p->s[k].recipe == s->recipe; k++)
            if (step_reads(&p->s[k], i)) {
                readers++;
                out += p->s[k].left_out;
                if (last < 0 || !step_lacks_file(&p->s[k])) /* a file is the last thing to say */
                    last = k;
            }
        if (s->left_out || !readers || out < readers ||
            (kind != DO_PROMPT && kind != DO_CAPTURE && kind != DO_CALIBRATE))
            continue;
        s->left_out = true;
        memmove(s->reason, p->s[last].reason, sizeof s->reason);
    }
    return 0;
}

int plan_expand(struct plan *p, struct err *err)
{
    for (int i = 0; i < p->n_recipes; i++) {
        const struct recipe *r = &p->recipes[i];
        int first = p->n;
        for (int j = 0; j < r->n_jobs; j++) {
            const char *role = job_role(r, &r->jobs[j]);
            if (!role)
                PASS_ON(expand_job(p, i, j, -1, first, err));
            for (int m = 0; role && m < p->models->n; m++)
                if (strcmp(p->models->m[m].role, role) == 0)
                    PASS_ON(expand_job(p, i, j, m, first, err));
        }
    }
    PASS_ON(leave_out(p, err));
    return plan_jobs(p, err);
}

void plan_free(struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        for (int k = 0; k < 2; k++)
            str_list_free(&p->s[i].argv[k]);
        free(p->s[i].in);
    }
    free(p->s);
    str_list_free(&p->texts);
    memset(p, 0, sizeof *p);
}
