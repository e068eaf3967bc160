/*
 * fuzz_journal.c - journals of stopped calibrations: what they hold is taken over once, and the
 * same again when they are opened a second time.
 */
#include "tests/fuzz/fuzz.h"
#include "core/json.h"
#include "sim/calibrate.h"

#include <stdio.h>
#include <string.h>

static const char identity[] = "{\"method\": \"sale\", \"per\": 0}";

struct taken {
    int64_t n, sum;
};

static int take(void *ctx, int64_t job, const char *text, const char *skip, struct err *err)
{
    struct taken *t = ctx;
    t->n++;
    t->sum += (text ? (int64_t)strlen(text) : 0) + 3 * (skip ? (int64_t)strlen(skip) : 0) +
              (job & 0xffff);
    return 0;
}

static int open_once(const char *path, struct taken *t, struct journal **j, struct err *err)
{
    *t = (struct taken){0, 0};
    return journal_open(path, identity, take, t, j, err);
}

/* Journals as a calibration leaves them, with 0 to 7 finished searches, and one with a torn end. */
static int seeds(struct fuzz_corpus *c, struct err *err)
{
    char path[512];
    struct taken t;
    snprintf(path, sizeof path, "%s", fuzz_file("seed.journal", "", 0));
    for (int jobs = 0; jobs < 8; jobs++) {
        struct journal *j = NULL;
        fuzz_file("seed.journal", "", 0);
        int rc = open_once(path, &t, &j, err);
        for (int i = 0; i < jobs && !rc; i++)
            rc = journal_add(j, i, i % 3 == 2 ? NULL : "{\"tau\": 0.004, \"bits\": 4}",
                             i % 3 == 2 ? "whole prompts only" : NULL, err);
        journal_close(&j);
        rc = rc ? rc : fuzz_add_file(c, path, err);
        if (rc)
            return rc;
    }
    for (int64_t i = 0; i < c->n; i++)
        fuzz_unseal(&c->seeds[i]);
    struct buf *last = &c->seeds[c->n - 1];
    fuzz_add(c, last->data, last->len - 9);
    return 0;
}

static int run(const void *data, size_t len, struct err *err)
{
    struct journal *j = NULL;
    struct taken first, again;
    char path[512];
    snprintf(path, sizeof path, "%s", fuzz_file("calib.journal", data, len));
    int rc = open_once(path, &first, &j, err);
    journal_close(&j);
    if (rc)
        return rc;
    struct err second = {0};
    if (open_once(path, &again, &j, &second) != 0)
        fuzz_wild("a journal that was accepted is refused: %s", second.msg);
    else if (again.n != first.n || again.sum != first.sum)
        fuzz_wild("%lld searches, then %lld", (long long)first.n, (long long)again.n);
    journal_close(&j);
    return 0;
}

const struct fuzz_target fuzz_journal = {"journal", seeds, NULL, true, run};
