/*
 * devicejudge.h - masks of a head judged on a GPU (sim/blocks/judge.h): attention over them, errors
 * and recall are measured there, against dense attention that stays there with the head.
 */
#ifndef LACUNA_DEVICEJUDGE_H
#define LACUNA_DEVICEJUDGE_H

#include "sim/blocks/judge.h"
#include "sim/devicemap.h"

/* A head whose masks a device judges. Not to be moved. */
struct device_judge {
    struct device_map map;
    struct judge judge;
    uint64_t
        many; /* number of the head's copies on the device, for masks that are judged together */
};

/* Can the device judge heads of this shape? If not, why. */
bool device_judges(const struct sim_device *d, const struct attn_in *x, char why[160]);

/* Let the device judge for `in`, and give its dense rows; `jobs` threads make lists. One head at a
 * time is on the device: questions about another one in between bring it there, and cost its
 * upload. */
void device_judge_attach(struct device_judge *j, const struct sim_device *d,
                         const struct head_in *in, int jobs);
void device_judge_detach(struct device_judge *j); /* also of a zeroed one */

/* Seconds that judging a mask of all pairs of a head takes: fixed + per_pair * pairs, measured with
 * random heads of that dimension. */
struct judge_rate {
    double fixed, per_pair;
};
int device_judge_rate(const struct sim_device *d, int dim, bool causal, struct judge_rate *rate,
                      struct err *err);

#endif
