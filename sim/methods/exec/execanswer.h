/*
 * execanswer.h - the messages between lacuna and a program that selects a head's mask.
 */
#ifndef LACUNA_EXECANSWER_H
#define LACUNA_EXECANSWER_H

#include "core/method.h"
#include "sim/blocks/given.h"
#include "sim/methods/exec/execproc.h"

/* A bitmap of units: row g begins at byte g * width, lowest bit first. ctx of the given mask. */
struct exec_bits {
    uint8_t *bits; /* owned */
    int64_t width, units;
};

/* Write the head's arrays into the shared memory and its request to the program. */
int exec_ask(struct execproc *p, int64_t cell, const struct head_in *in, uint64_t seed,
             const char *params, struct err *err);

/* Read and check the answer into *g (release with given_free, also after a failure) and *bits. 0,
 * or METHOD_SKIP with the program's reason; an {"error": ...} is ERR_RUN with *orderly = true. */
int exec_answer(struct execproc *p, int64_t cell, const struct head_in *in, struct method_ctx *ctx,
                struct given *g, struct exec_bits *bits, bool *orderly, struct err *err);

#endif
