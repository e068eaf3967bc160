/*
 * gp_impl.h - what gp.c is made of: the files of a figure on their way to their names
 * (gp_stage.c), and the gnuplot process (gp_run.c).
 */
#ifndef LACUNA_GP_IMPL_H
#define LACUNA_GP_IMPL_H

#include "plots/gp.h"

/* Begin the files of a figure. A picture or script that would overwrite an input: ERR_USAGE.
 * Opening it again does nothing. */
int gp_stage_open(struct gp *g, struct err *err);

/* A file "<stem><suffix>" that takes its place with the others. ERR_USAGE when it is one of the
 * figure's inputs; so of any name beside the figure (gp_stage_refuse). */
int gp_stage_name(struct gp *g, const char *suffix, struct err *err);
int gp_stage_refuse(const struct gp *g, const char *name, struct err *err);
void gp_stage_path(const struct gp *g, const char *name, struct buf *path);

/* Data, script and picture take their places. Where gnuplot has drawn none, data and script do, for
 * inspection or for another machine's gnuplot, unless they are those of a picture that is there. */
int gp_stage_publish(struct gp *g, bool drawn, struct err *err);
void gp_stage_drop(struct gp *g);

/* Run the script and judge what came of it. The error names the figure and the script. */
int gp_run(const struct gp *g, struct err *err);

#endif
