/*
 * text_capture.c - a language model's run over a prompt into a trace.
 */
#include "capture/capture.h"
#include "core/checkpoint.h"
#include "capture/columnsums.h"
#include "capture/llm_model.h"
#include "capture/tokenizer.h"
#include "capture/trace/trace_tools.h"
#include "core/clock.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/progress.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PROMPT ((size_t)1 << 30)
#define WINDOW 128 /* rows of the prompt stored before generated tokens */

struct text_run {
    const struct app *app;
    const struct capture_opts *o;
    struct llm_model model;
    struct trace_meta meta;
    struct trace_writer *writer;
    struct progress *progress;
    int32_t *tokens;   /* owned */
    int64_t n, prompt; /* n tokens, of which the prompt are the first; prompt 0: all */
    char prompt_id[HASH_TEXT_MAX], generated_by[64];
    bool *wanted; /* [layers], owned */
    int64_t n_wanted;
    int run_layers;
    struct head_select heads;
    struct row_sample rows;             /* rows.at owned; NULL: all rows */
    struct column_sums sums;            /* with --col-sums */
    float *nll;                         /* owned */
    const struct decoder_accel *device; /* NULL: the CPU */
    double device_seconds;              /* NAN on the CPU */
};

/* ---- the prompt ----------------------------------------------------------------------------- */

static int read_prompt(const char *path, struct buf *b, struct err *err)
{
    if (strcmp(path, "-") != 0)
        return buf_read_file(b, path, MAX_PROMPT, err);
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0)
        buf_put(b, block, n);
    if (ferror(stdin))
        return err_sys(err, ERR_IO, "standard input");
    return buf_check(b, "prompt", err);
}

static int encode_prompt(struct text_run *r, const struct buf *text, struct err *err)
{
    OWN(tokenizer_close) struct tokenizer *tok = NULL;
    bool has_bos = false;
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    int rc = 0;
    PASS_ON(tokenizer_open(r->o->model, &tok, err));
    rc = tokenizer_encode(tok, buf_str(text), text->len, &has_bos, &ids, &n, err);
    if (rc) {
        err_prefix(err, "%s", r->o->prompt);
        return rc;
    }
    bool want = r->o->bos == 1 || (r->o->bos == 0 && has_bos);
    int64_t skip = has_bos && !want, extra = want && !has_bos;
    PASS_ON(mem_alloc(&r->tokens, n + 1, sizeof *r->tokens, "tokens", err));
    if (extra)
        PASS_ON(llm_bos(r->o->model, &r->model.c, r->tokens, err));
    memcpy(r->tokens + extra, ids + skip, (size_t)(n - skip) * sizeof *ids);
    r->n = n - skip + extra;
    return rc;
}

/* Append the token ids of a text file. */
static int parse_tokens(struct text_run *r, const char *path, const struct buf *text,
                        struct err *err)
{
    const char *p = buf_str(text);
    char *end;
    int64_t cap = r->n, id;
    while (*(p += strspn(p, " \t\r\n,")) != '\0') {
        errno = 0;
        id = strtoll(p, &end, 10);
        if (end == p || errno || id < 0 || id > INT32_MAX)
            return err_set(err, ERR_INPUT, "%s: '%.20s' at byte %lld is not a token id", path, p,
                           (long long)(p - buf_str(text)));
        PASS_ON(mem_grow(&r->tokens, &cap, r->n + 1, sizeof *r->tokens, "tokens", err));
        r->tokens[r->n++] = (int32_t)id;
        p = end;
    }
    return 0;
}

static int load_tokens(struct text_run *r, struct err *err)
{
    const struct capture_opts *o = r->o;
    const char *path = o->tokens_file ? o->tokens_file : o->prompt;
    OWN(buf_free) struct buf text = {0};
    int rc = 0;
    if (!path)
        return err_set(err, ERR_USAGE, "capture: --prompt FILE is missing");
    if (o->tokens_file && o->prompt)
        return err_set(err, ERR_USAGE, "capture: give --prompt or --tokens-file, not both");
    PASS_ON(read_prompt(path, &text, err));
    hash_text(hash_bytes(buf_str(&text), text.len), r->prompt_id);
    if (o->tokens_file)
        PASS_ON(parse_tokens(r, path, &text, err));
    else
        PASS_ON(encode_prompt(r, &text, err));
    if (o->tokens != INT64_MIN && o->tokens > r->n)
        return err_set(err, ERR_USAGE, "%s has %lld tokens, --tokens asks for %lld", path,
                       (long long)r->n, (long long)o->tokens);
    if (o->tokens != INT64_MIN)
        r->n = o->tokens;
    rc = llm_check_tokens(&r->model.c, r->tokens, r->n, err);
    if (rc)
        err_prefix(err, "%s", path);
    return rc;
}

