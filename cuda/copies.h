/*
 * copies.h - copies of one head as the heads of one launch, for timing. A launch of a real call
 * holds all heads of the call. A head of a few thousand rows launched alone leaves multiprocessors
 * idle at its end and bears the start of every kernel alone, so its time would not be its share of
 * the call's time.
 */
#ifndef LACUNA_COPIES_H
#define LACUNA_COPIES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/accel.h"

/* Number of copies of head x:
 * - `wanted` if it is not 0. Their groups (query heads that share keys and values) are as large as
 *   the call's, or the largest smaller size that divides the number.
 * - else as many as the call has heads, but no more than are needed for COPIES_ROWS rows of tiles
 *   per multiprocessor (beyond that more copies change nothing), and no more than fit into 1 /
 *   COPIES_SHARE of `memory` bytes. Above the size of one group, whole groups only. */
#define COPIES_ROWS 16
#define COPIES_SHARE 8
struct accel_heads copies_of(int wanted, struct accel_heads call, const struct attn_in *x, int sms,
                             int64_t memory);

#ifdef __cplusplus
}
#endif

#endif
