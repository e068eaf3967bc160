/*
 * simulate_run.c - see simulate_run.h.
 */
#include "sim/simulate_run.h"

#include "core/intmath.h"

/* Rows of a chunk: enough that per-chunk work vanishes; and pairs, so that even a list of single
 * entries that keeps everything stays below a gigabyte at any length. */
#define CHUNK_ROWS 2048
#define CHUNK_PAIRS ((int64_t)1 << 27)

int64_t run_chunk_rows(const struct run *run)
{
    int64_t step = run->unit_rows / gcd(run->unit_rows, 128) * 128;
    int64_t want =
        CHUNK_PAIRS / run->in->x.nk < CHUNK_ROWS ? CHUNK_PAIRS / run->in->x.nk : CHUNK_ROWS;
    return want <= step ? step : ceil_div(want, step) * step;
}
