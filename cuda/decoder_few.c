/*
 * decoder_few.c - rows behind a sequence through all layers of a decoder that keeps them
 * (core/decoder.h): answers are generated a token at a time, and scored some tokens at a time.
 *
 * Everything is in float32 accuracy, as on the CPU: linear layers by bf16 terms, attention over the
 * keys and values that the layers left in float32.
 */
#include "cuda/decoder_body.h"

#include "core/intmath.h"

#include <math.h>

#define FEW_ROWS 64
#define PART_BYTES (64LL << 20)

int decoder_alloc_few(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct few_rows *f = &d->few;
    struct gpu *g = &d->on.gpu;
    int64_t parts = ops_few_parts(s->heads, s->head_dim, d->cap);
    int rc = 0;

    f->rows = MAX(1, MIN(MIN(FEW_ROWS, d->rows), PART_BYTES / (4 * parts)));
    TRY(gpu_alloc(g, f->rows * s->hidden * 4, &f->h, err));
    TRY(gpu_alloc(g, f->rows * d->qdim * 4, &f->o, err));
    TRY(gpu_alloc(g, f->rows * 4, &f->ids, err));
    TRY(gpu_alloc(g, f->rows * parts * 4, &f->parts, err));
out:
    return rc;
}

static int attend(struct decoder *d, int64_t pos, int64_t m, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct ops_few few = {.q = d->y,
                          .k = decoder_kept_rows(d, d->k_rows),
                          .v = decoder_kept_rows(d, d->v_rows),
                          .ld = d->qdim + 2 * d->kvdim,
                          .stride = d->cap,
                          .pos = pos,
                          .m = m,
                          .heads = s->heads,
                          .kv_heads = s->kv_heads,
                          .d = s->head_dim,
                          .scale = 1 / sqrt(s->head_dim),
                          .parts = d->few.parts,
                          .out = d->few.o};
    return ops_attend_few(&d->on.gpu, &few, err);
}

/* The rows whose hidden state is in d->few.h. */
static int run_layer(struct decoder *d, int layer, int64_t pos, int64_t m, struct err *err)
{
    struct ops_heads to = {.tok0 = pos, .tokens32 = d->cap};
    int rc = 0;

    d->layer = layer;
    d->w = d->layers + layer;
    to.k32 = decoder_kept_rows(d, d->k_rows);
    to.v32 = decoder_kept_rows(d, d->v_rows);
    TRY(decoder_project_to(d, d->few.h, m, &to, err));
    TRY(attend(d, pos, m, err));
    TRY(ops_split_rows(&d->on.gpu, d->few.o, m, d->qdim, decoder_out_terms(d), d->x, err));
    d->h = d->few.h;
    TRY(decoder_finish(d, 0, m, err));
out:
    return rc;
}

int decoder_run_few(struct decoder *d, int state, const int32_t *tokens, int64_t pos, int64_t m,
                    float *h, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int rc = 0;

    if (!s->kept || pos + m > d->cap)
        FAIL(err, ERR_RUN,
             "rows at %lld behind a sequence: the GPU has kept %d layers of %lld tokens",
             (long long)pos, s->kept, (long long)d->cap);
    d->state = state;
    for (int64_t t = 0; t < m; t += d->few.rows) {
        int64_t n = MIN(d->few.rows, m - t);
        TRY(gpu_put(g, d->few.ids, tokens + t, n * 4, err));
        TRY(ops_take_rows(g, d->table, d->table_type, s->hidden, d->few.ids, n, d->few.h, err));
        for (int layer = 0; layer < s->kept; layer++)
            TRY(run_layer(d, layer, pos + t, n, err));
        TRY(gpu_get(g, h + t * s->hidden, d->few.h, n * s->hidden * 4, err));
    }
out:
    return rc;
}
