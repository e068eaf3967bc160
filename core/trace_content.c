/*
 * trace_content.c - the text whose hash is the content id.
 *
 * Content id = XXH3-128 of a text with one line per metadata field, one per call and one per
 * payload dataset with its checksums (doc/trace-format.md has the exact form). So it identifies the
 * content independently of the file's name, storage form and writing program, and a changed
 * attribute or checksum cannot go unnoticed.
 */
#include "core/trace_internal.h"

#include <math.h>

void content_f64(struct buf *b, double x)
{
    /* The sign of a NaN is not content, and C libraries print it differently. */
    if (isnan(x))
        buf_puts(b, "nan");
    else
        buf_printf(b, "%.17g", x);
}

void content_call(const struct trace_call *c, struct buf *b)
{
    buf_printf(b, "call step=%d branch=%s layer=%d block=%s order=%d timestep=", c->step, c->branch,
               c->layer, c->block, c->order);
    content_f64(b, c->timestep);
    buf_puts(b, " sigma=");
    content_f64(b, c->sigma);
    buf_puts(b, "\n");
    content_score(&c->score, b);
}

void content_array(const struct trace_array *a, struct buf *b)
{
    if (!a->present)
        return;
    buf_puts(b, a->name);
    for (int i = 0; i < a->ndim; i++)
        buf_printf(b, "%s%lld", i ? "x" : " ", (long long)a->dims[i]);
    for (int64_t s = 0; s < a->slices; s++)
        buf_printf(b, " %016llx%016llx", (unsigned long long)a->sums[s].hi,
                   (unsigned long long)a->sums[s].lo);
    buf_puts(b, "\n");
}

void sum_to_bytes(struct hash128 h, uint8_t out[16])
{
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(h.hi >> (56 - 8 * i));
        out[8 + i] = (uint8_t)(h.lo >> (56 - 8 * i));
    }
}

struct hash128 sum_from_bytes(const uint8_t in[16])
{
    struct hash128 h = {0};
    for (int i = 0; i < 8; i++) {
        h.hi = h.hi << 8 | in[i];
        h.lo = h.lo << 8 | in[8 + i];
    }
    return h;
}
