/*
 * csv.c - CSV in one pass over the file's text: fields are unquoted in place.
 */
#include "analyze/csv.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define CSV_MOST (64u << 20)

struct reader {
    const char *path;
    char *in, *end, *to; /* read position, end, where the unquoted text goes */
    int64_t line;
};

/* One field: its text ends up at *field, *last tells whether it ends a row. */
static int read_field(struct reader *r, char **field, bool *last, struct err *err)
{
    bool quoted = r->in < r->end && *r->in == '"';
    *field = r->to;
    r->in += quoted;
    for (; r->in < r->end; r->in++) {
        if (quoted && *r->in == '"') {
            if (r->in + 1 < r->end && r->in[1] == '"') {
                r->in++;
            } else {
                quoted = false;
                continue;
            }
        } else if (!quoted && (*r->in == ',' || *r->in == '\n' || *r->in == '\r')) {
            break;
        }
        r->line += *r->in == '\n';
        *r->to++ = *r->in;
    }
    if (quoted)
        return err_set(err, ERR_INPUT, "%s:%lld: a quoted field does not end", r->path,
                       (long long)r->line);
    *last = r->in == r->end || *r->in != ',';
    if (r->in < r->end && *r->in == '\r')
        r->in++;
    if (r->in < r->end && (*r->in == '\n' || *r->in == ','))
        r->line += *r->in++ == '\n';
    *r->to++ = '\0';
    return 0;
}

static int read_row(struct reader *r, struct csv *c, int64_t *cap_rows, struct err *err)
{
    OWN(free_at) char **fields = NULL;
    char *field;
    int64_t n = 0, cap = 0, line = r->line;
    bool last = false;
    while (!last) {
        PASS_ON(read_field(r, &field, &last, err));
        PASS_ON(mem_grow(&fields, &cap, n + 1, sizeof *fields, "CSV fields", err));
        fields[n++] = field;
    }
    if (c->n && n != c->fields)
        return err_set(err, ERR_INPUT, "%s:%lld: %lld fields, the header has %lld", r->path,
                       (long long)line, (long long)n, (long long)c->fields);
    c->fields = n;
    PASS_ON(mem_grow(&c->row, cap_rows, c->n + 1, sizeof *c->row, "CSV rows", err));
    c->row[c->n++] = HAND_OVER(fields);
    return 0;
}

int csv_read(const char *path, struct csv *out, struct err *err)
{
    struct csv c = {0};
    struct buf text = {0};
    int64_t cap = 0;
    int rc = 0;
    TRY(buf_read_file(&text, path, CSV_MOST, err));
    if (text.len == 0)
        FAIL(err, ERR_INPUT, "%s: empty, a header was expected", path);
    /* Unquoted text is never longer than its source, plus one terminator per row end. */
    TRY(mem_alloc(&c.text, (int64_t)text.len + 2, 1, "CSV text", err));
    struct reader r = {path, text.data, text.data + text.len, c.text, 1};
    while (r.in < r.end)
        TRY(read_row(&r, &c, &cap, err));
    *out = c;
out:
    buf_free(&text);
    if (rc)
        csv_free(&c);
    return rc;
}

void csv_free(struct csv *c)
{
    for (int64_t i = 0; i < c->n; i++)
        free(c->row[i]);
    free(c->row);
    free(c->text);
    *c = (struct csv){0};
}

int csv_column(const struct csv *c, const char *name, const char *path, int64_t *out,
               struct err *err)
{
    for (int64_t i = 0; i < c->fields; i++)
        if (strcmp(c->row[0][i], name) == 0) {
            *out = i;
            return 0;
        }
    return err_set(err, ERR_INPUT, "%s: no column '%s' in the header", path, name);
}
