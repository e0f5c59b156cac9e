// Code from here to simd/avx512/off.hpp is compiled for AVX-512. It runs only if simd/dispatch.hpp detects AVX-512.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target( \
    "avx2,bmi,bmi2,lzcnt,popcnt,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vbmi2"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vbmi2")
// GCC warns about undefined registers in its own intrinsics as if they were in this code (bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
