/*
 * modelset.h - what a reproduction runs on: models and traces, the shipped ones or those of --model
 * and --trace, and files of benchmarks.
 */
#pragma once

#include "core/text.h"
#include "core/trace.h"
#include "reproduce/recipe.h"

struct shape {
    char architecture[64];
    int layers, heads, kv_heads, head_dim;
};

/* A checkpoint, or a trace that somebody made elsewhere, in one role ("lm", "dit"). */
struct model_use {
    char role[32], name[128];
    char *dir;        /* owned; checkpoint, NULL for a trace */
    char *trace;      /* owned; NULL for a checkpoint */
    char *chat;       /* owned; text with {prompt} in it around every prompt, or NULL */
    char id[40];      /* of the checkpoint's files or the trace's content */
    bool given;       /* by an option, not the default of a role */
    bool has_weights; /* the weights are known by hash */
    bool causal;
    int64_t positions; /* of a language model; 0: its configuration does not say */
    struct shape shape;
    int patch[3];        /* tokens of a video latent: T/p0 x H/p1 x W/p2 */
    int64_t n;           /* a trace's tokens */
    int64_t bytes;       /* of the files of a checkpoint */
    int value_bytes;     /* of a value in its captures */
    const json_t *paper; /* the model of the papers that this is, or NULL */
    const json_t *fills; /* whose cells it fills: that one, or the one that --model names */
};

struct model_set {
    struct model_use *m; /* owned */
    int n;
    int64_t cap;
};

/* Add what the texts of --model ([NAME=]DIR, a role or the id of a model of models.json) and
 * --trace ([ROLE=]FILE) say, then the default of every role of the recipes that has none of them.
 */
int model_set_make(const struct str_list *dirs, const struct str_list *traces,
                   const struct recipe *recipes, int n_recipes, const struct paper_data *d,
                   struct model_set *out, struct err *err);
void model_set_free(struct model_set *s);

/* In each role of a recipe the first model of the papers that fills its cells and that lacuna runs,
 * else the first one of that kind in models.json: as if it were there, without a checkpoint. */
int model_set_of_papers(const struct recipe *r, const struct paper_data *d, struct model_set *out,
                        struct err *err);

/* Text around the prompts of the given language models: "auto" is the one of models.json for each
 * model's chat template, "none" none, else the text itself. ERR_USAGE: it has no {prompt}. */
int model_set_chat(struct model_set *s, const struct paper_data *d, const char *chat,
                   struct err *err);

/* The model of models.json with this shape; NULL: it is none of the papers' models. */
const json_t *shape_paper_model(const struct paper_data *d, const struct shape *s);

/* ---- files of benchmarks ----------------------------------------------------------------------
 * What a user has of LongBench and InfiniteBench, as datasets/paper/tasks.json lists them: which
 * file, which prompt, which grade.
 */

struct task_file {
    const json_t *j;            /* its entry of tasks.json, borrowed from paper_data */
    const char *id, *file, *of; /* "qasper", "qasper.jsonl", "LongBench" */
    char *path;                 /* owned; NULL: no folder has it */
    char hash[40];              /* of what is in it */
};

struct task_set {
    struct task_file *f; /* owned: all of tasks.json */
    int n;
};

/* Look for every file of tasks.json in the folders of --tasks, and read the first line of those
 * that are there. ERR_USAGE: no folder, a folder with none of the files, two with the same one;
 * ERR_INPUT: a file is not what its name says. Free `s` (zeroed before) also after a failure. */
int task_set_make(const struct paper_data *d, const struct str_list *folders, struct task_set *s,
                  struct err *err);
void task_set_free(struct task_set *s);

/* NULL: tasks.json has no such id. */
const struct task_file *task_set_find(const struct task_set *s, const char *id);

/* Options of `lacuna eval` for a task but for its path: prompt, grade, room for the answer. */
int task_file_options(const struct task_file *f, struct str_list *words, struct err *err);
