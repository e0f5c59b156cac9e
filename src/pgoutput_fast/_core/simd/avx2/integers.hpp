// Integers and decimals for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include "columns/column.hpp"
#include "simd/avx2/registers.hpp"
#include "protocol/wire.hpp"
#include "types/text_numbers.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

inline __m256i load_two(const uint8_t* low, const uint8_t* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load(low)), load(high), 1);
}

// Joins the sixteen digits in each half (0 to 9, highest first) to a number in the low word of the half.
inline __m256i join_digits(__m256i x) {
    x = _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x010a));
    x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x00010064));
    x = _mm256_packus_epi32(x, x);
    x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x00012710));
    return _mm256_add_epi64(_mm256_mul_epu32(x, _mm256_set1_epi64x(100000000)), _mm256_srli_epi64(x, 32));
}
inline int64_t low_number(__m256i x) { return _mm_cvtsi128_si64(_mm256_castsi256_si128(x)); }
inline int64_t high_number(__m256i x) { return _mm_cvtsi128_si64(_mm256_extracti128_si256(x, 1)); }

// The number, or its negative if `minus` is 1.
inline int64_t with_sign(int64_t number, uint64_t minus) {
    return static_cast<int64_t>((static_cast<uint64_t>(number) ^ (0 - minus)) + minus);
}

// Loads a number into the low word of each half.
inline __m256i two_numbers(const int64_t* low, const int64_t* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(low))),
                                   _mm_loadl_epi64(reinterpret_cast<const __m128i*>(high)), 1);
}
// Whether the highest bit of either low word is set.
inline bool any_negative(__m256i x) { return (_mm256_movemask_pd(_mm256_castsi256_pd(x)) & 5) != 0; }

// Reads integers of at most 16 characters.
template <class T>
bool integers(Source source, const Cell* cells, size_t n, T* out, const Column& column) noexcept {
    constexpr int64_t most = static_cast<int64_t>(std::numeric_limits<T>::max());
    if (column.statistics.longest > 16 || n < 2) return false;
    const __m256i zeros = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9), greatest = _mm256_set1_epi64x(most);
    __m256i wrong_characters = _mm256_setzero_si256(), bad = wrong_characters;
    for (size_t i = 0; i < n; i += 2) {
        if (i + 2 > n) i = n - 2;  // the last pair may overlap the one before it
        const uint8_t *p = source.base + cells[i].offset, *q = source.base + cells[i + 1].offset;
        const uint64_t p_length = static_cast<uint32_t>(cells[i].length);
        const uint64_t q_length = static_cast<uint32_t>(cells[i + 1].length);
        const uint64_t p_minus = *p == '-', q_minus = *q == '-';
        __m256i x = _mm256_xor_si256(load_two(p + p_length - 16, q + q_length - 16), zeros);
        x = _mm256_and_si256(x, load_two(MASKS.last + 16 + p_length - p_minus, MASKS.last + 16 + q_length - q_minus));
        wrong_characters = _mm256_or_si256(wrong_characters, _mm256_subs_epu8(x, nine));
        x = join_digits(x);
        const __m256i least = two_numbers(LEAST.of + p_length + (SIGNED - 1) * p_minus,
                                          LEAST.of + q_length + (SIGNED - 1) * q_minus);
        // Also refuses the minimum of T, because without its sign it is greater than `greatest`.
        bad = _mm256_or_si256(bad, _mm256_or_si256(_mm256_sub_epi64(x, least), _mm256_sub_epi64(greatest, x)));
        out[i] = static_cast<T>(with_sign(low_number(x), p_minus));
        out[i + 1] = static_cast<T>(with_sign(high_number(x), q_minus));
    }
    return !any_negative(bad) && is_zero(wrong_characters);
}

// Reads integers, some of which have 17 to 19 digits.
inline bool long_integers(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    if (column.statistics.longest <= 16) return integers<int64_t>(source, cells, n, out, column);
    if (column.statistics.longest > 20) return false;
    const __m256i zeros = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9);
    __m256i wrong_characters = _mm256_setzero_si256();
    uint64_t bad = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint8_t* p = source.base + cells[i].offset;
        const uint32_t length = static_cast<uint32_t>(cells[i].length);
        const uint64_t minus = *p == '-', digits = length - minus;
        __m256i x = _mm256_xor_si256(load_wide(p + length - 32), zeros);
        x = _mm256_and_si256(x, last_lanes_wide(static_cast<uint32_t>(digits)));
        wrong_characters = _mm256_or_si256(wrong_characters, _mm256_subs_epu8(x, nine));
        x = join_digits(x);
        // 19 digits cannot overflow 64 bits.
        const uint64_t value =
            static_cast<uint64_t>(low_number(x)) * 10000000000000000ull + static_cast<uint64_t>(high_number(x));
        bad |= 19 - digits;
        bad |= (value >> 1) - static_cast<uint64_t>(LEAST.of[digits] >> 1);
        // Refuses a value that is too large and a zero with a sign.
        bad |= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - (value - minus);
        out[i] = with_sign(static_cast<int64_t>(value), minus);
    }
    return !(bad >> 63) && is_zero(wrong_characters);
}

// An oid column has 64 bits per value.
inline bool oids(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    if (!integers<int64_t>(source, cells, n, out, column)) return false;
    int64_t beyond = 0;
    for (size_t i = 0; i < n; ++i) beyond |= out[i] >> 32;  // a negative number has these bits too
    return beyond == 0;
}

constexpr int MOST_PRECISION = 15;

