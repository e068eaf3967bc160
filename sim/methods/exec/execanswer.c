/*
 * execanswer.c - see execanswer.h; doc/methods/exec.md describes the messages.
 */
#include "sim/methods/exec/execanswer.h"

#include "core/intmath.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 65536
#define ALIGN 64

/* ---- request -------------------------------------------------------------------------------- */

static int64_t aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Offsets of q, k, v in the shared memory, and its size. */
static void place(const struct attn_in *x, int64_t at[4])
{
    at[0] = 0;
    at[1] = aligned(x->nq * x->d * 4);
    at[2] = at[1] + aligned(x->nk * x->d * 4);
    at[3] = at[2] + aligned(x->nk * x->dv * 4);
}

static void put_array(struct jw *w, const char *name, int64_t at, int64_t rows, int64_t cols)
{
    jw_key(w, name);
    jw_arr(w);
    jw_int(w, at);
    jw_arr(w);
    jw_int(w, rows);
    jw_int(w, cols);
    jw_arr_end(w);
    jw_arr_end(w);
}

static void put_grid(struct jw *w, const struct geometry *g)
{
    jw_key(w, "grid");
    if (!g->t) {
        jw_null(w);
    } else {
        jw_arr(w);
        jw_int(w, g->t);
        jw_int(w, g->h);
        jw_int(w, g->w);
        jw_arr_end(w);
    }
    jw_kint(w, "text", g->text);
    jw_kstr(w, "text_place", g->text == 0 ? "none" : g->text_place == 1 ? "front" : "back");
}

/* What else bounds or changes the scores; null where the head has none. */
static void put_score(struct jw *w, const struct attn_in *x)
{
    const struct {
        const char *name;
        int64_t value, set;
    } parts[] = {{"window_left", (int64_t)x->reach.back - 1, x->reach.back},
                 {"window_right", (int64_t)x->reach.ahead - 1, x->reach.ahead},
                 {"chunk", x->reach.chunk, x->reach.chunk},
                 {"prefix", x->reach.prefix, x->reach.prefix}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        jw_key(w, parts[i].name);
        if (parts[i].set)
            jw_int(w, parts[i].value);
        else
            jw_null(w);
    }
    jw_key(w, "softcap");
    if (x->mods.softcap > 0)
        jw_num(w, x->mods.softcap);
    else
        jw_null(w);
}

/* Runs of sampled query rows, [position, rows]; null where q has all rows. */
static void put_rows(struct jw *w, const struct row_sample *s)
{
    jw_key(w, "rows");
    if (!s) {
        jw_null(w);
        return;
    }
    jw_arr(w);
    for (int64_t g = 0; g < row_sample_groups(s); g++) {
        struct row_span span = row_sample_span(s, g);
        jw_arr(w);
        jw_int(w, span.pos);
        jw_int(w, span.rows);
        jw_arr_end(w);
    }
    jw_arr_end(w);
}

static void put_request(struct jw *w, int64_t cell, const struct head_in *in, uint64_t seed,
                        const char *params, const int64_t at[4])
{
    const struct attn_in *x = &in->x;
    jw_obj(w);
    jw_kint(w, "lacuna", 1);
    jw_kint(w, "cell", cell);
    jw_kint(w, "nq", x->nq);
    jw_kint(w, "nk", x->nk);
    jw_kint(w, "d", x->d);
    jw_kint(w, "dv", x->dv);
    jw_knum(w, "scale", x->scale);
    jw_kbool(w, "causal", x->causal);
    jw_kint(w, "layer", in->layer);
    jw_kint(w, "head", in->head);
    jw_kint(w, "kv_head", in->kv_head);
    jw_kint(w, "step", in->step);
    jw_kint(w, "n_steps", in->n_steps);
    jw_kstr(w, "branch", in->branch);
    put_grid(w, &in->geom);
    put_score(w, x);
    put_rows(w, in->rows);
    jw_kint(w, "seed", (int64_t)seed);
    jw_kstr(w, "params", params);
    jw_key(w, "arrays");
    jw_obj(w);
    put_array(w, "q", at[0], x->nq, x->d);
    put_array(w, "k", at[1], x->nk, x->d);
    put_array(w, "v", at[2], x->nk, x->dv);
    jw_obj_end(w);
    jw_obj_end(w);
}

int exec_ask(struct execproc *p, int64_t cell, const struct head_in *in, uint64_t seed,
             const char *params, struct err *err)
{
    const struct attn_in *x = &in->x;
    int64_t at[4];
    struct buf line = {0};
    struct jw w;
    void *memory;
    int rc = 0;

    place(x, at);
    TRY(execproc_memory(p, at[3], &memory, err));
    memcpy((char *)memory + at[0], x->q, (size_t)(x->nq * x->d) * sizeof *x->q);
    memcpy((char *)memory + at[1], x->k, (size_t)(x->nk * x->d) * sizeof *x->k);
    memcpy((char *)memory + at[2], x->v, (size_t)(x->nk * x->dv) * sizeof *x->v);
    jw_init(&w, &line, 0);
    put_request(&w, cell, in, seed, params, at);
    buf_puts(&line, "\n");
    TRY(buf_check(&line, "request to a program", err));
    TRY(execproc_write(p, line.data, line.len, err));
out:
    buf_free(&line);
    return rc;
}

/* ---- answer --------------------------------------------------------------------------------- */

