/*
 * accelchoice.h - where the mask of a head on a GPU is chosen: by the GPU from the method's rule,
 * by the GPU beside the method itself (then what differs is counted), or by the method alone.
 */
#ifndef LACUNA_ACCELCHOICE_H
#define LACUNA_ACCELCHOICE_H

#include "core/accel.h"
#include "sim/simulate_run.h"

struct choice {
    enum { ASK_NOBODY, ASK_BY_RULE, ASK_BY_PARAMS } ask;
    bool none;     /* nothing to choose: dense attention */
    bool refused;  /* the GPU does not choose; `why` says the reason */
    bool gpu;      /* chosen, or built, on the GPU */
    bool compared; /* the method has chosen too */
    struct mask_origin origin;
    int64_t differs;    /* units in which the GPU's mask and the method's differ */
    struct mask *masks; /* [n], owned: chunks of `step` rows */
    int64_t n, step;
    union method_rule rule;
    struct accel_own own; /* what the GPU gave beside the mask, owned */
    struct mask band;
    bool is_band; /* the method's masks are one band: `band` */
    char why[160];
};

/* Memory of the chunks. choice_free may follow in any case. */
int choice_init(struct run *run, struct choice *c, struct err *err);
void choice_free(struct choice *c);

/* What is to be asked of the GPU; without a rule the method chooses first. */
int choice_begin(struct run *run, struct choice *c, struct err *err);

/* The question, whose pointers lead into *run and *c; method NULL: none. */
struct accel_choice choice_question(const struct run *run, struct choice *c);

/* Take the answer, lists over the whole head; NULL: the GPU does not choose, because of `why`. Then
 * c->masks are those to attend to. METHOD_SKIP where the user wants the GPU's alone. */
int choice_end(struct run *run, struct choice *c, const struct mask *whole, const char *why,
               struct err *err);

/* Does the choice cost the call nothing, because it was made before? */
static inline bool choice_before(const struct choice *c)
{
    return !c->none && c->origin.source != SOURCE_OWN;
}

#endif
