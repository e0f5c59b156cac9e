// Detects which vector loops this processor supports. A lower level can be set: every level gives the same results,
// only the speed differs.
//
// Only the extension `column` includes this file, together with the converters. The symbols of a shared object are
// hidden, so any other extension that included it would have its own level, which `use_vectors` would not set.
#pragma once
#include <cstdlib>
#include <cstring>

#include "simd/avx2/bytes.hpp"
#include "simd/avx2/cells.hpp"
#include "simd/avx2/floats.hpp"
#include "simd/avx2/integers.hpp"
#include "simd/avx2/intervals.hpp"
#include "simd/avx2/lists.hpp"
#include "simd/avx2/money.hpp"
#include "simd/avx2/networks.hpp"
#include "simd/avx2/numerics.hpp"
#include "simd/avx2/tids.hpp"
#include "simd/avx2/times.hpp"
#include "simd/avx512/integers.hpp"
#include "simd/avx512/bytes.hpp"
#include "simd/avx512/cells.hpp"
#include "simd/avx512/floats.hpp"
#include "simd/avx512/times.hpp"
#include "simd/neon.hpp"

namespace pgo {

// A loop over some cells of one column. It returns true if it converted them all, otherwise the portable converter
// must.
template <class T>
using Quick = bool (*)(Source, const Cell*, size_t, T*, const Column&) noexcept;

using QuickExtent = size_t (*)(const Cell*, size_t, Extent*) noexcept;
using QuickPick = size_t (*)(const Cell*, size_t, Cell*) noexcept;
using QuickSpread = void (*)(const Cell*, size_t, const uint8_t*, uint8_t*) noexcept;
using QuickPresence = size_t (*)(const Cell*, size_t, uint8_t*) noexcept;
using QuickSplit = size_t (*)(Source, const Cell*, size_t, CellList&, int32_t*, int32_t, uint32_t);
using QuickSplitRecords = size_t (*)(Source, const Cell*, size_t, CellList&, size_t, Cell*, size_t, uint32_t);
using QuickSplitRanges = size_t (*)(Source, const Cell*, size_t, CellList&, Cell*, size_t, RangeFlags,
                                    uint32_t);
using QuickGather = Gathered (*)(Source, const Cell*, size_t, uint8_t*, int32_t*, const Column&) noexcept;

// The vector levels. A processor with AVX512 also has AVX2.
enum VectorLevel : int { PORTABLE, NEON, AVX2, AVX512 };
inline constexpr const char* VECTOR_LEVELS[] = {"portable", "neon", "avx2", "avx512"};

inline VectorLevel highest_level() noexcept {
#ifdef PGO_AVX2
    // These also check that the operating system saves the registers.
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") ||
        !__builtin_cpu_supports("fma"))
        return PORTABLE;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi") &&
                      __builtin_cpu_supports("avx512vbmi2");
    return wide ? AVX512 : AVX2;
#elif defined(PGO_NEON)
    return NEON;
#else
    return PORTABLE;
#endif
}

// PGOUTPUT_FAST_VECTORS names the highest level that may be used. An unknown name means the lowest level, so that a
// typo never enables a level that the user wants to avoid.
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

// For tests: sets the highest level that may be used, and returns the level in use.
inline VectorLevel use_vectors(VectorLevel level) noexcept {
    return vector_level = lower_level(level, highest_level());
}

// PGO_QUICK selects a loop that every level except the portable one has, PGO_AVX_QUICK one that only AVX2 and AVX-512
// have.
#if defined(PGO_AVX2)
#define PGO_AVX_QUICK(...) \
    (vector_level == AVX512 ? avx512::__VA_ARGS__ : vector_level == AVX2 ? avx2::__VA_ARGS__ : nullptr)
#define PGO_QUICK(...) PGO_AVX_QUICK(__VA_ARGS__)
#elif defined(PGO_NEON)
#define PGO_QUICK(...) (vector_level == NEON ? neon::__VA_ARGS__ : nullptr)
#define PGO_AVX_QUICK(...) nullptr
#else
#define PGO_QUICK(...) nullptr
#define PGO_AVX_QUICK(...) nullptr
#endif

}  // namespace pgo
