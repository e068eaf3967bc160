/*
 * checkcu_choice.h - which of its checks a run of checkcu makes.
 */
#ifndef LACUNA_CHECKCU_CHOICE_H
#define LACUNA_CHECKCU_CHOICE_H

#include <stdbool.h>
#include <string.h>

struct cu_choice {
    const char *only; /* in the name of a kernel, a setting, ... */
    bool small;       /* few and short sequences */
    bool brief;       /* and of these a part */
    int part, parts;  /* every parts-th of those, from number `part` on */
    int at;           /* number of the next one */
};

static inline bool cu_chosen(struct cu_choice *c, const char *name)
{
    return strstr(name, c->only) && c->at++ % c->parts == c->part;
}

#endif
