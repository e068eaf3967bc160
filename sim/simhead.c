/*
 * simhead.c - see simhead.h.
 */
#include "sim/simhead.h"

#include <stdlib.h>
#include <string.h>

void sim_head_ready(struct sim_head *h, enum precision prec)
{
    h->in.x.q = h->q;
    h->in.x.k = h->k;
    h->in.x.v = h->v;
    h->in.x.on_device = NULL; /* a device has the head as it was, if at all */
    exact_init(&h->exact, &h->in.x, prec);
    h->in.exact = &h->exact;
}

void sim_head_free(struct sim_head *h)
{
    exact_free(&h->exact);
    free(h->q);
    if (!h->borrows_kv) {
        free(h->k);
        free(h->v);
    }
    free(h->perm);
    free(h->rel);
    memset(h, 0, sizeof *h);
}
