/*
 * evaltask.c - which kind a task's text names.
 */
#include "eval/evaltask.h"

#include "core/text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int eval_task_open(const char *text, const struct eval_model *m, const struct task_opts *o,
                   struct eval_task *out, struct err *err)
{
    int rc = 0;

    *out = (struct eval_task){.m = m, .o = o};
    if (access(text, F_OK) != 0)
        FAIL(err, ERR_USAGE, "'%s' is neither a task nor a file", text);
    TRY(text_task_open(text, out, err));
out:
    if (rc)
        eval_task_close(out);
    return rc;
}

void eval_task_close(struct eval_task *t)
{
    if (t->kind)
        t->kind->close(t);
    memset(t, 0, sizeof *t);
}
