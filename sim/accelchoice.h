/*
 * accelchoice.h - who chooses the mask of a head on a GPU: the GPU by the method's rule, or the
 * method itself.
 */
#ifndef LACUNA_ACCELCHOICE_H
#define LACUNA_ACCELCHOICE_H

#include "core/accel.h"
#include "sim/simulate_run.h"
#include "sim/staticmasks.h"

struct choice {
    bool none;  /* nothing to choose: dense attention */
    bool asked; /* the GPU is asked, by `rule` */
    bool gpu;   /* chosen, or built, on the GPU */
    struct mask_origin origin;
    struct mask *masks; /* [n]: chunks of `step` rows; owned unless `shared` has them */
    int64_t n, step;
    const struct static_mask *shared; /* taken from the device's store; NULL: the head's own */
    struct static_masks *store;
    struct rule rule;
    struct accel_own own; /* what the GPU gave beside the mask, owned */
    enum {
        STAYS_NOT,
        STAYS_TOO,
        STAYS_ALONE
    } stays;                  /* may the mask be on the device, beside a
                               * copy here or alone: the caller's, from
                               * choice_may_stay */
    struct accel_units units; /* there: the mask is on the device, as the method applies it */
    struct mask lists;        /* with units: of their unit, without entries */
    char why[160];            /* the GPU does not choose */
};

/* Memory of the chunks. choice_free may follow in any case. */
int choice_init(struct run *run, struct choice *c, struct err *err);
void choice_free(struct choice *c);

/* Is the GPU to be asked? If not, the method chooses. */
int choice_begin(struct run *run, struct choice *c, struct err *err);

/* May the device, in a call, attend to the mask that it chose? STAYS_ALONE: counts are all that
 * anybody else needs of it. */
int choice_may_stay(const struct run *run, const struct choice *c);

/* The question, whose pointers lead into *run and *c; method NULL: none. */
struct accel_choice choice_question(const struct run *run, struct choice *c);

/* Take the answer, lists over the whole head or, where the mask stays on the device, what is in
 * c->units, of whose map *whole becomes the lists; NULL: the GPU does not choose, because of `why`.
 * Then c->masks are those to attend to. METHOD_SKIP where the user wants the GPU's alone. */
int choice_end(struct run *run, struct choice *c, struct mask *whole, const char *why,
               struct err *err);

/* Does the choice cost the call nothing, because it was made before? */
static inline bool choice_before(const struct choice *c)
{
    return !c->none && c->origin.source != SOURCE_OWN;
}

#endif
