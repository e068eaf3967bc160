/*
 * human.h - sizes and estimates as people say them: "86 GB", "2 to 8 min".
 */
#ifndef LACUNA_HUMAN_H
#define LACUNA_HUMAN_H

/* Decimal units, two significant digits from 1 kB on: "512 B", "9.5 MB", "86 GB". */
void bytes_text(double bytes, char text[24]);

/* Time of work that would take so many seconds on a machine that does nothing else, without what
 * the estimate left out; four times as much is the upper end. "under 2 s", "8 to 30 s", "2 to 8
 * min", "12 to 48 h", "2 to 8 days": in the unit of the upper end. */
void estimate_text(double seconds, char text[48]);

#endif
