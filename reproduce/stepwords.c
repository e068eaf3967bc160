/*
 * stepwords.c - the command words of a step: variables and outputs of finished steps put into the
 * templates of the recipe, then brought into one form, so that equal work has equal words.
 */
#include "reproduce/jobplan.h"

#include <stdlib.h>
#include <string.h>

struct filling {
    struct plan *p;
    struct step *s;
    struct buf out;
};

/* Part `.i` of a value such as "0/1". */
static void put_part(struct buf *b, const char *value, const char *part)
{
    int i = part ? atoi(part) : 0;
    for (; i > 0 && (value = strchr(value, '/')); i--)
        value++;
    if (value)
        buf_put(b, value, part ? strcspn(value, "/") : strlen(value));
}

const char *step_variable(const struct plan *p, const struct step *s, const char *name)
{
    const char *own = step_value(s, name);
    if (own)
        return own;
    const json_t *v = recipe_variable(&p->recipes[s->recipe], p->quick, name);
    return json_is_string(v) ? json_string_value(v) : NULL;
}

static int put_word(void *ctx, const char *literal, size_t len, const char *word, struct err *err)
{
    struct filling *f = ctx;
    const struct recipe *r = &f->p->recipes[f->s->recipe];
    char name[64];
    int n = 0;

    buf_put(&f->out, literal, len);
    if (!word)
        return 0;
    if (strcmp(word, "out") == 0) { /* the job's own folder */
        buf_puts(&f->out, "{}");
        return 0;
    }
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "."), word);
    int job = recipe_job_find(r, name);
    if (job < 0) {
        const char *value = step_variable(f->p, f->s, name), *dot = strchr(word, '.');
        if (!value)
            return err_set(err, ERR_INPUT,
                           "%s: job '%s': {%s} has several values here; repeat over it (each)",
                           buf_str(&r->path), step_job(f->p, f->s)->name, word);
        put_part(&f->out, value, dot ? dot + 1 : NULL);
        return 0;
    }
    for (int i = 0; i < f->s->n_in; i++) {
        const struct step *in = &f->p->s[f->s->in[i]];
        int rc = in->job == job && n++ == 0 ? step_output(f->p, in, &f->out, err) : 0;
        if (rc)
            return rc;
    }
    return n == 1 ? 0
                  : err_set(err, ERR_INPUT,
                            "%s: job '%s': {%s} stands for %d outputs here, not for one",
                            buf_str(&r->path), step_job(f->p, f->s)->name, word, n);
}

static int fill(struct plan *p, struct step *s, const char *text, struct buf *out, struct err *err)
{
    struct filling f = {p, s, {0}};
    int rc = template_each(text, p->recipes[s->recipe].id, put_word, &f, err);
    if (!rc)
        rc = buf_check(&f.out, "words", err);
    buf_free(out);
    *out = f.out;
    return rc;
}

int step_find_task(struct plan *p, struct step *s, struct err *err)
{
    struct buf id = {0};
    int rc = 0;
    if (!step_job(p, s)->tasks)
        return 0;
    TRY(fill(p, s, step_job(p, s)->tasks, &id, err));
    s->task = task_set_find(p->tasks, buf_str(&id));
out:
    buf_free(&id);
    return rc;
}

/* ---- lists of denoising steps ---------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    long x = atol(*(char *const *)a), y = atol(*(char *const *)b);
    return (x > y) - (x < y);
}

static void take_steps(struct str_list *out, const char *list)
{
    char number[16];
    for (const char *p = list; *p; p += *p == ',') {
        size_t len = strcspn(p, ",");
        snprintf(number, sizeof number, "%.*s", (int)len, p);
        str_list_add(out, number);
        p += len;
    }
    if (out->n)
        qsort(out->items, (size_t)out->n, sizeof *out->items, by_number);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Words that say what is the default anyway, or that jobs are merged over, do not enter. */
