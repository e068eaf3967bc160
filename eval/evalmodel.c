/*
 * evalmodel.c - the model that is evaluated: weights, tokenizer, the id in front of a text and the
 * ids that end one.
 */
#include "eval/evaltask.h"

#include "core/checkpoint.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

#define MAX_CONFIG (1 << 20)

enum { BOS_AUTO, BOS_YES, BOS_NO };

static int find_bos(struct eval_model *m, int mode, struct err *err)
{
    bool added = false;
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    PASS_ON(tokenizer_encode(m->tok, "", 0, &added, &ids, &n, err));
    if (n > 1)
        return err_set(err, ERR_INPUT,
                       "%s: the tokenizer puts %lld special tokens around a text; eval knows "
                       "one in front of it",
                       m->dir, (long long)n);
    m->bos = -1;
    if (mode == BOS_NO)
        return 0;
    if (added)
        m->bos = ids[0];
    else if (mode == BOS_YES)
        return llm_bos(m->dir, &m->llm.c, &m->bos, err);
    return 0;
}

static void add_eot(struct eval_model *m, const json_t *id)
{
    int max = (int)(sizeof m->eot / sizeof *m->eot);
    if (json_is_integer(id) && json_integer_value(id) >= 0 &&
        json_integer_value(id) < m->llm.c.vocab && m->n_eot < max)
        m->eot[m->n_eot++] = (int32_t)json_integer_value(id);
}

/* eos_token_id, a number or a list, of one file; nothing where the file or the key is not there. */
static int read_eot(struct eval_model *m, const char *file, struct err *err)
{
    char path[CHECKPOINT_PATH];
    OWN(json_decrefp) json_t *o = NULL;
    PASS_ON(checkpoint_json(m->dir, file, MAX_CONFIG, path, &o, err));
    const json_t *eos = json_object_get(o, "eos_token_id");
    add_eot(m, eos);
    for (size_t i = 0; i < json_array_size(eos); i++)
        add_eot(m, json_array_get(eos, i));
    return 0;
}

int eval_model_ends(struct eval_model *m, struct err *err)
{
    PASS_ON(read_eot(m, "config.json", err));
    return read_eot(m, "generation_config.json", err);
}

static int read_domain(struct eval_model *m, struct err *err)
{
    char path[CHECKPOINT_PATH];
    const char *domain = "en";
    OWN(json_decrefp) json_t *o = NULL;
    PASS_ON(checkpoint_json(m->dir, "eval.json", MAX_CONFIG, path, &o, err));
    if (o) {
        PASS_ON(jget_str_opt(o, "domain", path, &domain, err));
        if (strcmp(domain, "c") != 0 && strcmp(domain, "en") != 0 && strcmp(domain, "source") != 0)
            return err_set(err, ERR_INPUT,
                           "%s: domain: c, en or source was expected, found '%.60s'", path, domain);
    }
    snprintf(m->domain, sizeof m->domain, "%s", domain);
    return 0;
}

struct attn_shape eval_model_shape(const struct eval_model *m)
{
    const struct llm_config *c = &m->llm.c;
    return (struct attn_shape){.layers = c->layers,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_dim = c->head_dim,
                               .causal = true};
}

int eval_model_open(struct eval_model *m, const char *dir, int bos_mode, struct err *err)
{
    memset(m, 0, sizeof *m);
    m->dir = dir;
    checkpoint_name(dir, m->name, sizeof m->name);
    PASS_ON(llm_open(dir, &m->llm, err));
    PASS_ON(st_content_id(m->llm.file, m->weights, err));
    PASS_ON(tokenizer_open(dir, &m->tok, err));
    if (tokenizer_max_id(m->tok) >= m->llm.c.vocab)
        return err_set(err, ERR_INPUT,
                       "%s: the tokenizer has ids up to %lld, the model %lld tokens", dir,
                       (long long)tokenizer_max_id(m->tok), (long long)m->llm.c.vocab);
    PASS_ON(find_bos(m, bos_mode, err));
    PASS_ON(eval_model_ends(m, err));
    return read_domain(m, err);
}

void eval_model_close(struct eval_model *m)
{
    llm_close(&m->llm);
    tokenizer_close(&m->tok);
}
