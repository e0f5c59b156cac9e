// Which vector loops this processor has. Fewer of them can be used: what is left must do the same, only slower.
//
// Of all extensions only `column` includes this, with the converters. Each shared object that did would have a level of its
// own, for their symbols are hidden, and `use_vectors` would set one of them.
#pragma once
#include <cstdlib>
#include <cstring>

#include "simd/avx2.hpp"
#include "simd/avx512/integers.hpp"
#include "simd/avx512/bytes.hpp"
#include "simd/avx512/cells.hpp"
#include "simd/avx512/floats.hpp"
#include "simd/avx512/times.hpp"
#include "simd/neon.hpp"

namespace pgo {

// A loop over some cells of one column: true if it took them all, false if it left them to the portable converter.
template <class T>
using Quick = bool (*)(Source, const Cell*, size_t, T*, const Column&) noexcept;

using QuickFacts = size_t (*)(const Cell*, size_t, Facts*) noexcept;
using QuickGather = Gathered (*)(Source, const Cell*, size_t, uint8_t*, int32_t*, const Column&) noexcept;

// What a processor has: of the last two each with everything below it.
enum VectorLevel : int { PORTABLE, NEON, AVX2, AVX512 };
inline constexpr const char* VECTOR_LEVELS[] = {"portable", "neon", "avx2", "avx512"};

inline VectorLevel highest_level() noexcept {
#ifdef PGO_AVX2
    // These ask the system, too: whether it keeps the registers.
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
        return PORTABLE;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi") &&
                      __builtin_cpu_supports("avx512vbmi2");
    return wide && __builtin_cpu_supports("fma") ? AVX512 : AVX2;
#elif defined(PGO_NEON)
    return NEON;
#else
    return PORTABLE;
#endif
}

// PGOUTPUT_FAST_VECTORS names the highest level that may be used. A name that there is none of is the lowest: so nothing is
// used that somebody wanted to avoid.
inline VectorLevel allowed_level() noexcept {
    if (std::getenv("PGOUTPUT_FAST_PORTABLE")) return PORTABLE;
    const char* most = std::getenv("PGOUTPUT_FAST_VECTORS");
    if (!most || !*most) return AVX512;
    for (int level = AVX512; level > PORTABLE; --level)
        if (std::strcmp(most, VECTOR_LEVELS[level]) == 0) return static_cast<VectorLevel>(level);
    return PORTABLE;
}

inline VectorLevel lower_level(VectorLevel a, VectorLevel b) noexcept {
    const VectorLevel lower = a < b ? a : b;
    return lower == NEON && highest_level() != NEON ? PORTABLE : lower;
}
inline VectorLevel vector_level = lower_level(allowed_level(), highest_level());

// For tests: uses the vector loops up to `level` from now on, as far as there are any; returns what is used.
inline VectorLevel use_vectors(VectorLevel level) noexcept {
    return vector_level = lower_level(level, highest_level());
}

// A loop that all levels have but the portable one; one that is AVX2's and AVX-512's; and one of AVX-512 only.
#if defined(PGO_AVX2)
#define PGO_AVX_QUICK(...) \
    (vector_level == AVX512 ? avx512::__VA_ARGS__ : vector_level == AVX2 ? avx2::__VA_ARGS__ : nullptr)
#define PGO_QUICK(...) PGO_AVX_QUICK(__VA_ARGS__)
#define PGO_WIDE_QUICK(...) (vector_level == AVX512 ? avx512::__VA_ARGS__ : nullptr)
#elif defined(PGO_NEON)
#define PGO_QUICK(...) (vector_level == NEON ? neon::__VA_ARGS__ : nullptr)
#define PGO_AVX_QUICK(...) nullptr
#define PGO_WIDE_QUICK(...) nullptr
#else
#define PGO_QUICK(...) nullptr
#define PGO_AVX_QUICK(...) nullptr
#define PGO_WIDE_QUICK(...) nullptr
#endif

}  // namespace pgo
