/*
 * evaltask.h - what a model is asked: a task is a list of cells, each a text or a prompt with an
 * answer, and every cell gives one record per setting.
 */
#pragma once

#include "capture/llm_model.h"
#include "capture/tokenizer.h"
#include "core/buf.h"
#include "core/record.h"
#include "eval/lockstep.h"

#define EVAL_TEXT_MAX ((size_t)1 << 30) /* bytes of a text file */

/* The model and its tokenizer. */
struct eval_model {
    struct llm_model llm;
    struct tokenizer *tok; /* owned */
    const char *dir;       /* borrowed */
    char name[128], weights[64];
    int32_t bos;     /* id in front of every text, -1: none */
    char domain[16]; /* of its generated tasks: "c", "en" or "source" */
    int32_t eot[8];  /* ids that end a text */
    int n_eot;
};
struct attn_shape eval_model_shape(const struct eval_model *m);
int eval_model_open(struct eval_model *m, const char *dir, int bos_mode, struct err *err);
/* The ids that end a text, of a model whose dir and llm are there. */
int eval_model_ends(struct eval_model *m, struct err *err);
void eval_model_close(struct eval_model *m);

/* What the options of the command say to all tasks. */
struct task_opts {
    int64_t *tokens, n_tokens; /* lengths; n 0: the task's default */
    double *depths;
    int64_t n_depths, trials;
    int64_t stride, windows, score_from; /* texts; 0: the default */
    char *haystack;                      /* file, NULL: generated */
    char *chat;                          /* text with {prompt}, NULL: none */
    char *template;                      /* text with {context} and others, NULL: none */
    int metric;                          /* enum text_metric of lines that name none, -1: none */
    int64_t max_new;                     /* ids of an answer, of lines that do not say it */
    int truncate;                        /* enum truncate_how */
    uint64_t seed;
};

/* A task file's prompt that is too long loses its middle, or is refused. */
enum truncate_how { TRUNCATE_MIDDLE, TRUNCATE_ERROR };

/* What a run of a cell is given, and leaves. */
struct cell_run {
    const struct eval_model *m;
    struct lockstep *l;
    struct record *rec;    /* [n_streams]: of streams that take part; metrics and notes to add */
    struct buf *predicted; /* [n_streams]: the generated text, if the task has one */
    struct scores *scores; /* [n_streams]: of a text, for --dump-nll; else NULL */
    char prompt_id[40];    /* content id of the prompt, "" = none */
};

struct eval_task;

struct task_kind {
    const char *name;
    /* Name of cell i, its canonical text. */
    int (*cell_name)(const struct eval_task *t, int64_t i, struct buf *name, struct err *err);
    /* Run cell i; the lockstep run was reset and knows which streams take part. */
    int (*run)(struct eval_task *t, int64_t i, struct cell_run *c, struct err *err);
    /* Tokens that cell i puts through the model at a time, about, and how often: shards are cut by
     * it, so it depends on nothing but the task. */
    double (*cell_cost)(const struct eval_task *t, int64_t i);
    void (*close)(struct eval_task *t);
};

/* Cost of n tokens in one prefill, in units that only comparisons use: linear layers and attention.
 */
static inline double task_cost(double n)
{
    return n * (4096 + n);
}

struct eval_task {
    const struct task_kind *kind;
    const struct eval_model *m; /* borrowed */
    const struct task_opts *o;  /* borrowed */
    int64_t cells;
    int64_t cap;  /* tokens of the longest sequence, answers included */
    bool decodes; /* rows may follow a prefill */
    void *state;  /* of the kind, owned */
};

/* "NAME[:key=value]..." or a file: *.jsonl is a task file, anything else a text whose likelihoods
 * are measured. */
int eval_task_open(const char *text, const struct eval_model *m, const struct task_opts *o,
                   struct eval_task *out, struct err *err);
void eval_task_close(struct eval_task *t);

/* Kinds: a generated task, a task file. */
int gen_task_open(const char *text, struct eval_task *t, struct err *err);
int file_task_open(const char *path, struct eval_task *t, struct err *err);

/* Append a text that stands in the name of a cell: ':' and '=' become '_'. */
void task_put_text(struct buf *b, const char *text);

/* ":chat=HASH" where there is a chat text. */
void task_chat_text(const struct task_opts *o, struct buf *b);

struct lines;
struct prompt;
struct prompt_spec;

/* A generated prompt of so many ids of this model's tokenizer, with the chat text around it. */
int eval_prompt_make(const struct eval_model *m, const struct prompt_spec *spec,
                     const struct lines *file, const char *chat, int64_t tokens, double depth,
                     int64_t sample, uint64_t seed, struct prompt *out, struct err *err);
