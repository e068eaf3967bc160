/*
 * exec.c - a program of the user's selects the mask, in any language.
 *
 *   the program gets q, k, v of a head and answers with lists of blocks or with a bitmap of pairs;
 *   exact softmax over what it keeps, all metrics
 *
 * No paper. doc/methods/exec.md describes the messages; capture/torch/lacuna_trace/method.py speaks
 * them for Python. One program per worker is started and lives for the whole replay. After a
 * failure it is started again for the next cell; failures in a row end the replay, because a
 * program that never works would only fill the records.
 */
#include "core/clock.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/text.h"
#include "sim/methods/exec/execanswer.h"

#include <stddef.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define FAILURES_MAX 3 /* one after the other */

struct params {
    char *cmd, *params;
    bool rows;
    double timeout;
};

static const struct opt options[] = {
    OPT_STR(struct params, cmd, NULL, NULL,
            "Program and arguments; quotes keep words together, no shell is involved.",
            .flags = OPT_REQUIRED, .unit = "command"),
    OPT_STR(struct params, params, "", NULL,
            "Text for the program; part of the setting, as cmd is."),
    OPT_BOOL(struct params, rows, "0",
             "1: the program chooses for a sample of query rows, whose positions it is told; the "
             "others are 0 in q."),
    OPT_NUM(struct params, timeout, "120", 0, 1e6, "s",
            "Time for one head, the start of the program included.",
            .flags = OPT_MIN_OPEN | OPT_IDENTITY_NOT),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("pairs_dropped", "pairs of a mask from outside that were left out because their "
                                "unit lies after all its queries (causal)"),
    OWN_METRIC_IN("ns", "host_exec_ns",
                  "wall time from the request to a program to its whole answer; its own start is "
                  "in the first",
                  .better = BETTER_LOWER, .axis = AXIS_LOG, .noise = NOISE_MEASURED),
    {0},
};

/* ---- programs ------------------------------------------------------------------------------- */

struct idle {
    struct execproc *proc;
    struct idle *next;
};

/* The programs of a run: as many as threads that ask at once. */
struct exec_session {
    struct str_list words; /* ends with a NULL that n does not count */
    pthread_mutex_t lock;
    struct idle *idle;
    int64_t cells; /* asked so far */
    int failures;  /* in a row */
};

static void close_session(void *session)
{
    struct exec_session *s = session;
    if (!s)
        return;
    while (s->idle) {
        struct idle *i = s->idle;
        s->idle = i->next;
        execproc_end(&i->proc);
        free(i);
    }
    str_list_free(&s->words);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Keep a program for the next cell; without memory for that it ends. */
static void give_back(struct exec_session *s, struct execproc *p)
{
    struct idle *i = malloc(sizeof *i);
    if (!i) {
        execproc_end(&p);
        return;
    }
    i->proc = p;
    pthread_mutex_lock(&s->lock);
    i->next = s->idle;
    s->idle = i;
    pthread_mutex_unlock(&s->lock);
}

static int take(struct exec_session *s, struct execproc **p, int64_t *cell, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    struct idle *i = s->idle;
    if (i)
        s->idle = i->next;
    *cell = s->cells++;
    pthread_mutex_unlock(&s->lock);
    *p = i ? i->proc : NULL;
    free(i);
    return *p ? 0 : execproc_start(s->words.items, p, err);
}

/* The first program is started here: a command that does not exist ends the replay at once. */
static int open_session(const void *params, void **session, struct err *err)
{
    const struct params *p = params;
    struct exec_session *s = NULL;
    struct execproc *first = NULL;
    int rc = 0;

    TRY(mem_zalloc(&s, 1, sizeof *s, "programs", err));
    pthread_mutex_init(&s->lock, NULL);
    TRY(words_split(p->cmd, &s->words, err));
    TRY(mem_grow(&s->words.items, &s->words.cap, s->words.n + 1, sizeof *s->words.items,
                 "words of a command", err));
    s->words.items[s->words.n] = NULL;
    TRY(execproc_start(s->words.items, &first, err));
    give_back(s, first);
    *session = s;
    s = NULL;
out:
    close_session(s);
    return rc;
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    struct str_list words = {0};
    int rc = words_split(p->cmd, &words, err);
    str_list_free(&words);
    return rc ? err_prefix(err, "cmd") : 0;
}

/* ---- a head --------------------------------------------------------------------------------- */

struct state {
    struct exec_session *own; /* opened here, without a session */
    struct given given;
    struct exec_bits bits;
    double ns;
};

static void release(void *state)
{
    struct state *s = state;
    given_free(&s->given);
    free(s->bits.bits);
    close_session(s->own);
}

/* Three failures in a row become an error that ends the replay. */
static int count_failure(struct exec_session *s, int rc, struct err *err)
{
    int n = __atomic_add_fetch(&s->failures, 1, __ATOMIC_RELAXED);
    if (n < FAILURES_MAX || rc == ERR_INTERRUPTED || !err)
        return rc;
    err->code = ERR_IO;
    return err_prefix(err, "the program failed %d times in a row", n);
}

/* Answers are input, but what is wrong with them is a failure of the run. */
static int ask(struct exec_session *s, const struct params *p, struct method_ctx *ctx,
               const struct head_in *in, struct state *state, struct err *err)
{
    struct execproc *proc = NULL;
    char name[96];
    int64_t cell;
    bool orderly = false;
    int rc = 0;

    snprintf(name, sizeof name, "step %d layer %d head %d", in->step, in->layer, in->head);
    TRY(take(s, &proc, &cell, err));
    TRY(execproc_begin(proc, p->timeout, name, err));
    TRY(exec_ask(proc, cell, in, ctx->seed, p->params, err));
    rc = exec_answer(proc, cell, in, ctx, &state->given, &state->bits, &orderly, err);
out:
    if (rc < 0 && !orderly) {
        execproc_kill(&proc);
        return count_failure(s, rc, err);
    }
    __atomic_store_n(&s->failures, 0, __ATOMIC_RELAXED);
    give_back(s, proc);
    return rc;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    void *session = ctx->session;
    int rc = 0;

    if (in->rows && !((const struct params *)params)->rows)
        return method_skip(ctx, "the trace holds a sample of the query rows: rows=1 gives it to a "
                                "program that knows of samples");
    if (!session) {
        TRY(open_session(params, &session, err));
        s->own = session;
    }
    double t = clock_ns();
    if ((rc = ask(session, params, ctx, in, s, err)) != 0)
        goto out;
    s->ns = clock_ns() - t;
    ctx->unit_rows = s->given.whole.bq;
out:
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    return given_select(&((struct state *)state)->given, row0, row1, out, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    int rc = record_metric(r, "pairs_dropped", (double)s->given.dropped, err);
    return rc ? rc : record_metric(r, "host_exec_ns", s->ns, err);
}

const struct method method_exec = {
    .name = "exec",
    .summary = "the mask that a program of yours selects, in any language",
    .paper = "none: masks from outside",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_RANDOM | METHOD_ANY_SCORE |
             METHOD_PREFIX,
    .params = {.table = options,
               .size = sizeof(struct params),
               .validate = validate,
               .may_be_empty = method_always},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .session = {.open = open_session, .close = close_session},
};
