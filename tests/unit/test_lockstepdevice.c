/* A lockstep run on a device made of the CPU's own building blocks (core/decoder.h) gives what a
 * run on the CPU gives: prefills with a method inside, whose outputs stay there or come from here,
 * rows behind them, and errors by layer. */
#include "capture/llm_config.h"
#include "core/mem.h"
#include "eval/decode.h"
#include "eval/evaltask.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/floats.h"
#include "tests/harness/testmethods.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "datasets/models/code-lm"

enum { N = 90, MORE = 12, CAP = N + MORE, STREAMS = 2 };

static struct err err;

/* ---- the device ----------------------------------------------------------------------------- */

struct decoder {
    struct decoder_shape s;
    double inv_freq[64];
    int64_t n, qdim;
    int layer, state;
    float *table, *h[STREAMS], *q, *o, *o_ref, *out, *by_head;
    float *w[8][LLM_LAYER_TENSORS];
    struct nn_kv kv[8][STREAMS];
};

static int no_room;            /* how often the device has none for kept layers */
static int loads, came, rowed; /* layers whose weights came; outputs that came; rows behind */

static int dev_open(int rank, const struct decoder_shape *s, struct decoder **out, struct err *e)
{
    if (s->kept && no_room > 0) {
        no_room--;
        return err_set(e, ERR_NOMEM, "8 MB of GPU memory");
    }
    struct decoder *d = calloc(1, sizeof *d);
    ck_assert_ptr_nonnull(d);
    ck_assert(s->states <= STREAMS && s->kept <= 8 && s->tokens == CAP);
    d->s = *s;
    memcpy(d->inv_freq, s->inv_freq, (size_t)(s->head_dim / 2) * sizeof(double));
    d->qdim = (int64_t)s->heads * s->head_dim;
    for (int i = 0; i < s->states; i++)
        d->h[i] = room(CAP * s->hidden);
    d->q = room(CAP * d->qdim);
    d->o = room(CAP * d->qdim);
    d->o_ref = room(CAP * d->qdim);
    d->out = room(CAP * d->qdim);
    d->by_head = room(3 * CAP * d->qdim);
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < STREAMS; i++)
            assert_ok(nn_kv_init(&d->kv[l][i], CAP, s->kv_heads, s->head_dim, &err), &err);
    *out = d;
    return 0;
}

static void dev_close(struct decoder **out)
{
    struct decoder *d = *out;
    if (!d)
        return;
    for (int i = 0; i < STREAMS; i++)
        free(d->h[i]);
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < LLM_LAYER_TENSORS; i++)
            free(d->w[l][i]);
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < STREAMS; i++)
            nn_kv_free(&d->kv[l][i]);
    free(d->table);
    free(d->q);
    free(d->o);
    free(d->o_ref);
    free(d->out);
    free(d->by_head);
    free(d);
    *out = NULL;
}

static int put_table(struct decoder *d, const struct decoder_tensor *table, struct err *e)
{
    ck_assert(table->rows == d->s.vocab && table->cols == d->s.hidden && table->dtype == DT_BF16);
    d->table = wide(table);
    return 0;
}

static void embed(const struct decoder *d, const int32_t *tokens, int64_t n, float *h)
{
    size_t row = (size_t)d->s.hidden * sizeof *h;
    for (int64_t i = 0; i < n; i++)
        memcpy(h + i * d->s.hidden, d->table + tokens[i] * d->s.hidden, row);
}

static int begin(struct decoder *d, const int32_t *tokens, int64_t n, struct err *e)
{
    d->n = n;
    for (int i = 0; i < d->s.states; i++)
        embed(d, tokens, n, d->h[i]);
    return 0;
}

static int load(struct decoder *d, int layer, const struct decoder_tensor *w, struct err *e)
{
    d->layer = layer;
    for (int i = 0; w && i < LLM_LAYER_TENSORS; i++) {
        free(d->w[layer][i]);
        ck_assert(!w[i].data || w[i].dtype == DT_BF16);
        d->w[layer][i] = wide(w + i);
    }
    ck_assert(w || d->s.kept);
    loads += w != NULL;
    return 0;
}

static void linear(const float *x, int64_t n, int64_t in, const float *w, int64_t out, float *y)
{
    assert_ok(nn_linear(x, n, in, w, NULL, out, 1, y, &err), &err);
}

