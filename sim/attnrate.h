/* attnrate.h - how fast this machine attends, for estimates of time. */
#ifndef LACUNA_ATTNRATE_H
#define LACUNA_ATTNRATE_H

#include "core/attention.h"

/* Flop per second of the attention tiles on one thread, measured in a few milliseconds. */
int attn_rate(enum precision prec, double *flop_per_s, struct err *err);

#endif
