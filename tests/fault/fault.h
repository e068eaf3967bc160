/*
 * fault.h - the driver: commands of a small chain, run with a fault, and their results held against
 * those of an undisturbed run.
 */
#pragma once

#include "core/buf.h"
#include "tests/fault/faultlog.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STEP_WORDS 32
#define STEP_FILES 4

/* A command of the chain. Names are relative to the directory in which it runs. */
struct step {
    const char *name;
    const char *words;           /* arguments; MODEL stands for the checkpoint */
    const char *in[STEP_FILES];  /* copied there first; "a=b" copies a as b */
    const char *out[STEP_FILES]; /* files and directories that are results */
    bool prints;                 /* standard output is a result too */
    bool slow;                   /* a quarter of the tries are enough */
    bool starts_others;          /* several programs: it is killed, and nothing else */
};

/* ---- chain.c --------------------------------------------------------------------------------- */

extern const struct step steps[]; /* ends with a NULL name */

/* Make the chain below scratch(): chain/ with all inputs, ref-NAME/ with the results of a step.
 * Ends the process if a command fails. */
void chain_make(void);

/* ---- run.c ----------------------------------------------------------------------------------- */

struct driver {
    const char *program, *shim, *root; /* absolute */
    const char *scratch;               /* directory for everything that the tests write */
    uint64_t seed;
    long tries;       /* at most so many cases of a kind and step; 0 = all */
    const char *only; /* this step only, NULL = all */
    const char *how;  /* repeat one case: name of the fault and number; NULL = no */
    long at;
    const char *scope; /* FAULT_SCOPE */
    bool verbose;      /* a line for every case */
    bool keep;         /* leave scratch there, with the directories of failed cases */
};
extern struct driver driver;

/* What the shim is to do; zeroed: nothing but counting. */
struct fault {
    enum fault_how how;
    long at;
};

/* How a run ended. */
struct outcome {
    int code;        /* exit code, or 1000 + signal */
    char out[65536]; /* standard output and error, cut to what fits */
    char err[4096];
};

/* Run the program in scratch/dir. `log` (NULL: none) is where the shim writes its log. */
void run_words(const char *words, const char *dir, struct fault f, const char *log,
               struct outcome *o);

/* Make scratch/dir an empty directory; copy the inputs of a step into it. */
void make_empty(const char *dir);
void begin_trial(const struct step *s, const char *dir);

/* Copy or remove a file or directory, recursively; ends the process on failure. */
void copy_tree(const char *from, const char *to);
void remove_tree(const char *path);

/* A path below scratch/dir; valid until eight later calls. */
const char *trial_path(const char *dir, const char *name);

void read_whole(const char *path, struct buf *b); /* appends */
void write_whole(const char *path, const struct buf *b);

/* Print why and end the process: the tests themselves cannot go on. */
_Noreturn void give_up(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

const char *how_name(enum fault_how how);

/* 0..n-1; 0 for n = 0. */
uint64_t random_below(uint64_t *state, uint64_t n);

/* ---- results.c ------------------------------------------------------------------------------- */

/* Why scratch/dir does not hold exactly the results of a step, "" if it does. Times, and the
 * history in a manifest, are not compared. */
const char *results_differ(const struct step *s, const char *dir);

/* Why a result that is there is neither whole nor a log of whole records that were wanted; "" if
 * none. For the moment after a failure. */
const char *results_torn(const struct step *s, const char *dir);

/* Run the step again after a failure, and follow what messages ask for (records repair, remove or
 * move a file). Returns why it does not end with the results, "" if it does. *refused: a message
 * asked for something. */
const char *recover(const struct step *s, const char *dir, bool *refused);

/* ---- kinds of cases -------------------------------------------------------------------------- */

/* Cases of one kind and step. */
struct tally {
    const char *kind, *step;
    long tried, completed, refused, failures;
};
void tally_print(const struct tally *t);

/* Up to `tries` of n things, spread evenly from a seeded begin; all without a limit. */
struct sample {
    long n, take;
    uint64_t from;
};
struct sample sample_of(const struct step *s, long n);
long sample_at(const struct sample *a, long i);

/* Record a failed case: what was done, and how to do it again. */
void tally_fail(struct tally *t, const char *dir, const char *what, const char *why);

/* Each adds the failures of one step. */
void each_call_fails(const struct step *s, struct tally *t); /* faults.c */
void each_allocation_fails(const struct step *s, struct tally *t);
void clock_steps(const struct step *s, struct tally *t);
void kills(const struct step *s, struct tally *t);
void power_cuts(const struct step *s, struct tally *t); /* powercut.c */
