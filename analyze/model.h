/*
 * model.h - predicted times of attention calls on GPUs that are not at hand (core/gpumodel.h), as
 * metrics of the records in memory: tables, figures and plans then have them like any other.
 */
#pragma once

#include "analyze/load.h"
#include "core/opt.h"

struct model_request {
    char *gpu;     /* "H200,L40,mine.json"; NULL: nothing is predicted */
    char *clock;   /* gpu_model_clock */
    char *what_if; /* gpu_model_change; or NULL */
    char *config;  /* config.json of a language model, for the time to its first token; or NULL */
};

#define MODEL_OPTS(S)                                                                              \
    OPT_AS("gpu", OPT_STR, S, model.gpu, NULL,                                                     \
           .help = "Predict times on these GPUs (`lacuna list gpus`, or files): metrics *_model.", \
           .arg = "NAME,..."),                                                                     \
        OPT_AS("clock", OPT_STR, S, model.clock, "sustained",                                      \
               .help = "State of the clock in predictions: sustained, burst (after a pause), "     \
                       "dense (by the measured time of dense attention) or GHz.",                  \
               .arg = "STATE"),                                                                    \
        OPT_AS("what-if", OPT_STR, S, model.what_if, NULL,                                         \
               .help = "Change the prediction: select=0 (choosing is free), balance=1, "           \
                       "sms=N, copy=GB/S, exp=2, tensor=2 (twice as fast).",                       \
               .arg = "KEY=VALUE,...")

/* Add metrics *_model: to calls, and to every head those of its whole call; share: to every head
 * its part of the call. With several GPUs their names end in "@GPU". Sentences for the reader go to
 * *notes. ERR_USAGE; ERR_INPUT when nothing can be predicted. */
int model_apply(struct recset *set, const struct model_request *q, bool share,
                struct str_list *notes, struct err *err);
