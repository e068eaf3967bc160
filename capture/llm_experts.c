/*
 * llm_experts.c - see llm_experts.h. The softmax is over all experts; weights of the chosen ones
 * are taken from it, and add up to 1 where the family says so.
 */
#include "capture/llm_experts.h"

#include "capture/nn.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int llm_experts_init(struct llm_experts *e, const struct llm_config *c, int64_t rows,
                     struct err *err)
{
    int rc = 0;
    TRY(mem_alloc(&e->logits, rows * c->experts, sizeof(float), "router", err));
    TRY(mem_alloc(&e->sum, rows * c->hidden, sizeof(float), "experts", err));
    TRY(mem_alloc(&e->in, rows * c->hidden, sizeof(float), "experts", err));
    TRY(mem_alloc(&e->out, rows * c->hidden, sizeof(float), "experts", err));
    TRY(mem_alloc(&e->gate, rows * c->expert_ffn, sizeof(float), "experts", err));
    TRY(mem_alloc(&e->up, rows * c->expert_ffn, sizeof(float), "experts", err));
    TRY(mem_alloc(&e->of_expert, rows, sizeof *e->of_expert, "experts", err));
out:
    return rc;
}

void llm_experts_free(struct llm_experts *e)
{
    free(e->logits);
    free(e->sum);
    free(e->in);
    free(e->out);
    free(e->gate);
    free(e->up);
    free(e->of_expert);
    memset(e, 0, sizeof *e);
}

int64_t llm_experts_bytes(const struct llm_config *c, int64_t rows)
{
    if (c->experts == 0)
        return 0;
    return rows * (4 * (c->experts + 3 * c->hidden + 2 * c->expert_ffn) + (int64_t)sizeof(int64_t));
}

/* Softmax of n logits; all but the `used` largest become 0. Among equals the first is
 * chosen. */
static void route(float *z, int n, int used, bool normalise)
{
    float top = z[0];
    double sum = 0, kept = 0;
    for (int i = 1; i < n; i++)
        top = z[i] > top ? z[i] : top;
    for (int i = 0; i < n; i++)
        sum += z[i] = expf(z[i] - top);
    for (int k = 0; k < used; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (z[i] >= 0 && (best < 0 || z[i] > z[best]))
                best = i;
        kept += z[best];
        z[best] = -1 - z[best]; /* chosen */
    }
    for (int i = 0; i < n; i++)
        z[i] = z[i] < 0 ? (float)((-1 - z[i]) / (normalise ? kept : sum)) : 0;
}

/* The tokens of one expert, and what it makes of them added to their sums. */
static int run_expert(struct llm_experts *e, const struct llm_config *c, const struct llm_layer *l,
                      int expert, const float *x, int64_t n, int jobs, struct err *err)
{
    int64_t d = c->hidden, f = c->expert_ffn, m = 0, at = expert * d * f;
    int rc = 0;

    for (int64_t i = 0; i < n; i++)
        if (e->logits[i * c->experts + expert] > 0) {
            memcpy(e->in + m * d, x + i * d, (size_t)d * sizeof *x);
            e->of_expert[m++] = i;
        }
    if (m == 0)
        return 0;
    TRY(nn_linear(e->in, m, d, l->t[LLM_E_GATE] + at, NULL, f, jobs, e->gate, err));
    TRY(nn_linear(e->in, m, d, l->t[LLM_E_UP] + at, NULL, f, jobs, e->up, err));
    nn_silu(e->gate, m * f);
    for (int64_t i = 0; i < m * f; i++)
        e->gate[i] *= e->up[i];
    TRY(nn_linear(e->gate, m, f, l->t[LLM_E_DOWN] + at, NULL, d, jobs, e->out, err));
    for (int64_t k = 0; k < m; k++) {
        float w = e->logits[e->of_expert[k] * c->experts + expert];
        float *to = e->sum + e->of_expert[k] * d;
        for (int64_t i = 0; i < d; i++)
            to[i] += w * e->out[k * d + i];
    }
out:
    return rc;
}

int llm_experts_run(struct llm_experts *e, const struct llm_config *c, const struct llm_layer *l,
                    float *x, int64_t n, int jobs, struct err *err)
{
    int rc = 0;
    TRY(nn_linear(x, n, c->hidden, l->t[LLM_ROUTER], NULL, c->experts, jobs, e->logits, err));
    for (int64_t i = 0; i < n; i++)
        route(e->logits + i * c->experts, c->experts, c->experts_used, c->experts_normalised);
    memset(e->sum, 0, (size_t)(n * c->hidden) * sizeof(float));
    for (int i = 0; i < c->experts; i++)
        TRY(run_expert(e, c, l, i, x, n, jobs, err));
    memcpy(x, e->sum, (size_t)(n * c->hidden) * sizeof(float));
out:
    return rc;
}
