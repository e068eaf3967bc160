/*
 * method_run.h - methods with parameters: what a user asks for as "name:key=value", with sweeps,
 * targets and calibration files; and the calls by which a head runs.
 */
#pragma once

#include "core/method.h"

/* A method with one concrete set of parameters. */
struct method_run {
    const struct method *method;
    void *params;      /* owned */
    char *canonical;   /* owned; "" when all defaults */
    char *calib;       /* owned path of calib=FILE or NULL */
    json_t *calib_doc; /* owned or NULL */
    void *session;     /* owned: what the method's `open` gave, or NULL */
    bool *given; /* owned, per entry of method->params.table, NULL without calib: given beside it
                  * and other than the file has it, so that it wins over the values of heads */
    struct budget_target *target; /* owned: what to search for; NULL: run as it is */
};

/* By name or alias, in a NULL-terminated list (struct app); unknown: ERR_USAGE with the nearest. */
const struct method *method_find(const struct method *const *methods, const char *name,
                                 struct err *err);

/* Make the state of a head: *state is NULL unless 0 is returned. method_release accepts NULL. */
int method_prepare(const struct method *m, struct method_ctx *ctx, const void *params,
                   const struct head_in *in, void **state, struct err *err);
void method_release(const struct method *m, void *state);

/* Does the method support every term of this head's attention (METHOD_REACH ...)? If not, `why`
 * names the first one that it lacks. */
bool method_combines(const struct method *m, const struct attn_in *x, char why[128]);

/* Does the method have state of its own in the decode phase, with these parameters? */
bool method_decodes(const struct method *m, const void *params);

/* Call `reuse.of` or `arith.how`; if it is NULL, return its documented default. */
struct mask_origin method_origin(const struct method *m, void *state);
void method_arithmetic(const struct method *m, const void *state, struct arithmetic *a,
                       char why[160]);

/* A copy of a method's parameters. Free with method_params_free, which accepts NULL. */
int method_params_copy(const struct method *m, const void *params, void **out, struct err *err);
void method_params_free(const struct method *m, void *params);

/* Free the states of c[0..n) and the array. Accepts NULL. */
void carries_free(struct carry *c, int64_t n);

/* Parse "name:key=v1,v2:key=value", or the same with a target behind it as in
 * "name:key=value@density_elem=0.2,0.3" (budget.h), and append the Cartesian product of its lists
 * to *runs. A range "a..b/logN" or "a..b/linN" is N values. With calib=FILE the settings of the
 * file stand in for the defaults, and what the text gives wins over these and over the values per
 * head. */
int method_runs_parse(const struct method *const *methods, const char *text,
                      struct method_run **runs, int64_t *n, struct err *err);

/* The same for every one of n_texts texts, in time that grows with their number. */
int method_runs_parse_all(const struct method *const *methods, char *const *texts, int64_t n_texts,
                          struct method_run **runs, int64_t *n, struct err *err);
void method_runs_free(struct method_run *runs, int64_t n);

/* Parse a text that a file holds: one setting, without sweep or target, into *run (owned, freed
 * with method_runs_free). Such a text is data: ERR_USAGE where it names a file or a command, with
 * `way_out`, what the user can do; NULL if the file is trusted. */
int method_setting_parse(const struct method *const *methods, const char *text, const char *way_out,
                         struct method_run **run, struct err *err);

/* Can the file of an open run be of use to a head of this shape (method_session.takes)? ERR_INPUT
 * says why not. */
int method_run_takes(const struct method_run *run, struct head_in *in, struct err *err);

/* What stands between name and canonical text: ":", or "" before a target or nothing. */
const char *method_run_colon(const struct method_run *run);

/* Open the session of a run whose method has one, unless it is open. */
int method_run_open(struct method_run *run, struct err *err);

/* Are the calibration of the run, if it has one, and what else its method reads from a file
 * (`fits`) of this model and token order ("none" = as stored; a method's own order counts before
 * it)? ERR_INPUT naming both where the file says otherwise. */
int method_calib_fits(const struct method_run *run, const char *model, const char *permute,
                      struct err *err);

/* True if the run has a calibration without parameters for this head of so many keys, which then
 * uses those that the run gives for all heads. */
bool method_calib_lacks(const struct method_run *run, int layer, int head, int64_t tokens);

/* Note in a record how the calibration of its run was made, if it has one: calib_search (options of
 * the search), calib_per ("head" unless the file says otherwise), calib_inputs (traces) and
 * calib_own (1 = the record's trace, whose id this is, is one of them), as far as the file tells.
 */
int method_calib_note(const struct method_run *run, const char *trace_id, struct record *rec,
                      struct err *err);

/* Parameters of one head: a copy of run->params (the settings of the calibration file and what was
 * given beside it) with the file's values for (layer, head), but for the given ones. A file that
 * was calibrated per length has several entries for a head: `tokens`, its keys, says which counts.
 * Free with method_params_free. */
int method_params_for_head(const struct method_run *run, int layer, int head, int64_t tokens,
                           void **out, struct err *err);
