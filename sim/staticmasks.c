#include "sim/staticmasks.h"

#include "core/buf.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/strmap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
    struct static_mask mask; /* first: what is handed out points here */
    char *key;               /* owned */
    int64_t bytes, used;     /* used: the store's clock when it was asked for last */
    int taken;
    bool made;
    struct entry *next;
};

struct static_masks {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a mask was made, or its making failed */
    struct entry *entries;
    struct strmap numbers; /* of the ids of several heads, as text */
    int64_t bytes, most, clock;
    int jobs;
};

static uint64_t new_number(void)
{
    static uint64_t last;
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

int64_t static_masks_room(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (int64_t)pages * size / 8 : 1LL << 30;
}

int static_masks_new(int64_t bytes, int jobs, struct static_masks **out, struct err *err)
{
    struct static_masks *s = NULL;
    PASS_ON(mem_zalloc(&s, 1, sizeof *s, "static masks", err));
    s->most = bytes;
    s->jobs = jobs;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    *out = s;
    return 0;
}

static void entry_free(struct entry *e)
{
    for (int64_t i = 0; e->mask.masks && i < e->mask.n; i++)
        mask_free(e->mask.masks + i);
    free(e->mask.masks);
    free(e->mask.counted);
    free(e->key);
    free(e);
}

void static_masks_free(struct static_masks **s)
{
    if (!*s)
        return;
    for (struct entry *e = (*s)->entries, *next; e; e = next) {
        next = e->next;
        entry_free(e);
    }
    strmap_free(&(*s)->numbers);
    pthread_cond_destroy(&(*s)->changed);
    pthread_mutex_destroy(&(*s)->lock);
    free(*s);
    *s = NULL;
}

/* Out of the list. */
static void unlink_entry(struct static_masks *s, struct entry *e)
{
    struct entry **at = &s->entries;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    s->bytes -= e->bytes;
}

/* Drop what nobody has, oldest first, until the rest fits. */
static void trim(struct static_masks *s)
{
    while (s->bytes > s->most) {
        struct entry *oldest = NULL;
        for (struct entry *e = s->entries; e; e = e->next)
            if (!e->taken && (!oldest || e->used < oldest->used))
                oldest = e;
        if (!oldest)
            return;
        unlink_entry(s, oldest);
        entry_free(oldest);
    }
}

static int64_t bytes_of(const struct static_mask *m)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->n; i++)
        bytes += (int64_t)sizeof *m->masks + m->masks[i].col_cap * (int64_t)sizeof(int32_t) +
                 m->masks[i].ngroups * (int64_t)sizeof(int64_t);
    return bytes;
}

static struct entry *entry_of(struct static_masks *s, const char *key)
{
    struct entry *e = s->entries;
    while (e && strcmp(e->key, key) != 0)
        e = e->next;
    return e;
}

static int add_entry(struct static_masks *s, const char *key, struct entry **out, struct err *err)
{
    struct entry *e = NULL;
    PASS_ON(mem_zalloc(&e, 1, sizeof *e, "static mask", err));
    if (!(e->key = strdup(key))) {
        free(e);
        return err_set(err, ERR_NOMEM, "static mask: out of memory");
    }
    e->mask.id = new_number();
    e->next = s->entries;
    s->entries = *out = e;
    return 0;
}

/* A mask while its chunks are made, checked and counted. */
struct making {
    const struct static_maker *maker;
    struct mask *masks;
    struct mask_tally *tallies; /* [n] */
};

static int make_chunk(void *making, int64_t i, int worker, struct err *err)
{
    struct making *k = making;
    PASS_ON(k->maker->chunk(k->maker->ctx, i, k->masks + i, err));
    PASS_ON(mask_check(k->masks + i, err));
    return mask_tally_add(k->tallies + i, k->masks + i, err);
}

static int make_mask(struct static_mask *m, const struct static_maker *maker, int jobs,
                     struct err *err)
{
    OWN(free_at) struct mask_tally *tallies = NULL;
    PASS_ON(mem_zalloc(&m->masks, maker->n, sizeof *m->masks, "static mask", err));
    PASS_ON(mem_zalloc(&tallies, maker->n, sizeof *tallies, "static mask", err));
    m->n = maker->n;
    struct making k = {maker, m->masks, tallies};
    PASS_ON(pool_run(maker->any_order ? jobs : 1, m->n, make_chunk, &k, err));
    for (int64_t i = 0; i < m->n; i++)
        mask_tally_join(&m->tally, tallies + i);
    if (maker->counted) {
        PASS_ON(mem_alloc((char **)&m->counted, (int64_t)maker->bytes, 1, "static mask", err));
        memcpy(m->counted, maker->counted, maker->bytes);
    }
    return 0;
}

int static_masks_take(struct static_masks *s, const char *key, const struct static_maker *maker,
                      const struct static_mask **out, struct err *err)
{
    struct entry *e;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    while ((e = entry_of(s, key)) && !e->made)
        pthread_cond_wait(&s->changed, &s->lock);
    if (!e && (rc = add_entry(s, key, &e, err)) == 0) {
        pthread_mutex_unlock(&s->lock);
        rc = make_mask(&e->mask, maker, s->jobs, err);
        pthread_mutex_lock(&s->lock);
        e->made = true;
        e->bytes = bytes_of(&e->mask);
        s->bytes += e->bytes;
        if (rc) { /* those who waited try for themselves */
            unlink_entry(s, e);
            entry_free(e);
        }
        pthread_cond_broadcast(&s->changed);
    }
    if (!rc) {
        e->taken++;
        e->used = ++s->clock;
        *out = &e->mask;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void static_masks_return(struct static_masks *s, const struct static_mask *m)
{
    struct entry *e = (struct entry *)(uintptr_t)m;
    pthread_mutex_lock(&s->lock);
    e->taken--;
    trim(s);
    pthread_mutex_unlock(&s->lock);
}

int static_masks_number(struct static_masks *s, const uint64_t *ids, int n, uint64_t *number,
                        struct err *err)
{
    struct buf key = {0};
    int rc = 0;
    for (int i = 0; i < n; i++)
        buf_printf(&key, "%llu ", (unsigned long long)ids[i]);
    pthread_mutex_lock(&s->lock);
    TRY(buf_check(&key, "static masks of heads", err));
    int64_t found = strmap_get(&s->numbers, buf_str(&key));
    if (found < 0)
        TRY(strmap_put(&s->numbers, buf_str(&key), found = (int64_t)new_number(), err));
    *number = (uint64_t)found;
out:
    pthread_mutex_unlock(&s->lock);
    buf_free(&key);
    return rc;
}