/* bq and bk of the answer; 1 where they are absent and `optional`. */
static int get_unit(const json_t *o, bool optional, int64_t *bq, int64_t *bk, struct err *err)
{
    int rc = 0;
    *bq = *bk = 1;
    TRY(optional ? jget_int_opt(o, "bq", "answer", bq, err) : jget_int(o, "bq", "answer", bq, err));
    TRY(optional ? jget_int_opt(o, "bk", "answer", bk, err) : jget_int(o, "bk", "answer", bk, err));
    if (*bq < 1 || *bk < 1 || *bq > 1 << 20 || *bk > 1 << 20)
        FAIL(err, ERR_RUN, "the answer has units of %lld x %lld, expected 1..1048576",
             (long long)*bq, (long long)*bk);
out:
    return rc;
}

static int read_lists(struct execproc *p, const json_t *o, const struct head_in *in,
                      struct given *g, struct err *err)
{
    int64_t bq, bk, n, *ptr = NULL, most = 0;
    int32_t *col = NULL;
    int rc = 0;

    TRY(get_unit(o, false, &bq, &bk, err));
    TRY(jget_int(o, "nnz", "answer", &n, err));
    TRY(given_init(g, &in->x, bq, bk, err));
    int64_t groups = g->whole.ngroups, units = ceil_div(in->x.nk, bk);
    if (!mul_ok(groups, units, &most) || n < 0 || n > most)
        FAIL(err, ERR_RUN, "the answer lists %lld units, expected 0..%lld (%lld groups of %lld)",
             (long long)n, (long long)most, (long long)groups, (long long)units);
    TRY(mem_alloc(&ptr, groups + 1, sizeof *ptr, "row pointers", err));
    TRY(mem_alloc(&col, n, sizeof *col, "columns", err));
    TRY(execproc_read(p, ptr, (groups + 1) * (int64_t)sizeof *ptr, err));
    TRY(execproc_read(p, col, n * (int64_t)sizeof *col, err));
    rc = given_lists(g, ptr, col, n, err);
    ptr = NULL;
    col = NULL;
out:
    free(ptr);
    free(col);
    return rc;
}

static int bit_row(void *ctx, int64_t g, uint8_t *keep, struct err *err)
{
    const struct exec_bits *b = ctx;
    const uint8_t *row = b->bits + g * b->width;
    for (int64_t c = 0; c < b->units; c++)
        keep[c] = row[c / 8] >> (c % 8) & 1;
    return 0;
}

static int read_bits(struct execproc *p, const json_t *o, const struct head_in *in, struct given *g,
                     struct exec_bits *b, struct err *err)
{
    int64_t bq, bk;
    int rc = 0;

    TRY(get_unit(o, true, &bq, &bk, err));
    TRY(given_init(g, &in->x, bq, bk, err));
    int64_t groups = g->whole.ngroups;
    b->units = ceil_div(in->x.nk, bk);
    b->width = ceil_div(b->units, 8);
    TRY(mem_alloc(&b->bits, groups * b->width, 1, "bitmap", err));
    TRY(execproc_read(p, b->bits, groups * b->width, err));
    for (int64_t r = 0; b->units % 8 && r < groups; r++)
        if (b->bits[(r + 1) * b->width - 1] >> (b->units % 8))
            FAIL(err, ERR_RUN, "row %lld of the bitmap has bits behind its last unit, %lld",
                 (long long)r, (long long)b->units - 1);
    g->row = bit_row;
    g->ctx = b;
out:
    return rc;
}

static int take_answer(struct execproc *p, const json_t *o, int64_t cell, const struct head_in *in,
                       struct method_ctx *ctx, struct given *g, struct exec_bits *bits,
                       bool *orderly, struct err *err)
{
    const char *skip = NULL, *error = NULL, *form = NULL;
    int64_t of = cell;
    int rc = 0;

    TRY(jget_int_opt(o, "cell", "answer", &of, err));
    TRY(jget_str_opt(o, "skip", "answer", &skip, err));
    TRY(jget_str_opt(o, "error", "answer", &error, err));
    *orderly = error && of == cell;
    if (of != cell)
        FAIL(err, ERR_RUN, "the answer is of cell %lld, asked was %lld", (long long)of,
             (long long)cell);
    if (error)
        FAIL(err, ERR_RUN, "the program says: %s", error);
    if (skip)
        return method_skip(ctx, "%s", skip[0] ? skip : "the program gives no reason");
    TRY(jget_str(o, "form", "answer", &form, err));
    if (strcmp(form, "lists") == 0)
        return read_lists(p, o, in, g, err);
    if (strcmp(form, "bits") == 0)
        return read_bits(p, o, in, g, bits, err);
    rc = err_set(err, ERR_RUN, "the answer has form '%s', expected lists or bits", form);
out:
    return rc;
}

int exec_answer(struct execproc *p, int64_t cell, const struct head_in *in, struct method_ctx *ctx,
                struct given *g, struct exec_bits *bits, bool *orderly, struct err *err)
{
    char *line = NULL;
    json_t *o = NULL;
    int rc = 0;

    *orderly = false;
    TRY(mem_alloc(&line, LINE_MAX_BYTES, 1, "answer of a program", err));
    TRY(execproc_line(p, line, LINE_MAX_BYTES, err));
    TRY(json_read_text(line, strlen(line), "first line of the answer", &o, err));
    if (!json_is_object(o))
        FAIL(err, ERR_RUN, "the first line of the answer is not a JSON object: %.80s", line);
    rc = take_answer(p, o, cell, in, ctx, g, bits, orderly, err);
out:
    json_decref(o);
    free(line);
    return rc;
}
