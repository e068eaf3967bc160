/*
 * cmd_reproduce.c - `lacuna reproduce`: the papers' tables and figures, from one command.
 */
#include "core/cmd.h"
#include "core/environment.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/text.h"
#include "reproduce/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct reproduce_opts {
    struct common_opts c;
    char *output;
    struct str_list model, trace, tasks;
    char *lengths, *chat;
    int backend, style;
    int64_t parallel;
    double disk;
    bool quick, list;
};

static const char *const backends[] = {"cpu", "cuda", NULL};
static const char *const styles[] = {"paper", "slide", "screen", NULL};

static const struct opt options[] = {
    OPT_STR(struct reproduce_opts, output, NULL, "DIR",
            "Folder for pages, figures and jobs; an interrupted run continues there.",
            .short_name = 'o'),
    OPT_LIST(
        struct reproduce_opts, model, NULL, "[NAME=]DIR",
        "Checkpoint or GGUF file in place of the shipped one of its role (lm, dit). A NAME of "
        "the papers' models (llama-3.1-8b) puts its numbers into that one's cells. Repeatable.",
        .short_name = 'm'),
    OPT_STR(struct reproduce_opts, lengths, NULL, "LIST",
            "Lengths of texts in place of the recipes', as in 8K,48K,128K; a table of one length "
            "takes the nearest to the paper's. paper: those that the papers print."),
    OPT_STR(struct reproduce_opts, chat, "auto", "TEXT",
            "Text with {prompt} in it around each prompt of a language model of --model. auto: as "
            "its chat template (Llama 3.1, Qwen2.5, ChatML); none."),
    OPT_LIST(struct reproduce_opts, trace, NULL, "[ROLE=]T.h5",
             "Trace that exists, in place of captures of a model. Repeatable."),
    OPT_LIST(struct reproduce_opts, tasks, NULL, "DIR",
             "Folder with files of LongBench or InfiniteBench as published (qasper.jsonl, "
             "passkey.jsonl, ...). Repeatable."),
    OPT_ENUM(struct reproduce_opts, backend, "cpu", backends,
             "Where methods run; cuda also gives times."),
    OPT_BOOL(struct reproduce_opts, quick, "0",
             "Reduced lengths and samples; every number made so is marked q."),
    OPT_INT(struct reproduce_opts, parallel, NULL, 1, 64, "jobs",
            "Jobs that run side by side and share the threads of --jobs; those whose result is a "
            "time run alone (default: one for every 4 threads, with cuda 3 for every 4)."),
    OPT_NUM(struct reproduce_opts, disk, NULL, 0.001, 1e6, "GB",
            "Room for traces: they are made in turns that fit into it, and deleted when they are "
            "read (default: all are kept)."),
    OPT_ENUM(struct reproduce_opts, style, "paper", styles,
             "Drawings: 8 pt for a column of a paper, without title; 18 pt; for the screen."),
    OPT_BOOL(struct reproduce_opts, list, "0", "List tables and figures with what they need."),
    COMMON_OPTS,
    {0},
};

struct session {
    const struct app *app;
    struct reproduce_opts o;
    struct paper_data data;
    struct recipe *recipes;
    int n_recipes;
    struct model_set models;
    struct task_set tasks;
    struct plan plan;
};

/* ---- which tables ---------------------------------------------------------------------------- */

/* Is the table one of "PAPER" or "PAPER:ITEM"? */
static bool is_of(const char *id, const char *item)
{
    size_t n = strlen(item);
    return strncmp(id, item, n) == 0 && (!id[n] || id[n] == ':');
}

static bool wanted(const struct str_list *items, const char *id)
{
    for (int64_t i = 0; i < items->n; i++)
        if (is_of(id, items->items[i]))
            return true;
    return false;
}

static int check_items(const struct paper_data *d, const struct str_list *items, struct err *err)
{
    struct names all = {0};
    const json_t *item;
    for (int p = 0; p < PAPERS; p++)
        names_add(&all, paper_ids[p]);
    for (size_t k = 0; (item = paper_item_at(d, k)); k++)
        names_add(&all, json_str_or(item, "id", ""));
    for (int64_t i = 0; i < items->n; i++) {
        bool known = false;
        char hint[HINT_MAX];
        for (int k = 0; k < all.n && !known; k++)
            known = is_of(all.items[k], items->items[i]);
        if (!known)
            return err_set(err, ERR_USAGE,
                           "unknown table or figure '%s'%s (lacuna reproduce --list names them)",
                           items->items[i], did_you_mean(items->items[i], all.items, hint));
    }
    return 0;
}