/* q of n rows at pos, whose k and v join the layer's. */
static void project_rows(struct decoder *d, const float *h, int64_t pos, int64_t n)
{
    const struct decoder_shape *s = &d->s;
    int64_t kvdim = (int64_t)s->kv_heads * s->head_dim;
    OWN(free_at) float *x = room(n * s->hidden), *k = room(n * kvdim), *v = room(n * kvdim);
    float **w = d->w[d->layer];
    nn_rms_norm(h, n, s->hidden, w[LLM_NORM1], s->eps, x);
    linear(x, n, s->hidden, w[LLM_Q], d->qdim, d->q);
    linear(x, n, s->hidden, w[LLM_K], kvdim, k);
    linear(x, n, s->hidden, w[LLM_V], kvdim, v);
    rope_apply(d->q, n, s->heads, s->head_dim, pos, d->inv_freq, s->rope_factor);
    rope_apply(k, n, s->kv_heads, s->head_dim, pos, d->inv_freq, s->rope_factor);
    nn_kv_put(&d->kv[d->layer][d->state], pos, n, k, v);
}

static int project(struct decoder *d, int state, struct decoder_rows *rows,
                   struct decoder_operands *operands, struct err *e)
{
    const struct decoder_shape *s = &d->s;
    struct nn_kv *kv = &d->kv[d->layer][state];
    int64_t size = d->n * s->head_dim, step = CAP * s->head_dim;
    d->state = state;
    project_rows(d, d->h[state], 0, d->n);
    *operands = (struct decoder_operands){d->q, kv->k, kv->v, s->head_dim, d->out};
    if (!rows)
        return 0;
    *rows = (struct decoder_rows){d->by_head, d->by_head + s->heads * size,
                                  d->by_head + 2 * s->heads * size};
    for (int h = 0; h < s->heads; h++)
        nn_take_head(d->q, d->n, s->heads, s->head_dim, h, rows->q + h * size);
    for (int h = 0; h < s->kv_heads; h++) {
        memcpy(rows->k + h * size, kv->k + h * step, (size_t)size * sizeof(float));
        memcpy(rows->v + h * size, kv->v + h * step, (size_t)size * sizeof(float));
    }
    for (int64_t i = 0; i < d->n * d->qdim; i++)
        d->out[i] = NAN; /* until somebody writes it */
    return 0;
}

static void attend_rows(struct decoder *d, int64_t pos, int64_t n, float *o)
{
    const struct decoder_shape *s = &d->s;
    assert_ok(nn_attention(d->q, &d->kv[d->layer][d->state], n, pos + n, s->heads,
                           1 / sqrt(s->head_dim), true, 1, o, NULL, &err),
              &err);
}

static int attend(struct decoder *d, struct err *e)
{
    attend_rows(d, 0, d->n, d->out);
    return 0;
}

static int put_attended(struct decoder *d, const float *o, struct err *e)
{
    came++;
    memcpy(d->out, o, (size_t)(d->n * d->qdim) * sizeof *o);
    return 0;
}

static void finish_rows(struct decoder *d, const float *o, int64_t n, float *h)
{
    const struct decoder_shape *s = &d->s;
    OWN(free_at) float *x = room(n * s->hidden), *gate = room(n * s->ffn);
    float **w = d->w[d->layer];
    OWN(free_at) float *up = room(n * s->ffn);
    linear(o, n, d->qdim, w[LLM_O], s->hidden, x);
    for (int64_t i = 0; i < n * s->hidden; i++)
        h[i] += x[i];
    nn_rms_norm(h, n, s->hidden, w[LLM_NORM2], s->eps, x);
    linear(x, n, s->hidden, w[LLM_GATE], s->ffn, gate);
    linear(x, n, s->hidden, w[LLM_UP], s->ffn, up);
    nn_silu(gate, n * s->ffn);
    for (int64_t i = 0; i < n * s->ffn; i++)
        gate[i] *= up[i];
    linear(gate, n, s->ffn, w[LLM_DOWN], s->hidden, x);
    for (int64_t i = 0; i < n * s->hidden; i++)
        h[i] += x[i];
}

static void squares(const float *x, const float *ref, int64_t n, double *e, double *norm)
{
    for (int64_t i = 0; i < n; i++) {
        *e += ((double)x[i] - ref[i]) * ((double)x[i] - ref[i]);
        *norm += (double)ref[i] * ref[i];
    }
}