// Reads decimals with as many digits after the point as the scale says, at most 15 digits in all. A byte shuffle
// removes the point.
inline bool decimals(Source source, const Cell* cells, size_t n, int128* out, const Column& column) noexcept {
    const int scale = column.plan.scale, point = scale != 0;
    if (scale >= MOST_PRECISION || column.statistics.longest > 17 || n < 2) return false;
    const int most = column.plan.precision < MOST_PRECISION ? column.plan.precision : MOST_PRECISION;
    // The smallest valid number per length without a sign. With too few or too many digits, no value reaches it.
    int64_t least[2 * SIGNED];
    for (int length = 0; length < SIGNED; ++length) {
        const int digits = length - point;
        if (digits <= scale || digits > most) least[length] = least[SIGNED + length] = LEAST.of[0];
        else if (digits > scale + 1) least[length] = least[SIGNED + length] = LEAST.of[digits];
        else least[length] = 0, least[SIGNED + length] = 1;
    }
    alignas(16) uint8_t lanes[16], points[16];
    for (int k = 0; k < 16; ++k) {
        lanes[k] = static_cast<uint8_t>(k > 15 - scale ? k : k - point);
        points[k] = point && k == 15 - scale ? 0xff : 0;
    }
    const __m256i compact = load_two(lanes, lanes), pointed = load_two(points, points);
    const __m256i dot = _mm256_set1_epi8('.' ^ '0');
    const __m256i zeros = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9);
    __m256i wrong_characters = _mm256_setzero_si256(), bad = wrong_characters;
    for (size_t i = 0; i < n; i += 2) {
        if (i + 2 > n) i = n - 2;  // the last pair may overlap the one before it
        const uint8_t *p = source.base + cells[i].offset, *q = source.base + cells[i + 1].offset;
        const uint64_t p_length = static_cast<uint32_t>(cells[i].length);
        const uint64_t q_length = static_cast<uint32_t>(cells[i + 1].length);
        const uint64_t p_minus = *p == '-', q_minus = *q == '-';
        const uint64_t p_size = p_length - p_minus, q_size = q_length - q_minus;
        __m256i x = _mm256_xor_si256(load_two(p + p_length - 16, q + q_length - 16), zeros);
        x = _mm256_and_si256(x, load_two(MASKS.last + 16 + (p_size < 16 ? p_size : 16),
                                         MASKS.last + 16 + (q_size < 16 ? q_size : 16)));
        wrong_characters = _mm256_or_si256(wrong_characters, _mm256_and_si256(_mm256_xor_si256(x, dot), pointed));
        x = _mm256_shuffle_epi8(x, compact);
        wrong_characters = _mm256_or_si256(wrong_characters, _mm256_subs_epu8(x, nine));
        x = join_digits(x);
        bad = _mm256_or_si256(bad, _mm256_sub_epi64(x, two_numbers(least + p_size + SIGNED * p_minus,
                                                                   least + q_size + SIGNED * q_minus)));
        out[i] = with_sign(low_number(x), p_minus);
        out[i + 1] = with_sign(high_number(x), q_minus);
    }
    return !any_negative(bad) && is_zero(wrong_characters);
}

// 10^k for k below 20. The last entry stands for any other k: a product with it fails the checks unless the value is
// zero.
struct Powers {
    uint64_t of[21];
    constexpr Powers() : of() {
        for (int k = 0; k < 20; ++k) of[k] = POWERS_OF_TEN[k];
        of[20] = UINT64_MAX;
    }
};
inline constexpr Powers POWERS{};

// Reads the same decimals in binary format. The display scale must be the column's scale, and there may be at most four
// digits in base 10000.
inline bool binary_decimals(Source source, const Cell* cells, size_t n, int128* out, const Column& column) noexcept {
    if (column.plan.precision > MOST_PRECISION) return false;
    const uint64_t limit = POWERS_OF_TEN[column.plan.precision] - 1;
    const int scale = column.plan.scale;
    uint64_t mismatch = 0, bad = 0;  // errors: any bit of `mismatch`, the highest bit of `bad`
    for (size_t i = 0; i < n; ++i) {
        const uint8_t* p = source.base + cells[i].offset;
        const uint64_t header = load64(p), count = header >> 48, negative = header >> 30 & 1;
        // The header's low half may contain only a sign and the scale.
        mismatch |= (header & 0xbfffffff) ^ static_cast<uint64_t>(scale);
        mismatch |= static_cast<uint32_t>(cells[i].length) ^ (8 + 2 * count);
        bad |= 4 - count;
        // Four digits; missing ones become leading zeros. The shift has two steps, because a shift by 64 has no effect.
        const uint64_t half = 8 * (4 - count) & 63;
        const uint64_t digits = load64(p + 8) >> half >> half;
        mismatch |= ((digits + 0x58f058f058f058f0ull) | digits) & 0x8000800080008000ull;
        const uint64_t eights = (digits >> 16 & 0x0000ffff0000ffffull) * 10000 + (digits & 0x0000ffff0000ffffull);
        const uint64_t value = (eights >> 32) * 100000000 + (eights & 0xffffffff);
        // The decimal place of the last digit, as a power of ten in thousandths of 10^-scale. In this unit the power is
        // never negative for a value that fits, so the value is multiplied first and then divided by 1000.
        const int weight = static_cast<int16_t>(header >> 32);
        const uint32_t place = static_cast<uint32_t>(4 * (weight - static_cast<int>(count) + 1) + scale + 3);
        unsigned long long high;
        const uint64_t low = _mulx_u64(value, POWERS.of[place < 20 ? place : 20], &high), quotient = low / 1000;
        mismatch |= high | (quotient * 1000 ^ low);
        bad |= limit - quotient;
        out[i] = with_sign(static_cast<int64_t>(quotient), negative);
    }
    return !mismatch && !(bad >> 63);
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
