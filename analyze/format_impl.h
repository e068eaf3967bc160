/* format_impl.h - the writers of format_markup.c, for the registry in format.c. */
#ifndef LACUNA_FORMAT_IMPL_H
#define LACUNA_FORMAT_IMPL_H

#include "analyze/table.h"
#include "core/buf.h"

void tex_write(const struct table *t, struct buf *b);
void json_write(const struct table *t, struct buf *b);
void html_write(const struct table *t, struct buf *b);

#endif
