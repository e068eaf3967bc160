/*
 * simd.h - the one switch for hot loops compiled for several instruction sets, chosen at run time.
 * Sanitizer builds use the plain version: the resolver runs before the sanitizer is ready.
 */
#ifndef LACUNA_SIMD_H
#define LACUNA_SIMD_H

#if defined(__x86_64__) && !defined(LACUNA_SANITIZE)
#define SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SIMD_CLONES
#endif

#endif
