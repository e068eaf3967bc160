/*
 * method.c - see method.h.
 */
#include "core/method_run.h"

#include "core/mem.h"
#include "core/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool method_always(const void *state)
{
    (void)state;
    return true;
}

bool method_refuses(char why[160], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, 160, fmt, args);
    va_end(args);
    return false;
}

struct mask_origin method_origin(const struct method *m, void *state)
{
    const struct method_reuse *r = &m->reuse;
    struct mask_origin o = {.any_order = !r->of};
    if (r->of)
        o = r->of(state);
    if (r->always_static) {
        o.source = SOURCE_STATIC;
        o.same_mask = true;
    }
    return o;
}

bool method_decodes(const struct method *m, const void *params)
{
    const struct method_decode *d = &m->decode;
    return d->begin && (!d->applies || d->applies(params));
}

void method_arithmetic(const struct method *m, const void *state, struct arithmetic *a,
                       char why[160])
{
    *a = (struct arithmetic){0};
    if (!m->arith.attend)
        return;
    snprintf(why, 160, "the method's own arithmetic has no CUDA kernel");
    if (m->arith.how)
        m->arith.how(state, a, why);
    else
        a->kind = ARITH_CPU;
}

int method_prepare(const struct method *m, struct method_ctx *ctx, const void *params,
                   const struct head_in *in, void **state, struct err *err)
{
    *state = NULL;
    ctx->unit_rows = 1;
    int rc = mem_zalloc(state, 1, m->state_size, m->name, err);
    rc = rc ? rc : m->prepare(ctx, params, in, *state, err);
    if (rc) {
        method_release(m, *state);
        *state = NULL;
    }
    return rc;
}

void method_release(const struct method *m, void *state)
{
    if (state && m->release)
        m->release(state);
    free(state);
}

bool method_combines(const struct method *m, const struct attn_in *x, char why[128])
{
    const struct {
        bool present;
        unsigned flag;
        const char *name;
    } parts[] = {
        {x->reach.back || x->reach.ahead, METHOD_REACH, "a sliding window"},
        {x->reach.chunk, METHOD_REACH, "chunked attention"},
        {x->reach.prefix, METHOD_PREFIX, "a prefix that sees itself"},
        {x->mods.softcap > 0, METHOD_SOFTCAP, "soft-capped scores"},
        {x->mods.alibi != 0, METHOD_BIAS, "ALiBi"},
        {x->mods.rel, METHOD_BIAS, "a relative bias"},
        {x->mods.pair.b, METHOD_BIAS, "a bias of rows and keys"},
        {x->mods.has_sink, METHOD_SINK, "an attention sink"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].present && !(m->flags & parts[i].flag)) {
            snprintf(why, 128, "cannot combine %s", parts[i].name);
            return false;
        }
    return true;
}

int method_skip(struct method_ctx *ctx, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(ctx->skip, sizeof ctx->skip, fmt, ap);
    va_end(ap);
    return METHOD_SKIP;
}

int method_all_rows(struct method_ctx *ctx, const struct head_in *in, const char *what)
{
    return in->rows
               ? method_skip(ctx, "%s needs all query rows; the trace holds a sample of them", what)
               : 0;
}

int method_whole_prompt(struct method_ctx *ctx, const struct head_in *in)
{
    return in->x.nq == in->x.nk ? 0
                                : method_skip(ctx, "whole prompts only: %lld queries, %lld keys",
                                              (long long)in->x.nq, (long long)in->x.nk);
}

const struct method *method_find(const struct method *const *methods, const char *name,
                                 struct err *err)
{
    struct names all = {0};
    for (const struct method *const *m = methods; *m; m++) {
        if (strcmp((*m)->name, name) == 0 || ((*m)->alias && strcmp((*m)->alias, name) == 0))
            return *m;
        names_add(&all, (*m)->name);
    }
    names_unknown(&all, "method", name, err);
    return NULL;
}

int method_params_copy(const struct method *m, const void *params, void **out, struct err *err)
{
    void *copy = NULL;
    int rc = 0;
    TRY(mem_zalloc(&copy, 1, m->params.size, "method parameters", err));
    TRY(opt_copy(m->params.table, params, copy, err));
    *out = HAND_OVER(copy);
out:
    method_params_free(m, copy);
    return rc;
}

void method_params_free(const struct method *m, void *params)
{
    if (params)
        opt_free(m->params.table, params);
    free(params);
}

void carries_free(struct carry *c, int64_t n)
{
    for (int64_t i = 0; c && i < n; i++)
        if (c[i].free)
            c[i].free(c[i].data);
    free(c);
}
