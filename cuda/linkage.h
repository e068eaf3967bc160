/*
 * linkage.h - C linkage for what C and CUDA share: headers stand between BEGIN_C and END_C with the
 * C headers that they include.
 */
#pragma once

#ifdef __cplusplus
#define BEGIN_C extern "C" {
#define END_C }
#else
#define BEGIN_C
#define END_C
#endif
