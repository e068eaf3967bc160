/*
 * words.c - see words.h.
 */
#include "plots/words.h"

#include "core/cmd.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Characters of a name, and their room: small letters. */
#define NAME_MOST 14
#define NAME_CHAR 5.6
#define NAME_HIGH 9 /* units from one name to the next */

/* Blanks and line ends as characters that are seen, and that every font and LaTeX has. */
static void visible(const char *text, struct buf *out)
{
    int chars = 0;
    buf_reset(out);
    for (const char *p = text; *p && chars <= NAME_MOST; p++) {
        bool starts = ((unsigned char)*p & 0xc0) != 0x80;
        chars += starts;
        if (starts && chars > NAME_MOST)
            buf_puts(out, "~");
        else if (*p == ' ' || *p == '\t')
            buf_puts(out, "\u00b7");
        else if (*p == '\n' || *p == '\r')
            buf_puts(out, "\u00b6");
        else
            buf_put(out, p, 1);
    }
}

static int read_side(const struct figure_args *a, const int32_t *ids, int64_t first, int64_t n,
                     struct str_list *out, struct err *err)
{
    struct str_list texts = {0};
    struct buf one = {0};
    int rc = 0;
    TRY(a->app->token_texts(a->tokens, ids + first, n, &texts, err));
    for (int64_t i = 0; i < texts.n; i++) {
        visible(texts.items[i], &one);
        TRY(buf_check(&one, "text of a token", err));
        str_list_add(out, buf_str(&one));
    }
    if (out->failed)
        FAIL(err, ERR_NOMEM, "texts of tokens: out of memory");
out:
    str_list_free(&texts);
    buf_free(&one);
    return rc;
}

int words_read(const struct figure_args *a, const struct cells_span *span, struct words *w,
               struct err *err)
{
    const struct trace_meta *m = trace_meta(a->trace);
    int32_t *ids = NULL;
    struct buf file = {0};
    int64_t n = 0;
    int rc = 0;
    if (!a->tokens)
        return 0;
    if (span->n_q > WORDS_MOST || span->n_k > WORDS_MOST)
        FAIL(err, ERR_USAGE,
             "--tokens names at most %d queries and keys: choose a part (--rows 100-140 --keys "
             "100-140)",
             WORDS_MOST);
    buf_printf(&file, "%s/tokenizer.json", a->tokens);
    TRY(buf_check(&file, "path", err));
    if (access(file.data, R_OK) != 0)
        FAIL(err, ERR_INPUT,
             "--tokens %s: there is no tokenizer.json in it; name the directory of the model that "
             "%s was captured from",
             a->tokens, trace_path(a->trace));
    TRY(trace_read_run(a->trace, TRACE_TOKENS, &ids, &n, err));
    if (n != m->n_k)
        FAIL(err, ERR_INPUT, "%s holds no token ids: leave --tokens out", trace_path(a->trace));
    TRY(read_side(a, ids, span->k0, span->n_k, &w->keys, err));
    TRY(read_side(a, ids, span->q0 + m->n_k - m->n_q, span->n_q, &w->queries, err));
out:
    free(ids);
    buf_free(&file);
    return rc;
}

void words_free(struct words *w)
{
    str_list_free(&w->queries);
    str_list_free(&w->keys);
}

int words_room(const struct str_list *l)
{
    size_t longest = 0;
    for (int64_t i = 0; i < l->n; i++) {
        size_t chars = 0;
        for (const char *p = l->items[i]; *p; p++)
            chars += ((unsigned char)*p & 0xc0) != 0x80;
        longest = chars > longest ? chars : longest;
    }
    int room = (int)(NAME_CHAR * (double)longest) - 18;
    return room > 0 ? room : 0;
}

/* Every n-th token of an axis of so many units, that names do not run into each other. */
static int64_t every(const struct str_list *l, int units)
{
    int64_t n = 1;
    while (units * n < NAME_HIGH * l->n)
        n++;
    return n;
}

static void put_tics(const struct str_list *l, const char *axis, int64_t first, int64_t n,
                     bool named, const char *how, struct gp *g)
{
    buf_printf(&g->script, "set %stics out nomirror %sfont font_small noenhanced (", axis, how);
    for (int64_t i = 0; i < l->n; i += n) {
        buf_puts(&g->script, i ? ", " : "");
        gp_tic(g, &g->script, named ? l->items[i] : "");
        buf_printf(&g->script, " %.1f", (double)(first + i) + 0.5);
    }
    buf_puts(&g->script, ")\n");
}

void words_axes(const struct words *w, const struct cells *c, int width, int height, bool leftmost,
                bool lowest, struct gp *g)
{
    if (!w || !w->keys.n)
        return;
    int64_t x = every(&w->keys, width), y = every(&w->queries, height);
    put_tics(&w->keys, "x", c->k0, x, lowest, "rotate by 90 right ", g);
    put_tics(&w->queries, "y", c->q0, y, leftmost, "", g);
    if ((x > 1 || y > 1) && leftmost && lowest)
        buf_printf(
            &g->caption,
            " Not all tokens have room for their names: one in %lld of the keys, one in %lld "
            "of the queries.",
            (long long)x, (long long)y);
}
