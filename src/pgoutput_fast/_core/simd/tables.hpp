// What the vector loops of all processors look up.
#pragma once
#include <cstdint>
#include <limits>

namespace pgo {

// Windows into these are masks: of the last n of 16 or 32 lanes, or of the first n of 32 or 64.
struct Masks {
    uint8_t last[64], first[128];
    constexpr Masks() : last(), first() {
        for (int i = 0; i < 32; ++i) last[32 + i] = 0xff;
        for (int i = 0; i < 64; ++i) first[i] = 0xff;
    }
};
inline constexpr Masks MASKS{};

// All ones where there is a value, zero where it is missing.
inline uint32_t presence(int32_t length) { return ~static_cast<uint32_t>(length >> 31); }

// The least number of so many digits that has no leading zero; behind a minus it is no zero either. Nothing is as large as
// what stands for no digits.
constexpr int SIGNED = 24;
struct Least {
    int64_t of[2 * SIGNED];
    constexpr Least() : of() {
        for (int64_t& least : of) least = std::numeric_limits<int64_t>::max();
        of[1] = 0;
        of[SIGNED + 1] = 1;
        int64_t power = 1;
        for (int digits = 2; digits < 20; ++digits) of[digits] = of[SIGNED + digits] = power *= 10;
    }
};
inline constexpr Least LEAST{};

}  // namespace pgo
