// Floats as text, for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstdint>
#include <cstring>
#include "columns/column.hpp"
#include "simd/avx2/registers.hpp"
#include "types/text_numbers.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// For each power of ten, `divisor` is the power shifted so that its highest bit is set. `inverse` is
// floor((2^128 - 1) / divisor) - 2^64. With it, a multiplication replaces the division (Moeller and Granlund, "Improved
// division by invariant integers", algorithm 4).
struct Reciprocals {
    uint64_t divisor[20], inverse[20];
    uint8_t shift[20];
    constexpr Reciprocals() : divisor(), inverse(), shift() {
        uint64_t power = 1;
        for (int i = 0; i < 20; ++i, power *= 10) {
            uint64_t d = power;
            uint8_t s = 0;
            while (!(d >> 63)) {
                d <<= 1;
                ++s;
            }
            divisor[i] = d;
            shift[i] = s;
            inverse[i] = static_cast<uint64_t>(~static_cast<unsigned __int128>(0) / d);
        }
    }
};
inline constexpr Reciprocals RECIPROCALS{};

// Reads floats with a point, no exponent and at most 19 significant digits as quotients of two 64-bit integers.
// parse_float_backed explains why that is exact.
template <class F>
bool floats(Source source, const Cell* cells, size_t n, F* out, const Column&) noexcept {
    const __m256i zeros = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9);
    const __m128i points = _mm_set1_epi8('.');
    for (size_t i = 0; i < n; ++i) {
        const uint32_t length = static_cast<uint32_t>(cells[i].length);
        const uint8_t* p = source.base + cells[i].offset;
        const uint8_t* end = p + length;
        const uint32_t negative = *p == '-';
        p += negative;
        const uint32_t all = length - negative;
        // The position of the point among the first sixteen characters, or 32 if there is none.
        const uint32_t found = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(load(p), points)));
        const uint32_t whole = _tzcnt_u32(found);
        const uint32_t places = all - whole - 1;
        if (__builtin_expect((whole - 1 > 15) | (places - 1 > 18) | (all > 25), 0)) {
            if (parse_float(source.base + cells[i].offset, length, out + i)) return false;
            continue;
        }
        // Keeps the characters after the point where they are, and moves those before it one position to the right.
        __m256i x = _mm256_blendv_epi8(load_wide(end - 33), load_wide(end - 32), last_lanes_wide(places));
        x = _mm256_and_si256(_mm256_xor_si256(x, zeros), last_lanes_wide(all - 1));
        const bool wrong_characters = !is_zero(_mm256_subs_epu8(x, nine));
        x = _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x010a));
        x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x00010064));
        x = _mm256_packus_epi32(x, x);
        x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x00012710));
        const uint64_t low = static_cast<uint64_t>(_mm256_extract_epi64(x, 2));
        const uint64_t high = static_cast<uint64_t>(_mm256_extract_epi64(x, 0));
        const uint64_t value = ((low & 0xffffffff) * 100000000 + (low >> 32)) + (high >> 32) * 10000000000000000ull;
        if (__builtin_expect(wrong_characters | (value == 0) | ((high & 0xffffffff) != 0) | (high >> 32 > 999) |
                             ((p[0] == '0') & (whole > 1)), 0)) {
            if (parse_float(source.base + cells[i].offset, length, out + i)) return false;
            continue;
        }
        const uint64_t divisor = RECIPROCALS.divisor[places];
        const int down = RECIPROCALS.shift[places], up = __builtin_clzll(value);
        // Divides value by 10^places, both shifted. The high word of the dividend is less than half of the divisor.
        const uint64_t u1 = value << up >> 2, u0 = value << up << 62;
        unsigned long long low_word, high_word;
        low_word = _mulx_u64(RECIPROCALS.inverse[places], u1, &high_word);
        uint64_t quotient = high_word + u1 + __builtin_add_overflow(low_word, u0, &low_word) + 1;
        uint64_t rest = u0 - quotient * divisor;
        const uint64_t over = rest > low_word;
        quotient -= over;
        rest += (0 - over) & divisor;
        const uint64_t under = rest >= divisor;
        quotient += under;
        rest -= (0 - under) & divisor;
        quotient |= rest != 0;
        const uint64_t bits =
            static_cast<uint64_t>(1023 - 62 + down - up) << 52 | static_cast<uint64_t>(negative) << 63;
        double power;
        std::memcpy(&power, &bits, sizeof power);
        out[i] = static_cast<F>(static_cast<int64_t>(quotient)) * static_cast<F>(power);
    }
    return true;
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
