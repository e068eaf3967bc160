/*
 * unitkeys.h - attention of a head with keys of unit length, as models with normalised keys have
 * it.
 */
#ifndef LACUNA_UNITKEYS_H
#define LACUNA_UNITKEYS_H

#include "core/method.h"

struct unit_keys {
    float *k;            /* [nk][d] k / |k|, 0 for a zero key; owned; NULL before unit_keys_make */
    struct attn_ops ops; /* of the head with these keys */
};

int unit_keys_make(struct unit_keys *u, const struct head_in *in, struct err *err);
void unit_keys_free(struct unit_keys *u); /* also of a zeroed one */

#endif
