/*
 * topshare.h - how many blocks of keys a row of blocks keeps at a share of dense attention's work,
 * which the CPU's and a device's side find alike.
 */
#ifndef LACUNA_TOPSHARE_H
#define LACUNA_TOPSHARE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Work of the `top` best blocks of each of `blocks` rows of as many blocks, over dense attention's;
 * a row that sees fewer keeps all of them. */
static inline double share_of_top(int64_t top, int64_t blocks, bool causal)
{
    double t = (double)top, nb = (double)blocks;
    double kept = causal ? t * (t + 1) / 2 + (nb - t) * t : t * nb;
    return kept / (causal ? nb * (nb + 1) / 2 : nb * nb);
}

/* The number whose work comes nearest to `share`, the least of several; 1 <= it <= blocks. */
static inline int64_t top_of_share(double share, int64_t blocks, bool causal)
{
    double best = INFINITY;
    int64_t found = 1;
    for (int64_t top = 1; top <= blocks; top++) {
        double off = fabs(share_of_top(top, blocks, causal) - share);
        if (off < best) {
            best = off;
            found = top;
        }
    }
    return found;
}

#endif
