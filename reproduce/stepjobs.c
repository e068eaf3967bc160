/*
 * stepjobs.c - the commands of a step, and the ID of its job. A recipe's templates are filled with
 * variables and with the outputs of other jobs, so that equal work has equal commands.
 */
#include "core/hash.h"
#include "core/mem.h"
#include "reproduce/jobplan.h"

#include <string.h>

/* Raised when a command's results change, so that jobs of older programs are not used. */
static const int result_version[DO_COUNT] = {2, 2, 2, 2, 2, 4};

const char *job_output_name(enum job_do kind)
{
    static const char *const names[DO_COUNT] = {"prompt.txt",    "trace.h5",      "calib.json",
                                                "records.jsonl", "records.jsonl", "figure.png"};
    return names[kind];
}

bool step_has_records(const struct plan *p, const struct step *s)
{
    enum job_do kind = step_job(p, s)->kind;
    return kind == DO_REPLAY || kind == DO_EVAL;
}

bool step_draws_records(const struct plan *p, const struct step *s)
{
    return step_job(p, s)->kind == DO_DRAW && s->n_from && step_has_records(p, &p->s[s->in[0]]);
}

bool step_timed(const struct plan *p, const struct step *s)
{
    const struct recipe_job *j = step_job(p, s);
    if (!p->cuda)
        return false;
    return j->kind == DO_REPLAY ? strchr(p->recipes[s->recipe].needs, 'K') != NULL
                                : j->kind == DO_EVAL && strstr(j->args, "--samples ");
}

void step_output(const struct plan *p, const struct step *s, struct buf *path)
{
    if (s->left_out)
        buf_puts(path, "left out");
    else if (!s->id[0])
        buf_puts(path, p->models->m[s->model].trace);
    else if (step_has_records(p, s))
        buf_puts(path, s->id);
    else
        buf_printf(path, "%s/%s", s->id, job_output_name(step_job(p, s)->kind));
}

/* ---- templates ------------------------------------------------------------------------------- */

/* The one output of a job that a template names. */
static int put_output(const struct plan *p, const struct step *s, int job, struct buf *out,
                      struct err *err)
{
    const struct step *found = NULL;
    int n = 0;
    for (int i = 0; i < s->n_in; i++) {
        const struct step *in = &p->s[s->in[i]];
        if (in->job != job)
            continue;
        n += !found || strcmp(found->id, in->id) != 0;
        found = in;
    }
    if (n != 1)
        return err_set(err, ERR_INPUT, "%s: job '%s': {%s} stands for %d outputs here, not for one",
                       buf_str(&p->recipes[s->recipe].path), step_job(p, s)->name,
                       p->recipes[s->recipe].jobs[job].name, n);
    step_output(p, found, out);
    return 0;
}

static int fill(const struct plan *p, const struct step *s, const char *text, struct buf *out,
                struct err *err)
{
    const struct recipe *r = &p->recipes[s->recipe];
    struct template_word w;
    buf_reset(out);
    while (template_next(&text, &w)) {
        const char *value = step_value(s, w.name);
        int job = recipe_job_find(r, w.name);
        buf_put(out, w.literal, w.len);
        if (!value)
            value = json_string_value(plan_variable(p, s->recipe, s->model, w.name));
        if (strcmp(w.name, "out") == 0) /* the job's own folder */
            buf_puts(out, "{}");
        else if (job >= 0)
            PASS_ON(put_output(p, s, job, out, err));
        else if (value)
            value_part(value, w.part, out);
        else if (w.name[0])
            return err_set(
                err, ERR_INPUT,
                "%s: job '%s': {%s} is no job above it, nor a variable with one value here",
                buf_str(&r->path), step_job(p, s)->name, w.name);
    }
    return buf_check(out, "words", err);
}

int step_find_task(struct plan *p, struct step *s, struct err *err)
{
    OWN(buf_free) struct buf id = {0};
    if (!step_job(p, s)->tasks)
        return 0;
    PASS_ON(fill(p, s, step_job(p, s)->tasks, &id, err));
    s->task = task_set_find(p->tasks, buf_str(&id));
    return 0;
}

