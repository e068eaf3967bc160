/*
 * turns.c - jobs in turns, where a disk has no room for all traces at once: those of a turn are
 * captured, read and deleted before the next one. Without a limit everything is one turn.
 */
#include "reproduce/jobplan.h"

#include "core/mem.h"
#include "core/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static bool is_capture(const struct plan *p, int i)
{
    return step_job(p, &p->s[i])->kind == DO_CAPTURE && p->s[i].id[0];
}

static void trace_file(const struct step *s, char path[64])
{
    snprintf(path, 64, "%s/%s", s->id, job_output_name(DO_CAPTURE));
}

bool trace_deleted(const struct step *s)
{
    char path[64];
    trace_file(s, path);
    return access(s->id, F_OK) == 0 && access(path, F_OK) != 0;
}

static bool trace_there(const struct step *s)
{
    char path[64];
    trace_file(s, path);
    return access(path, F_OK) == 0;
}

static double trace_bytes(const struct plan *p, int i)
{
    struct cost c = {0};
    step_cost(p, &p->s[i], 1, &c);
    return c.bytes;
}

/* Mark what has to be made for a step, itself among it. */
static void mark(const struct plan *p, int i, bool *need)
{
    need[i] = true;
    for (int k = 0; k < p->s[i].n_in; k++)
        if (!p->s[p->s[i].in[k]].done && !need[p->s[i].in[k]])
            mark(p, p->s[i].in[k], need);
}

/* Bytes of the traces that are marked, those of a turn's steps not counted. */
static double marked_bytes(const struct plan *p, const bool *need)
{
    double bytes = 0;
    for (int i = 0; i < p->n; i++) {
        bool counted = !need[i] || !is_capture(p, i);
        for (int k = 0; k < p->n && !counted; k++)
            counted = strcmp(p->s[k].id, p->s[i].id) == 0 && (p->s[k].now || (k < i && need[k]));
        bytes += counted ? 0 : trace_bytes(p, i);
    }
    return bytes;
}

/* Is it a job that a turn is made for? */
static bool is_reader(const struct plan *p, int i)
{
    enum job_do kind = step_job(p, &p->s[i])->kind;
    return kind != DO_PROMPT && kind != DO_CAPTURE && step_missing(p, i) && !p->s[i].tried;
}

/* Was one of the marked steps tried in vain? */
static bool has_failed(const struct plan *p, const bool *need)
{
    for (int i = 0; i < p->n; i++)
        if (need[i] && p->s[i].tried)
            return true;
    return false;
}

/* Delete the traces that no job of a later turn reads; with `all` the others, too. */
static void delete_traces(const struct plan *p, bool all)
{
    for (int i = 0; i < p->n; i++) {
        bool needed = !is_capture(p, i) || !trace_there(&p->s[i]);
        for (int k = 0; k < p->n && !needed && !all; k++)
            for (int n = 0; n < p->s[k].n_in && is_reader(p, k) && !needed; n++)
                needed = strcmp(p->s[p->s[k].in[n]].id, p->s[i].id) == 0;
        if (needed)
            continue;
        char path[64];
        trace_file(&p->s[i], path);
        unlink(path);
    }
}

/* Take what fits into the room that is left beside traces that are there. */
static bool fill_turn(struct plan *p, double room, bool *need)
{
    bool any = false;
    double used = 0;
    for (int i = 0; i < p->n; i++)
        used += is_capture(p, i) && step_is_first(p, &p->s[i]) && trace_there(&p->s[i])
                    ? trace_bytes(p, i)
                    : 0;
    for (int i = 0; i < p->n; i++) {
        if (!is_reader(p, i))
            continue;
        memset(need, 0, (size_t)p->n * sizeof *need);
        mark(p, i, need);
        double more = room > 0 ? marked_bytes(p, need) : 0;
        if (has_failed(p, need) || (more > 0 && used + more > room))
            continue;
        used += more;
        any = true;
        for (int k = 0; k < p->n; k++)
            p->s[k].now = p->s[k].now || need[k];
    }
    return any;
}

int turn_next(struct plan *p, double room, bool *any, struct err *err)
{
    OWN(free_at) bool *need = NULL;
    PASS_ON(mem_alloc(&need, p->n + 1, sizeof *need, "plan", err));
    for (int i = 0; i < p->n; i++)
        p->s[i].now = false;
    *any = fill_turn(p, room, need);
    if (!*any && room > 0) { /* traces of other jobs are in the way */
        delete_traces(p, true);
        plan_look(p);
        *any = fill_turn(p, room, need);
    }
    return 0;
}

void turn_end(struct plan *p, double room)
{
    for (int i = 0; i < p->n; i++)
        p->s[i].tried = p->s[i].tried || p->s[i].now;
    if (room > 0)
        delete_traces(p, false);
}

int plan_least_disk(const struct plan *p, double *bytes, struct err *err)
{
    bool *need = NULL;
    int rc = mem_alloc(&need, p->n + 1, sizeof *need, "plan", err);
    *bytes = 0;
    for (int i = 0; i < p->n && !rc; i++) {
        if (!is_reader(p, i))
            continue;
        memset(need, 0, (size_t)p->n * sizeof *need);
        for (int k = 0; k < p->s[i].n_in; k++) /* calibrations can have a turn of their own */
            need[p->s[i].in[k]] = true;
        double own = marked_bytes(p, need);
        *bytes = own > *bytes ? own : *bytes;
    }
    free(need);
    return rc;
}

double disk_free(const char *folder)
{
    struct statvfs st;
    return statvfs(folder, &st) == 0 ? (double)st.f_bavail * (double)st.f_frsize : -1;
}

int disk_check(const struct plan *p, double room, struct err *err)
{
    struct cost all = {0};
    double least, has = disk_free(".");
    char text[3][24];
    PASS_ON(plan_least_disk(p, &least, err));
    plan_cost(p, 1, &all);
    bytes_text(least, text[0]);
    bytes_text(room > 0 ? room : all.bytes, text[1]);
    bytes_text(has, text[2]);
    if (room > 0 && room < least)
        return err_set(
            err, ERR_USAGE,
            "reproduce: --disk: a job reads traces of %s at once, and %s are given; give "
            "more, or fewer --lengths",
            text[0], text[1]);
    if (has >= 0 && has < (room > 0 && room < all.bytes ? room : all.bytes))
        return err_set(
            err, ERR_MACHINE,
            "reproduce: the jobs write %s, and %s are free; with --disk N traces are made "
            "in turns of N GB and deleted (these jobs: at least %s)",
            text[1], text[2], text[0]);
    return 0;
}
