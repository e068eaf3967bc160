/*
 * settingtally.h - what the finished cells of a setting come to, and what a user must be told of
 * it: that it is dense attention in fact, keeps nothing, missed its target, or has no result.
 */
#pragma once

#include "core/method_run.h"
#include "core/record.h"

struct setting_tally {
    int64_t ok, full, empty; /* full, empty: of ok, every allowed pair was kept, or none */
    int64_t missed;          /* of ok, a search for a target ended beside it */
    int64_t uncalibrated;    /* of ok, of a model: heads that the calibration file lacks */
    int64_t skip, error;
    int told, told_bad;
    char why[160]; /* reason of one full cell, by its method; "" if it gives none */
    char bad[256]; /* reason of one that was skipped or failed */
};

/* Count a finished cell. Threads may do so at the same time. */
void setting_tally_add(struct setting_tally *t, const struct record *rec);

/* Warn of settings, runs[n] with t[n] (NULL: nothing). */
void setting_tally_warn(const struct method_run *runs, const struct setting_tally *t, int64_t n);
