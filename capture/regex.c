/*
 * regex.c - see regex.h. Text is validated by the caller once: PCRE2 would scan the rest of it at
 * every call, which makes cutting a text quadratic.
 */
#include "capture/regex.h"

#include "core/mem.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define JIT_STACK_START (32 << 10)
#define JIT_STACK_MAX (16 << 20)

struct regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    char *pattern; /* for messages */
};

void regex_free(struct regex *r)
{
    if (!r)
        return;
    pcre2_match_data_free(r->match);
    pcre2_match_context_free(r->context);
    pcre2_jit_stack_free(r->stack);
    pcre2_code_free(r->code);
    free(r->pattern);
    free(r);
}

static int compile(struct regex *r, const char *where, struct err *err)
{
    int code;
    PCRE2_SIZE at;
    r->code = pcre2_compile((PCRE2_SPTR)r->pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, NULL);
    if (!r->code) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(code, why, sizeof why);
        return err_set(err, ERR_INPUT,
                       "%s: the pattern \"%.200s\" is not a usable regular "
                       "expression: %s at byte %zu",
                       where, r->pattern, (const char *)why, (size_t)at);
    }
    /* Without JIT support in the library the interpreter does the same, slower. */
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    r->match = pcre2_match_data_create(1, NULL);
    r->context = pcre2_match_context_create(NULL);
    r->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (!r->match || !r->context)
        return err_set(err, ERR_NOMEM, "%s: regular expression", where);
    if (r->stack)
        pcre2_jit_stack_assign(r->context, NULL, r->stack);
    return 0;
}

int regex_compile(const char *pattern, const char *where, struct regex **out, struct err *err)
{
    struct regex *r = NULL;
    int rc = 0;

    TRY(mem_zalloc(&r, 1, sizeof *r, "regular expression", err));
    r->pattern = strdup(pattern);
    if (!r->pattern)
        FAIL(err, ERR_NOMEM, "%s: regular expression", where);
    TRY(compile(r, where, err));
    *out = r;
    r = NULL;
out:
    regex_free(r);
    return rc;
}

int regex_find(const struct regex *r, const char *text, size_t len, size_t from, size_t *lo,
               size_t *hi, struct err *err)
{
    /* The text was checked once; without this flag every call would scan the rest of it again. */
    int rc =
        pcre2_match(r->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, r->match, r->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(rc, why, sizeof why);
        return err_set(err, ERR_INPUT,
                       "the pattern \"%.200s\" failed at byte %zu of a text of %zu: "
                       "%s",
                       r->pattern, from, len, (const char *)why);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(r->match);
    /* \K in a lookahead can put the start behind the end; such a match is empty. */
    *lo = span[0] <= span[1] ? span[0] : span[1];
    *hi = span[1];
    return 1;
}