static void take_words(struct step *s, enum job_do kind, const struct str_list *words)
{
    for (int64_t i = 0; i < words->n; i++) {
        const char *w = words->items[i], *next = i + 1 < words->n ? words->items[i + 1] : "";
        if (strcmp(w, "--permute") == 0 && (strcmp(next, "row") == 0 || strcmp(next, "none") == 0))
            i++;
        else if (kind == DO_CAPTURE && strcmp(w, "--capture-steps") == 0)
            take_steps(&s->wanted, words->items[++i]);
        else if (kind == DO_CAPTURE && strcmp(w, "--maps") == 0)
            s->maps = atoi(words->items[++i]);
        else
            str_list_add(&s->words, w);
    }
}

static int take_inputs(struct plan *p, struct step *s, struct err *err)
{
    struct buf path = {0};
    int rc = 0;
    for (int i = 0; i < s->n_from; i++) {
        const struct step *in = &p->s[s->in[i]];
        enum job_do kind = step_job(p, in)->kind;
        if (in->model >= 0 && p->models->m[in->model].trace && kind == DO_CAPTURE) {
            str_list_add(&s->inputs, p->models->m[in->model].trace);
            continue;
        }
        for (int k = 0; k < in->n_kept; k++) {
            buf_reset(&path);
            buf_printf(&path, "%s", p->store->j[in->kept[k]].id);
            if (kind != DO_REPLAY && kind != DO_EVAL)
                buf_printf(&path, "/%s", job_output_name(kind));
            TRY(buf_check(&path, "path", err));
            str_list_add(&s->inputs, buf_str(&path));
        }
    }
    /* A trace that was given stands for all samples: name it once. */
    for (int64_t i = 1; i < s->inputs.n;) {
        bool twice = false;
        for (int64_t k = 0; k < i; k++)
            twice = twice || strcmp(s->inputs.items[k], s->inputs.items[i]) == 0;
        if (!twice) {
            i++;
            continue;
        }
        free(s->inputs.items[i]);
        memmove(&s->inputs.items[i], &s->inputs.items[i + 1],
                (size_t)(--s->inputs.n - i) * sizeof *s->inputs.items);
    }
out:
    buf_free(&path);
    return rc;
}

static void empty(struct str_list *l)
{
    str_list_free(l);
    memset(l, 0, sizeof *l);
}

int step_words(struct plan *p, struct step *s, struct err *err)
{
    const struct recipe_job *j = step_job(p, s);
    struct buf text = {0};
    struct str_list words = {0};
    size_t i;
    json_t *v;
    int rc = 0;

    empty(&s->words);
    empty(&s->inputs);
    empty(&s->texts);
    empty(&s->wanted);
    TRY(fill(p, s, j->args, &text, err));
    if (text.len)
        TRY(words_split(buf_str(&text), &words, err));
    take_words(s, j->kind, &words);
    if (s->task)
        TRY(task_file_options(s->task, &s->words, err));
    json_array_foreach(j->methods, i, v)
    {
        TRY(fill(p, s, json_string_value(v), &text, err));
        str_list_add(&s->texts, buf_str(&text));
    }
    TRY(take_inputs(p, s, err));
    if (s->words.failed || s->texts.failed || s->inputs.failed || s->wanted.failed)
        FAIL(err, ERR_NOMEM, "plan: out of memory");
out:
    str_list_free(&words);
    buf_free(&text);
    return rc;
}

int step_output(const struct plan *p, const struct step *s, struct buf *path, struct err *err)
{
    enum job_do kind = step_job(p, s)->kind;
    if (s->n_kept != 1)
        return err_set(err, ERR_INPUT, "%s: job '%s' has %d outputs; name it in from instead",
                       p->recipes[s->recipe].id, step_job(p, s)->name, s->n_kept);
    buf_puts(path, p->store->j[s->kept[0]].id);
    if (kind != DO_REPLAY && kind != DO_EVAL)
        buf_printf(path, "/%s", job_output_name(kind));
    return buf_check(path, "path", err);
}
