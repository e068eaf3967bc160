/*
 * simd.h - an attribute for hot loops that are compiled for several instruction sets, of which the
 * program picks one at run time. Sanitizer builds use the plain version, because the resolver runs
 * before the sanitizer is ready; so does clang before 18, which names the resolved function
 * "f.ifunc", so that no other file finds it. Such a build is slower: give it -march=native.
 */
#pragma once

#if defined(__x86_64__) && !defined(LACUNA_SANITIZE) &&                                            \
    !(defined(__clang__) && __clang_major__ < 18)
#define SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SIMD_CLONES
#endif

/* For sums in double of products of two floats: these are exact, so an instruction that multiplies
 * and adds gives the same sums. */
#if defined(__GNUC__) && !defined(__clang__)
#define EXACT_PRODUCTS __attribute__((optimize("fp-contract=fast")))
#else
#define EXACT_PRODUCTS
#endif
