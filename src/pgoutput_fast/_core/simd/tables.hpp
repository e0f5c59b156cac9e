// Tables for the vector loops of all processors.
#pragma once
#include <cstdint>
#include <limits>

namespace pgo {

// Loading at an offset gives a mask: of the last n of 16 or 32 lanes, or of the first n of 32 or 64 lanes.
struct Masks {
    uint8_t last[64], first[128];
    constexpr Masks() : last(), first() {
        for (int i = 0; i < 32; ++i) last[32 + i] = 0xff;
        for (int i = 0; i < 64; ++i) first[i] = 0xff;
    }
};
inline constexpr Masks MASKS{};

// All ones for a cell that is present, zero for a missing one.
inline uint32_t presence(int32_t length) { return ~static_cast<uint32_t>(length >> 31); }

// The smallest number with a given number of digits and no leading zero. The entries from SIGNED on are for numbers
// with a minus, where zero is not allowed. The entries for zero digits are so large that no value reaches them.
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

// For each set of four cells, one bit per cell: the words of the cells in the set, one after another, then unspecified
// ones.
struct Picks {
    uint32_t of[16][8];
    constexpr Picks() : of() {
        for (uint32_t set = 0; set < 16; ++set) {
            uint32_t at = 0;
            for (uint32_t k = 0; k < 4; ++k) {
                if (!(set >> k & 1)) continue;
                of[set][at++] = 2 * k;
                of[set][at++] = 2 * k + 1;
            }
        }
    }
};
inline constexpr Picks PICKS{};

// For each set of eight lanes: per lane of the set, the number of set lanes before it; 0x80 for all other lanes.
struct Ranks {
    uint8_t of[256][8];
    constexpr Ranks() : of() {
        for (uint32_t set = 0; set < 256; ++set) {
            uint8_t rank = 0;
            for (uint32_t k = 0; k < 8; ++k) of[set][k] = set >> k & 1 ? rank++ : uint8_t{0x80};
        }
    }
};
inline constexpr Ranks RANKS{};

}  // namespace pgo
