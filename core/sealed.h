/*
 * sealed.h - JSON objects that carry their own checksum: the last member is
 * "sum":"xxh3:<32 hex digits>", the hash of all bytes before the comma in front of "sum".
 *
 * Other programs see one more member. An object without "sum" is accepted. An object whose
 * sum does not fit was damaged, or was edited without removing "sum".
 */
#pragma once

#include "core/json.h"

enum seal { SEAL_ABSENT, SEAL_FITS, SEAL_BROKEN };

/* Add the sum to the object that begins at b->data + start. It must have at least one member, and
 * the text must end with its '}'. In an indented object the sum gets a line of its own. */
void seal_put(struct buf *b, size_t start);

/* State of the object text[0, len); one newline may follow the object. A sum with up to two wrong
 * characters is broken, not absent. SEAL_ABSENT does not exclude a member "sum" at another place
 * or in another spelling: seal_json finds it. */
enum seal seal_state(const char *text, size_t len);

/* Parse text and check its sum, if it has one. *out lacks the member "sum"; the caller owns it.
 * ERR_INPUT if the text
 * is not JSON or its sum does not fit; the message begins with `name`. */
int seal_json(const char *text, size_t len, const char *name, json_t **out, struct err *err);

/* Do the same with a whole file of at most `max` bytes. */
int seal_json_file(const char *path, size_t max, json_t **out, struct err *err);
