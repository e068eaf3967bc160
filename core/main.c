/*
 * main.c - the command table; the only place that prints the final error and exits.
 */
#include "core/cmd.h"
#include "core/log.h"
#include "core/pool.h"
#include "sim/registry.h"

#include <stdio.h>
#include <string.h>

#define COMMAND(id) extern const struct command cmd_##id;
#include "core/commands.def"
#undef COMMAND

static const struct command *const commands[] = {
#define COMMAND(id) &cmd_##id,
#include "core/commands.def"
#undef COMMAND
    NULL,
};

int main(int argc, char **argv)
{
    struct app app = {commands, sim_methods, NULL, argc, argv};
    struct err err = {0};

    interrupt_install();
    int rc = app_run(&app, &err);
    if (rc < 0 && err.code != ERR_CHECK)
        log_error("%s", err.msg);
    else if (rc < 0 && err.msg[0])
        log_warn("%s", err.msg);
    return err_exit_code(rc < 0 ? err.code : rc);
}
