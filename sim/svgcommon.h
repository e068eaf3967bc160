/*
 * svgcommon.h - what the two Sparse VideoGen methods share: model families, published settings and
 * the dense warm-up (arXiv 2502.01776, 2505.18875).
 */
#ifndef LACUNA_SVGCOMMON_H
#define LACUNA_SVGCOMMON_H

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
    int qc;                           /* svg2; 0: the method is not used there */
    bool warm;                        /* svg2 */
};
extern const char *const svg_presets[];

/* Family of the rules: the given one, else that of the preset (index or -1), else from the text
 * tokens: none wan, behind hunyuan, in front cog. */
enum svg_family svg_family(int given, int preset, const struct head_in *in);

/* Preset of that index; -1: the family's own 720p setting. */
const struct svg_preset *svg_preset(int given, enum svg_family family);
const char *svg_preset_name(const struct svg_preset *p);

/* 0, or METHOD_SKIP where the head is not a video in raster order whose text stands where the
 * family has it. */
int svg_check_head(struct method_ctx *ctx, enum svg_family family, const struct head_in *in);

/* First layer and step that are not dense. A share of steps of a run whose number of steps is not
 * known is METHOD_SKIP. */
struct svg_warmup {
    int64_t layers, steps;
};
int svg_warmup(struct method_ctx *ctx, enum svg_family family, double dense_layers,
               double dense_steps, const struct head_in *in, struct svg_warmup *out);

#endif