/* ---- what follows the prompt ---------------------------------------------------------------- */

static int check_generate(const struct capture_opts *o, struct err *err)
{
    const char *lone = o->continuation          ? "--continuation"
                       : o->window != INT64_MIN ? "--window"
                       : o->col_sums            ? "--col-sums"
                                                : NULL;
    if (o->generate < 1)
        return lone ? err_set(err, ERR_USAGE, "capture: %s is for --generate T", lone) : 0;
    if (o->rows || (o->maps != INT64_MIN && o->maps > 0))
        return err_set(
            err, ERR_USAGE,
            "capture: --generate stores the rows of the generated tokens and --window; %s "
            "is of other rows",
            o->rows ? "--rows" : "--maps");
    return 0;
}

/* Append a part of a text. */
static int encode_more(struct text_run *r, const struct buf *text, struct err *err)
{
    OWN(tokenizer_close) struct tokenizer *tok = NULL;
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0, cap = r->n;
    PASS_ON(tokenizer_open(r->o->model, &tok, err));
    PASS_ON(tokenizer_encode_plain(tok, buf_str(text), text->len, &ids, &n, err));
    PASS_ON(mem_grow(&r->tokens, &cap, r->n + n, sizeof *r->tokens, "tokens", err));
    memcpy(r->tokens + r->n, ids, (size_t)n * sizeof *ids);
    r->n += n;
    return 0;
}

/* The next tokens from a file. */
static int read_continuation(struct text_run *r, struct err *err)
{
    const char *path = r->o->continuation;
    OWN(buf_free) struct buf text = {0};
    char id[HASH_TEXT_MAX];
    int rc = 0;
    PASS_ON(read_prompt(path, &text, err));
    hash_text(hash_bytes(buf_str(&text), text.len), id);
    snprintf(r->generated_by, sizeof r->generated_by, "forced:%s", id);
    PASS_ON(r->o->tokens_file ? parse_tokens(r, path, &text, err) : encode_more(r, &text, err));
    if (r->n - r->prompt < r->o->generate)
        return err_set(err, ERR_USAGE, "%s has %lld tokens, --generate asks for %lld", path,
                       (long long)(r->n - r->prompt), (long long)r->o->generate);
    r->n = r->prompt + r->o->generate;
    if ((rc = llm_check_tokens(&r->model.c, r->tokens, r->n, err)) != 0)
        err_prefix(err, "%s", path);
    return rc;
}

static int generate(struct text_run *r, struct err *err)
{
    int64_t cap = r->n, made = 0, most = r->o->generate;
    PASS_ON(mem_grow(&r->tokens, &cap, r->n + most, sizeof *r->tokens, "tokens", err));
    PASS_ON(r->app->continue_text(r->o->model, r->device, cmd_jobs(&r->o->c), r->tokens, r->n, most,
                                  r->tokens + r->n, &made, err));
    if (made == 0)
        return err_set(
            err, ERR_INPUT,
            "%s ends the text behind the prompt at once: --continuation FILE says what follows",
            r->o->model);
    if (made < most)
        log_info("the model ends the text after %lld tokens", (long long)made);
    r->n += made;
    snprintf(r->generated_by, sizeof r->generated_by, "greedy");
    return 0;
}

static int go_on(struct text_run *r, struct err *err)
{
    if (r->o->generate < 1)
        return 0;
    r->prompt = r->n;
    if (!r->o->c.dry_run)
        return r->o->continuation ? read_continuation(r, err) : generate(r, err);
    r->n += r->o->generate;
    return 0;
}

