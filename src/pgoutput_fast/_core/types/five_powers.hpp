// The powers of ten used as factors in shortest_float.hpp.
#pragma once
#include <cstdint>

namespace pgo {

constexpr int LEAST_POWER = -292, MOST_POWER = 324;

// For each power of ten from LEAST_POWER on, its first 128 bits, rounded up. A power of ten is a power of five times a
// power of two, so the bits are those of the power of five.
struct FivePowers {
    struct Entry {
        uint64_t high = 0, low = 0;
    } of[MOST_POWER - LEAST_POWER + 1];

    constexpr FivePowers() : of() {
        // A number of WORDS words, the lowest first. Five to the power of 324 has 753 bits. The reciprocals begin as
        // 2^895, so that 5^-292 still has more than 128 bits. Successive truncating divisions give the same bits as a
        // single division.
        uint64_t power[WORDS] = {1}, inverse[WORDS] = {};
        inverse[WORDS - 1] = uint64_t{1} << 63;
        for (int k = 0; k <= MOST_POWER; ++k) {
            of[k - LEAST_POWER] = first_bits(power, false);
            unsigned __int128 carry = 0;
            for (int i = 0; i < WORDS; ++i) {
                carry += static_cast<unsigned __int128>(power[i]) * 5;
                power[i] = static_cast<uint64_t>(carry);
                carry >>= 64;
            }
        }
        for (int k = -1; k >= LEAST_POWER; --k) {
            unsigned __int128 rest = 0;
            for (int i = WORDS; i-- > 0;) {
                rest = rest << 64 | inverse[i];
                inverse[i] = static_cast<uint64_t>(rest / 5);
                rest %= 5;
            }
            of[k - LEAST_POWER] = first_bits(inverse, true);
        }
    }

private:
    static constexpr int WORDS = 14;

    static constexpr Entry first_bits(const uint64_t* words, bool more) {
        int top = WORDS - 1;
        while (!words[top]) --top;
        const int shift = __builtin_clzll(words[top]);
        uint64_t parts[3] = {};
        for (int i = 0; i < 3 && i <= top; ++i) parts[i] = words[top - i];
        for (int i = top - 3; i >= 0; --i) more |= words[i] != 0;
        Entry entry;
        entry.high = parts[0];
        entry.low = parts[1];
        if (shift) {
            entry.high = parts[0] << shift | parts[1] >> (64 - shift);
            entry.low = parts[1] << shift | parts[2] >> (64 - shift);
        }
        more |= (parts[2] << shift) != 0;
        entry.low += more;
        entry.high += more && entry.low == 0;
        return entry;
    }
};
inline constexpr FivePowers FIVE_POWERS{};

}  // namespace pgo
