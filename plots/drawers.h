/*
 * drawers.h - what the rows of figures.def name: drawers, and sources of their points.
 */
#ifndef LACUNA_DRAWERS_H
#define LACUNA_DRAWERS_H

#include "plots/chart.h"

typedef int drawer(const struct figure *f, const struct figure_args *a, struct err *err);
drawer draw_lines, draw_points, draw_bars, draw_stacks, draw_grid;
drawer draw_heatmap, draw_overlay, draw_mask, draw_steps, draw_order, draw_frames;

/* Sources add panels, series and points to a chart. They may fail with ERR_INPUT where the records
 * lack what is drawn. */
typedef int point_source(struct chart *c, struct err *err);

point_source points_by_age;    /* a panel for each metric, a line for each layer */
point_source points_of_values; /* the sorted values of a metric, y: the share at or below */
point_source points_of_names;  /* a metric that is recorded by layer or step: NAME@layer=N */
point_source points_of_sizes;  /* shares below the threshold by side of blocks and slices */
point_source points_of_curve;  /* a metric against a parameter, key or metric */

point_source points_of_settings; /* x against the metrics, a line for each method */
point_source points_of_pairs;    /* a replay's metric against one of the model */

point_source bars_of_key, bars_of_means;

point_source cells_of_heads, cells_of_params, cells_of_prompts;

#endif