/* ---- the trace ------------------------------------------------------------------------------ */

static int sample_rows(struct text_run *r, struct err *err)
{
    struct trace_meta *m = &r->meta;
    int64_t groups;
    int32_t *at = NULL;
    if (r->o->maps != INT64_MIN && r->o->maps > 0)
        return err_set(err, ERR_USAGE,
                       "capture: --maps are of all rows, and --rows stores a sample");
    PASS_ON(row_sample_parse(r->o->rows, "capture: --rows", &groups, &m->row_group, err));
    PASS_ON(row_sample_draw(r->n, groups, m->row_group, (uint64_t)m->seed, &at, &m->n_q, err));
    r->rows = (struct row_sample){.at = at, .n = m->n_q, .group = m->row_group};
    m->pool = 0;
    return 0;
}

static int fill_meta(struct text_run *r, struct err *err)
{
    const struct llm_config *c = &r->model.c;
    struct trace_meta *m = &r->meta;
    int rc;
    checkpoint_name(r->o->model, m->name, sizeof m->name);
    snprintf(m->architecture, sizeof m->architecture, "%s", c->architecture);
    if (c->naming == NAMES_GGUF)
        checkpoint_types(r->model.file, m->weight_types, sizeof m->weight_types);
    if (r->n > c->max_positions)
        m->max_positions = c->max_positions;
    m->layers = c->layers;
    if ((rc = head_select_meta(&r->heads, m, err)) != 0)
        return rc;
    m->head_dim = m->v_dim = c->head_dim;
    m->scale = 1 / sqrt(c->head_dim);
    m->causal = m->positions_applied = true;
    snprintf(m->positions, sizeof m->positions, "rope");
    m->dtype = stored_type(r->o->dtype, c->dtype);
    snprintf(m->compute, sizeof m->compute, "%s", r->device ? r->device->arithmetic : "float32");
    if (!r->device)
        capture_computed_by(m->computed_by, sizeof m->computed_by);
    else if (!r->o->c.dry_run)
        r->device->computed_by(m->computed_by, sizeof m->computed_by);
    snprintf(m->source, sizeof m->source, "capture");
    snprintf(m->prompt_id, sizeof m->prompt_id, "%s", r->prompt_id);
    m->n_q = m->n_k = r->n;
    m->seed = r->o->c.seed;
    m->pool = r->o->maps == INT64_MIN ? map_cell_for(r->n) : r->o->maps;
    if (r->prompt) {
        m->pool = 0;
        m->decode_from = r->prompt;
        m->n_q -= r->prompt - MIN(r->prompt, r->o->window == INT64_MIN ? WINDOW : r->o->window);
        snprintf(m->generated_by, sizeof m->generated_by, "%s", r->generated_by);
    }
    if (r->o->rows && (rc = sample_rows(r, err)) != 0)
        return rc;
    return r->o->c.dry_run ? 0 : st_content_id(r->model.file, m->weights_id, err);
}

/* Layers to store, and how far to run. */
static int choose_layers(struct text_run *r, struct err *err)
{
    PASS_ON(
        capture_choose(r->o->layers, r->model.c.layers, "--layers", &r->wanted, &r->n_wanted, err));
    PASS_ON(head_select_parse(r->o->heads, r->model.c.heads, r->model.c.kv_heads, &r->heads, err));
    r->run_layers = r->model.c.layers;
    while (!r->o->nll && r->run_layers > 1 && !r->wanted[r->run_layers - 1])
        r->run_layers--;
    return 0;
}

static bool wants_layer(void *ctx, int layer)
{
    return ((struct text_run *)ctx)->wanted[layer];
}

static int begin_layer(void *ctx, int layer, struct err *err)
{
    struct text_run *r = ctx;
    struct trace_call call = {.layer = layer,
                              .branch = "main",
                              .timestep = NAN,
                              .sigma = NAN,
                              .order = layer,
                              .has_map = r->meta.pool > 0,
                              .has_col_sum = r->o->col_sums};
    int64_t window = llm_window(&r->model.c, layer);
    call.score.reach.back = window < r->n ? window : 0;
    return r->wanted[layer] ? trace_begin_call(r->writer, &call, err) : 0;
}