static int read_recipes(struct session *s, const struct str_list *items, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    const json_t *item;
    size_t n = 0;
    PASS_ON(check_items(&s->data, items, err));
    while (paper_item_at(&s->data, n))
        n++;
    PASS_ON(mem_zalloc(&s->recipes, (int64_t)n, sizeof *s->recipes, "recipes", err));
    for (size_t i = 0; (item = paper_item_at(&s->data, i)); i++) {
        const char *id = json_str_or(item, "id", "");
        if (!s->o.list && !wanted(items, id))
            continue;
        buf_reset(&path);
        PASS_ON(recipe_path(&s->data, id, &path, err));
        struct recipe *r = &s->recipes[s->n_recipes++];
        PASS_ON(recipe_read(buf_str(&path), &s->data, r, err));
        if (strcmp(r->id, id) != 0)
            return err_set(err, ERR_INPUT, "%s: id: '%s' was expected, found '%s'", buf_str(&path),
                           id, r->id);
        PASS_ON(recipe_check(r, err));
    }
    return 0;
}

/* Without jobs there is nothing of ours. */
static const char *state_here(const struct session *s, const struct recipe *r)
{
    bool traces = strchr(r->needs, 'T') != NULL;
    if (!r->n_jobs)
        return strchr(r->needs, 'M')   ? "needs eval"
               : strchr(r->needs, 'K') ? "needs GPU"
                                       : "not reproducible";
    return traces || s->app->accel ? "ready" : "needs GPU";
}

static bool takes_files(const struct recipe *r)
{
    bool any = false;
    for (int j = 0; j < r->n_jobs; j++)
        any = any || r->jobs[j].tasks;
    return any;
}

/* How long it is, without the full stop or the colon that ends it. */
static int first_sentence(const char *text)
{
    size_t n = strcspn(text, ".:");
    while (text[n] && text[n + 1] && text[n + 1] != ' ')
        n += 1 + strcspn(text + n + 1, ".:");
    return (int)n;
}

static int print(struct buf *b, struct err *err)
{
    int rc = buf_check(b, "output", err);
    if (!rc && fwrite(b->data, 1, b->len, stdout) != b->len)
        rc = err_sys(err, ERR_IO, "standard output");
    buf_free(b);
    return rc;
}

static int print_list(const struct session *s, struct err *err)
{
    struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 1);
    if (s->o.c.json)
        jw_arr(&w);
    for (int i = 0; i < s->n_recipes; i++) {
        const struct recipe *r = &s->recipes[i];
        const char *caption = json_str_or(r->item, "caption", ""), *state = state_here(s, r);
        const char *why = json_str_or(r->absent, "*", "");
        if (s->o.c.json) {
            jw_row(&w, JW_STR("id", r->id), JW_STR("caption", caption), JW_STR("needs", r->needs),
                   JW_STR("state", state), JW_STR("reason", why), JW_BOOL("files", takes_files(r)));
        } else {
            bool again = strncmp(why, state, strlen(state)) == 0; /* "needs eval with the files" */
            buf_printf(&b, "%-22s %-4s %s%s%s", r->id, r->needs[0] ? r->needs : "-",
                       again ? "" : state, why[0] && !again ? ": " : "", why);
            if (takes_files(r))
                buf_puts(&b, "; takes files of benchmarks (--tasks)");
            if (!why[0] && caption[0])
                buf_printf(&b, ": %.*s", first_sentence(caption), caption);
            buf_puts(&b, "\n");
        }
    }
    if (s->o.c.json) {
        jw_arr_end(&w);
        buf_puts(&b, "\n");
    }
    return print(&b, err);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Work in DIR/jobs, so that every path in a command is short and free of odd characters. */
static int enter(struct session *s, struct err *err)
{
    OWN(buf_free) struct buf jobs = {0}, data = {0};
    OWN(free_at) char *root = NULL;
    root = realpath(buf_str(&s->data.dir), NULL);
    if (!root)
        return err_set(err, ERR_INPUT, "%s: not there any more", buf_str(&s->data.dir));
    buf_puts(&data, root);
    data.data[strlen(root) - strlen("/paper")] = '\0';
    if (setenv("LACUNA_DATA", data.data, 1) != 0)
        return err_set(err, ERR_NOMEM, "environment: out of memory");
    buf_printf(&jobs, "%s/jobs", s->o.output);
    PASS_ON(buf_check(&jobs, "path", err));
    if (!s->o.c.dry_run)
        PASS_ON(make_dirs(buf_str(&jobs), err));
    if (chdir(buf_str(&jobs)) != 0 && !s->o.c.dry_run)
        return err_sys(err, ERR_IO, "%s", buf_str(&jobs));
    return 0;
}

