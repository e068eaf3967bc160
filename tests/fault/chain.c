/*
 * chain.c - the commands under test: from a prompt to a report, so small that each takes some
 * milliseconds.
 */
#include "tests/fault/fault.h"
#include "core/mem.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METHODS " -m dense -m streaming:sink=4:window=8 -m sale"

/* clang-format off */
const struct step steps[] = {
    {.name = "capture", .words = "capture -q -j1 -m TINY --tokens-file tokens.txt --maps 16 --heads 0-1 -o t.h5",
     .in = {"tokens.txt"}, .out = {"t.h5"}},
    {.name = "text", .words = "capture -q -j1 -m MODEL -p p.txt -n 8 --layers 0 --heads 0-1 --no-nll -o text.h5",
     .in = {"p.txt"}, .out = {"text.h5"}},
    {.name = "export", .words = "trace export -q t.h5 -o ex.safetensors",
     .in = {"t.h5"}, .out = {"ex.safetensors"}},
    {.name = "import", .words = "import -q --safetensors ex.safetensors --causal -o i.h5",
     .in = {"ex.safetensors"}, .out = {"i.h5"}},
    {.name = "pack", .words = "trace pack -q -j1 t.h5 -o pk.h5", .in = {"t.h5"}, .out = {"pk.h5"}},
    {.name = "subset", .words = "trace subset -q t.h5 --layers 0 -o s.h5",
     .in = {"t.h5"}, .out = {"s.h5"}},
    {.name = "verify", .words = "trace verify -q -j1 pk.h5", .in = {"pk.h5"}, .prints = true},
    {.name = "replay", .words = "replay -q -j1 pk.h5" METHODS " -o run",
     .in = {"pk.h5"}, .out = {"run"}},
    {.name = "dump",
     .words = "replay -q -j1 t.h5" METHODS " -o dump --dump-masks m.h5 --dump-outputs o.h5",
     .in = {"t.h5"}, .out = {"dump", "m.h5", "o.h5"}},
    /* For resume: the same directory with one method of three. */
    {.name = "half", .words = "replay -q -j1 t.h5 -m dense -o half",
     .in = {"t.h5"}, .out = {"half"}},
    {.name = "resume", .words = "replay -q -j1 t.h5" METHODS " -o more",
     .in = {"t.h5", "half=more"}, .out = {"more"}},
    {.name = "calibrate", .words = "calibrate -q -j1 sale t.h5 -o cal.json",
     .in = {"t.h5"}, .out = {"cal.json"}},
    {.name = "tuned", .words = "replay -q -j1 t.h5 -m sale:calib=cal.json -o tuned",
     .in = {"t.h5", "cal.json"}, .out = {"tuned"}},
    {.name = "search", .words = "replay -q -j1 t.h5 -m streaming@density_elem=0.5 -o search",
     .in = {"t.h5"}, .out = {"search"}},
    {.name = "overlap", .words = "overlap -q -j1 t.h5 m.h5 -o overlap",
     .in = {"t.h5", "m.h5"}, .out = {"overlap"}},
    {.name = "eval",
     .words = "eval -q -j1 --model MODEL -m streaming:sink=4:window=8 --task needle -n 64 --depth 0 "
              "--trials 2 -o eval",
     .out = {"eval"}, .slow = true},
    {.name = "inside",
     .words = "eval -q -j1 --model MODEL -m streaming:sink=4:window=8 --task p.txt -n 24 --dump-masks em.h5 "
              "-o inside",
     .in = {"p.txt"}, .out = {"inside", "em.h5"}, .slow = true},
    /* Whichever of its programs makes the call is struck. */
    {.name = "reproduce", .words = "reproduce sale:3 --quick -q --parallel 1 --trace lm=t.h5 -o rp",
     .in = {"t.h5"}, .out = {"rp"}, .slow = true, .starts_others = true},
    {.name = "analyze", .words = "analyze -q run -o tab.csv", .in = {"run"}, .out = {"tab.csv"}},
    {.name = "print", .words = "analyze -q run --table by-head", .in = {"run"}, .prints = true},
    {.name = "compare", .words = "compare -q run more", .in = {"run", "more"}, .prints = true},
    {.name = "repair", .words = "records repair -q bad", .in = {"bad"}, .out = {"bad"}},
    {.name = "figures", .words = "report -q run -o figs", .in = {"run"}, .out = {"figs"}, .slow = true},
    {.name = "report", .words = "report -q --no-figures run -o rep", .in = {"run"}, .out = {"rep"}},
    {0},
};
/* clang-format on */

/* One digit of the second record is another one. */
static void damage(const char *path)
{
    char text[65536];
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (n < 0)
        give_up("%s: cannot read", path);
    text[n] = '\0';
    char *second = strchr(text, '\n'), *digit = second ? strpbrk(second, "123456789") : NULL;
    if (!digit || pwrite(fd, "0", 1, digit - text) != 1)
        give_up("%s: no record to damage", path);
    close(fd);
}

static void put_text(const char *name, const char *text)
{
    OWN(buf_free) struct buf b = {0};
    buf_puts(&b, text);
    write_whole(trial_path("chain", name), &b);
}

/* The checkpoint and the tokens of tests/data/tiny. */
static void put_tiny(void)
{
    char path[1100], *config;
    OWN(buf_free) struct buf tokens = {0};
    snprintf(path, sizeof path, "%s/tests/data/tiny/configs.json", driver.root);
    OWN(json_decrefp) json_t *all = json_load_file(path, 0, NULL);
    config = json_dumps(json_object_get(all, "llama"), 0);
    if (!config)
        give_up("%s: no configuration", path);
    make_empty("chain/tiny");
    put_text("tiny/config.json", config);
    snprintf(path, sizeof path, "%s/tests/data/tiny/weights.safetensors", driver.root);
    copy_tree(path, trial_path("chain", "tiny/model.safetensors"));
    for (int i = 0; i < 24; i++)
        buf_printf(&tokens, "%d ", 1 + 7 * i % 63);
    put_text("tokens.txt", buf_str(&tokens));
    free(config);
}

void chain_make(void)
{
    struct outcome o;
    make_empty("chain");
    put_tiny();
    put_text("p.txt", "int main(void)\n{\n    return printf(\"%d\\n\", 6 * 7) < 0;\n}\n");
    for (const struct step *s = steps; s->name; s++) {
        char dir[64];
        snprintf(dir, sizeof dir, "ref-%s", s->name);
        if (strcmp(s->name, "repair") == 0) {
            copy_tree(trial_path("chain", "run"), trial_path("chain", "bad"));
            damage(trial_path("chain", "bad/records.jsonl"));
        }
        /* In the directory of the trials: some results name it. */
        begin_trial(s, "trial");
        run_words(s->words, "trial", (struct fault){0}, NULL, &o);
        if (o.code != 0 || rename(trial_path("trial", ""), trial_path(dir, "")) != 0)
            give_up("%s: exit %d: %s", s->name, o.code, o.err);
        for (int i = 0; i < STEP_FILES && s->out[i]; i++)
            if (access(trial_path("chain", s->out[i]), F_OK) != 0)
                copy_tree(trial_path(dir, s->out[i]), trial_path("chain", s->out[i]));
        char name[64];
        snprintf(name, sizeof name, "stdout-%s", s->name);
        put_text(name, o.out);
    }
}
