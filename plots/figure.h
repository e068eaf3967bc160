/*
 * figure.h - the registry of figures and what every figure is given.
 */
#pragma once

#include "analyze/load.h"
#include "core/cmd.h"
#include "core/maskfile.h"
#include "core/trace.h"
#include "plots/gp.h"

enum figure_input {
    FIGURE_RECORDS, /* directories with records */
    FIGURE_TRACE,   /* a trace file */
    FIGURE_MASKS,   /* one file of dumped masks */
    FIGURE_PICTURES /* strips of frames, .png */
};

/* Maps: those of the trace where they are about as fine as the picture, else computed from q and k.
 */
enum map_source { MAP_AUTO, MAP_COMPUTED, MAP_STORED };

/* Inputs and options of a figure; texts are NULL when not given. Borrowed. */
struct figure_args {
    const char *output;                  /* fig.png and the like (gp.h) */
    const char *made_by;                 /* command line for the script's comment */
    const struct str_list *inputs;       /* paths of all inputs: none may be overwritten;
                                          * FIGURE_PICTURES reads them */
    const struct recset *set;            /* FIGURE_RECORDS */
    const struct method *const *methods; /* for the defaults of parameters; may be NULL */
    const struct trace *trace;           /* FIGURE_TRACE: the first of them */
    struct trace *const *traces;         /* [n_traces]; more than one only where `several` */
    int n_traces;
    const struct maskfile *masks;       /* FIGURE_MASKS, overlay */
    const char *layers, *heads, *steps; /* "0,4-7", "all" */
    const char *branch;
    const char *method, *params; /* shell patterns; params "defaults": none set */
    const char *metrics;         /* a metric; a comma-separated list with FIGURE_SEVERAL */
    const char *against;         /* layerhead: subtract this method */
    const char *x;               /* curves: "step", "layer", "n_q" or a parameter */
    const char *y;               /* sweep: the second parameter */
    const char *marks;           /* curves, means: "NAME=X:Y,X:Y", drawn in grey */
    const char *title;
    struct gp_style style;
    bool untitled;           /* the figure's own title is not drawn: it is in the caption */
    int width, height;       /* units; 0 = the figure chooses, the height alone too */
    const char *rows, *keys; /* maps: "A-B", the part that is drawn */
    enum map_source map;     /* maps: where they come from */
    int jobs;                /* threads that compute maps; 0 = one */
    const char *tokens;      /* maps: the model whose tokenizer names a short part's tokens */
    const struct app *app;   /* has token_texts */
    bool mean;               /* maps: mean weight of a cell instead of the largest */
    int64_t frame;    /* masks of video: tokens of a frame, for lines between frames; 0 = none or
                       * as the trace says */
    double low, high; /* colour or value range, NAN = the figure chooses */
};

#define FIGURE_TRACES 4

/* What an axis counts. */
enum figure_axis {
    AXIS_OF_METRIC, /* values of a metric */
    AXIS_COUNT,     /* layers, heads, steps: whole numbers */
    AXIS_TOKENS,    /* lengths and sides of blocks: 8K, 16K, 32K at one distance */
    AXIS_PARAM,     /* values of a parameter: logarithmic where they span a decade */
};

/* Without: points are means. */
enum figure_flag {
    FIGURE_SD = 2,          /* means with standard deviations in the data */
    FIGURE_QUARTILES = 4,   /* medians with quartiles in the data */
    FIGURE_GREY = 16,       /* panels of methods have the lines of the others in grey behind */
    FIGURE_LOG = 32,        /* y is logarithmic where all values are positive */
    FIGURE_STEPS = 64,      /* lines of steps with marks of their own */
    FIGURE_ALL_CALLS = 128, /* calls that a method ran dense by its schedule count */
    FIGURE_PER_HEAD = 256,  /* numbers of a head of a trace, whatever the method */
    FIGURE_DOMINATED = 512, /* points that others dominate are hollow */
    FIGURE_NUMBERS = 1024,  /* bars of one setting with their numbers */
    FIGURE_NARROW = 2048,   /* the axis of shares begins where the data do, with few tics */
    FIGURE_SEVERAL = 4096,  /* a panel for each metric of --metrics */
    FIGURE_BAND = 8192,     /* the quartiles are a band behind the line */
};

/* A row of figures.def. */
struct chart;
struct figure {
    struct listed listed;
    enum figure_input input;
    bool needs_masks; /* --masks must be given as well */
    bool several;     /* takes several traces or pictures, up to FIGURE_TRACES */
    const char *uses; /* names of the options of some figures that it reads: "metrics,x,range" */
    int (*draw)(const struct figure *f, const struct figure_args *a, struct err *err);

    /* Of a figure of records: */
    int (*points)(struct chart *c, struct err *err); /* where the drawer's points come from */
    const char *keys;    /* by which records are grouped, beside those that must not be averaged */
    const char *x;       /* against what: the default of --x, or its choices */
    const char *metric;  /* the default of --metrics */
    const char *title;   /* $y: the metrics, $over: over what is averaged, $s: what
                            the source says */
    unsigned flags;      /* enum figure_flag */
    const char *caption; /* a sentence of the caption; NULL: none */
};

extern const struct figure figures[];            /* the last one has no name */
extern const struct listed *const figure_list[]; /* NULL-terminated, for struct app */

/* ERR_USAGE with the nearest name. */
const struct figure *figure_find(const char *name, struct err *err);

/* Draw it. */
int figure_draw(const struct figure *f, const struct figure_args *a, struct err *err);

/* Tics of a logarithmic axis, in the characters of the file's terminal. */
const char *figure_powers(const char *output);

/* What --layers, --heads and --steps choose; n_layers and n_heads: numbers from there on are
 * ERR_USAGE, -1 = no number is known. */
struct figure_cells {
    struct chosen {
        int64_t *at; /* owned */
        int64_t n;   /* -1: all */
    } layers, heads, steps;
};
int figure_cells(const struct figure_args *a, int64_t n_layers, int64_t n_heads,
                 struct figure_cells *out, struct err *err);
bool figure_has(const struct chosen *c, int64_t number);
void figure_cells_free(struct figure_cells *c);

/* Do --method and --params choose this record? */
bool figure_takes(const struct figure_args *a, const struct record *r);
