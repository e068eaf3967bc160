/*
 * maskchoice.h - who chooses the mask of a head on a GPU: the GPU by the method's rule, or the
 * method itself.
 */
#ifndef LACUNA_MASKCHOICE_H
#define LACUNA_MASKCHOICE_H

#include "core/accel.h"
#include "sim/simulate_run.h"
#include "sim/staticmasks.h"

/* May the mask stay on the device: not, beside a copy on the host, or alone? */
enum keep { KEEP_NOT, KEEP_COPY, KEEP_ALONE };

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
    struct accel_own own;     /* what the GPU gave beside the mask, owned */
    enum keep keep;           /* set by the caller, from choice_may_keep */
    struct accel_units units; /* what is known of a mask that is on the device */
    struct mask lists;        /* with units: their unit and no entries */
    char why[160];            /* the GPU does not choose */
};

/* Memory of the chunks. choice_free may follow in any case. */
int choice_init(struct run *run, struct choice *c, struct err *err);
void choice_free(struct choice *c);

/* Is the GPU to be asked? If not, the method chooses. */
int choice_begin(struct run *run, struct choice *c, struct err *err);

/* May the device, in a call, attend to the mask that it chose? KEEP_ALONE: counts are all that
 * anybody else needs of it. */
enum keep choice_may_keep(const struct run *run, const struct choice *c);

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
