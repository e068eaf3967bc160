/*
 * keys.h - the fields of a record by which tables and figures group, and the one order in which
 * their values are listed everywhere.
 */
#pragma once

#include "core/buf.h"
#include "core/record.h"

#include <stdbool.h>

/* X(identifier, name, is a number, title, what it is) */
#define GROUP_KEYS(X)                                                                              \
    X(KEY_MODEL, "model", false, "model", "model of the trace")                                    \
    X(KEY_TRACE, "trace", false, "trace", "content id of the trace")                               \
    X(KEY_CAUSAL, "causal", true, "causal", "1 = causal attention")                                \
    X(KEY_N_Q, "n_q", true, "N_q [tokens]", "query rows")                                          \
    X(KEY_N_K, "n_k", true, "N_k [tokens]", "keys")                                                \
    X(KEY_D, "d", true, "d", "head dimension")                                                     \
    X(KEY_PERMUTE, "permute", false, "token order", "token order")                                 \
    X(KEY_ORDER, "order", false, "token order", "token order that the method saw")                 \
    X(KEY_BACKEND, "backend", false, "backend", "cpu or cuda")                                     \
    X(KEY_PRECISION, "precision", false, "precision", "arithmetic of the reference")               \
    X(KEY_SEED, "seed", true, "seed", "seed of everything random")                                 \
    X(KEY_SCOPE, "scope", false, "scope", "head, call (its heads together) or model")              \
    X(KEY_HEADS, "heads", false, "heads", "scope call: its query heads, if not all of the trace")  \
    X(KEY_TASK, "task", false, "task", "scope model: what was asked, without the three below")     \
    X(KEY_TOKENS, "tokens", true, "tokens", "scope model: length of the text, prompt or clip")     \
    X(KEY_DEPTH, "depth", true, "depth", "scope model: where the asked item stands, 0 = front")    \
    X(KEY_SAMPLE, "sample", true, "sample", "scope model: number of the sample")                   \
    X(KEY_SETTING, "setting", false, "setting", "scope model: how the method stands in the model") \
    X(KEY_METHOD, "method", false, "method", "method")                                             \
    X(KEY_PARAMS, "params", false, "parameters", "parameters that differ from their defaults")     \
    X(KEY_BASE, "base", false, "parameters", "parameters without the target of a search")          \
    X(KEY_TARGET, "target", false, "target", "what a search was to meet, as density_elem=0.3")     \
    X(KEY_RUN, "run", true, "run", "run of the model")                                             \
    X(KEY_STEP, "step", true, "step", "denoising step")                                            \
    X(KEY_BRANCH, "branch", false, "branch", "guidance branch")                                    \
    X(KEY_LAYER, "layer", true, "layer", "layer")                                                  \
    X(KEY_HEAD, "head", true, "head", "query head")                                                \
    X(KEY_KV_HEAD, "kv_head", true, "kv head", "key-value head")                                   \
    X(KEY_MASK_AGE, "mask_age", true, "mask age [step]", "steps since a reused mask was made")     \
    X(KEY_STATUS, "status", false, "status", "ok, skip or error")                                  \
    X(KEY_REASON, "reason", false, "reason", "why a cell was skipped or failed")

enum group_key {
#define X(id, name, num, title, help) id,
    GROUP_KEYS(X)
#undef X
        KEY_COUNT
};

/* Beyond KEY_COUNT, which stands for no key, come parameters of methods: keys_parse numbers them as
 * it meets them. Their values are those in effect (params.h, record_param). */
#define PARAM_KEYS_MAX 32
#define KEYS_MAX (KEY_COUNT + PARAM_KEYS_MAX)

const char *key_name(enum group_key k);
const char *key_title(enum group_key k);
bool key_is_number(enum group_key k);

/* "method,layer,tau" -> keys without repeats. A word that is no key is the parameter of this name
 * of any method; ":permute" is a parameter although there is a key of its name, "@density_elem" the
 * value of a target. `what` names the option in messages; an unknown word is ERR_USAGE with the
 * nearest key and the list of all. */
int keys_parse(const char *text, const char *what, enum group_key keys[KEYS_MAX], int *n,
               struct err *err);

/* Value of a key: as a number (numeric keys) or as text appended to b. */
double key_number(const struct record *r, enum group_key k);
void key_text(const struct record *r, enum group_key k, struct buf *b);

/* Hash of the text that a task reads, NULL of a task without one; *len: its length. It stands in
 * the key `task` of records with `tells_text` alone. */
const char *task_hash(const struct record *r, size_t *len);

/* Order of two records by one key: numbers by value; methods with "dense" first, then by name; text
 * naturally. */
int key_compare(const struct record *a, const struct record *b, enum group_key k);

/* Equal for records that key_compare finds equal. */
uint64_t key_hash(const struct record *r, enum group_key k);

/* Order of texts in which embedded numbers count by value: "k=8" < "k=16", "a=0.9" < "a=0.95". */
int natural_compare(const char *a, const char *b);
