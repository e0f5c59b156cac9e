// Replaces src/pgoutput_fast/_core/simd/avx512/on.hpp: the loops are compiled for AVX2, with the functions of
// instructions.hpp instead of the instructions of AVX-512.
#include "instructions.hpp"

#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,fma")
#pragma GCC diagnostic push