int step_lengths(const struct plan *p, const struct step *s, struct buf *fit, struct buf *beyond,
                 struct err *err)
{
    const char *at = strstr(step_job(p, s)->args, "--tokens ");
    int64_t positions = s->model >= 0 ? p->models->m[s->model].positions : 0;
    OWN(buf_free) struct buf word = {0}, all = {0};
    char *rest = NULL;
    if (!at)
        return 0;
    at += strlen("--tokens ");
    buf_put(&word, at, strcspn(at, " "));
    PASS_ON(buf_check(&word, "words", err));
    PASS_ON(fill(p, s, buf_str(&word), &all, err));
    for (char *n = strtok_r(all.data, ",", &rest); n; n = strtok_r(NULL, ",", &rest)) {
        struct buf *to = positions && size_value(n) > (double)positions ? beyond : fit;
        buf_printf(to, "%s%s", to->len ? "," : "", n);
    }
    PASS_ON(buf_check(fit, "lengths", err));
    return buf_check(beyond, "lengths", err);
}

int step_methods(const struct plan *p, const struct step *s, struct str_list *texts,
                 struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    size_t i;
    json_t *v;
    json_array_foreach(step_job(p, s)->methods, i, v)
    {
        PASS_ON(fill(p, s, json_string_value(v), &text, err));
        str_list_add(texts, buf_str(&text));
    }
    if (texts->failed)
        return err_set(err, ERR_NOMEM, "methods: out of memory");
    return 0;
}

/* ---- commands -------------------------------------------------------------------------------- */

/* A command under construction; every word enters the job's hash. */
struct making {
    struct plan *p;
    struct step *s;
    struct str_list *to;
    struct hash_state *hash;
};

static void hash_word(const struct making *m, const char *word)
{
    hash_update(m->hash, word, strlen(word) + 1);
}

static void put(const struct making *m, const char *word)
{
    str_list_add(m->to, word);
    hash_word(m, word);
}

static void put_option(const struct making *m, const char *option, const char *value)
{
    put(m, option);
    put(m, value);
}

/* A file from outside: the command has its path, the hash its content. */
static void put_file(const struct making *m, const char *path, const char *content)
{
    str_list_add(m->to, path);
    hash_word(m, content);
}

static void put_model(const struct making *m)
{
    const struct model_use *u = &m->p->models->m[m->s->model];
    put(m, "--model");
    put_file(m, u->dir, u->id);
}

/* Outputs of `from`; those of one job, such as a trace that stands for all samples, once. */
static void put_inputs(const struct making *m)
{
    const struct step *s = m->s;
    for (int i = 0; i < s->n_from; i++) {
        const struct step *in = &m->p->s[s->in[i]];
        OWN(buf_free) struct buf path = {0};
        step_output(m->p, in, &path);
        if (!in->id[0] && !str_list_has(m->to, buf_str(&path)))
            put_file(m, buf_str(&path), m->p->models->m[in->model].id);
        else if (in->id[0] && !str_list_has(m->to, buf_str(&path)))
            put(m, buf_str(&path));
    }
}

static int put_args(const struct making *m, struct err *err)
{
    OWN(buf_free) struct buf text = {0}, fit = {0}, beyond = {0};
    OWN(str_list_free) struct str_list words = {0};
    PASS_ON(step_lengths(m->p, m->s, &fit, &beyond, err));
    PASS_ON(fill(m->p, m->s, step_job(m->p, m->s)->args, &text, err));
    if (text.len)
        PASS_ON(words_split(buf_str(&text), &words, err));
    if (m->s->task)
        PASS_ON(task_file_options(m->s->task, &words, err));
    for (int64_t i = 0; i < words.n; i++)
        put(m, i && strcmp(words.items[i - 1], "--tokens") == 0 ? buf_str(&fit) : words.items[i]);
    return 0;
}

static int put_methods(const struct making *m, const char *option, struct err *err)
{
    OWN(str_list_free) struct str_list texts = {0};
    PASS_ON(step_methods(m->p, m->s, &texts, err));
    for (int64_t i = 0; i < texts.n; i++) {
        if (option)
            put(m, option);
        put(m, texts.items[i]);
    }
    return 0;
}

/* Its records are those of its inputs, with the names that the recipe gives to lines. */
static int make_drawing(struct making *m, struct err *err)
{
    static const char *const outputs[] = {"{}/figure.png", "{}/figure.pdf"};
    const struct recipe_job *j = step_job(m->p, m->s);
    OWN(buf_free) struct buf series = {0};
    struct jw w;
    for (int i = 0; i < m->s->n_in; i++) {
        hash_word(m, m->p->s[m->s->in[i]].id);
        hash_word(m, step_job(m->p, &m->p->s[m->s->in[i]])->name);
    }
    jw_init(&w, &series, 0);
    jw_value(&w, j->series);
    hash_word(m, j->series ? buf_str(&series) : "");
    for (int i = 0; i < 2; i++) {
        m->to = &m->s->argv[i];
        put(m, "plot");
        put(m, j->figure);
        if (step_draws_records(m->p, m->s))
            put(m, "{}/drawn.jsonl");
        else
            put_inputs(m);
        PASS_ON(put_args(m, err));
        if (j->marks.len)
            put_option(m, "--marks", buf_str(&j->marks));
        put_option(m, "--style", m->p->style);
        put_option(m, "-o", outputs[i]);
    }
    return 0;
}

