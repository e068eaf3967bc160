/*
 * gp_impl.h - what gp.c is made of: the files of a figure on their way to their names
 * (gp_stage.c), and the gnuplot process (gp_run.c).
 */
#ifndef LACUNA_GP_IMPL_H
#define LACUNA_GP_IMPL_H

#include "plots/gp.h"

/* Files are made in the directory "<fig.png>.new" under their own names, which gnuplot reads and
 * writes there, and take their places together when all are good. A picture or script that would
 * overwrite an input: ERR_USAGE. Opening it again does nothing. */
int gp_stage_open(struct gp *g, struct err *err);

/* ERR_USAGE when the file of this name beside the figure is one of its inputs. */
int gp_stage_refuse(const struct gp *g, const char *name, struct err *err);
void gp_stage_path(const struct gp *g, const char *name, struct buf *path);

/* Data, script and picture take their places; the directory goes. */
int gp_stage_publish(struct gp *g, struct err *err);

/* Where gp_stage_leave will have put the script. */
void gp_stage_script(const struct gp *g, struct buf *path);

/* After gnuplot failed: where no picture is there yet, script and data take their places, for
 * inspection or for another machine's gnuplot; a picture keeps its own, and they stay apart. */
void gp_stage_leave(struct gp *g);
void gp_stage_drop(struct gp *g);

/* Run the script and judge what came of it. The error names the figure and the script. */
int gp_run(const struct gp *g, struct err *err);

#endif
