// Code from here to simd/avx2/off.hpp is compiled for AVX2. It runs only if simd/dispatch.hpp detects AVX2.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,fma,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,fma,popcnt")
#endif
