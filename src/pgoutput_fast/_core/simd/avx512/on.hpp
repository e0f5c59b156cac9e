// What follows is compiled for AVX-512, up to simd/avx512/off.hpp: for processors of which simd/dispatch.hpp knows that they have it.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target( \
    "avx2,bmi,bmi2,lzcnt,popcnt,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vbmi2"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vbmi2")
// GCC takes the undefined registers of its own intrinsics for ours (bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
