// Which of the vector loops this processor has. They can be switched off: what is left must do the same, only slower.
#pragma once
#include <cstdlib>

#include "avx2.hpp"

namespace pgo {

// A loop over some cells of one column: true if it took them all, false if it left them to the portable converter.
template <class T>
using Quick = bool (*)(Source, const Cell*, size_t, T*, const Column&) noexcept;

#ifdef PGO_AVX2
inline bool have_vectors() noexcept {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
inline bool vectors_on = have_vectors() && !std::getenv("PGOUTPUT_FAST_PORTABLE");
#define PGO_QUICK(loop) (vectors_on ? avx2::loop : nullptr)
#else
inline bool have_vectors() noexcept { return false; }
inline bool vectors_on = false;
#define PGO_QUICK(loop) nullptr
#endif

// For tests: whether vector loops are used from now on. False if there are none.
inline bool use_vectors(bool on) noexcept {
    vectors_on = on && have_vectors();
    return vectors_on;
}

}  // namespace pgo
