/* Traces of a decode phase (format 1.2): written, read, packed, cut; what contradicts itself is
 * refused; which rows they hold; and captures of what a model generates. */
#include "tests/harness/suite.h"
#include "capture/llm_model.h"
#include "capture/trace/trace_tools.h"
#include "core/h5util.h"
#include "sim/headload.h"
#include "tests/harness/capturerun.h"
#include "tests/harness/trace_fixture.h"

#include <stdio.h>
#include <string.h>

static int64_t minor_of(const char *path)
{
    int64_t minor = -1;
    h5_lock();
    hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    MUST(h5_get_i64(f, "version_minor", &minor, ERR));
    H5Fclose(f);
    h5_unlock();
    return minor;
}

TEST(a_decode_phase_is_written_and_read)
{
    struct trace_meta m = fixture_decode(DT_BF16);
    OWN(trace_close) struct trace *t = NULL;
    OWN(trace_close) struct trace *packed = NULL;
    const char *path = test_path("d.h5"), *zip = test_path("z.h5");
    float sums[30];
    int64_t bad = -1;
    MUST(fixture_write(path, &m, 2, ERR));
    ck_assert_int_eq(minor_of(path), 2);
    MUST(trace_open(path, &t, ERR));
    ck_assert_int_eq(trace_meta(t)->question_from, 25);
    ck_assert_str_eq(trace_meta(t)->generated_by, "greedy");
    struct trace_decode d = trace_decode(trace_meta(t));
    ck_assert_int_eq(d.from, 30);
    ck_assert_int_eq(d.window, 6);
    ck_assert_int_eq(d.steps, 10);
    ck_assert(trace_call(t, 1)->has_col_sum);
    MUST(trace_read_values(t, 1, TRACE_COL_SUM, 3, sums, ERR));
    ck_assert_float_eq(sums[0], 90 / 8.F);
    ck_assert_float_eq(sums[29], 119 / 8.F);
    int64_t pairs = 0;
    for (int64_t p = 24; p < 40; p++)
        pairs += p + 1;
    ck_assert_int_eq(trace_call_pairs(t, 0), pairs);
    MUST(trace_verify(t, 1, NULL, NULL, &bad, ERR));
    ck_assert_int_eq(bad, 0);
    MUST(trace_pack(t, zip, TRACE_ZSTD, 1, true, ERR));
    MUST(trace_open(zip, &packed, ERR));
    ck_assert_str_eq(trace_id(packed), trace_id(t));
    ck_assert_int_eq(minor_of(zip), 2);
}

/* A head of it is the last rows of the sequence, at their positions. */
TEST(a_head_holds_the_last_rows)
{
    struct trace_meta m = fixture_decode(DT_F32);
    struct head_load how = {.precision = PREC_F64};
    struct trace *t = NULL;
    OWN(sim_head_free) struct sim_head h;
    MUST(fixture_write(test_path("d.h5"), &m, 1, ERR));
    MUST(trace_open(test_path("d.h5"), &t, ERR));
    MUST(head_load(t, 0, 2, &how, &h, ERR));
    ck_assert_ptr_null(h.in.rows);
    ck_assert_int_eq(h.in.x.nq, 16);
    ck_assert_int_eq(h.in.x.nk, 40);
    ck_assert_int_eq(attn_limit(&h.in.x, 6), 31); /* step 0 sees the prompt and itself */
    FAILS(traces_prefill(&t, 1, ERR), ERR_INPUT, "the last 6 of 30 tokens");
    trace_close(&t);

    m.n_q = 40; /* with all queries it is a prefill as well */
    MUST(fixture_write(test_path("d.h5"), &m, 1, ERR));
    MUST(trace_open(test_path("d.h5"), &t, ERR));
    MUST(traces_prefill(&t, 1, ERR));
    trace_close(&t);
}

/* An id covers what the decode phase says, and other traces have neither the words nor the version.
 */
