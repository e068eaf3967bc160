/*
 * sealed.h - JSON objects that carry their own checksum: the last member is
 * "sum":"xxh3:<32 hex digits>", of all bytes of the object before the comma in front of "sum".
 *
 * Other programs see one more member. Objects without it are as good as before it existed; one
 * whose sum does not fit was damaged, or was edited without removing "sum".
 */
#ifndef LACUNA_SEALED_H
#define LACUNA_SEALED_H

#include "core/json.h"

enum seal { SEAL_ABSENT, SEAL_FITS, SEAL_BROKEN };

/* The text from b->data + start is an object with at least one member and ends with its '}': add
 * the sum. An object that is indented gets it on a line of its own. */
void seal_put(struct buf *b, size_t start);

/* State of the object text[0, len), behind which one newline may stand. A sum with up to two wrong
 * characters is broken, not absent. SEAL_ABSENT does not exclude that the object has a member "sum"
 * somewhere else, or written otherwise: seal_json finds that. */
enum seal seal_state(const char *text, size_t len);

/* Parse text and check its sum, if it has one; *out lacks the member "sum". ERR_INPUT if the text
 * is not JSON or its sum does not fit; `name` stands in front of the message. */
int seal_json(const char *text, size_t len, const char *name, json_t **out, struct err *err);

/* The same with a whole file of at most `max` bytes. */
int seal_json_file(const char *path, size_t max, json_t **out, struct err *err);

#endif
