/*
 * jobplan.c - the steps of all recipes, and what those that are missing cost.
 */
#include "reproduce/jobplan.h"

#include "core/text.h"
#include "core/mem.h"

#include <math.h>
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
    int rc = mem_grow(&p->s, &p->cap, p->n + 1, sizeof *p->s, "plan", err);
    if (rc)
        return rc;
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

/* Value number i of a variable for a model; NULL behind the last. */
static const char *value_at(struct plan *p, const struct recipe *r, const struct model_use *m,
                            const char *variable, size_t i)
{
    const json_t *v = recipe_variable(r, p->quick, variable);
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
    int rc = 0;
    while (template_next(&text, &w))
        if (recipe_job_find(r, w.name) >= 0)
            TRY(add_inputs(p, at, first, recipe_job_find(r, w.name), err));
out:
    return rc;
}

static int connect(struct plan *p, int at, int first, struct err *err)
{
    const struct recipe *r = &p->recipes[p->s[at].recipe];
    const struct recipe_job *j = step_job(p, &p->s[at]);
    size_t i;
    json_t *v;
    int rc = 0;
    json_array_foreach(j->from, i, v)
        TRY(add_inputs(p, at, first, recipe_job_find(r, json_string_value(v)), err));
    p->s[at].n_from = p->s[at].n_in;
    TRY(add_named(p, at, first, j->args, err));
    json_array_foreach(j->methods, i, v) TRY(add_named(p, at, first, json_string_value(v), err));
out:
    return rc;
}

