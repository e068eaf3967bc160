/*
 * benchcu_prefill.c - repeated runs of a language model on the GPU (benchcu_prefill.h).
 */
#include "tests/bench/benchcu_prefill.h"

#include "capture/llm_model.h"
#include "capture/tokenizer.h"
#include "core/buf.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "cuda/backend.h"
#include "cuda/timer.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_PROMPT ((size_t)1 << 28)
#define MAX_SAMPLES 100

static int encode(const char *dir, const char *prompt, int32_t **ids, int64_t *n, struct err *err)
{
    OWN(tokenizer_close) struct tokenizer *tok = NULL;
    OWN(buf_free) struct buf text = {0};
    bool bos = false;
    PASS_ON(tokenizer_open(dir, &tok, err));
    PASS_ON(buf_read_file(&text, prompt, MAX_PROMPT, err));
    return tokenizer_encode(tok, buf_str(&text), text.len, &bos, ids, n, err);
}

static int median_seconds(struct llm_model *m, struct llm_run *run, int samples, double *median,
                          struct err *err)
{
    double times[MAX_SAMPLES], warm;
    run->device_seconds = &warm;
    PASS_ON(llm_forward(m, run, NULL, err));
    for (int i = 0; i < samples; i++) {
        run->device_seconds = times + i;
        PASS_ON(llm_forward(m, run, NULL, err));
    }
    *median = quartiles_of(times, samples).median;
    return 0;
}

int bench_prefill(const char *dir, const char *prompt, int64_t n, int samples, struct err *err)
{
    struct llm_model m = {0};
    int32_t *ids = NULL;
    float *nll = NULL;
    int64_t got = 0;
    double plain = 0, loss = 0;
    int rc = 0;

    samples = samples > MAX_SAMPLES ? MAX_SAMPLES : samples;
    TRY(llm_open(dir, &m, err));
    TRY(encode(dir, prompt, &ids, &got, err));
    if (n < 2 || n > got)
        FAIL(err, ERR_USAGE, "%s has %lld tokens, %lld are asked for", prompt, (long long)got,
             (long long)n);
    TRY(mem_alloc(&nll, n, sizeof *nll, "likelihoods", err));
    struct llm_run run = {.tokens = ids, .n = n, .jobs = 1, .device = &cuda_decoder};
    TRY(median_seconds(&m, &run, samples, &plain, err));
    run.nll = nll;
    TRY(median_seconds(&m, &run, samples, &loss, err));
    printf(
        "%s, %lld tokens: prefill %.2f ms, with the loss of all tokens %.2f ms (medians of %d)\n",
        dir, (long long)n, 1e3 * plain, 1e3 * loss, samples);
out:
    free(ids);
    free(nll);
    llm_close(&m);
    return rc;
}
