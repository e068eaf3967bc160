#include "sim/blocks/svgcommon.h"

#include <math.h>

const char *const svg_families[] = {"auto", "wan", "cosmos", "hunyuan", "cog", NULL};

const char *const svg_presets[] = {"none",         "wan-t2v-720p", "wan-i2v-480p",
                                   "wan-i2v-720p", "hunyuan-720p", "hunyuan-480p",
                                   "cosmos-720p",  "cog-v1.5",     NULL};

static const struct svg_preset presets[] = {
    {SVG_AUTO, 0, 0, NAN, 64, 200, false},         {SVG_WAN, 0.2, 0.03, 0.3, 64, 300, false},
    {SVG_WAN, 0.2, 0.03, 0.3, 64, 200, true},      {SVG_WAN, 0.35, 0.03, 0.3, 64, 300, false},
    {SVG_HUNYUAN, 0.1, 0.03, 0.25, 64, 400, true}, {SVG_HUNYUAN, 0.04, 0, 0.2, 64, 200, true},
    {SVG_COSMOS, 0.3, 0.03, 0.25, 64, 400, false}, {SVG_COG, 0.2, 0.025, 0.25, 32, 0, false},
};

/* By family, in the order of enum svg_family. */
static const int family_preset[] = {0, 1, 6, 4, 7};

enum svg_family svg_family(int given, int preset, const struct head_in *in)
{
    if (given != SVG_AUTO)
        return (enum svg_family)given;
    if (preset > 0)
        return presets[preset].family;
    if (in->geom.text + in->n_padding == 0)
        return SVG_WAN;
    return in->geom.text_place == 1 ? SVG_COG : SVG_HUNYUAN;
}

const struct svg_preset *svg_preset(int given, enum svg_family family)
{
    return &presets[given >= 0 ? given : family_preset[family]];
}

const char *svg_preset_name(const struct svg_preset *p)
{
    return svg_presets[p - presets];
}

int svg_check_head(struct method_ctx *ctx, enum svg_family family, const struct head_in *in)
{
    static const char *const wanted[] = {"", "no text", "no text", "text behind the video",
                                         "text in front of the video"};
    const struct geometry *g = &in->geom;
    int64_t text = g->text + in->n_padding;
    bool fits = text == 0 || (family == SVG_HUNYUAN && g->text_place != 1) ||
                (family == SVG_COG && g->text_place == 1);
    if (g->t <= 0)
        return method_skip(ctx, "needs a video grid");
    if (in->order)
        return method_skip(ctx, "needs the tokens in raster order, they are in order '%s'",
                           in->order);
    if (!fits)
        return method_skip(ctx, "family=%s has %s in the sequence", svg_families[family],
                           wanted[family]);
    if (in->x.nq != in->x.nk || g->t * g->h * g->w + g->text != in->x.nq)
        return method_skip(ctx, "%lld queries and %lld keys are not the %lldx%lldx%lld grid",
                           (long long)in->x.nq, (long long)in->x.nk, (long long)g->t,
                           (long long)g->h, (long long)g->w);
    return 0;
}

int svg_warmup(struct method_ctx *ctx, enum svg_family family, double dense_layers,
               double dense_steps, const struct head_in *in, struct svg_warmup *out)
{
    double layers = dense_layers * in->n_layers, steps = dense_steps * in->n_steps;
    if (dense_steps > 0 && in->n_steps <= 0)
        return method_skip(ctx, "the trace does not say how many steps the run has; give "
                                "dense_steps=0");
    /* The code of CogVideoX compares the layer with the fraction itself. */
    out->layers = (int64_t)(family == SVG_COG ? ceil(layers) : floor(layers));
    out->steps = (int64_t)floor(steps);
    return 0;
}
