/*
 * test_checkpoints.c - checkpoints that leave keys out, or contradict themselves, are run as
 * transformers 5.24 runs them: nll.txt is its likelihood of the tokens of ids.txt.
 */
#include "capture/llm_model.h"
#include "core/fileio.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>

#define MOST 64

static struct err err;

static int read_numbers(const char *name, const char *file, double out[MOST])
{
    char path[256];
    OWN(buf_free) struct buf b = {0};
    int n = 0;
    snprintf(path, sizeof path, "tests/data/checkpoints/%s/%s", name, file);
    assert_ok(buf_read_file(&b, path, 1 << 16, &err), &err);
    for (char *p = (char *)(uintptr_t)buf_str(&b), *end; n < MOST; p = end, n++) {
        out[n] = strtod(p, &end);
        if (end == p)
            break;
    }
    return n;
}

static const char *const names[] = {"mixtral-no-theta", "no-eps-mixtral", "phi3-layer-types",
                                    "tied-with-own-head"};

TEST_EACH(likelihoods_are_those_of_transformers, names)
{
    OWN(llm_close) struct llm_model m;
    double ids[MOST], want[MOST];
    int32_t tokens[MOST];
    float nll[MOST];
    char dir[256];
    int n = read_numbers(names[_i], "ids.txt", ids);
    ck_assert_int_eq(n, 40);
    ck_assert_int_eq(read_numbers(names[_i], "nll.txt", want), n - 1);
    for (int i = 0; i < n; i++)
        tokens[i] = (int32_t)ids[i];
    snprintf(dir, sizeof dir, "tests/data/checkpoints/%s", names[_i]);
    assert_ok(llm_open(dir, &m, &err), &err);
    struct llm_run run = {.tokens = tokens, .n = n, .jobs = 1, .nll = nll};
    struct llm_hooks hooks = {0};
    assert_ok(llm_forward(&m, &run, &hooks, &err), &err);
    for (int i = 0; i + 1 < n; i++)
        ck_assert_msg(fabs(nll[i] - want[i]) < 1e-4, "%s: token %d: %g, expected %g", names[_i], i,
                      nll[i], want[i]);
}
