/*
 * evaltask.c - which kind a task's text names.
 */
#include "eval/evaltask.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "eval/prompt.h"

#include <string.h>
#include <unistd.h>

static bool is_task_file(const char *path)
{
    size_t n = strlen(path), end = strlen(".jsonl");
    return n > end && strcmp(path + n - end, ".jsonl") == 0;
}

int eval_task_open(const char *text, const struct eval_model *m, const struct task_opts *o,
                   struct eval_task *out, struct err *err)
{
    bool there;
    int rc = 0;

    *out = (struct eval_task){.m = m, .o = o};
    TRY(io_exists(text, &there, err));
    if (prompt_is_task(text))
        TRY(gen_task_open(text, out, err));
    else if (there && is_task_file(text))
        TRY(file_task_open(text, out, err));
    else if (there)
        TRY(text_task_open(text, out, err));
    else
        FAIL(err, ERR_USAGE,
             "'%s' is neither a task (needle, multi, kv, chain, copy, track) nor a file", text);
out:
    if (rc)
        eval_task_close(out);
    return rc;
}

void task_put_text(struct buf *b, const char *text)
{
    for (const char *p = text; *p; p++)
        buf_put(b, *p == ':' || *p == '=' ? "_" : p, 1);
}

void task_chat_text(const struct task_opts *o, struct buf *b)
{
    char hash[HASH_TEXT_MAX];
    if (!o->chat)
        return;
    hash_text(hash_bytes(o->chat, strlen(o->chat)), hash);
    buf_printf(b, ":chat=%s", hash + strlen("xxh3:"));
}

void eval_task_close(struct eval_task *t)
{
    if (t->kind)
        t->kind->close(t);
    memset(t, 0, sizeof *t);
}