/* Does it make prompts, or ask them? A text that is read as it is stands without. */
static bool takes_chat(const struct plan *p, const struct step *s)
{
    const struct recipe_job *j = step_job(p, s);
    return j->kind == DO_PROMPT || (j->kind == DO_EVAL && (s->task || strstr(j->args, "--depth ")));
}

static int make_commands(struct making *m, struct err *err)
{
    enum job_do kind = step_job(m->p, m->s)->kind;
    bool records = step_has_records(m->p, m->s);
    char output[40] = "{}";
    if (kind == DO_DRAW)
        return make_drawing(m, err);
    put(m, job_do_commands[kind]);
    if (m->s->model >= 0 && (kind == DO_PROMPT || kind == DO_CAPTURE || kind == DO_EVAL))
        put_model(m);
    if (kind == DO_CALIBRATE)
        PASS_ON(put_methods(m, NULL, err));
    if (kind == DO_CALIBRATE || records)
        put_inputs(m);
    if (records)
        PASS_ON(put_methods(m, "-m", err));
    if (records && m->s->task) {
        put(m, "--task");
        put_file(m, m->s->task->path, m->s->task->hash);
    }
    PASS_ON(put_args(m, err));
    if (m->s->model >= 0 && m->p->models->m[m->s->model].chat && takes_chat(m->p, m->s))
        put_option(m, "--chat", m->p->models->m[m->s->model].chat);
    if (m->p->cuda && kind != DO_PROMPT)
        put_option(m, kind == DO_CAPTURE || kind == DO_EVAL ? "--device" : "--backend", "cuda");
    if (m->p->cuda && kind == DO_REPLAY && !step_timed(m->p, m->s))
        put_option(m, "--samples", "0");
    if (!records)
        snprintf(output, sizeof output, "{}/%s", job_output_name(kind));
    put_option(m, "-o", output);
    if (kind == DO_CAPTURE) {
        m->to = &m->s->argv[1];
        put(m, "trace");
        put_option(m, "verify", output);
    }
    return 0;
}

static int make_job(struct plan *p, struct step *s, struct err *err)
{
    enum job_do kind = step_job(p, s)->kind;
    struct making m = {p, s, &s->argv[0], NULL};
    char text[40];
    int rc = 0;
    TRY(hash_new(&m.hash, err));
    snprintf(text, sizeof text, "%d", result_version[kind]);
    hash_word(&m, text);
    TRY(make_commands(&m, err));
    if (s->argv[0].failed || s->argv[1].failed)
        FAIL(err, ERR_NOMEM, "plan: out of memory");
    hash_text(hash_digest(m.hash), text); /* "xxh3:0123..." */
    snprintf(s->id, sizeof s->id, "%.16s", strchr(text, ':') + 1);
out:
    hash_free(m.hash);
    return rc;
}

/* A trace that was given stands in the place of prompts and captures. */
static bool is_given(const struct plan *p, const struct step *s)
{
    enum job_do kind = step_job(p, s)->kind;
    return (kind == DO_CAPTURE || kind == DO_PROMPT) && s->model >= 0 &&
           p->models->m[s->model].trace;
}

int plan_jobs(struct plan *p, struct err *err)
{
    for (int i = 0; i < p->n; i++)
        if (!p->s[i].left_out && !is_given(p, &p->s[i]))
            PASS_ON(make_job(p, &p->s[i], err));
    return 0;
}

void word_text(const char *w, const char *folder, struct buf *b)
{
    bool plain = *w && strspn(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "0123456789_./:=,+@%{}-") == strlen(w);
    buf_puts(b, plain ? " " : " '");
    for (; *w; w++) {
        if (strncmp(w, "{}", 2) == 0) {
            buf_puts(b, folder);
            w++;
        } else {
            buf_puts(b, *w == '\'' ? "'\\''" : (char[]){*w, '\0'});
        }
    }
    buf_puts(b, plain ? "" : "'");
}

void command_text(const struct str_list *argv, const char *folder, struct buf *b)
{
    for (int64_t i = 0; i < argv->n; i++)
        word_text(argv->items[i], folder, b);
}