TEST(the_content_id_covers_it)
{
    struct trace_meta m = fixture_decode(DT_F32);
    char seen[4][64];
    for (int i = 0; i < 4; i++) {
        OWN(trace_close) struct trace *t = NULL;
        m.decode_from = i == 1 ? 29 : 30;
        m.question_from = i == 2 ? 0 : 25;
        strcpy(m.generated_by, i == 3 ? "" : "greedy");
        MUST(fixture_write(test_path("d.h5"), &m, 0, ERR));
        MUST(trace_open(test_path("d.h5"), &t, ERR));
        snprintf(seen[i], sizeof seen[i], "%s", trace_id(t));
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(seen[i], seen[j]);
    }
    m = fixture_text(DT_F32, 2, 1, 20);
    MUST(fixture_write(test_path("t.h5"), &m, 1, ERR));
    ck_assert_int_eq(minor_of(test_path("t.h5")), 0);
}

TEST(what_is_no_decode_phase_is_refused)
{
    const struct {
        const char *text;
        int64_t n_q, from, question, group;
        bool bidirectional;
    } wrong[] = {
        {"at least 1", 16, 40, 0, 0, false},
        {"at least 1", 9, 30, 0, 0, false},
        {"question_from = 30", 16, 30, 30, 0, false},
        {"generated_by without", 16, 0, 0, 0, false},
        {"question_from without", 16, 0, 5, 0, false},
        {"is not within", 16, -1, 0, 0, false},
        {"sample", 16, 30, 0, 128, false},
        {"causal", 16, 30, 0, 0, true},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct trace_meta m = fixture_decode(DT_F32);
        m.n_q = wrong[i].n_q;
        m.decode_from = wrong[i].from;
        m.question_from = wrong[i].question;
        m.row_group = wrong[i].group;
        m.causal = !wrong[i].bidirectional;
        FAILS(fixture_write(test_path("d.h5"), &m, 1, ERR), ERR_USAGE, wrong[i].text);
    }

    struct trace_meta m = fixture_text(DT_F32, 2, 1, 20);
    struct trace_call c = fixture_call(&m, 0);
    struct trace_writer *w = NULL;
    MUST(trace_create(test_path("d.h5"), &m, 1, true, &w, ERR));
    c.has_col_sum = true;
    FAILS(trace_begin_call(w, &c, ERR), ERR_USAGE, "col_sum without decode_from");
    trace_abort(&w);
}

/* ---- extra operands ------------------------------------------------------------------------- */

extern const struct command cmd_import;

/* A call of the fixture with operands of an indexer, of a gate, and q and k before the rotation. */
static void with_aux(const struct trace_meta *m, struct trace_call *c)
{
    *c = fixture_call(m, 0);
    c->has_out = c->has_lse = c->has_col_sum = false;
    c->aux[AUX_Q_PRE] = (struct aux_shape){m->heads, m->n_q, m->head_dim};
    c->aux[AUX_K_PRE] = (struct aux_shape){m->kv_heads, m->n_k, m->head_dim};
    c->aux[AUX_IQ] = (struct aux_shape){3, m->n_q, 5};
    c->aux[AUX_IK] = (struct aux_shape){1, m->n_k, 5};
    c->aux[AUX_IW] = (struct aux_shape){3, m->n_q, 1};
    c->aux[AUX_GATE_K] = (struct aux_shape){2, 4, 6};
}

static float aux_value(int i, int64_t head, int64_t row, int64_t c)
{
    return (float)(i * 100000 + head * 10000 + row * 100 + c);
}

static void write_aux(const char *path, const struct trace_meta *m)
{
    struct trace_writer *w = NULL;
    struct trace_call c;
    with_aux(m, &c);
    MUST(trace_create(path, m, 1, true, &w, ERR));
    MUST(trace_begin_call(w, &c, ERR));
    for (int what = 0; what <= TRACE_V; what++) {
        struct trace_shape s = trace_shape(m, (enum trace_what)what);
        float x[4 * 40 * 8] = {0};
        MUST(trace_put(w, (enum trace_what)what, 0, s.tokens, x, s.heads * s.dim, ERR));
    }
    for (int i = 0; i < AUX_COUNT; i++) {
        const struct aux_shape *a = &c.aux[i];
        float x[4 * 40 * 8], *at = x;
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t r = 0; r < a->rows; r++)
                for (int64_t e = 0; e < a->dim; e++)
                    *at++ = aux_value(i, h, r, e);
        if (a->heads)
            MUST(trace_put_values(w, TRACE_AUX + i, x, ERR));
    }
    MUST(trace_end_call(w, ERR));
    MUST(trace_commit(&w, ERR));
}

