/*
 * pagetext.c - parts of a page in words.
 */
#include "reproduce/pagetext.h"

#include <string.h>

void count_text(struct buf *b, int64_t n)
{
    if (n >= 10000) {
        count_text(b, n / 1000);
        buf_printf(b, ",%03d", (int)(n % 1000));
    } else {
        buf_printf(b, "%lld", (long long)n);
    }
}

const char *page_caption(const struct page *p)
{
    return json_str_or(p->recipe->item, "caption", "");
}

void page_command(const struct page *p, struct buf *b)
{
    const struct model_set *set = p->plan->models;
    buf_printf(b, "lacuna reproduce %s%s%s", p->recipe->id, p->plan->quick ? " --quick" : "",
               p->plan->cuda ? " --backend cuda" : "");
    for (int i = 0; i < set->n; i++) {
        const struct model_use *m = &set->m[i];
        const char *path = m->trace ? m->trace : m->dir, *slash = strrchr(path, '/');
        if (m->given && json_object_get(p->recipe->roles, m->role))
            buf_printf(b, " --%s %s=%s", m->trace ? "trace" : "model", m->role,
                       slash ? slash + 1 : path);
    }
    for (int i = 0; i < p->plan->n; i++)
        if (p->plan->s[i].recipe == p->at && p->plan->s[i].task && p->plan->s[i].task->path) {
            buf_puts(b, " --tasks DIR");
            break;
        }
    buf_puts(b, " -o DIR");
}

void page_agreement(const struct page *p, struct buf *b)
{
    int agree = 0, differ = 0, beside = 0, own = 0;
    for (int i = 0; i < p->n_blocks; i++)
        for (int k = 0; k < p->blocks[i].rows.n * p->blocks[i].columns.n; k++) {
            enum cell_state s = p->blocks[i].cell[k].state;
            agree += s == CELL_AGREES;
            differ += s == CELL_DIFFERS;
            beside += s == CELL_BESIDE;
            own += s == CELL_OURS;
        }
    if (agree + differ > 0)
        buf_printf(b, "Where everything is the paper's, %d cells agree and %d differ. ", agree,
                   differ);
    if (beside + own == 0)
        return;
    buf_puts(b,
             agree + differ ? "For the others no agreement is tested." : "No agreement is tested.");
}

bool figure_number(const struct page *p, int64_t i, struct paper_number *out)
{
    const json_t *n = json_object_get(p->recipe->item, "numbers");
    return p->recipe->figure && n &&
           paper_number_at(p->data, json_str_or(p->recipe->item, "csv", ""),
                           json_str_or(n, "table", ""), i, out);
}

bool page_has_figure(const struct page *p)
{
    for (int i = 0; i < p->plan->n; i++)
        if (p->plan->s[i].recipe == p->at && p->plan->s[i].done &&
            step_job(p->plan, &p->plan->s[i])->kind == DO_DRAW)
            return true;
    return false;
}

void page_file(const char *id, struct buf *b)
{
    for (const char *c = id; *c; c++)
        buf_put(b, *c == ':' ? "-" : c, 1);
}
