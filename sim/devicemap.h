/*
 * devicemap.h - a GPU beside the replay, what it gives of a head's exact map (sim/blocks/exact.h),
 * and masks judged there (sim/blocks/judge.h): attention over them, errors and recall are measured
 * against dense attention that stays there with the head. How fast this machine attends: for
 * estimates of time, and the best rates of a GPU.
 */
#pragma once

#include "core/accel.h"
#include "core/attention.h"
#include "core/method.h"
#include "sim/blocks/judge.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Where masks are chosen beside a GPU. auto = on the GPU where the back end can. */
enum select_where { SELECT_AUTO, SELECT_CPU, SELECT_GPU };

struct static_masks; /* sim/staticmasks.h */

/* A GPU on which heads are attended. */
struct sim_device {
    const struct accel *accel;
    struct accel_session *session;
    enum select_where select;
    bool metrics; /* metrics and the statistics of the exact map are measured there too */
    bool dense;   /* dense rows that methods ask for come from there even without `metrics` */
    bool calls;   /* what is put there, attended to and timed at once is a whole call */
    bool timed;   /* with calls: a call has times, or counters */
    int64_t section_bytes;        /* with calls: attend_how.section_bytes */
    struct static_masks *statics; /* masks that heads share; NULL: each makes its own */
};

/* A head on a device, while a method runs on it. */
struct device_map {
    const struct sim_device *device;
    const struct head_in *in;
    uint64_t data;             /* number of its q, k, v there (accel_call.data) */
    bool gives_dense;          /* the device computes dense rows */
    double *ref_lse, *ref_out; /* [nq], [nq][dv] of the reference there, owned; NULL: not asked */
};

/* The head's q, k, v have the number `data`. Where the device measures, let it say how sparse the
 * map is, and let it compute dense rows: in double on the CPU they take seconds to minutes per
 * head, on the device milliseconds. */
void device_map_attach(struct device_map *m, const struct sim_device *device,
                       const struct head_in *in, uint64_t data);
void device_map_detach(struct device_map *m);

/* Let lines of progress say how much of the time the device is in use. */
struct progress;
void device_meter(const struct sim_device *d, struct progress *p);

/* n numbers of q, k, v on a device, from the returned one on, that nobody had. Thread-safe. */
uint64_t device_numbers(int n);

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

/* ---- rates ---------------------------------------------------------------------------------- */

/* *gpu: the object that the back end's `describe` gives, with the ceilings: those that `dir` keeps
 * (DIR/ceilings-UUID.json), or, where it keeps none of this GPU, driver and runtime, or with
 * `again`, those that are measured now. *gpu is the caller's, also after a failure. ERR_RUN,
 * ERR_MACHINE: of the measurement; ERR_IO: the file cannot be written. */
int rates_of_gpu(const struct sim_device *d, const char *dir, bool again, json_t **gpu,
                 struct err *err);

/* Flop per second of the attention tiles on one thread, measured in a few milliseconds. */
int attn_rate(enum precision prec, double *flop_per_s, struct err *err);
