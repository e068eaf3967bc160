/*
 * callname.h - names of tensors that belong to an attention call: words between dots, "step-12" or
 * "step12", "layer-5" or "layer5", and at most one other word, the branch. That is how `lacuna
 * trace export` names tensors.
 */
#ifndef LACUNA_CALLNAME_H
#define LACUNA_CALLNAME_H

#include <stdbool.h>
#include <stddef.h>

#define CALL_BRANCH 16

/* What a name says; what it does not say stays as it was. */
struct call_name {
    int step, layer;
    char branch[CALL_BRANCH];
};

/* Parse text[0..len), which may end with a dot. With `head` (may be NULL) a word "head-3" is a
 * number too. NULL, or the first word that is none of these, with its length in *word_len. */
const char *call_name_parse(const char *text, size_t len, struct call_name *c, int *head,
                            size_t *word_len);

#endif
