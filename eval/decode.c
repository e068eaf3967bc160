/*
 * decode.c - see decode.h.
 */
#include "eval/decode.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows whose logits exist at a time. */
#define ROWS 32

double logits_nll(const float *logits, int64_t vocab, int32_t id, bool *top1)
{
    double top = -INFINITY, sum = 0;
    int64_t likely = 0;
    for (int64_t j = 0; j < vocab; j++)
        if (logits[j] > top) {
            top = logits[j];
            likely = j;
        }
    for (int64_t j = 0; j < vocab; j++)
        sum += exp(logits[j] - top);
    if (top1)
        *top1 = likely == id;
    return top + log(sum) - logits[id];
}

static int64_t vocab(const struct decode *d)
{
    return d->l->model->c.vocab;
}

int decode_open(struct decode *d, struct lockstep *l, int stream, struct err *err)
{
    int rc = 0;

    *d = (struct decode){.l = l, .stream = stream, .pos = l->n};
    TRY(mem_alloc(&d->first, vocab(d), sizeof *d->first, "logits", err));
    TRY(mem_alloc(&d->logits, vocab(d), sizeof *d->logits, "logits", err));
    TRY(lockstep_logits(l, l->s[stream].last, 1, d->first, err));
    decode_rewind(d);
out:
    if (rc)
        decode_close(d);
    return rc;
}

void decode_close(struct decode *d)
{
    free(d->first);
    free(d->logits);
    free(d->rows);
    memset(d, 0, sizeof *d);
}

void decode_rewind(struct decode *d)
{
    memcpy(d->logits, d->first, (size_t)vocab(d) * sizeof *d->logits);
    d->pos = d->l->n;
}

int32_t decode_likeliest(const struct decode *d)
{
    int64_t likely = 0;
    for (int64_t j = 1; j < vocab(d); j++)
        if (d->logits[j] > d->logits[likely])
            likely = j;
    return (int32_t)likely;
}

/* d->rows [m][hidden] of the ids at the current position. */
static int run_rows(struct decode *d, const int32_t *ids, int64_t m, struct err *err)
{
    int64_t hidden = d->l->model->c.hidden;
    if (m > d->cap_rows) {
        free(d->rows);
        d->rows = NULL;
        d->cap_rows = 0;
        int rc = mem_alloc(&d->rows, m * hidden, sizeof *d->rows, "hidden state", err);
        if (rc)
            return rc;
        d->cap_rows = m;
    }
    int rc = lockstep_rows(d->l, d->stream, ids, d->pos, m, d->rows, err);
    d->pos += rc ? 0 : m;
    return rc;
}

int decode_push(struct decode *d, const int32_t *ids, int64_t m, struct err *err)
{
    int rc = run_rows(d, ids, m, err);
    return rc ? rc
              : lockstep_logits(d->l, d->rows + (m - 1) * d->l->model->c.hidden, 1, d->logits, err);
}

int decode_score(struct decode *d, const int32_t *ids, int64_t m, double *nll, bool *top1,
                 struct err *err)
{
    int64_t hidden = d->l->model->c.hidden;
    float *logits = NULL;
    int rc = 0;

    if (m == 0)
        return 0;
    nll[0] = logits_nll(d->logits, vocab(d), ids[0], top1);
    TRY(mem_alloc(&logits, ROWS * vocab(d), sizeof *logits, "logits", err));
    rc = run_rows(d, ids, m, err);
    if (rc)
        goto out;
    for (int64_t r = 0; r < m; r += ROWS) {
        int64_t n = m - r < ROWS ? m - r : ROWS;
        TRY(lockstep_logits(d->l, d->rows + r * hidden, n, logits, err));
        for (int64_t i = r; i < r + n && i + 1 < m; i++)
            nll[i + 1] = logits_nll(logits + (i - r) * vocab(d), vocab(d), ids[i + 1],
                                    top1 ? top1 + i + 1 : NULL);
        if (r + n == m)
            memcpy(d->logits, logits + (n - 1) * vocab(d), (size_t)vocab(d) * sizeof *logits);
    }
out:
    free(logits);
    return rc;
}