/* How many jobs run side by side: most have phases of one thread. */
static int at_once(const struct session *s)
{
    int threads = cmd_jobs(&s->o.c);
    int n = s->o.parallel > 0 ? (int)s->o.parallel : threads * (s->o.backend == 1 ? 3 : 1) / 4;
    return n < 1 ? 1 : n > 64 ? 64 : n;
}

static void set_backend(struct session *s, bool cuda)
{
    for (int i = 0; i < s->n_recipes; i++)
        s->recipes[i].on_gpu = cuda;
}

/* Bytes for traces; 0: no limit. */
static double room_of(const struct session *s)
{
    return s->o.disk > 0 ? s->o.disk * 1e9 : 0;
}

static void warn_undrawn(const struct plan *p)
{
    int n = 0;
    for (int i = 0; i < p->n; i++)
        n += p->s[i].postponed;
    if (n)
        log_warn("%d drawing%s left out, because gnuplot was not found (package gnuplot-nox); the "
                 "same command draws where it is, also after DIR was copied there",
                 n, n == 1 ? " is" : "s are");
}

/* What the same tables cost with other options. */
static int put_other(struct session *s, bool quick, bool cuda, struct buf *b, struct err *err)
{
    struct plan p = s->plan;
    struct cost cost = {0};
    int rc = 0;
    p.s = NULL;
    p.n = 0;
    p.cap = 0;
    p.texts = (struct str_list){0};
    p.quick = quick;
    p.cuda = cuda;
    set_backend(s, cuda);
    TRY(plan_expand(&p, err));
    plan_look(&p);
    plan_cost(&p, cmd_jobs(&s->o.c), &cost);
    buf_printf(b, "  %s%s: ", quick ? "--quick" : "",
               !cuda   ? ""
               : quick ? " --backend cuda"
                       : "--backend cuda");
    cost_text(&cost, b);
    buf_puts(b, cuda ? ", on an H100\n" : "\n");
out:
    set_backend(s, s->plan.cuda);
    plan_free(&p);
    return rc;
}

/* How it could take less, where it takes hours or much of a disk. */
static int put_advice(struct session *s, struct buf *b, struct err *err)
{
    struct cost all = {0};
    double least, has = disk_free("."), room = room_of(s);
    char text[3][24];
    plan_cost(&s->plan, cmd_jobs(&s->o.c), &all);
    if (all.seconds < 1800 && all.bytes < 10e9)
        return 0;
    bytes_text(has, text[0]);
    buf_printf(b, "free on this disk: %s\n", has < 0 ? "not known" : text[0]);
    if (!s->plan.quick)
        PASS_ON(put_other(s, true, s->plan.cuda, b, err));
    if (!s->plan.cuda)
        PASS_ON(put_other(s, s->plan.quick, true, b, err));
    PASS_ON(plan_least_disk(&s->plan, &least, err));
    bytes_text(least, text[1]);
    bytes_text(room, text[2]);
    if (room > 0)
        buf_printf(b, "  with --disk: %s of traces at a time, %s are the least\n", text[2],
                   text[1]);
    else if (least < all.bytes)
        buf_printf(b, "  --disk %.0f: %s of traces at a time, made in turns and deleted\n",
                   ceil(least / 1e9), text[1]);
    return 0;
}

static int print_plan(struct session *s, struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    plan_look(&s->plan);
    plan_text(&s->plan, cmd_jobs(&s->o.c), &b);
    rc = put_advice(s, &b, err);
    if (rc)
        buf_free(&b);
    return rc ? rc : print(&b, err);
}