/* Those of the queries [t0, t0 + n) that the span has. */
static int put_span(struct text_run *r, struct row_span s, int64_t t0, int64_t n, const float *q,
                    struct err *err)
{
    int64_t d = r->model.c.head_dim, ld = d * r->model.c.heads;
    int64_t a = MAX(s.pos, t0), b = MIN(s.pos + s.rows, t0 + n);
    return a < b ? head_select_put(&r->heads, r->writer, TRACE_Q, s.first + a - s.pos, b - a,
                                   q + (a - t0) * ld, (int)d, err)
                 : 0;
}

static int put_queries(struct text_run *r, int64_t t0, int64_t n, const float *q, struct err *err)
{
    const struct trace_meta *m = &r->meta;
    if (!r->rows.at)
        return put_span(r, (struct row_span){0, m->n_q, m->n_k - m->n_q}, t0, n, q, err);
    for (int64_t g = 0; g < row_sample_groups(&r->rows); g++)
        PASS_ON(put_span(r, row_sample_span(&r->rows, g), t0, n, q, err));
    return 0;
}

static int put_rows(void *ctx, int layer, int64_t t0, int64_t n, const float *q, const float *k,
                    const float *v, struct err *err)
{
    struct text_run *r = ctx;
    int d = r->model.c.head_dim;
    char text[64];
    if (r->wanted[layer]) {
        PASS_ON(put_queries(r, t0, n, q, err));
        PASS_ON(head_select_put(&r->heads, r->writer, TRACE_K, t0, n, k, d, err));
        PASS_ON(head_select_put(&r->heads, r->writer, TRACE_V, t0, n, v, d, err));
        if (r->o->col_sums && t0 < r->prompt)
            PASS_ON(column_sums_add(&r->sums, t0, MIN(n, r->prompt - t0), q, k,
                                    llm_window(&r->model.c, layer), cmd_jobs(&r->o->c), err));
    }
    snprintf(text, sizeof text, "layer %d, token %lld", layer, (long long)(t0 + n));
    progress_add(r->progress, (double)n * (double)(2 * t0 + n), t0 + n == r->n, text);
    return 0;
}

static int end_layer(void *ctx, int layer, const struct attnmap *map, struct err *err)
{
    struct text_run *r = ctx;
    if (!r->wanted[layer])
        return 0;
    for (int i = 0; map && i < r->heads.n; i++) {
        int64_t at = r->heads.head[i] * map->cells_q * map->cells_k;
        PASS_ON(trace_put_map(r->writer, i, map->sum + at, map->max + at, err));
    }
    if (r->o->col_sums)
        PASS_ON(column_sums_put(&r->sums, r->writer, err));
    return trace_end_call(r->writer, err);
}

static int start_sums(struct text_run *r, struct err *err)
{
    const struct llm_config *c = &r->model.c;
    struct trace_shape keys = {c->kv_heads, r->prompt, c->head_dim, r->meta.dtype};
    return r->o->col_sums ? column_sums_init(&r->sums, &r->heads, keys, r->meta.scale, err) : 0;
}

static int run_model(struct text_run *r, struct err *err)
{
    struct llm_run run = {.tokens = r->tokens,
                          .n = r->n,
                          .layers = r->run_layers,
                          .pool = r->meta.pool,
                          .jobs = cmd_jobs(&r->o->c),
                          .device = r->device};
    struct llm_hooks hooks = {r, begin_layer, put_rows, end_layer, wants_layer, wants_layer};
    int rc = 0;
    if (r->device)
        run.device_seconds = &r->device_seconds;
    if (r->n > 1 && r->o->nll) {
        TRY(mem_alloc(&r->nll, r->n - 1, sizeof *r->nll, "likelihoods", err));
        run.nll = r->nll;
    }
    TRY(start_sums(r, err));
    TRY(trace_create(r->o->out, &r->meta, r->n_wanted, r->o->c.force, &r->writer, err));
    TRY(trace_put_run(r->writer, TRACE_TOKENS, r->n, r->tokens, err));
    if (r->rows.at)
        TRY(trace_put_run(r->writer, TRACE_ROWS, r->rows.n, r->rows.at, err));
    r->progress =
        progress_start("capture", (double)r->n * (double)r->n * r->run_layers, r->run_layers);
    TRY(llm_forward(&r->model, &run, &hooks, err));
    if (r->nll)
        TRY(trace_put_run(r->writer, TRACE_NLL, r->n - 1, r->nll, err));
    TRY(trace_commit(&r->writer, err));
out:
    progress_end(&r->progress);
    trace_abort(&r->writer);
    return rc;
}

