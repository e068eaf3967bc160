/*
 * progress.c - progress on stderr. There is no timer: the line is redrawn by the calls that report
 * work, and only if enough time has passed.
 */
#include "core/progress.h"

#include "core/buf.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

static _Atomic int mode_now = PROGRESS_AUTO;

struct progress {
    pthread_mutex_t lock;
    char what[64];
    double total, done; /* cost */
    int64_t items, items_done;
    double start, last; /* seconds */
    bool tty, drawn;
    struct {
        const char *name; /* NULL: none */
        double (*seconds)(void *ctx);
        void *ctx;
        double start, before; /* seconds: of the clock, of the meter */
    } meter;
};

void progress_set_mode(enum progress_mode mode)
{
    atomic_store(&mode_now, (int)mode);
}

struct progress *progress_start(const char *what, double total, int64_t items)
{
    struct progress *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    snprintf(p->what, sizeof p->what, "%s", what);
    p->total = total;
    p->items = items;
    p->start = p->last = clock_s();
    p->tty = isatty(STDERR_FILENO);
    return p;
}

void duration_text(double seconds, char text[DURATION_TEXT])
{
    int64_t s = seconds > 0 ? (int64_t)(seconds + 0.5) : 0;
    if (s < 60)
        snprintf(text, DURATION_TEXT, "%lld s", (long long)s);
    else if (s < 3600)
        snprintf(text, DURATION_TEXT, "%lld:%02lld min", (long long)(s / 60), (long long)(s % 60));
    else
        snprintf(text, DURATION_TEXT, "%lld:%02lld h", (long long)(s / 3600),
                 (long long)(s / 60 % 60));
}

void progress_meter(struct progress *p, const char *name, double (*seconds)(void *ctx), void *ctx)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->meter.name = name;
    p->meter.seconds = seconds;
    p->meter.ctx = ctx;
    p->meter.start = clock_s();
    p->meter.before = seconds(ctx);
    pthread_mutex_unlock(&p->lock);
}

static double meter_share(const struct progress *p, double t)
{
    double share = (p->meter.seconds(p->meter.ctx) - p->meter.before) / (t - p->meter.start);
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

/* "replay 12/96 (34 %), 5.1 items/s, ETA 16 s, GPU in use 63 %, layer 3 head 2" */
static void describe(const struct progress *p, double t, const char *current, struct buf *b)
{
    double elapsed = t - p->start, share = p->total > 0 ? p->done / p->total : 0;
    char eta[DURATION_TEXT];
    if (share > 1)
        share = 1;
    buf_printf(b, "%s %lld/%lld (%.0f %%)", p->what, (long long)p->items_done, (long long)p->items,
               100 * share);
    if (elapsed > 0 && p->items_done > 0)
        buf_printf(b, ", %.3g/s", (double)p->items_done / elapsed);
    if (share > 0 && share < 1) {
        duration_text(elapsed * (1 - share) / share, eta);
        buf_printf(b, ", ETA %s", eta);
    }
    if (p->meter.name && t > p->meter.start)
        buf_printf(b, ", %s %.0f %%", p->meter.name, 100 * meter_share(p, t));
    if (current)
        buf_printf(b, ", %s", current);
}

static void draw_tty(struct progress *p, double t, const char *current)
{
    struct winsize size;
    OWN(buf_free) struct buf b = {0};
    int width =
        ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
    describe(p, t, current, &b);
    fprintf(stderr, "\r\033[K%.*s", width, buf_str(&b));
    fflush(stderr);
    log_line_pending(true);
    p->drawn = true;
}

static void draw_json(const struct progress *p, double t, const char *current)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 0);
    jw_obj(&w);
    jw_members(&w, JW_STR("progress", p->what), JW_INT("done", p->items_done),
               JW_INT("items", p->items), JW_NUM("share", p->total > 0 ? p->done / p->total : 0),
               JW_NUM("elapsed_s", t - p->start));
    if (p->meter.name && t > p->meter.start)
        jw_members(&w, JW_STR("meter", p->meter.name), JW_NUM("meter_share", meter_share(p, t)));
    if (current)
        jw_kstr(&w, "current", current);
    jw_obj_end(&w);
    fprintf(stderr, "%s\n", buf_str(&b));
}

static void draw_log(const struct progress *p, double t, const char *current)
{
    OWN(buf_free) struct buf b = {0};
    describe(p, t, current, &b);
    log_info("%s", buf_str(&b));
}

/* Seconds between two lines, and before the first one on a terminal. */
static void draw_if_due(struct progress *p, const char *current)
{
    enum progress_mode mode = (enum progress_mode)atomic_load(&mode_now);
    double t = clock_s();
    bool quiet = log_get_level() < LOG_INFO;
    if (mode == PROGRESS_JSON) {
        if (t - p->last >= 1 || p->items_done >= p->items) {
            draw_json(p, t, current);
            p->last = t;
        }
    } else if (mode == PROGRESS_NONE || quiet) {
        return;
    } else if (p->tty) {
        if (t - p->start >= 1 && (!p->drawn || t - p->last >= 0.2)) {
            draw_tty(p, t, current);
            p->last = t;
        }
    } else if (t - p->last >= 30) {
        draw_log(p, t, current);
        p->last = t;
    }
}

void progress_add(struct progress *p, double cost, int64_t items, const char *current)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->done += cost;
    p->items_done += items;
    draw_if_due(p, current);
    pthread_mutex_unlock(&p->lock);
}

void progress_end(struct progress **pp)
{
    struct progress *p = *pp;
    if (!p)
        return;
    if (p->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        log_line_pending(false);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
    *pp = NULL;
}
