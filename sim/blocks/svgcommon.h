/*
 * svgcommon.h - shared by the two Sparse VideoGen methods: model families, published settings and
 * the dense warm-up (arXiv 2502.01776, 2505.18875).
 */
#pragma once

#include "core/method.h"

#include <stdbool.h>
#include <stdint.h>

enum svg_family { SVG_AUTO, SVG_WAN, SVG_COSMOS, SVG_HUNYUAN, SVG_COG };
extern const char *const svg_families[];

/* Index 0 is "none": no dense layers or steps, targets of the family. */
struct svg_preset {
    enum svg_family family;
    double dense_steps, dense_layers; /* shares of steps and layers */
    double target;                    /* svg1 */
    int rows;                         /* svg1 */
    int qc;                           /* svg2; 0: the preset has no svg2 setting */
    bool warm;                        /* svg2 */
};
extern const char *const svg_presets[];

/* Family of the rules: the given one, else the preset's (index or -1), else by the text tokens: wan
 * without text, hunyuan with text behind the video, cog with text in front. */
enum svg_family svg_family(int given, int preset, const struct head_in *in);

/* Preset of that index; -1: the family's own 720p setting. */
const struct svg_preset *svg_preset(int given, enum svg_family family);
const char *svg_preset_name(const struct svg_preset *p);

/* METHOD_SKIP unless the head is a video in raster order whose text stands where the family has it.
 */
int svg_check_head(struct method_ctx *ctx, enum svg_family family, const struct head_in *in);

/* First layer and step that are not dense. METHOD_SKIP if steps are given as a share and the run's
 * number of steps is unknown. */
struct svg_warmup {
    int64_t layers, steps;
};
int svg_warmup(struct method_ctx *ctx, enum svg_family family, double dense_layers,
               double dense_steps, const struct head_in *in, struct svg_warmup *out);
