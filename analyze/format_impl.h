/* format_impl.h - the writers of the other files, for the registry in format.c. */
#ifndef LACUNA_FORMAT_IMPL_H
#define LACUNA_FORMAT_IMPL_H

#include "analyze/sheet.h"
#include "core/buf.h"

void text_show(const struct sheet *s, struct buf *b);
void md_show(const struct sheet *s, struct buf *b);
void tex_show(const struct sheet *s, struct buf *b);
void json_write(const struct table *t, struct buf *b);
void html_write(const struct table *t, struct buf *b);

#endif