/* Head `head` of an operand is head `from` of what was written, from row `skip` on. */
static void holds_aux(const struct trace *t, int i, int head, int64_t from, int64_t skip)
{
    const struct aux_shape *a = &trace_call(t, 0)->aux[i];
    float x[40 * 8];
    MUST(trace_read_values(t, 0, TRACE_AUX + i, head, x, ERR));
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t e = 0; e < a->dim; e++)
            ck_assert_float_eq(x[r * a->dim + e], aux_value(i, from, skip + r, e));
}

TEST(extra_operands_are_kept)
{
    struct trace_meta m = fixture_decode(DT_BF16);
    OWN(trace_close) struct trace *t = NULL;
    OWN(trace_close) struct trace *packed = NULL;
    OWN(trace_close) struct trace *part = NULL;
    struct derive_options o = {
        .layers = "all", .heads = "3", .steps = "2:7", .branch = "", .jobs = 1};
    struct derived made;
    int64_t bad = -1;
    write_aux(test_path("aux.h5"), &m);
    MUST(trace_open(test_path("aux.h5"), &t, ERR));
    for (int i = 0; i < AUX_COUNT; i++)
        for (int h = 0; h < trace_call(t, 0)->aux[i].heads; h++)
            holds_aux(t, i, h, h, 0);
    MUST(trace_verify(t, 1, NULL, NULL, &bad, ERR));
    ck_assert_int_eq(bad, 0);
    MUST(trace_pack(t, test_path("auxz.h5"), TRACE_ZSTD, 1, true, ERR));
    MUST(trace_open(test_path("auxz.h5"), &packed, ERR));
    ck_assert_str_eq(trace_id(packed), trace_id(t));

    /* Out to tensors and back: another source, and the same operands. */
    OWN(trace_close) struct trace *again = NULL;
    struct trace_selection all = {
        .layers = "all", .heads = "all", .steps = "all", .tensors = "q,k,v"};
    char in[] = "--safetensors", to_file[] = "-o", quiet[] = "-q",
         *argv[] = {in, NULL, to_file, NULL, quiet};
    struct app app = {0};
    char from[300], to[300];
    int64_t n, bytes;
    snprintf(from, sizeof from, "%s", test_path("aux.safetensors"));
    snprintf(to, sizeof to, "%s", test_path("auxi.h5"));
    argv[1] = from;
    argv[3] = to;
    MUST(trace_export(t, &all, from, false, false, &n, &bytes, ERR));
    MUST(cmd_run(&cmd_import, &app, 5, argv, ERR));
    MUST(trace_open(to, &again, ERR));
    for (int i = 0; i < AUX_COUNT; i++) {
        ck_assert_int_eq(trace_call(again, 0)->aux[i].heads, trace_call(t, 0)->aux[i].heads);
        for (int h = 0; h < trace_call(t, 0)->aux[i].heads; h++)
            holds_aux(again, i, h, h, 0);
    }

    /* Of one head and some steps: heads and rows as of q and k; an indexer is the layer's. */
    MUST(trace_derive(&t, 1, &o, test_path("auxp.h5"), &made, ERR));
    MUST(trace_open(test_path("auxp.h5"), &part, ERR));
    holds_aux(part, AUX_Q_PRE, 0, 3, 2);
    holds_aux(part, AUX_K_PRE, 0, 1, 0);
    holds_aux(part, AUX_IQ, 2, 2, 2);
    holds_aux(part, AUX_IK, 0, 0, 0);
    ck_assert_int_eq(trace_call(part, 0)->aux[AUX_IK].rows, 37);
    ck_assert_int_eq(trace_call(part, 0)->aux[AUX_IW].rows, 11);
    ck_assert_int_eq(trace_call(part, 0)->aux[AUX_GATE_K].heads, 0); /* blocks of other tokens */

    struct trace_meta prefill = fixture_text(DT_F32, 2, 1, 12);
    write_aux(test_path("p.h5"), &prefill);
    ck_assert_int_eq(minor_of(test_path("p.h5")), 2);
}

