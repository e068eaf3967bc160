/*
 * gentask.c - generated tasks (prompt.h) as cells: length x depth x sample, graded by what the
 * model generates and by how likely the right answer is.
 */
#include "eval/evaltask.h"

#include "core/hash.h"
#include "core/clock.h"
#include "core/mem.h"
#include "eval/generate.h"
#include "eval/gengrade.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gen_state {
    struct prompt_spec spec;
    struct lines file; /* of --haystack */
    char hash[40], name[128];
    int64_t *lengths, n_lengths; /* owned */
    double *depths;              /* owned */
    int64_t n_depths, samples;
};

static const double default_depths[] = {0, 0.25, 0.5, 0.75, 1};

static int choose_lengths(struct gen_state *s, const struct eval_task *t, struct err *err)
{
    int64_t limit = t->m->llm.c.max_positions, cap = 0;
    int rc = 0;

    for (int64_t i = 0; i < t->o->n_tokens; i++) {
        if (t->o->tokens[i] > limit)
            FAIL(err, ERR_USAGE, "task %s: --tokens %lld is more than the model's context of %lld",
                 prompt_name(&s->spec), (long long)t->o->tokens[i], (long long)limit);
        TRY(mem_grow(&s->lengths, &cap, s->n_lengths + 1, sizeof *s->lengths, "lengths", err));
        s->lengths[s->n_lengths++] = t->o->tokens[i];
    }
    for (int64_t n = 2048; !t->o->n_tokens && n <= limit; n *= 2) {
        TRY(mem_grow(&s->lengths, &cap, s->n_lengths + 1, sizeof *s->lengths, "lengths", err));
        s->lengths[s->n_lengths++] = n;
    }
    if (!s->n_lengths)
        FAIL(err, ERR_USAGE, "task %s: the model's context has %lld tokens: give --tokens",
             prompt_name(&s->spec), (long long)limit);
out:
    return rc;
}

static int choose_depths(struct gen_state *s, const struct task_opts *o, struct err *err)
{
    const double *from = o->n_depths ? o->depths : default_depths;
    int rc = 0;

    s->n_depths = o->n_depths ? o->n_depths : 5;
    if (!prompt_has_depth(&s->spec))
        s->n_depths = 1;
    TRY(mem_alloc(&s->depths, s->n_depths, sizeof *s->depths, "depths", err));
    memcpy(s->depths, from, (size_t)s->n_depths * sizeof *from);
out:
    return rc;
}

/* Cells come by length, then depth, then sample. */
static void cell_of(const struct gen_state *s, int64_t i, int64_t *tokens, double *depth,
                    int64_t *sample)
{
    *sample = i % s->samples;
    *depth = s->depths[i / s->samples % s->n_depths];
    *tokens = s->lengths[i / s->samples / s->n_depths];
}

static int cell_name(const struct eval_task *t, int64_t i, struct buf *b, struct err *err)
{
    const struct gen_state *s = t->state;
    int64_t tokens, sample;
    double depth;

    cell_of(s, i, &tokens, &depth, &sample);
    prompt_spec_text(&s->spec, b);
    if (s->file.n) {
        buf_puts(b, ":haystack=");
        task_put_text(b, s->name);
        buf_printf(b, ":hash=%s", s->hash + strlen("xxh3:"));
    }
    task_chat_text(t->o, b);
    if (t->m->bos < 0)
        buf_puts(b, ":bos=no");
    buf_printf(b, ":tokens=%lld", (long long)tokens);
    if (prompt_has_depth(&s->spec))
        buf_printf(b, ":depth=%.15g", depth);
    buf_printf(b, ":sample=%lld", (long long)sample);
    return buf_check(b, "task", err);
}

/* Ids of a text as a whole prompt, with the chat text around it. */
struct count_with {
    const struct eval_model *m;
    const char *chat;
};

static int count_ids(void *ctx, const char *text, size_t len, int64_t *n, struct err *err)
{
    const struct count_with *c = ctx;
    struct id_list ids = {0};
    int rc = prompt_ids(c->m, c->chat, text, len, &ids, err);
    *n = ids.n;
    id_list_free(&ids);
    return rc;
}