static double estimate_seconds(const struct text_run *r)
{
    const struct llm_config *c = &r->model.c;
    double n = (double)r->n, qdim = (double)c->heads * c->head_dim;
    double weights = llm_active_weights(c);
    double attention = n * n * qdim * (r->meta.pool ? 3 : 2); /* causal: q k, p v, map's q k */
    double logits = r->o->nll ? 2 * n * (double)(c->vocab * c->hidden) : 0;
    if (r->device) /* not opened for a dry run */
        return NAN;
    double flop = r->run_layers * (2 * n * weights + attention) + logits;
    return flop / capture_rate(cmd_jobs(&r->o->c));
}

static int summarise(struct text_run *r, double seconds, struct err *err)
{
    struct capture_summary s = {r->o->out,
                                r->n,
                                r->n_wanted,
                                trace_size(&r->meta, r->n_wanted),
                                r->device ? llm_device_bytes(&r->model, r->n, r->meta.pool)
                                          : llm_forward_bytes(&r->model.c, r->n, 0, r->meta.pool),
                                seconds,
                                NAN,
                                r->device_seconds};
    if (r->nll) {
        double sum = 0;
        for (int64_t i = 0; i < r->n - 1; i++)
            sum += r->nll[i];
        s.nll = sum / (double)(r->n - 1);
    }
    return capture_print(r->o, &s, err);
}

static bool has_weights(const char *dir)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    char path[4096];
    if (checkpoint_is_gguf(dir))
        return true;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (access(path, F_OK) == 0)
            return true;
    }
    return false;
}

/* The model and the tokens. A dry run can do with config.json and --tokens: sizes and work follow
 * from the shape. */
static int open_run(struct text_run *r, struct err *err)
{
    const struct capture_opts *o = r->o;
    bool dry = o->c.dry_run, given = o->prompt || o->tokens_file;
    if (!dry || has_weights(o->model)) {
        PASS_ON(llm_open(o->model, &r->model, err));
    } else {
        PASS_ON(llm_config_read(o->model, &r->model.c, err));
        if (r->model.c.dtype == DT_NONE)
            r->model.c.dtype = DT_F32;
        log_info("%s has no weights: sizes follow from config.json alone", o->model);
    }
    if (!dry || given) {
        PASS_ON(load_tokens(r, err));
    } else {
        if (o->tokens == INT64_MIN)
            return err_set(err, ERR_USAGE,
                           "capture: --prompt FILE is missing (a dry run can do with --tokens N)");
        r->n = o->tokens;
    }
    PASS_ON(go_on(r, err));
    if (r->tokens && r->n > r->model.c.max_positions)
        log_warn("%lld tokens are beyond the model's %lld positions", (long long)r->n,
                 (long long)r->model.c.max_positions);
    return 0;
}

int text_capture(const struct app *app, const struct capture_opts *o, struct err *err)
{
    struct text_run r = {
        .app = app, .o = o, .device = o->device ? app->decoder : NULL, .device_seconds = NAN};
    double begin = clock_s();
    int rc = 0;
    TRY(check_generate(o, err));
    TRY(open_run(&r, err));
    TRY(choose_layers(&r, err));
    TRY(fill_meta(&r, err));
    if (o->c.dry_run) {
        TRY(summarise(&r, estimate_seconds(&r), err));
        goto out;
    }
    TRY(run_model(&r, err));
    TRY(summarise(&r, clock_s() - begin, err));
out:
    llm_close(&r.model);
    free(r.tokens);
    free((int32_t *)(uintptr_t)r.rows.at);
    free(r.wanted);
    column_sums_free(&r.sums);
    head_select_free(&r.heads);
    free(r.nll);
    return rc;
}
