/*
 * accelchoice.h - where the mask of a head on a GPU is chosen: by the GPU from the method's rule or
 * parameters, by the GPU beside the method itself (then what differs is counted), or by the method
 * alone.
 */
#ifndef LACUNA_ACCELCHOICE_H
#define LACUNA_ACCELCHOICE_H

#include "core/accel.h"
#include "sim/simulate_run.h"
#include "sim/staticmasks.h"

struct choice {
    enum { ASK_NOBODY, ASK_BY_RULE, ASK_ALONE, ASK_BY_PARAMS } ask;
    bool none;     /* nothing to choose: dense attention */
    bool refused;  /* the GPU does not choose; `why` says the reason */
    bool gpu;      /* chosen, or built, on the GPU */
    bool compared; /* the method has chosen too */
    struct mask_origin origin;
    int64_t differs;    /* units in which the GPU's mask and the method's differ */
    struct mask *masks; /* [n]: chunks of `step` rows; owned unless `shared` has them */
    int64_t n, step;
    const struct static_mask *shared; /* taken from the device's store; NULL: the head's own */
    struct static_masks *store;
    struct rule rule;
    struct accel_own own; /* what the GPU gave beside the mask, owned */
    struct mask band;
    bool is_band; /* the method's masks are one band: `band` */
    enum {
        STAYS_NOT,
        STAYS_TOO,
        STAYS_ALONE
    } stays;                  /* may the mask be on the device, beside a
                               * copy here or alone: the caller's, from
                               * choice_may_stay */
    struct accel_units units; /* there: the mask is on the device, as the method applies it */
    struct mask lists;        /* with units: of their unit, without entries */
    char why[160];
};

/* Memory of the chunks. choice_free may follow in any case. */
int choice_init(struct run *run, struct choice *c, struct err *err);
void choice_free(struct choice *c);

/* What is to be asked of the GPU; without a rule the method chooses first. */
int choice_begin(struct run *run, struct choice *c, struct err *err);

/* May the device, in a call, attend to the mask that it chose? STAYS_ALONE: counts are all that
 * anybody else needs of it. */
int choice_may_stay(const struct run *run, const struct choice *c);

/* What a question says of the head alone: nobody is asked yet. */
struct accel_choice choice_of_head(const struct run *run);

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
