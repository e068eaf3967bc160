/*
 * mem.h - checked allocation and overflow-checked size arithmetic.
 *
 * Sizes that come from a file go through mul_ok()/add_ok() before anything is allocated. All
 * memory is released with free(); every owned pointer starts as NULL.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* *out = a * b, false on overflow (out untouched). int64_t because counts are int64_t. */
static inline bool mul_ok(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool add_ok(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* 64-byte aligned, uninitialised (mem_alloc) or zeroed (mem_zalloc) array of n elements of `size`
 * bytes. *out is written on success only; n = 0 gives a valid pointer. ERR_NOMEM names what. */
int mem_alloc(void *out, int64_t n, size_t size, const char *what, struct err *err);
int mem_zalloc(void *out, int64_t n, size_t size, const char *what, struct err *err);

/* Grow a malloc'd array so that it holds at least `need` elements; doubles. *p and *cap are
 * updated on success. */
int mem_grow(void *p, int64_t *cap, int64_t need, size_t size, const char *what, struct err *err);

/* What is released at the end of its block, as it is then: OWN(buf_free) struct buf b = {0}; */
#define OWN(release) __attribute__((cleanup(release)))
static inline void free_at(void *p)
{
    free(*(void **)p);
}

/* fn_at, for OWN of what `fn` takes: OWN(hash_free_at) struct hash_state *h = NULL; */
#define OWN_AT(fn, type)                                                                           \
    static inline void fn##_at(type *p)                                                            \
    {                                                                                              \
        fn(*p);                                                                                    \
    }

/* What changes its owner: the value of an OWN variable, which is zero afterwards. */
#define HAND_OVER(x)                                                                               \
    __extension__({                                                                                \
        __typeof__(x) x_ = (x);                                                                    \
        (x) = (__typeof__(x)){0};                                                                  \
        x_;                                                                                        \
    })

/* *out = a copy of text, or NULL with ERR_NOMEM, which names what. */
int mem_dup(void *out, const char *text, const char *what, struct err *err);

/* Whether a small allocation failed whose failure its caller may not see: of text (buf.h), of a
 * list of names (text.h), of JSON (json.h). mem_note_short sets it for the rest of the process;
 * mem_check_short is then ERR_NOMEM. Text and JSON are built in many steps, and a step that forgets
 * to look would leave something out. So nothing becomes a result after such a failure: outputs
 * (io_part_close, h5_part_commit) and records are refused, and no command succeeds (app_run). */
void mem_note_short(void);
int mem_check_short(struct err *err);

/* From now on malloc takes large blocks from the system and gives them back. By default glibc
 * raises its threshold to 32 MB when such a block is freed, and keeps later blocks on the heap.
 * There an aligned block does not fit into the hole that a block of the same size left, so a long
 * run that allocates and frees them in turn grows without end. The price is a page fault per page:
 * use it in runs that compute much per block. */
void mem_return_large_blocks(void);

/* Peak resident set of this process in bytes. */
int64_t mem_peak_rss(void);
