/*
 * faults.c - every call and every allocation fails once, the clock steps, the process is killed.
 */
#include "tests/fault/fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a run without faults does ---------------------------------------------------------- */

static const unsigned faults_of[] = {
#define X(id, name, faults) faults,
    CALLS(X)
#undef X
};

/* Counts of a run, and the kinds of its calls: kinds[number]. */
struct course {
    int32_t *kinds;
    long counts[COUNTERS];
};

static void record_course(const struct step *s, struct course *c)
{
    struct outcome o;
    struct fault_entry e;
    begin_trial(s, "count");
    run_words(s->words, "count", (struct fault){0}, trial_path("", "log"), &o);
    FILE *f = fopen(trial_path("", "log"), "rbe");
    *c = (struct course){.kinds = calloc(1 << 20, sizeof *c->kinds)};
    while (f && c->kinds && fread(&e, sizeof e, 1, f) == 1) {
        fseek(f, e.path_len + e.to_len + e.data_len, SEEK_CUR);
        if (e.number > 0 && e.number < 1 << 20)
            c->kinds[e.number] = e.call;
        for (int i = 0; i < COUNTERS; i++) /* of the program that makes the most */
            if (e.counts[i] > c->counts[i])
                c->counts[i] = e.counts[i];
    }
    if (f)
        fclose(f);
    if (o.code != 0 || c->counts[COUNT_IO] == 0 || c->counts[COUNT_IO] >= 1 << 20)
        give_up("%s: the shim counts nothing (exit %d) %s", s->name, o.code, o.err);
}

/* ---- one case -------------------------------------------------------------------------------- */

static int count_lines(const char *text, const char *begin)
{
    int n = 0;
    for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        n += strncmp(p, begin, strlen(begin)) == 0;
    return n;
}

/* Whether a run ended as it may: an exit code of the contract, with one line that says why. */
static const char *bad_end(const struct outcome *o)
{
    static char text[4400];
    const char *wrong = NULL;
    int lines = count_lines(o->err, "lacuna: error: ");
    if (o->code == 1000 + SIGALRM || o->code == 1000 + SIGXCPU)
        wrong = "hangs";
    else if (o->code > 1000)
        wrong = "crashes";
    else if (o->code != 0 && (o->code < 3 || o->code > 5))
        wrong = "exit code out of place";
    else if (lines != (o->code != 0))
        wrong = "not one line of error";
    if (!wrong)
        return "";
    snprintf(text, sizeof text, "%s, exit %d: %s", wrong, o->code, o->err);
    return text;
}

static void run_case(const struct step *s, struct fault f, struct tally *t)
{
    static struct outcome o;
    struct buf want = {0};
    char what[128], ref[64];
    bool refused = false;
    begin_trial(s, "trial");
    run_words(s->words, "trial", f, NULL, &o);
    if (driver.verbose)
        printf("%s %s %ld: exit %d %s", s->name, how_name(f.how), f.at, o.code,
               o.err[0] ? o.err : "\n");
    const char *why = bad_end(&o);
    if (!*why && o.code == 0) {
        why = results_differ(s, "trial");
        snprintf(ref, sizeof ref, "stdout-%s", s->name);
        if (s->prints)
            read_whole(trial_path("chain", ref), &want);
        if (!*why && s->prints && strcmp(buf_str(&want), o.out) != 0)
            why = "silent: other output";
        t->completed++;
    } else if (!*why) {
        why = results_torn(s, "trial");
        if (!*why)
            why = recover(s, "trial", &refused);
        t->refused++;
    }
    buf_free(&want);
    t->tried++;
    snprintf(what, sizeof what, "--how %s --at %ld", how_name(f.how), f.at);
    if (*why)
        tally_fail(t, "trial", what, why);
}

/* ---- cases ----------------------------------------------------------------------------------- */

struct sample sample_of(const struct step *s, long n)
{
    uint64_t state = driver.seed ^ (uint64_t)s->name[0] << 32 ^ strlen(s->words);
    long tries = s->slow ? (driver.tries + 3) / 4 : driver.tries;
    struct sample a = {n, tries && tries < n ? tries : n, 0};
    a.from = random_below(&state, (uint64_t)(a.take ? n / a.take : 0) + 1);
    return a;
}

long sample_at(const struct sample *a, long i)
{
    return (long)((a->from + (uint64_t)i * (uint64_t)a->n / (uint64_t)a->take) % (uint64_t)a->n);
}

