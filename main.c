/*
 * main.c - the command table; the only place that prints the final error and exits.
 */
#include "analyze/tables.h"
#include "capture/tokenizer.h"
#include "core/cmd.h"
#include "core/log.h"
#include "core/pool.h"
#ifdef LACUNA_CUDA
#include "cuda/backend.h"
#endif
#include "eval/decode.h"
#include "plots/figure.h"
#include "sim/registry.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#define COMMAND(id) extern const struct command cmd_##id;
#include "commands.def"
#undef COMMAND

static const struct command *const commands[] = {
#define COMMAND(id) &cmd_##id,
#include "commands.def"
#undef COMMAND
    NULL,
};

/* A standard stream that the caller closed must not become the first file that is opened. Its
 * stand-in fails on use: results for a closed stdout are lost, and that is an error. */
static void hold_standard_streams(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) < 0)
            _exit(5);
}

/* An open trace has some descriptors, and thousands of traces may be named. */
static void take_descriptors(void)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most) == 0) {
        most.rlim_cur = most.rlim_max;
        setrlimit(RLIMIT_NOFILE, &most);
    }
}

/* Shells and scripts know this end of a program whose reader went away. Where the signal is blocked
 * the exit code says the same. */
static void end_by_sigpipe(void)
{
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
    _exit(err_exit_code(ERR_PIPE));
}

int main(int argc, char **argv)
{
    struct app app = {
        .commands = commands,
        .methods = sim_methods,
        .argc = argc,
        .argv = argv,
        .tables = table_list,
        .figures = figure_list,
        .token_texts = tokenizer_texts,
        .continue_text = decode_greedy,
#ifdef LACUNA_CUDA
        .list_kernels = cuda_list_kernels,
        .list_gpus = cuda_list_gpus,
        .accel = &cuda_accel,
        .decoder = &cuda_decoder,
        .denoiser = &cuda_denoiser,
#endif
    };
    struct err err = {0};
    hold_standard_streams();
    take_descriptors();
    interrupt_install();
    int rc = app_run(&app, &err);
    if (rc == ERR_PIPE)
        end_by_sigpipe();
    if (rc < 0 && err.code != ERR_CHECK)
        log_error("%s", err.msg);
    else if (rc < 0 && err.msg[0])
        log_warn("%s", err.msg);
    interrupt_restore();
    return err_exit_code(rc < 0 ? err.code : rc);
}