int eval_prompt_make(const struct eval_model *m, const struct prompt_spec *spec,
                     const struct lines *file, const char *chat, int64_t tokens, double depth,
                     int64_t sample, uint64_t seed, struct prompt *out, struct err *err)
{
    struct count_with c = {m, chat};
    return prompt_make(spec, file, tokens, depth, sample, seed, count_ids, &c, out, err);
}

/* Ids that stand behind the haystack. */
static int question_ids(const struct cell_run *c, const char *chat, const struct prompt *p,
                        int64_t all, struct err *err)
{
    struct id_list ids = {0};
    int rc = prompt_ids(c->m, NULL, p->text.data, p->question, &ids, err);
    int64_t front = ids.n;
    id_list_free(&ids);
    if (!rc && chat) { /* the chat text in front belongs to the haystack's side */
        const char *at = strstr(chat, "{prompt}");
        struct id_list before = {0};
        struct buf text = {0};
        buf_put(&text, chat, (size_t)(at - chat));
        buf_puts(&text, "{prompt}");
        rc = buf_check(&text, "chat text", err);
        rc = rc ? rc : prompt_ids(c->m, buf_str(&text), p->text.data, p->question, &before, err);
        front = before.n;
        id_list_free(&before);
        buf_free(&text);
    }
    c->l->question = all > front ? all - front : 0;
    return rc;
}

static int run_cell(struct eval_task *t, int64_t cell, struct cell_run *c, struct err *err)
{
    const struct gen_state *s = t->state;
    struct prompt p = {0};
    struct grade g = {.spec = &s->spec, .m = t->m, .prompt = &p, .chat = t->o->chat};
    struct stopwatch watch = {.since = clock_ns()};
    int64_t tokens, sample;
    double depth;
    int rc = 0;

    cell_of(s, cell, &tokens, &depth, &sample);
    TRY(eval_prompt_make(t->m, &s->spec, s->file.n ? &s->file : NULL, t->o->chat, tokens, depth,
                         sample, t->o->seed, &p, err));
    hash_text(hash_bytes(p.text.data, p.text.len), c->prompt_id);
    TRY(grade_open(&g, err));
    TRY(question_ids(c, t->o->chat, &p, g.ids.n, err));
    stopwatch_lap(&watch, "prompt");
    TRY(lockstep_prefill(c->l, g.ids.v, g.ids.n, err));
    stopwatch_lap(&watch, "prefill");
    for (int i = 0; i < c->l->n_streams; i++) {
        c->rec[i].n_q = c->rec[i].n_k = g.ids.n;
        if (stream_runs(c->l->s + i))
            TRY(grade_stream(&g, c, i, err));
    }
    stopwatch_lap(&watch, "answers");
    stopwatch_log(&watch, prompt_name(&s->spec));
out:
    grade_close(&g);
    prompt_free(&p);
    return rc;
}

static double cell_cost(const struct eval_task *t, int64_t i)
{
    int64_t tokens, sample;
    double depth;
    cell_of(t->state, i, &tokens, &depth, &sample);
    return task_cost((double)tokens);
}

static void close_task(struct eval_task *t)
{
    struct gen_state *s = t->state;
    if (s) {
        lines_free(&s->file);
        free(s->lengths);
        free(s->depths);
    }
    free(s);
}

static const struct task_kind gen_kind = {"generated", cell_name, run_cell, cell_cost, close_task};

int gen_task_open(const char *text, struct eval_task *t, struct err *err)
{
    struct gen_state *s = NULL;
    int rc = 0;

    t->kind = &gen_kind;
    TRY(mem_zalloc(&s, 1, sizeof *s, "task", err));
    t->state = s;
    TRY(prompt_spec_parse(text, t->m->domain, &s->spec, err));
    TRY(choose_lengths(s, t, err));
    TRY(choose_depths(s, t->o, err));
    if (t->o->haystack) {
        const char *slash = strrchr(t->o->haystack, '/');
        TRY(lines_read(&s->file, t->o->haystack, s->hash, err));
        snprintf(s->name, sizeof s->name, "%.120s", slash ? slash + 1 : t->o->haystack);
    }
    s->samples = t->o->trials;
    t->cells = s->n_lengths * s->n_depths * s->samples;
    t->decodes = true;
    for (int64_t i = 0; i < s->n_lengths; i++)
        t->cap = s->lengths[i] > t->cap ? s->lengths[i] : t->cap;
    t->cap += GRADE_ROOM;
out:
    return rc;
}
