/*
 * schedule.c - the order of jobs. A job whose result is a time runs alone; all others run side by
 * side where there is room.
 */
#include "reproduce/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool step_timed(const struct plan *p, const struct step *s)
{
    const struct recipe_job *j = step_job(p, s);
    if (!p->cuda)
        return false;
    return j->kind == DO_REPLAY ? strchr(p->recipes[s->recipe].needs, 'K') != NULL
                                : j->kind == DO_EVAL && strstr(j->args, "--samples ");
}

bool plan_runs(const struct plan *p, const char *key)
{
    return str_list_has(&p->running, key);
}

bool step_waits(const struct plan *p, const struct step *s)
{
    bool any = false;
    if (!s->ready || s->done || s->failed || s->left_out)
        return false;
    if (s->n_units == 0)
        return !plan_runs(p, s->key);
    for (int i = 0; i < s->n_units; i++) {
        const struct step_unit *u = &s->units[i];
        any = any || (u->kept < 0 && !u->later && !plan_runs(p, u->id));
    }
    return any;
}

/* One job at a time: the first step that waits, of the table that will be finished soonest. */
static int cheapest(const struct plan *p)
{
    double least = INFINITY;
    int best = -1;
    for (int r = 0; r < p->n_recipes; r++) {
        double seconds = 0;
        int first = -1;
        for (int i = 0; i < p->n; i++) {
            if (p->s[i].recipe != r)
                continue;
            seconds += p->s[i].alone;
            first = first < 0 && step_waits(p, &p->s[i]) ? i : first;
        }
        if (first >= 0 && seconds < least) {
            least = seconds;
            best = first;
        }
    }
    return best;
}

double plan_remaining(const struct plan *p, int i)
{
    const struct step *s = &p->s[i];
    double most = 0;
    for (int k = i + 1; k < p->n && p->s[k].recipe == s->recipe; k++)
        for (int n = 0; n < p->s[k].n_in; n++)
            if (p->s[k].in[n] == i && !step_timed(p, &p->s[k]))
                most = fmax(most, plan_remaining(p, k));
    return (s->done || s->left_out ? 0 : s->alone) + most;
}

/* Side by side: what most depends on first. */
static int longest(const struct plan *p, bool timed)
{
    double most = -1;
    int best = -1;
    for (int i = 0; i < p->n; i++) {
        if (step_timed(p, &p->s[i]) != timed || !step_waits(p, &p->s[i]))
            continue;
        double seconds = plan_remaining(p, i);
        if (seconds > most) {
            most = seconds;
            best = i;
        }
    }
    return best;
}

int plan_choose(const struct plan *p)
{
    if (p->at_once <= 1)
        return cheapest(p);
    int at = longest(p, false);
    return at < 0 && p->running.n == 0 ? longest(p, true) : at;
}

int plan_begun(struct plan *p, const struct job *j, struct err *err)
{
    for (int64_t i = 0; i < j->units.n; i++)
        str_list_add(&p->running, j->units.items[i]);
    if (!j->units.n)
        str_list_add(&p->running, j->key);
    return p->running.failed ? err_set(err, ERR_NOMEM, "plan: out of memory") : 0;
}

static void remove_text(struct str_list *l, const char *text)
{
    for (int64_t i = 0; i < l->n; i++) {
        if (strcmp(l->items[i], text) != 0)
            continue;
        free(l->items[i]);
        l->items[i] = l->items[--l->n];
        return;
    }
}

void plan_ended(struct plan *p, const struct job *j)
{
    for (int64_t i = 0; i < j->units.n; i++)
        remove_text(&p->running, j->units.items[i]);
    if (!j->units.n)
        remove_text(&p->running, j->key);
}
