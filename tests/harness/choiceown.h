/*
 * choiceown.h - what a device's choice gives beside the mask (core/rules.h), made on the CPU, for
 * methods whose parameters a device reads itself.
 */
#ifndef LACUNA_CHOICEOWN_H
#define LACUNA_CHOICEOWN_H

#include "core/accel.h"
#include "core/method.h"

/* Fill *c->own, unless nobody wants it or the method has no such numbers. */
void choice_own(const struct accel_choice *c, const struct head_in *in);

#endif