/* All pairs of a call and a fault that it can meet, of the faults in `among`. */
static struct fault *pairs(const struct course *c, unsigned among, long *n)
{
    struct fault *all = calloc((size_t)(c->counts[COUNT_IO] + 1) * HOW_END, sizeof *all);
    if (!all)
        give_up("no memory");
    *n = 0;
    for (long at = 1; at <= c->counts[COUNT_IO]; at++)
        for (int how = 1; how < HOW_END; how++)
            if (faults_of[c->kinds[at]] & among & 1u << how)
                all[(*n)++] = (struct fault){(enum fault_how)how, at};
    return all;
}

/* The one case that the command line names. */
static bool asked_for(struct fault *f)
{
    for (int i = 1; driver.how && i < HOW_END; i++)
        if (strcmp(driver.how, how_name((enum fault_how)i)) == 0)
            *f = (struct fault){(enum fault_how)i, driver.at};
    return driver.how != NULL;
}

void each_call_fails(const struct step *s, struct tally *t)
{
    struct course c;
    struct fault one = {0};
    long n;
    if (asked_for(&one)) {
        run_case(s, one, t);
        return;
    }
    record_course(s, &c);
    struct fault *all = pairs(&c, ~0u & ~KILLS & ~B(HOW_TORN), &n);
    struct sample a = sample_of(s, n);
    for (long i = 0; i < a.take; i++)
        run_case(s, all[sample_at(&a, i)], t);
    free(all);
    free(c.kinds);
}

static void strike_counter(const struct step *s, enum fault_counter counter, enum fault_how how,
                           struct tally *t)
{
    struct course c;
    record_course(s, &c);
    struct sample a = sample_of(s, c.counts[counter]);
    for (long i = 0; i < a.take; i++)
        run_case(s, (struct fault){how, sample_at(&a, i) + 1}, t);
    free(c.kinds);
}

void each_allocation_fails(const struct step *s, struct tally *t)
{
    if (driver.how)
        run_case(s, (struct fault){HOW_MEMORY, driver.at}, t);
    else
        strike_counter(s, COUNT_MEMORY, HOW_MEMORY, t);
}

void clock_steps(const struct step *s, struct tally *t)
{
    struct fault one;
    if (asked_for(&one)) {
        run_case(s, one, t);
        return;
    }
    strike_counter(s, COUNT_TIME, HOW_FORWARD, t);
    strike_counter(s, COUNT_TIME, HOW_BACK, t);
}

/* ---- kills ----------------------------------------------------------------------------------- */

/* Killed at one call, continued and killed again at random until it comes through. */
static void kill_series(const struct step *s, const struct course *c, struct fault first,
                        struct tally *t)
{
    enum { MOST = 6 };
    static struct outcome o;
    struct fault f = first;
    uint64_t random = driver.seed ^ (uint64_t)f.at << 8 ^ (uint64_t)f.how;
    char what[128];
    const char *why = "";
    bool refused;
    begin_trial(s, "trial");
    snprintf(what, sizeof what, "--how %s --at %ld", how_name(f.how), f.at);
    for (int i = 0; i < MOST && !*why; i++) {
        run_words(s->words, "trial", f, NULL, &o);
        if (o.code != 1000 + 9 && !(s->starts_others && o.code == 5)) /* one that it started */
            break;
        t->tried++;
        why = results_torn(s, "trial");
        f.at = 1 + (long)random_below(&random, (uint64_t)c->counts[COUNT_IO]);
        f.how = random_below(&random, 3) == 0 ? HOW_TORN : HOW_KILL;
    }
    bool finished = !*results_differ(s, "trial");
    if (!*why)
        why = recover(s, "trial", &refused);
    if (!*why && refused && !finished)
        why = "the same command refuses what a kill left";
    t->completed += !*why;
    if (*why)
        tally_fail(t, "trial", what, why);
}

void kills(const struct step *s, struct tally *t)
{
    struct course c;
    struct fault one = {0};
    long n;
    if (!s->out[0])
        return;
    record_course(s, &c);
    struct fault *all = pairs(&c, KILLS | B(HOW_TORN), &n);
    struct sample a = sample_of(s, n);
    if (asked_for(&one))
        kill_series(s, &c, one, t);
    for (long i = 0; i < a.take && !driver.how; i++)
        kill_series(s, &c, all[sample_at(&a, i)], t);
    free(all);
    free(c.kinds);
}