/* Steps of one job for one model: all combinations of its variables, the last one fastest. */
static int expand_job(struct plan *p, int recipe, int job, int model, int first, struct err *err)
{
    const struct recipe *r = &p->recipes[recipe];
    const struct recipe_job *j = &r->jobs[job];
    const struct model_use *m = model >= 0 ? &p->models->m[model] : NULL;
    size_t n = json_array_size(j->each), at[STEP_VARS] = {0};
    int rc = 0;

    if (n > STEP_VARS)
        FAIL(err, ERR_INPUT, "%s: job '%s' repeats over more than %d variables", buf_str(&r->path),
             j->name, STEP_VARS);
    for (;;) {
        struct step *s = NULL;
        TRY(new_step(p, &s, err));
        s->recipe = recipe;
        s->job = job;
        s->model = model;
        for (size_t i = 0; i < n; i++) {
            const char *name = json_string_value(json_array_get(j->each, i));
            s->var[i] = (struct step_var){name, value_at(p, r, m, name, at[i])};
            if (!s->var[i].value)
                FAIL(err, ERR_INPUT, "%s: variable '%s' has no value", buf_str(&r->path), name);
        }
        s->n_vars = (int)n;
        TRY(step_find_task(p, s, err));
        TRY(connect(p, p->n - 1, first, err));
        size_t k = n;
        while (k > 0) {
            const char *name = json_string_value(json_array_get(j->each, k - 1));
            if (value_at(p, r, m, name, ++at[k - 1]))
                break;
            at[--k] = 0;
        }
        if (k == 0)
            break;
    }
out:
    return rc;
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

bool step_reads(const struct step *s, int input)
{
    for (int i = 0; i < s->n_in; i++)
        if (s->in[i] == input)
            return true;
    return false;
}

/* Leave out what cannot be done here, what reads it, and inputs that nothing else reads. */
static void leave_out(struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        struct step *s = &p->s[i];
        char text[200];
        const char *why = cannot(p, s, text);
        for (int k = 0; k < s->n_in && !why; k++)
            why = p->s[s->in[k]].left_out ? p->s[s->in[k]].reason : NULL;
        s->left_out = why != NULL;
        if (why)
            snprintf(s->reason, sizeof s->reason, "%s", why);
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
}

int plan_expand(struct plan *p, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < p->n_recipes; i++) {
        const struct recipe *r = &p->recipes[i];
        int first = p->n;
        for (int j = 0; j < r->n_jobs; j++) {
            const char *role = job_role(r, &r->jobs[j]);
            if (!role)
                TRY(expand_job(p, i, j, -1, first, err));
            for (int m = 0; role && m < p->models->n; m++)
                if (strcmp(p->models->m[m].role, role) == 0)
                    TRY(expand_job(p, i, j, m, first, err));
        }
    }
    leave_out(p);
    TRY(plan_jobs(p, err));
out:
    return rc;
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

/* ---- what it will cost ------------------------------------------------------------------------
 * seconds = allowed pairs x layers x heads x calls x settings x time per pair, and a second for
 * each job.
 */

/* Nanoseconds per allowed pair of a head: one thread of a processor with --precision f32; an H200.
 */
static const double pair_ns[DO_COUNT][2] = {[DO_CAPTURE] = {4, 0.01},
                                            [DO_CALIBRATE] = {100, 3},
                                            [DO_REPLAY] = {20, 0.5},
                                            [DO_EVAL] = {20, 1}};

/* Bytes of records per head. */
#define RECORD_BYTES 1500

/* The word behind an option in the commands of a step or of a step that it reads; "": none. */
static const char *option_of(const struct plan *p, const struct step *s, const char *name)
{
    const struct str_list *a = &s->argv[0];
    for (int64_t i = 0; i + 1 < a->n; i++)
        if (strcmp(a->items[i], name) == 0)
            return a->items[i + 1];
    for (int i = 0; i < s->n_in; i++) {
        const char *v = option_of(p, &p->s[s->in[i]], name);
        if (v[0])
            return v;
    }
    return "";
}

static double tokens_of(const struct plan *p, const struct step *s, const struct model_use *m)
{
    int t, h, w;
    if (m->trace)
        return (double)m->n;
    if (sscanf(option_of(p, s, "--size"), "%dx%dx%d", &t, &h, &w) == 3)
        return (double)t / m->patch[0] * h / m->patch[1] * w / m->patch[2];
    double n = size_value(option_of(p, s, "--tokens"));
    return isfinite(n) ? n : 4096;
}

static double count_of(const char *list)
{
    double n = 1;
    for (; *list; list++)
        n += *list == ',';
    return n;
}

/* Adds seconds and bytes of a step; its settings are methods with lists of parameters. */
static void estimate(const struct plan *p, const struct step *s, int threads, double cost[2])
{
    const struct recipe_job *j = step_job(p, s);
    double runs = 0;
    size_t i;
    json_t *v;
    cost[0] += 1;
    if (s->model < 0) {
        cost[1] += 1e5;
        return;
    }
    const struct model_use *m = &p->models->m[s->model];
    double n = tokens_of(p, s, m), heads = (double)m->shape.layers * m->shape.heads;
    const char *steps = option_of(p, s, j->kind == DO_REPLAY ? "--steps" : "--capture-steps");
    double calls = count_of(steps) * (j->kind != DO_CAPTURE && s->n_from ? s->n_from : 1);
    json_array_foreach(j->methods, i, v) runs += calls * count_of(json_string_value(v));
    if (j->kind == DO_CAPTURE && !m->causal) /* every denoising step up to the last */
        runs = 1 + atof(strrchr(steps, ',') ? strrchr(steps, ',') + 1 : steps);
    runs = runs > 0 ? runs : calls;
    cost[0] += n * n * (m->causal ? 0.5 : 1) * heads * runs * 1e-9 *
               (p->cuda ? pair_ns[j->kind][1] : pair_ns[j->kind][0] / threads);
    cost[1] += j->kind == DO_CAPTURE ? calls * m->shape.layers * n * m->shape.head_dim * 2 *
                                           (m->shape.heads + 2.0 * m->shape.kv_heads)
               : j->kind == DO_REPLAY || j->kind == DO_EVAL ? runs * heads * RECORD_BYTES
                                                            : 1e5;
}

/* Steps of one job of a recipe: how many are done, and what the others cost that no step before
 * stands for. */
static void job_line(const struct plan *p, int recipe, int job, int threads, double all[2],
                     struct buf *b)
{
    int n = 0, done = 0, out = 0;
    double cost[2] = {0, 0};
    const char *why = "";
    struct buf values = {0};
    char size[24];
    for (const struct step *s = NULL; (s = next_step(p, recipe, s));) {
        if (s->job != job)
            continue;
        n++;
        done += s->done;
        out += s->left_out;
        why = s->left_out ? s->reason : why;
        if (s->n_vars && values.len < 50) {
            buf_puts(&values, values.len ? ", " : "");
            step_text(s, &values);
        }
        if (!s->done && !s->left_out && step_is_first(p, s))
            estimate(p, s, threads, cost);
    }
    const struct recipe_job *j = &p->recipes[recipe].jobs[job];
    bytes_text(cost[1], size);
    buf_printf(b, "  %-10s %-9s %-52.52s %d of %d done", j->name, job_do_names[j->kind],
               buf_str(&values), done, n);
    if (done + out < n)
        buf_printf(b, ", %.0f s, %s", cost[0], size);
    if (out)
        buf_printf(b, ", %d %s", out, why);
    buf_puts(b, "\n");
    buf_free(&values);
    all[0] += cost[0];
    all[1] += cost[1];
}

void plan_text(const struct plan *p, int threads, struct buf *b)
{
    double all[2] = {0, 0};
    char size[24];
    for (int r = 0; r < p->n_recipes; r++) {
        buf_printf(b, "%s%s%s\n", p->recipes[r].id, p->quick ? "  --quick" : "",
                   p->recipes[r].n_jobs ? "" : "  printed numbers and reasons only");
        for (int j = 0; j < p->recipes[r].n_jobs; j++)
            job_line(p, r, j, threads, all, b);
    }
    bytes_text(all[1], size);
    buf_printf(b, "total about %.2f hours, %s; work that tables share counts once; GPU: %s\n",
               all[0] / 3600, size, p->cuda ? "yes" : "no");
}
