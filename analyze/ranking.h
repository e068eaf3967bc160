/*
 * ranking.h - the table "ranking": which setting wins at equal density (or recall, or error), on
 * how many heads, by how much, and whether chance would do.
 */
#ifndef LACUNA_RANKING_H
#define LACUNA_RANKING_H

#include "analyze/tables.h"

/* Values within this share of the best one share its win. */
#define RANKING_TIE 0.01

#endif