static int reproduce(struct session *s, const struct str_list *items, struct err *err)
{
    int written = 0, failed = 0;
    if (s->o.c.force)
        return err_set(
            err, ERR_USAGE,
            "reproduce: --force: remove the folders of DIR/jobs that are to be made again");
    if (s->o.c.seed)
        return err_set(err, ERR_USAGE,
                       "reproduce: --seed: the recipes fix the seeds of their jobs");
    if (s->o.c.json && s->o.c.dry_run)
        return err_set(err, ERR_USAGE,
                       "reproduce: the plan of --dry-run is text; leave --json out");
    if (s->o.backend == 1 && !s->app->accel && !s->o.c.dry_run)
        return err_set(err, ERR_MACHINE, "reproduce: this program was built without CUDA");
    PASS_ON(paper_data_load(&s->data, err));
    PASS_ON(read_recipes(s, items, err));
    if (s->o.list) {
        PASS_ON(print_list(s, err));
        return 0;
    }
    PASS_ON(model_set_make(&s->o.model, &s->o.trace, s->recipes, s->n_recipes, &s->data, &s->models,
                           err));
    PASS_ON(model_set_chat(&s->models, &s->data, s->o.chat, err));
    PASS_ON(task_set_make(&s->data, &s->o.tasks, &s->tasks, err));
    PASS_ON(enter(s, err));
    set_backend(s, s->o.backend == 1);
    for (int i = 0; s->o.lengths && i < s->n_recipes; i++)
        PASS_ON(recipe_set_lengths(&s->recipes[i], s->o.lengths, err));
    s->plan = (struct plan){.app = s->app,
                            .style = styles[s->o.style],
                            .recipes = s->recipes,
                            .n_recipes = s->n_recipes,
                            .models = &s->models,
                            .tasks = &s->tasks,
                            .quick = s->o.quick,
                            .lengths = s->o.lengths,
                            .cuda = s->o.backend == 1,
                            .no_gnuplot = !program_found("gnuplot")};
    PASS_ON(plan_expand(&s->plan, err));
    PASS_ON(plan_check(&s->plan, &s->data, err));
    if (s->o.c.dry_run) {
        PASS_ON(print_plan(s, err));
        return 0;
    }
    const struct make_opts make = {at_once(s), cmd_jobs(&s->o.c), room_of(s)};
    PASS_ON(jobs_run(&s->plan, &make, err));
    for (int i = 0; i < s->n_recipes; i++) {
        bool changed = false;
        PASS_ON(output_page(&s->plan, i, &s->data, &changed, err));
        written += changed;
    }
    PASS_ON(output_index(&s->data, err));
    for (int i = 0; i < s->plan.n; i++)
        failed += s->plan.s[i].failed;
    warn_undrawn(&s->plan);
    log_info("%s: %d of %d pages written; %s", s->o.output, written, s->n_recipes,
             failed ? "some jobs failed" : "nothing is left to do");
    if (s->o.c.json && printf("{\"pages\": %d, \"written\": %d, \"failed_jobs\": %d}\n",
                              s->n_recipes, written, failed) < 0)
        return err_set(err, ERR_IO, "standard output");
    if (failed)
        return err_set(err, ERR_CHECK,
                       "some jobs failed; the pages name what lacks them, and "
                       "DIR/jobs/*.part/log.txt has their output");
    return 0;
}

static void close_session(struct session *s)
{
    plan_free(&s->plan);
    model_set_free(&s->models);
    task_set_free(&s->tasks);
    for (int i = 0; i < s->n_recipes; i++)
        recipe_free(&s->recipes[i]);
    free(s->recipes);
    paper_data_free(&s->data);
}

static int run(const struct app *app, void *opts, struct str_list *items, struct err *err)
{
    OWN(close_session) struct session s = {.app = app, .o = *(struct reproduce_opts *)opts};
    if (!s.o.list && items->n == 0)
        return err_set(err, ERR_USAGE,
                       "reproduce: which table? (lacuna reproduce --list names them)");
    if (!s.o.list && !s.o.output)
        return err_set(err, ERR_USAGE, "reproduce: -o DIR is missing");
    return reproduce(&s, items, err);
}

const struct command cmd_reproduce = {
    "reproduce",
    "reproduce PAPER[:ITEM]... -o DIR [--quick]\n"
    "reproduce --list",
    "make the tables and figures of the papers again",
    run,
    options,
    sizeof(struct reproduce_opts),
    "PAPER is spargeattn, sampleattention, sale or fg-attn; an item is a table (spargeattn:9) or "
    "a\n"
    "figure (spargeattn:f14, sale:fp16). Prompts, captures, calibrations and replays are jobs "
    "that\n"
    "make runs where they are missing and that stay in DIR/jobs. DIR/pages has each\n"
    "table in the paper's layout, every printed number beside ours, with letters for what differs\n"
    "and a sentence for each of the paper's claims; DIR/index.html leads there.\n"
    "Kill it at any time: the same command continues. What is there is not written again.\n"
    "--dry-run prints the plan and its cost. `lacuna analyze DIR --explain\n"
    "TABLE:ROW:COLUMN` prints what is behind a number.\n"
    "\n"
    "Exit status 1: a job failed; the pages say which numbers lack it.\n"
    "\n"
    "Examples:\n"
    "  lacuna reproduce spargeattn:9 fg-attn:2 --quick -o out/papers\n"
    "  lacuna reproduce sampleattention --model ~/models/Llama-3.1-8B --lengths paper \\\n"
    "      --backend cuda --disk 60 -o out/llama\n"
    "  lacuna reproduce --list\n",
};
