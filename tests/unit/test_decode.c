/* Rows behind a prompt, from the cache, against the same rows of a longer prefill; greedy
 * generation; ids of prompts with a chat text and of answers. */
#include "core/mem.h"
#include "eval/decode.h"
#include "eval/evaltask.h"
#include "eval/likelihood.h"
#include "sim/registry.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "datasets/models/code-lm"

enum { N = 90, MORE = 12 };

static struct err err;
static struct eval_model m;
static struct id_list ids;

static void open_model(void)
{
    static const char text[] =
        "static int sum(const int *x, int n)\n{\n\tint s = 0;\n\n\tfor (int i = 0; i < n; i++)\n"
        "\t\ts += x[i];\n\treturn s;\n}\n\nstatic int mean(const int *x, int n)\n{\n\treturn n ? "
        "sum(x, n) / n : 0;\n}\n\nint main(int argc, char **argv)\n{\n\tint x[3] = {1, 2, 3};\n\n"
        "\tprintf(\"%d\\n\", mean(x, 3));\n\treturn 0;\n}\n";
    assert_ok(eval_model_open(&m, MODEL, 0, &err), &err);
    assert_ok(prompt_ids(&m, NULL, text, strlen(text), &ids, &err), &err);
    ck_assert_int_ge(ids.n, N + MORE);
}

static void close_model(void)
{
    id_list_free(&ids);
    eval_model_close(&m);
}
FIXTURE(open_model, close_model)

/* Stream 0 exact, stream 1 a band whose rows do not depend on what follows: with decoding by the
 * method its rows are those of the longer prefill. */
TEST(rows_from_the_cache)
{
    struct method_run *runs = NULL;
    int64_t n_runs = 0;
    struct layer_attn attn;
    struct eval_how how = {.decode_method = true, .round = DT_F32, .precision = PREC_F32};
    struct lockstep a, b;
    double nll[MORE];
    bool top1[MORE];
    assert_ok(method_runs_parse(sim_methods, "streaming:sink=2:window=9", &runs, &n_runs, &err),
              &err);
    assert_ok(mem_zalloc(&how.dense_head, 48, sizeof *how.dense_head, "heads", &err), &err);
    struct attn_shape shape = eval_model_shape(&m);
    assert_ok(layer_attn_init(&attn, runs, &how, &shape, "code-lm", 2, &err), &err);
    assert_ok(lockstep_open(&a, &m.llm, &attn, 1, N + MORE, true, DT_F32, 2, NULL, &err), &err);
    lockstep_reset(&a);
    assert_ok(lockstep_prefill(&a, ids.v, N, &err), &err);
    assert_ok(lockstep_open(&b, &m.llm, &attn, 1, N + MORE, true, DT_F32, 2, NULL, &err), &err);
    lockstep_reset(&b);
    struct scores s[2] = {{0}};
    assert_ok(lockstep_prefill(&b, ids.v, N + MORE, &err), &err);
    assert_ok(likelihood_add(&b, ids.v, N, s, &err), &err);
    for (int i = 0; i < 2; i++) {
        struct decode d;
        assert_ok(decode_open(&d, &a, i, &err), &err);
        for (int again = 0; again < 2; again++) { /* the second time over what the first left */
            decode_rewind(&d);
            assert_ok(decode_score(&d, ids.v + N, MORE, nll, top1, &err), &err);
            for (int k = 0; k < MORE; k++) {
                ck_assert_double_eq_tol(nll[k], s[i].v[k].nll, 2e-4);
                ck_assert_int_eq(top1[k], s[i].v[k].correct);
            }
        }
        /* One by one, and with the last id's logits. */
        decode_rewind(&d);
        for (int k = 0; k < MORE; k++) {
            ck_assert_double_eq_tol(logits_nll(d.logits, m.llm.c.vocab, ids.v[N + k], NULL), nll[k],
                                    2e-4);
            assert_ok(decode_push(&d, ids.v + N + k, 1, &err), &err);
        }
        decode_close(&d);
        scores_free(s + i);
    }
    lockstep_close(&a);
    lockstep_close(&b);
    layer_attn_free(&attn);
    free(how.dense_head);
    method_runs_free(runs, n_runs);
}

/* Generation is the likeliest id again and again, and ends in front of a stop string. */
TEST(greedy)
{
    OWN(lockstep_close) struct lockstep l;
    OWN(decode_close) struct decode d;
    OWN(str_list_free) struct str_list stop = {0};
    OWN(buf_free) struct buf text = {0}, want = {0};
    assert_ok(lockstep_open(&l, &m.llm, NULL, 0, N + 40, true, DT_F32, 2, NULL, &err), &err);
    lockstep_reset(&l);
    assert_ok(lockstep_prefill(&l, ids.v, N, &err), &err);
    assert_ok(decode_open(&d, &l, 0, &err), &err);
    int32_t got[20];
    for (int i = 0; i < 20; i++) {
        got[i] = decode_likeliest(&d);
        assert_ok(decode_push(&d, got + i, 1, &err), &err);
    }
    tokenizer_decode_bytes(m.tok, got, 20, &want);
    decode_rewind(&d);
    assert_ok(generate(&d, &m, 20, &stop, &text, &err), &err);
    ck_assert_str_eq(buf_str(&text), buf_str(&want));
    char *end = strpbrk(want.data + 1, ";)}");
    ck_assert_ptr_nonnull(end);
    char word[2] = {*end, '\0'};
    str_list_add(&stop, "never there");
    str_list_add(&stop, word);
    *strstr(want.data, word) = '\0';
    decode_rewind(&d);
    assert_ok(generate(&d, &m, 20, &stop, &text, &err), &err);
    ck_assert_str_eq(buf_str(&text), want.data);
}

/* Special tokens count in the text around a prompt and not in the prompt. */
TEST(ids_of_prompts)
{
    OWN(id_list_free) struct id_list plain = {0}, chat = {0}, answer = {0};
    const char special[] = "<|endoftext|>";
    bool again;
    ck_assert_int_eq(m.bos, 0);
    ck_assert_str_eq(m.domain, "source");
    assert_ok(prompt_ids(&m, NULL, special, strlen(special), &plain, &err), &err);
    ck_assert_int_eq(plain.v[0], 0);
    for (int64_t i = 1; i < plain.n; i++)
        ck_assert_int_ne(plain.v[i], 0);
    assert_ok(prompt_ids(&m, "<|endoftext|>{prompt}<|endoftext|>", "x", 1, &chat, &err), &err);
    ck_assert_int_eq(chat.v[0], 0);
    ck_assert_int_ne(chat.v[1], 0); /* the beginning stands once */
    ck_assert_int_eq(chat.v[chat.n - 1], 0);

    assert_ok(prompt_ids(&m, NULL, "a =", 3, &plain, &err), &err);
    int64_t n = plain.n;
    assert_ok(answer_ids(&m, NULL, "a =", 3, " 1", &plain, &answer, &again, &err), &err);
    ck_assert(!again);
    ck_assert_int_eq(plain.n, n);
    /* "retu" and "rn": one word, other ids than its parts. */
    assert_ok(prompt_ids(&m, NULL, "\tretu", 5, &plain, &err), &err);
    assert_ok(answer_ids(&m, NULL, "\tretu", 5, "rn", &plain, &answer, &again, &err), &err);
    ck_assert(again);
    ck_assert_int_lt(plain.n, 4);
}
