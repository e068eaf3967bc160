/*
 * presets.h - numbers of published settings of methods, which the CPU's and a device's side resolve
 * alike. A preset is the index of its word among the values of the method's option `preset`.
 */
#ifndef LACUNA_PRESETS_H
#define LACUNA_PRESETS_H

#include <stdint.h>

/* MInference (arXiv:2407.02490): columns and distances of vertical-slash. profile, default,
 * llama31, light, dense-columns. */
struct minf_preset {
    int64_t v, s;
};
static inline struct minf_preset minf_preset(int preset)
{
    static const struct minf_preset SIZES[] = {
        {1000, 6096}, {1000, 6096}, {512, 2048}, {100, 800}, {3500, 100}};
    return SIZES[preset];
}

/* FlexPrefill (arXiv:2502.20766). profile, the authors' two benchmark settings, the README's, the
 * function's defaults, a strict one. */
struct flex_preset {
    double gamma, tau;
    int64_t min_budget;
};
static inline struct flex_preset flex_preset(int preset)
{
    static const struct flex_preset SETTINGS[] = {{0.95, 0.1, 1024}, {0.95, 0.1, 1024},
                                                  {0.90, 0.1, 1024}, {0.90, 0.1, 512},
                                                  {0.90, 0, 0},      {0.99, 0.1, 1024}};
    return SETTINGS[preset];
}

/* SampleAttention (arXiv:2406.15486), table 6, for n keys: rows n < 16K, < 48K, < 80K, < 112K,
 * >= 112K (K = 1024). none, glm4-acc, glm4-spd, internlm2-acc, internlm2-spd. */
struct sample_preset {
    double alpha_c, alpha_s;
    int chunks;
};
static inline struct sample_preset sample_preset(int preset, int64_t n)
{
    static const int64_t LIMITS[] = {16 * 1024, 48 * 1024, 80 * 1024, 112 * 1024};
    static const struct sample_preset TUNED[4][5] = {
        {{.98, .90, 1}, {.95, .95, 1}, {.95, .95, 1}, {.90, .90, 2}, {.95, .85, 1}},
        {{.85, .85, 1}, {.85, .80, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}},
        {{.98, .95, 1}, {.95, .90, 1}, {.92, .92, 1}, {.92, .90, 2}, {.95, .90, 2}},
        {{.85, .85, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}},
    };
    struct sample_preset none = {.95, .95, 1};
    int row = 0;
    while (row < 4 && n >= LIMITS[row])
        row++;
    return preset == 0 ? none : TUNED[preset - 1][row];
}

#endif
