/*
 * fuzzlong.c - many inputs in many processes, and a table of what became of them.
 *
 * The work is cut into chunks of one fuzzer and one seed each (the run's seed plus the number of
 * the chunk). A process does one chunk. When it dies the failure is counted and another process
 * goes on behind the case that killed it, so that one bad input does not hide the others.
 */
#include "core/clock.h"
#include "tests/fuzz/fuzz_run.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 20000, FAILURES_MAX = 50 }; /* of a chunk, which is then given up */

struct chunk {
    int target;
    uint64_t seed;
    int64_t first, cases; /* still to do */
    int failures;
    bool given_up;
};

struct worker {
    pid_t pid; /* 0: idle */
    int64_t chunk;
};

struct tally {
    int64_t tried, failures, lost; /* lost: inputs of chunks that were given up */
    double seconds;                /* of processor time */
};

struct campaign {
    const struct fuzz_target *const *targets;
    int n_targets;
    const char *program;
    struct chunk *chunks; /* owned */
    int64_t n_chunks, next;
    struct worker *workers;         /* owned, [jobs] */
    struct fuzz_progress *progress; /* [jobs], shared with the workers */
    struct tally *tally;            /* owned, [n_targets] */
    int jobs;
};

/* Every fuzzer gets the same number of inputs; the chunks of all take turns. */
static int plan(struct campaign *c, int64_t inputs, uint64_t seed)
{
    int64_t each = (inputs + c->n_targets - 1) / c->n_targets, rounds = (each + CHUNK - 1) / CHUNK;
    c->n_chunks = rounds * c->n_targets;
    c->chunks = calloc((size_t)c->n_chunks, sizeof *c->chunks);
    c->workers = calloc((size_t)c->jobs, sizeof *c->workers);
    c->tally = calloc((size_t)c->n_targets, sizeof *c->tally);
    c->progress = mmap(NULL, (size_t)c->jobs * sizeof *c->progress, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!c->chunks || !c->workers || !c->tally || c->progress == MAP_FAILED)
        return 1;
    for (int64_t i = 0; i < c->n_chunks; i++) {
        int64_t left = each - i / c->n_targets * CHUNK;
        c->chunks[i] = (struct chunk){.target = (int)(i % c->n_targets),
                                      .seed = seed + (uint64_t)(i / c->n_targets),
                                      .cases = left < CHUNK ? left : CHUNK};
    }
    return 0;
}

static void start(struct campaign *c, int w, int64_t chunk)
{
    struct chunk *k = &c->chunks[chunk];
    c->progress[w] = (struct fuzz_progress){.index = k->first};
    c->workers[w] = (struct worker){.chunk = chunk};
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct fuzz_options o = {
            .seconds = 1e9, .first = k->first, .cases = k->cases, .only = -1, .seed = k->seed};
        int null = open("/dev/null", O_WRONLY); /* what commands print */
        if (null >= 0)
            dup2(null, STDOUT_FILENO);
        exit(fuzz_run(c->targets[k->target], &o, c->program, &c->progress[w]));
    }
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    c->workers[w].pid = pid;
}

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

/* Count what worker w did; true: its chunk has inputs left. */
static bool settle(struct campaign *c, int w, int status, const struct rusage *used)
{
    struct worker *k = &c->workers[w];
    struct chunk *chunk = &c->chunks[k->chunk];
    struct tally *t = &c->tally[chunk->target];
    const struct fuzz_progress *p = &c->progress[w];
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bool started = !(WIFEXITED(status) && WEXITSTATUS(status) == FUZZ_NOT_STARTED) && p->index >= 0;
    k->pid = 0;
    t->seconds += seconds_of(used->ru_utime) + seconds_of(used->ru_stime);
    t->tried += p->tried + (!good && p->index >= 0);
    if (good)
        return false;
    t->failures++;
    chunk->failures++;
    if (p->index >= chunk->first) {
        chunk->cases -= p->index + 1 - chunk->first;
        chunk->first = p->index + 1;
    }
    if (started && chunk->failures < FAILURES_MAX)
        return chunk->cases > 0;
    t->lost += chunk->cases;
    fprintf(stderr, "fuzz_%s: seed %llu is given up\n", c->targets[chunk->target]->name,
            (unsigned long long)chunk->seed);
    return false;
}

static int worker_of(const struct campaign *c, pid_t pid)
{
    for (int w = 0; w < c->jobs; w++)
        if (c->workers[w].pid == pid)
            return w;
    return -1;
}

static void work(struct campaign *c)
{
    int running = 0, status;
    for (; running < c->jobs && c->next < c->n_chunks; running++)
        start(c, running, c->next++);
    while (running > 0) {
        struct rusage used;
        pid_t pid = wait4(-1, &status, 0, &used);
        int w = pid > 0 ? worker_of(c, pid) : -1;
        if (pid < 0)
            return;
        if (w < 0)
            continue;
        if (settle(c, w, status, &used))
            start(c, w, c->workers[w].chunk);
        else if (c->next < c->n_chunks)
            start(c, w, c->next++);
        else
            running--;
    }
}

static int print_table(const struct campaign *c, uint64_t seed, double seconds)
{
    struct tally sum = {0};
    printf("%-14s %12s %9s %12s\n", "case", "tried", "failures", "per CPU s");
    for (int i = 0; i < c->n_targets; i++) {
        const struct tally *t = &c->tally[i];
        printf("%-14s %12lld %9lld %12.0f\n", c->targets[i]->name, (long long)t->tried,
               (long long)t->failures, t->seconds > 0 ? (double)t->tried / t->seconds : 0);
        sum.tried += t->tried;
        sum.failures += t->failures;
        sum.lost += t->lost;
    }
    printf("%-14s %12lld %9lld\n", "all", (long long)sum.tried, (long long)sum.failures);
    printf("seed %llu, %d processes, %.0f s; limits: 5 s of processor time, 10 s, 1 GB\n",
           (unsigned long long)seed, c->jobs, seconds);
    if (sum.lost)
        printf("%lld inputs were not tried: too many failures\n", (long long)sum.lost);
    return sum.failures > 0;
}

int fuzz_long(const struct fuzz_target *const *targets, int n_targets, int64_t inputs,
              uint64_t seed, int jobs, const char *program)
{
    struct campaign c = {.targets = targets,
                         .n_targets = n_targets,
                         .program = program,
                         .jobs = jobs < 1 ? 1 : jobs};
    double begin = clock_s();
    int bad = 1;
    if (plan(&c, inputs, seed) == 0) {
        work(&c);
        bad = print_table(&c, seed, clock_s() - begin);
    }
    free(c.chunks);
    free(c.workers);
    free(c.tally);
    return bad;
}