static int finish(struct decoder *d, int state, struct decoder_diff *diff, struct err *e)
{
    finish_rows(d, d->out, d->n, d->h[state]);
    if (state == 0)
        memcpy(d->o_ref, d->out, (size_t)(d->n * d->qdim) * sizeof *d->out);
    if (!diff)
        return 0;
    squares(d->out, d->o_ref, d->n * d->qdim, &diff->attn, &diff->attn_ref);
    squares(d->h[state], d->h[0], d->n * d->s.hidden, &diff->resid, &diff->resid_ref);
    return 0;
}

static int get_hidden(struct decoder *d, int state, int64_t row, int64_t n, float *h, struct err *e)
{
    ck_assert_int_le(row + n, d->n);
    memcpy(h, d->h[state] + row * d->s.hidden, (size_t)(n * d->s.hidden) * sizeof *h);
    return 0;
}

static int rows(struct decoder *d, int state, const int32_t *tokens, int64_t pos, int64_t m,
                float *h, struct err *e)
{
    ck_assert(d->s.kept && pos + m <= CAP);
    rowed += (int)m;
    embed(d, tokens, m, h);
    d->state = state;
    for (d->layer = 0; d->layer < d->s.kept; d->layer++) {
        project_rows(d, h, pos, m);
        attend_rows(d, pos, m, d->o);
        finish_rows(d, d->o, m, h);
    }
    return 0;
}

static const char *dev_name(const struct decoder *d)
{
    return "a device made of the CPU";
}

static const struct decoder_states fake_states = {.put_table = put_table,
                                                  .begin = begin,
                                                  .load = load,
                                                  .project = project,
                                                  .attend = attend,
                                                  .put_attended = put_attended,
                                                  .finish = finish,
                                                  .get_hidden = get_hidden,
                                                  .rows = rows};
static const struct decoder_accel fake = {.name = "fake",
                                          .open = dev_open,
                                          .close = dev_close,
                                          .device = dev_name,
                                          .states = &fake_states};

/* ---- the methods' device -------------------------------------------------------------------- */

static int attended, stayed; /* heads; those whose outputs stayed */

static int attend_call(struct accel_session *s, const struct accel_call *c,
                       const struct accel_lists *l, struct accel_result *r, struct err *e)
{
    for (int h = 0; h < c->n; h++) {
        attended++;
        stayed += accel_keeps_output(c->heads[h].x);
        ck_assert_ptr_nonnull(c->heads[h].x->on_device);
        accel_attend_head(c, l, h, PREC_F32, e);
    }
    accel_untimed(c, r);
    return 0;
}

static const struct accel fake_accel = {
    .name = "fake", .supports = accel_supports_all, .attend_call = attend_call};
static const struct sim_device fake_device = {.accel = &fake_accel, .select = SELECT_AUTO};

/* ---- runs ----------------------------------------------------------------------------------- */

static struct eval_model m;
static struct id_list ids;

struct result {
    double nll[STREAMS][MORE], attn_err, resid_err, local_err, density;
    float hidden[STREAMS][3 * 384];
};

/* Two prefills, the second of which is scored: what the first left is not seen. */
static void run_on(const struct lockstep_on *on, struct eval_how how, struct result *r)
{
    OWN(run_free) struct method_run *run = run_of("streaming:sink=2:window=9");
    struct layer_attn attn;
    struct lockstep l;
    bool top1[MORE];
    how.round = DT_F32;
    how.precision = PREC_F32;
    how.device = on ? &fake_device : NULL;
    attended = stayed = loads = came = rowed = 0;
    assert_ok(mem_zalloc(&how.dense_head, 48, sizeof *how.dense_head, "heads", &err), &err);
    for (int h = 0; h < 8; h++)
        how.dense_head[8 + h] = true; /* a layer */
    how.dense_head[3] = true;
    struct attn_shape shape = eval_model_shape(&m);
    assert_ok(layer_attn_init(&attn, run, &how, &shape, "code-lm", 2, &err), &err);
    assert_ok(lockstep_open(&l, &m.llm, &attn, 1, CAP, true, DT_F32, 2, on, &err), &err);
    for (int i = 0; i < 2; i++) {
        lockstep_reset(&l);
        assert_ok(lockstep_prefill(&l, ids.v + (i ? 0 : 5), i ? N : N - 7, &err), &err);
    }
    memset(r, 0, sizeof *r);
    for (int i = 0; i < STREAMS; i++) {
        struct decode d;
        assert_ok(decode_open(&d, &l, i, &err), &err);
        assert_ok(decode_score(&d, ids.v + N, 4, r->nll[i], top1, &err), &err);
        decode_rewind(&d);
        assert_ok(decode_score(&d, ids.v + N, MORE, r->nll[i], top1, &err), &err);
        decode_close(&d);
        assert_ok(lockstep_hidden(&l, i, N - 3, 3, r->hidden[i], &err), &err);
    }
    for (int k = 0; k < 6; k++) {
        r->attn_err += l.s[1].attn_err[k];
        r->resid_err += l.s[1].resid_err[k];
        r->local_err += attn.local_err[k];
    }
    for (int h = 0; h < 48; h++)
        r->density += attn.elem[h] / 48;
    lockstep_close(&l);
    layer_attn_free(&attn);
    free(how.dense_head);
}

