/*
 * video_tables.h - tables of the papers on video diffusion transformers that are more than groups
 * of records.
 */
#ifndef LACUNA_VIDEO_TABLES_H
#define LACUNA_VIDEO_TABLES_H

#include "analyze/tables.h"

/* FG-Attn (arXiv 2509.16518), table 2: the share of blocks and slices whose largest probability is
 * below c/N, at every size and every c that the records of `dense` hold. */
extern const struct table_def table_blocks;

/* FG-Attn, figure 13: density, recall and error of its slice masks against the threshold. */
extern const struct table_def table_threshold;

/* SpargeAttn (arXiv 2502.18137), tables 4 and 9: self-similarity of blocks, error and sparsity in
 * each token order. */
extern const struct table_def table_permutations;

/* SpargeAttn, table 10: the same settings with the judge of self-similarity and with theta = -1,
 * which accepts every block, cell by cell. */
extern const struct table_def table_judge;

/* Two cells whose output errors differ by more than this are the "filtered" columns of table 10. */
#define JUDGE_FILTER 0.05

#endif
