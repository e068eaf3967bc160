/*
 * capture.c - what the runners of `lacuna capture` share: choices, names, plan and summary.
 */
#include "capture/capture.h"

#include "capture/nn.h"
#include "core/clock.h"
#include "core/text.h"
#include "core/indexlist.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/gemm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *const capture_dtypes[] = {"model", STORED_TYPES, NULL};

enum dtype stored_type(int index, enum dtype native)
{
    return index ? dtype_from_name(capture_dtypes[index]) : native;
}

int capture_choose(const char *list, int64_t n, const char *option, bool **flags, int64_t *count,
                   struct err *err)
{
    OWN(free_at) int64_t *index = NULL;
    int64_t picked = -1;
    PASS_ON(mem_zalloc(flags, n, sizeof **flags, option, err));
    PASS_ON(index_list_parse(list, n, option, &index, &picked, err));
    for (int64_t i = 0; !index && i < n; i++)
        (*flags)[i] = true;
    for (int64_t i = 0; index && i < picked; i++)
        (*flags)[index[i]] = true;
    *count = index ? picked : n;
    return 0;
}

void capture_computed_by(char *text, size_t size)
{
    snprintf(text, size, "openblas %s", openblas_kernels());
}

double capture_rate(int jobs)
{
    enum { N = 512, MOST = 64 }; /* MOST bounds the memory; beyond it the rate is scaled */
    int threads = jobs < 1 ? 1 : jobs < MOST ? jobs : MOST;
    int64_t rows = (int64_t)threads * NN_LINEAR_ROWS;
    float *x = NULL, *w = NULL, *y = NULL;
    double rate = 1e9;
    if (mem_zalloc(&x, rows * N, sizeof *x, "rate probe", NULL) == 0 &&
        mem_zalloc(&w, N * N, sizeof *w, "rate probe", NULL) == 0 &&
        mem_alloc(&y, rows * N, sizeof *y, "rate probe", NULL) == 0)
        for (int k = 0; k < 2; k++) { /* the first one warms up */
            double begin = clock_ns();
            if (nn_linear(x, rows, N, w, NULL, N, threads, y, NULL))
                break;
            rate = 2e9 * (double)rows * N * N * jobs / threads / (clock_ns() - begin);
        }
    free(x);
    free(w);
    free(y);
    return rate;
}

/* Content id of the finished trace. */
static int trace_id_of(const char *path, char id[64], struct err *err)
{
    OWN(trace_close) struct trace *t = NULL;
    PASS_ON(trace_open(path, &t, err));
    snprintf(id, 64, "%.63s", trace_id(t));
    return 0;
}

static void print_json(const struct capture_summary *s, const char *id)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 2);
    jw_obj(&w);
    jw_kstr(&w, "trace", s->path);
    if (id[0])
        jw_kstr(&w, "trace_id", id);
    jw_members(&w, JW_INT("tokens", s->tokens), JW_INT("calls", s->calls),
               JW_INT("file_bytes", s->file_bytes), JW_INT("memory_bytes", s->memory_bytes),
               JW_NUM(id[0] ? "seconds" : "estimated_seconds", s->seconds));
    if (!isnan(s->device_seconds))
        jw_knum(&w, "device_seconds", s->device_seconds);
    if (!isnan(s->nll))
        jw_knum(&w, "mean_nll", s->nll);
    jw_obj_end(&w);
    printf("%s\n", buf_str(&b));
}

int capture_print(const struct capture_opts *o, const struct capture_summary *s, struct err *err)
{
    char id[64] = "";
    PASS_ON(o->c.dry_run ? 0 : trace_id_of(s->path, id, err));
    if (o->c.json) {
        print_json(s, id);
        return 0;
    }
    if (o->c.dry_run) {
        char file[24], memory[24], time[48];
        bytes_text((double)s->file_bytes, file);
        bytes_text((double)s->memory_bytes, memory);
        text_printf(stdout, "%s: %lld attention calls of %lld tokens, %s; about %s of memory",
                    s->path, (long long)s->calls, (long long)s->tokens, file, memory);
        if (!isnan(s->seconds)) { /* unknown on a device */
            estimate_text(s->seconds, time);
            printf(", %s", time);
        }
        putchar('\n');
        return 0;
    }
    log_info("%s: %lld attention calls of %lld tokens, %.1f MB, %.1f s", s->path,
             (long long)s->calls, (long long)s->tokens, (double)s->file_bytes / 1e6, s->seconds);
    if (!isnan(s->device_seconds))
        log_info("%.3f s of them on the GPU, %.0f tokens/s", s->device_seconds,
                 (double)s->tokens / s->device_seconds);
    if (!isnan(s->nll))
        log_info("mean negative log-likelihood %.4f nat/token", s->nll);
    return 0;
}