static void near(const char *what, double x, double want)
{
    ck_assert_msg(fabs(x - want) <= 2e-4 * (1 + fabs(want)), "%s: %.9g on the device, %.9g", what,
                  x, want);
}

static void compare(const struct result *x, const struct result *want)
{
    for (int i = 0; i < STREAMS; i++) {
        for (int k = 0; k < MORE; k++)
            near("nll", x->nll[i][k], want->nll[i][k]);
        for (int k = 0; k < 3 * 384; k++)
            near("hidden state", (double)x->hidden[i][k], (double)want->hidden[i][k]);
    }
    near("err_attn", x->attn_err, want->attn_err);
    near("err_resid", x->resid_err, want->resid_err);
    near("err_local", x->local_err, want->local_err);
    near("density", x->density, want->density);
    ck_assert(want->attn_err > 0.01 && want->density < 0.6 && want->density > 0.2);
}

static const struct lockstep_on on = {.decoder = &fake};

static void open_model(void)
{
    static const char text[] =
        "static int sum(const int *x, int n)\n{\n\tint s = 0;\n\n\tfor (int i = 0; i < n; i++)\n"
        "\t\ts += x[i];\n\treturn s;\n}\n\nstatic int mean(const int *x, int n)\n{\n\treturn n ? "
        "sum(x, n) / n : 0;\n}\n\nint main(int argc, char **argv)\n{\n\tint x[3] = {1, 2, 3};\n\n"
        "\tprintf(\"%d\\n\", mean(x, 3));\n\treturn 0;\n}\n";
    assert_ok(eval_model_open(&m, MODEL, 0, &err), &err);
    assert_ok(prompt_ids(&m, NULL, text, strlen(text), &ids, &err), &err);
    ck_assert_int_ge(ids.n, CAP);
}

static void close_model(void)
{
    id_list_free(&ids);
    eval_model_close(&m);
}

static struct result cpu, dev;

/* Outputs stay, rows behind the prompt run there, weights come once. */
TEST(all_of_it_stays_there)
{
    open_model();
    run_on(NULL, (struct eval_how){0}, &cpu);
    run_on(&on, (struct eval_how){0}, &dev);
    compare(&dev, &cpu);
    ck_assert_int_eq(attended, 2 * 5 * 8); /* two prefills; a layer is exact */
    ck_assert_int_eq(stayed, attended);
    ck_assert(came == 0 && loads == 6 && rowed == STREAMS * (4 + MORE));
    close_model();
}

/* What is measured or attended to here comes from here. */
TEST_N(outputs_of_the_host, 3)
{
    static const struct eval_how hows[] = {
        {.local_errors = true}, {.dense_last = 5}, {.dense_last = 5, .prefill_chunk = 32}};
    open_model();
    run_on(NULL, hows[_i], &cpu);
    run_on(&on, hows[_i], &dev);
    compare(&dev, &cpu);
    ck_assert(stayed == 0 && came == 2 * 5 && rowed > 0);
    ck_assert_int_eq(cpu.local_err > 0, _i == 0);
    close_model();
}

TEST(chunks_of_a_prefill_stay_there)
{
    open_model();
    run_on(NULL, (struct eval_how){.prefill_chunk = 32}, &cpu);
    run_on(&on, (struct eval_how){.prefill_chunk = 32}, &dev);
    compare(&dev, &cpu);
    ck_assert(stayed == attended && came == 0);
    close_model();
}

/* The method in decoded rows, and a device without room: rows are decoded here. */
TEST_N(rows_that_follow_here, 2)
{
    struct eval_how how = {.decode_method = _i == 0};
    no_room = _i;
    open_model();
    run_on(NULL, how, &cpu);
    run_on(&on, how, &dev);
    compare(&dev, &cpu);
    ck_assert(rowed == 0 && no_room == 0 && loads == 2 * 6);
    close_model();
}
