/*
 * taskset.h - the files of benchmarks that a user has (LongBench, InfiniteBench), as
 * datasets/paper/tasks.json lists them: which file, which prompt, which grade.
 */
#ifndef LACUNA_TASKSET_H
#define LACUNA_TASKSET_H

#include "core/text.h"
#include "reproduce/paperdata.h"

struct task_file {
    const json_t *j;            /* its entry of tasks.json, borrowed from paper_data */
    const char *id, *file, *of; /* "qasper", "qasper.jsonl", "LongBench" */
    char *path;                 /* owned; NULL: no folder has it */
    char hash[40];              /* of what is in it */
};

struct task_set {
    struct task_file *f; /* owned: all of tasks.json */
    int n;
};

/* Look for every file of tasks.json in the folders of --tasks, and read the first line of those
 * that are there. ERR_USAGE: no folder, a folder with none of the files, two with the same one;
 * ERR_INPUT: a file is not what its name says. Free `s` (zeroed before) also after a failure. */
int task_set_make(const struct paper_data *d, const struct str_list *folders, struct task_set *s,
                  struct err *err);
void task_set_free(struct task_set *s);

/* NULL: tasks.json has no such id. */
const struct task_file *task_set_find(const struct task_set *s, const char *id);

/* Options of `lacuna eval` for a task but for its path: prompt, grade, room for the answer. */
int task_file_options(const struct task_file *f, struct str_list *words, struct err *err);

#endif