TEST(operands_that_do_not_fit_are_refused)
{
    struct trace_meta m = fixture_decode(DT_F32);
    struct trace_writer *w = NULL;
    struct trace_call c;
    const struct {
        enum trace_aux i;
        struct aux_shape shape;
    } wrong[] = {{AUX_Q_PRE, {3, 16, 8}}, {AUX_K_PRE, {2, 16, 8}}, {AUX_IQ, {3, 17, 5}},
                 {AUX_IK, {1, 16, 5}},    {AUX_IW, {-1, 16, 1}},   {AUX_GATE_Q, {1, 0, 4}}};

    MUST(trace_create(test_path("x.h5"), &m, 1, true, &w, ERR));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        with_aux(&m, &c);
        c.aux[wrong[i].i] = wrong[i].shape;
        FAILS(trace_begin_call(w, &c, ERR), ERR_USAGE, "does not fit the 16 queries and 40 keys");
    }
    trace_abort(&w);

    /* A name that this build does not know. */
    OWN(trace_close) struct trace *t = NULL;
    write_aux(test_path("auxu.h5"), &m);
    h5_lock();
    hid_t f = H5Fopen(test_path("auxu.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t g = H5Gopen2(f, "/calls/step-000/main/layer-00/aux", H5P_DEFAULT);
    float one = 1;
    MUST(h5_put_array(g, "iz", DT_F32, 1, (const int64_t[]){1}, &one, ERR));
    H5Gclose(g);
    H5Fclose(f);
    h5_unlock();
    FAILS(trace_open(test_path("auxu.h5"), &t, ERR), ERR_INPUT, "'iz' is not known");
}

/* ---- captures ------------------------------------------------------------------------------- */

#define MODEL "datasets/models/code-lm"
#define PROMPT "--prompt LICENSE --tokens 70 --layers 1,4 --heads 0,5-7 -j 2 "

enum { P = 70, T = 9, W = 12, HEADS = 4, KV = 4, D = 64 };

static struct trace *captured(const char *name, const char *args)
{
    MUST(capture_run(MODEL, test_path(name), PROMPT, args, ERR));
    return open_trace(test_path(name));
}

static int32_t *tokens_of(const struct trace *t, int64_t n)
{
    int32_t *ids = NULL;
    int64_t have = 0;
    MUST(trace_read_run(t, TRACE_TOKENS, &ids, &have, ERR));
    ck_assert_int_eq(have, n);
    return ids;
}

static void write_ids(const char *path, const int32_t *ids, int64_t n)
{
    FILE *f = fopen(path, "w");
    for (int64_t i = 0; i < n; i++)
        fprintf(f, "%d ", (int)ids[i]);
    fclose(f);
}

/* A head's rows [from, from + n) of a tensor, in its own bits. */
static void read_bits(const struct trace *t, enum trace_what what, int head, int64_t from,
                      int64_t n, uint16_t *x)
{
    MUST(trace_read_raw(t, 1, what, head, from, n, x, ERR));
}

/* Query `row` of `a` is query `row + by` of b, and keys are the same. */
static void same_rows(const struct trace *a, const struct trace *b, int64_t by)
{
    static uint16_t x[(P + T) * D], y[(P + T) * D];
    const struct trace_meta *m = trace_meta(a);
    for (int h = 0; h < HEADS; h++) {
        read_bits(a, TRACE_Q, h, 0, m->n_q, x);
        read_bits(b, TRACE_Q, h, by, m->n_q, y);
        ck_assert_mem_eq(x, y, (size_t)(m->n_q * D) * sizeof *x);
        for (int what = TRACE_K; what <= TRACE_V; what++) {
            read_bits(a, (enum trace_what)what, h, 0, m->n_k, x);
            read_bits(b, (enum trace_what)what, h, 0, m->n_k, y);
            ck_assert_mem_eq(x, y, (size_t)(m->n_k * D) * sizeof *x);
        }
    }
}

/* Sums of columns by their definition, from all queries of a full capture. */
static void sums_by_definition(const struct trace *full, int head, double *sum)
{
    static float q[P * D], k[P * D];
    MUST(trace_read(full, 1, TRACE_Q, head, 0, P, q, ERR));
    MUST(trace_read(full, 1, TRACE_K, head, 0, P, k, ERR));
    memset(sum, 0, P * sizeof *sum);
    for (int i = 0; i < P; i++) {
        double s[P], z = 0;
        for (int j = 0; j <= i; j++) {
            s[j] = 0;
            for (int c = 0; c < D; c++)
                s[j] += (double)q[i * D + c] * k[j * D + c];
            z += s[j] = exp(s[j] / 8);
        }
        for (int j = 0; j <= i; j++)
            sum[j] += s[j] / z;
    }
}

/* The tokens are the likeliest ones, and the trace is a part of one of the whole text. */
TEST(generated_tokens_are_captured)
{
    OWN(trace_close) struct trace *t = captured("g.h5", "--generate 9 --window 12 --col-sums");
    OWN(trace_close) struct trace *full = NULL;
    OWN(trace_close) struct trace *forced = NULL;
    struct trace_decode d = trace_decode(trace_meta(t));
    OWN(free_at) int32_t *ids = tokens_of(t, P + T);
    char args[400];
    double sum[P];
    float have[P];
    ck_assert_int_eq(d.from, P);
    ck_assert_int_eq(d.window, W);
    ck_assert_int_eq(d.steps, T);
    ck_assert_str_eq(trace_meta(t)->generated_by, "greedy");

    struct llm_model m;
    MUST(llm_open(MODEL, &m, ERR));
    for (int i = P; i < P + T; i += 4) {
        float logits[8192];
        ck_assert_int_le(m.c.vocab, 8192);
        struct llm_run run = {.tokens = ids, .n = i, .jobs = 1, .last_logits = logits};
        MUST(llm_forward(&m, &run, NULL, ERR));
        for (int64_t v = 0; v < m.c.vocab; v++)
            ck_assert_float_le(logits[v], logits[ids[i]]);
    }
    llm_close(&m);

    write_ids(test_path("ids"), ids, P + T);
    write_ids(test_path("next"), ids + P, T);
    snprintf(args, sizeof args, "--tokens-file %s --layers 1,4 --heads 0,5-7 --maps 0",
             test_path("ids"));
    MUST(capture_run(MODEL, test_path("full.h5"), "", args, ERR));
    full = open_trace(test_path("full.h5"));
    same_rows(t, full, P - W);
    for (int h = 0; h < HEADS; h++) {
        sums_by_definition(full, h, sum);
        MUST(trace_read_values(t, 1, TRACE_COL_SUM, h, have, ERR));
        for (int j = 0; j < P; j++)
            ck_assert_double_le(fabs(have[j] - sum[j]), 1e-6 * sum[j]);
    }

    snprintf(args, sizeof args,
             "--tokens-file %s --tokens %d --generate %d --continuation %s --layers 1,4 --heads "
             "0,5-7",
             test_path("ids"), P, T, test_path("next"));
    MUST(capture_run(MODEL, test_path("forced.h5"), "", args, ERR));
    forced = open_trace(test_path("forced.h5"));
    same_rows(forced, full, 0); /* the prompt is shorter than the window */
    ck_assert_int_eq(strncmp(trace_meta(forced)->generated_by, "forced:xxh3:", 12), 0);
}

static struct trace *subset(struct trace *t, const char *name, const char *steps, int64_t tokens)
{
    struct derive_options o = {
        .layers = "all", .heads = "all", .steps = steps, .branch = "", .jobs = 1, .tokens = tokens};
    struct derived made;
    MUST(trace_derive(&t, 1, &o, test_path(name), &made, ERR));
    return open_trace(test_path(name));
}

/* Steps of it are a decode phase behind a longer prompt; the prompt alone is a prefill. */
TEST(steps_are_cut_out)
{
    OWN(trace_close) struct trace *t = captured("s.h5", "--generate 9 --window 70 --col-sums");
    OWN(trace_close) struct trace *first = subset(t, "a.h5", "0:4", 0);
    OWN(trace_close) struct trace *last = subset(t, "b.h5", "4:9", 0);
    OWN(trace_close) struct trace *prompt = subset(t, "c.h5", "all", P);
    struct derive_options wrong = {.layers = "all", .heads = "all", .steps = "4:10", .branch = ""};
    struct derived made;
    int64_t bad = -1, rows;

    struct trace_decode d = trace_decode(trace_meta(first));
    ck_assert_int_eq(d.from, P);
    ck_assert_int_eq(d.window, P);
    ck_assert_int_eq(d.steps, 4);
    same_rows(first, t, 0);
    MUST(trace_check_attention(first, 1, 1, NULL, NULL, &bad, &rows, ERR));
    ck_assert_int_eq(bad, 0); /* its sums of columns are right */
    d = trace_decode(trace_meta(last));
    ck_assert_int_eq(d.from, P + 4);
    ck_assert_int_eq(d.window, P);
    ck_assert_int_eq(d.steps, 5);
    ck_assert(!trace_call(last, 0)->has_col_sum);
    same_rows(last, t, 4);
    ck_assert_int_eq(trace_meta(prompt)->decode_from, 0);
    same_rows(prompt, t, 0);
    FAILS(trace_derive(&t, 1, &wrong, test_path("x.h5"), &made, ERR), ERR_USAGE, "as in 0:9");
}

static void count_bad(void *ctx, const char *object, int head, const char *what)
{
    ck_assert(strstr(what, "col_sum of key 0 is") != NULL);
    ++*(int *)ctx;
}

/* The fixture's sums are no sums; of a window alone nobody knows. */
TEST(wrong_sums_are_found)
{
    struct trace_meta m = fixture_decode(DT_F32);
    int64_t bad = -1, rows;
    int seen = 0;
    for (int all = 0; all < 2; all++) {
        OWN(trace_close) struct trace *t = NULL;
        struct trace_writer *w = NULL;
        struct trace_call c = fixture_call(&m, 0);
        m.n_q = all ? m.n_k : 16;
        MUST(trace_create(test_path("w.h5"), &m, 1, true, &w, ERR));
        c.has_out = c.has_lse = false;
        MUST(trace_begin_call(w, &c, ERR));
        for (int what = 0; what <= TRACE_V; what++) {
            struct trace_shape s = trace_shape(&m, (enum trace_what)what);
            float x[4 * 40 * 8] = {0};
            MUST(trace_put(w, (enum trace_what)what, 0, s.tokens, x, s.heads * s.dim, ERR));
        }
        float none[4 * 30] = {0};
        MUST(trace_put_values(w, TRACE_COL_SUM, none, ERR));
        MUST(trace_end_call(w, ERR));
        MUST(trace_commit(&w, ERR));
        MUST(trace_open(test_path("w.h5"), &t, ERR));
        MUST(trace_check_attention(t, 1, 1, count_bad, &seen, &bad, &rows, ERR));
        ck_assert_int_eq(bad, all ? 4 : 0);
        ck_assert_int_eq(seen, bad);
    }
}

TEST(options_of_generate)
{
    static const struct {
        const char *args, *text;
    } wrong[] = {
        {"--window 4", "--window is for --generate"},
        {"--col-sums", "--col-sums is for --generate"},
        {"--continuation LICENSE", "--continuation is for --generate"},
        {"--generate 4 --rows 4", "--rows is of other rows"},
        {"--generate 4 --maps 64", "--maps is of other rows"},
        {"--generate 100000 --continuation LICENSE", "--generate asks for 100000"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        FAILS(capture_run(MODEL, test_path("x.h5"), PROMPT, wrong[i].args, ERR), ERR_USAGE,
              wrong[i].text);
}
