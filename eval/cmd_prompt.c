/*
 * cmd_prompt.c - `lacuna prompt`: a generated prompt as text, or with its answer as a line of a
 * task file.
 */
#include "core/cmd.h"
#include "core/environment.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "eval/evalargs.h"
#include "eval/prompt.h"

#include <stdio.h>

struct prompt_opts {
    struct common_opts c;
    char *model, *tokens, *haystack, *chat, *out;
    double depth;
    int64_t sample;
    int bos;
};

static const char *const bos_values[] = {"auto", "yes", "no", NULL};

static const struct opt options[] = {
    OPT_STR(struct prompt_opts, model, NULL, "DIR",
            "Checkpoint or GGUF file whose tokenizer counts (default: the code-lm that ships with "
            "lacuna)."),
    OPT_STR(struct prompt_opts, tokens, "2K", "N",
            "Ids of the prompt and of the answer that may follow, as in 16K (K = 1024).",
            .unit = "tokens", .short_name = 'n'),
    OPT_NUM(struct prompt_opts, depth, "0.5", 0, 1, "",
            "Where the asked item stands, 0 = front, 1 = end.", .arg = "D"),
    OPT_INT(struct prompt_opts, sample, "0", 0, 1e9, "", "Number of the sample.", .arg = "N"),
    OPT_STR(struct prompt_opts, haystack, NULL, "FILE",
            "Hide things between the lines of this text instead of generated ones."),
    OPT_STR(
        struct prompt_opts, chat, NULL, "TEXT",
        "Text with {prompt} in it that is counted and put around the prompt; in the line of --json "
        "it is not, because eval --chat puts it there."),
    OPT_ENUM(struct prompt_opts, bos, "auto", bos_values,
             "Whether a beginning-of-text token counts."),
    OPT_AS("output", OPT_STR, struct prompt_opts, out, NULL,
           .help = "File to write (default: standard output).", .short_name = 'o', .arg = "FILE"),
    COMMON_OPTS,
    {0},
};

/* Append the prompt as one JSON line of a task file, graded as `lacuna eval` grades it. ERR_USAGE
 * for chain and copy, which task files cannot grade. */
static int task_line(const struct prompt_spec *s, const struct prompt *p, struct buf *b,
                     struct err *err)
{
    struct jw w;
    bool names = s->kind == PROMPT_TRACK;
    if (s->kind == PROMPT_CHAIN || s->kind == PROMPT_COPY)
        return err_set(err, ERR_USAGE,
                       "prompt: --json: a task file cannot say how %s is graded; give the task to "
                       "eval itself",
                       prompt_name(s));
    jw_init(&w, b, 0);
    jw_obj(&w);
    jw_kstr(&w, "prompt", buf_str(&p->text));
    jw_karr(&w, "answers");
    for (int64_t i = 0; i < p->answers.n; i++) {
        const char *a = p->answers.items[i];
        jw_str(&w, a[0] == ' ' ? a + 1 : a);
    }
    jw_arr_end(&w);
    jw_members(&w, JW_STR("metric", names ? "contains_all" : "exact"),
               JW_INT("max_new_tokens", p->max_new));
    jw_karr(&w, "stop");
    for (int64_t i = 0; i < p->stop.n; i++)
        jw_str(&w, p->stop.items[i]);
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_puts(b, "\n");
    return buf_check(b, "task line", err);
}

/* The chat text with the prompt in it. */
static void put_chat(const char *chat, const struct buf *prompt, struct buf *b)
{
    static const char hole[] = "{prompt}";
    const char *at = strstr(chat, hole);
    buf_put(b, chat, (size_t)(at - chat));
    buf_put(b, prompt->data, prompt->len);
    buf_puts(b, at + strlen(hole));
}

static int write_prompt(const struct prompt_opts *o, const struct prompt_spec *s,
                        const struct prompt *p, struct err *err)
{
    OWN(buf_free) struct buf line = {0};
    const struct buf *text = &p->text;
    if (o->c.json)
        PASS_ON(task_line(s, p, &line, err));
    else if (o->chat)
        put_chat(o->chat, &p->text, &line);
    PASS_ON(buf_check(&line, "prompt", err));
    text = line.len ? &line : text;
    if (o->out)
        return file_write_atomic(o->out, text->data, text->len, err);
    if (fwrite(text->data, 1, text->len, stdout) != text->len)
        return err_sys(err, ERR_IO, "standard output");
    return 0;
}

static int make(const struct prompt_opts *o, const char *task, struct err *err)
{
    OWN(eval_model_close) struct eval_model m = {0};
    struct prompt_spec spec;
    OWN(prompt_free) struct prompt p = {0};
    OWN(lines_free) struct lines file = {0};
    OWN(buf_free) struct buf dir = {0};
    int64_t n = 0;
    OWN(free_at) int64_t *tokens = NULL;
    char hash[40];
    PASS_ON(tokens_parse(o->tokens, "--tokens", &tokens, &n, err));
    if (n != 1)
        return err_set(err, ERR_USAGE, "prompt: one length was expected, found --tokens %s",
                       o->tokens);
    PASS_ON(chat_check(o->chat, err));
    if (o->model)
        buf_puts(&dir, o->model);
    else
        PASS_ON(datadir_find("models/code-lm", &dir, err));
    PASS_ON(buf_check(&dir, "model", err));
    PASS_ON(eval_model_open(&m, buf_str(&dir), o->bos, err));
    PASS_ON(prompt_spec_parse(task, m.domain, &spec, err));
    if (o->haystack) {
        PASS_ON(refuse_input(o->out, o->haystack, err));
        PASS_ON(lines_read(&file, o->haystack, hash, err));
    }
    PASS_ON(eval_prompt_make(&m, &spec, o->haystack ? &file : NULL, o->chat, tokens[0], o->depth,
                             o->sample, (uint64_t)o->c.seed, &p, err));
    if (o->c.dry_run)
        fprintf(stderr, "would write %lld bytes to %s\n", (long long)p.text.len,
                o->out ? o->out : "standard output");
    else
        PASS_ON(write_prompt(o, &spec, &p, err));
    return 0;
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct prompt_opts *o = opts;
    if (rest->n != 1)
        return err_set(err, ERR_USAGE,
                       "prompt: one task was expected (needle, multi, kv, chain, copy, "
                       "track), found %lld arguments",
                       (long long)rest->n);
    return make(o, rest->items[0], err);
}

const struct command cmd_prompt = {
    "prompt",
    "prompt TASK[:key=value] [--tokens N] [--depth D] [--sample S] [-o FILE]",
    "write a generated prompt: needle, multi, kv, chain, copy, track",
    run,
    options,
    sizeof(struct prompt_opts),
    "The same prompts as `lacuna eval` asks, a function of task, length, depth, sample and seed.\n"
    "--json writes prompt and answer as a line of a task file that eval reads.\n\n"
    "Examples:\n"
    "  lacuna prompt needle --tokens 16K --depth 0.5 -o needle.txt\n"
    "  lacuna prompt kv:domain=en --model DIR --tokens 8K --json >> kv.jsonl\n",
};
