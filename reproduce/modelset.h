/*
 * modelset.h - the models and traces that a reproduction runs on: the shipped ones, or those of
 * --model and --trace.
 */
#ifndef LACUNA_MODELSET_H
#define LACUNA_MODELSET_H

#include "core/hash.h"
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
    char id[40];      /* of the checkpoint's files or the trace's content */
    bool given;       /* by an option, not the default of a role */
    bool has_weights; /* the weights are known by hash */
    bool causal;
    struct shape shape;
    int patch[3];        /* tokens of a video latent: T/p0 x H/p1 x W/p2 */
    int64_t n;           /* a trace's tokens */
    const json_t *paper; /* the model of the papers that this is, or NULL */
};

struct model_set {
    struct model_use *m; /* owned */
    int n;
    int64_t cap;
};

/* Add what the texts of --model ([ROLE=]DIR) and --trace ([ROLE=]FILE) say, then the default of
 * every role of the recipes that has none of them. */
int model_set_make(const struct str_list *dirs, const struct str_list *traces,
                   const struct recipe *recipes, int n_recipes, const struct paper_data *d,
                   struct model_set *out, struct err *err);
void model_set_free(struct model_set *s);

/* Add a file to a hash by name, size and content; one above 256 MiB by its time of change instead
 * of its content. */
int hash_input_file(struct hash_state *h, const char *path, const char *name, struct err *err);

/* The model of models.json with this shape; NULL: it is none of the papers' models. */
const json_t *shape_paper_model(const struct paper_data *d, const struct shape *s);

#endif
