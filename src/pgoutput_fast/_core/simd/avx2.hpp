// The most expensive loops, for processors with AVX2. Each loop accepts only the form that nearly all cells have, and
// refuses the cells if it sees anything else, valid or not. The portable converters then decide. So they alone define
// what is valid, and results do not depend on the processor.
//
// Preconditions (ColumnStatistics::readable_around): three ranges must be readable. They are the READ_BEFORE bytes
// before each present cell, the READ_BEHIND bytes after it, and the first READ_BEHIND bytes of the source. The loops
// for fixed-width types get no missing cells and no empty ones.
//
// The number of instructions decides the speed. So two cells share a register where they fit. The loops collect errors
// and check them once at the end. `wrong_characters` has a lane for each character, and any lane that is not zero is an
// error. In `mismatch` any bit is an error. In `bad` the highest bit is an error: the sign of a difference.
//
// Names in the loops: `expected` has the characters that every value has, and '0' where it has a digit. `largest` has
// the largest digit in each place. `compact` is a shuffle that removes the characters between the digits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "columns/column.hpp"
#include "columns/gather.hpp"
#include "types/text_numbers.hpp"
#include "types/text_times.hpp"
#include "simd/tables.hpp"
#include "protocol/wire.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define PGO_AVX2 1
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2")
#endif

namespace pgo::avx2 {

inline __m128i load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256i load_wide(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(uint8_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
inline void store_wide(uint8_t* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline __m128i last_lanes(uint32_t n) { return load(MASKS.last + 16 + n); }
inline __m256i last_lanes_wide(uint32_t n) { return load_wide(MASKS.last + n); }
inline __m256i first_lanes_wide(uint32_t n) { return load_wide(MASKS.first + 64 - n); }
inline bool is_zero(__m128i v) { return _mm_testz_si128(v, v); }
inline bool is_zero(__m256i v) { return _mm256_testz_si256(v, v); }

// ---- facts about cells ------------------------------------------------------------------------------------------

// Gathers facts about the cells in groups of eight and returns how many cells that were. The lengths add up to less
// than 2^32, because no source is larger.
inline size_t facts(const Cell* cells, size_t n, Facts* out) noexcept {
    const __m256i none = _mm256_setzero_si256();
    __m256i signs = none, longest = none, end = none, total = none;
    __m256i shortest = _mm256_set1_epi32(-1), first = shortest;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 a = _mm256_loadu_ps(reinterpret_cast<const float*>(cells + i));
        const __m256 b = _mm256_loadu_ps(reinterpret_cast<const float*>(cells + i + 4));
        const __m256i offset = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        const __m256i length = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
        const __m256i size = _mm256_max_epi32(length, none);
        signs = _mm256_or_si256(signs, length);
        shortest = _mm256_min_epu32(shortest, length);
        longest = _mm256_max_epi32(longest, length);
        total = _mm256_add_epi32(total, size);
        const __m256i absent = _mm256_srai_epi32(length, 31);
        first = _mm256_min_epu32(first, _mm256_or_si256(offset, absent));
        end = _mm256_max_epu32(end, _mm256_andnot_si256(absent, _mm256_add_epi32(offset, size)));
    }
    alignas(32) uint32_t lanes[6][8];
    const __m256i all[6] = {signs, shortest, longest, total, first, end};
    for (int k = 0; k < 6; ++k) _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[k]), all[k]);
    for (int k = 0; k < 8; ++k) {
        out->signs |= static_cast<int32_t>(lanes[0][k]);
        out->shortest = lanes[1][k] < out->shortest ? lanes[1][k] : out->shortest;
        out->longest = lanes[2][k] > out->longest ? lanes[2][k] : out->longest;
        out->total += lanes[3][k];
        out->first = lanes[4][k] < out->first ? lanes[4][k] : out->first;
        out->end = lanes[5][k] > out->end ? lanes[5][k] : out->end;
    }
    return i;
}

// ---- numbers ----------------------------------------------------------------------------------------------------

inline __m256i load_two(const uint8_t* low, const uint8_t* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load(low)), load(high), 1);
}

// Joins the sixteen digits in each half (0 to 9, the highest first) to a number in the low word of the half.
inline __m256i join_digits(__m256i x) {
    x = _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x010a));
    x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x00010064));
    x = _mm256_packus_epi32(x, x);
    x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x00012710));
    return _mm256_add_epi64(_mm256_mul_epu32(x, _mm256_set1_epi64x(100000000)), _mm256_srli_epi64(x, 32));
}
inline int64_t low_number(__m256i x) { return _mm_cvtsi128_si64(_mm256_castsi256_si128(x)); }
inline int64_t high_number(__m256i x) { return _mm_cvtsi128_si64(_mm256_extracti128_si256(x, 1)); }

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
        // Also refuses the most negative value of T, because without its sign it is greater than `greatest`.
        bad = _mm256_or_si256(bad, _mm256_or_si256(_mm256_sub_epi64(x, least), _mm256_sub_epi64(greatest, x)));
        const int64_t a = static_cast<int64_t>((static_cast<uint64_t>(low_number(x)) ^ (0 - p_minus)) + p_minus);
        const int64_t b = static_cast<int64_t>((static_cast<uint64_t>(high_number(x)) ^ (0 - q_minus)) + q_minus);
        out[i] = static_cast<T>(a);
        out[i + 1] = static_cast<T>(b);
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
        out[i] = static_cast<int64_t>((value ^ (0 - minus)) + minus);
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
    // The least valid number for each length without a sign. If there are too few or too many digits, no value reaches
    // it.
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
    int64_t* words = reinterpret_cast<int64_t*>(out);
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
        const int64_t a = static_cast<int64_t>((static_cast<uint64_t>(low_number(x)) ^ (0 - p_minus)) + p_minus);
        const int64_t b = static_cast<int64_t>((static_cast<uint64_t>(high_number(x)) ^ (0 - q_minus)) + q_minus);
        words[2 * i] = a;
        words[2 * i + 1] = a >> 63;
        words[2 * i + 2] = b;
        words[2 * i + 3] = b >> 63;
    }
    return !any_negative(bad) && is_zero(wrong_characters);
}

// 10^k for k below 20. The last entry stands for every other k: a product with it fails the checks, unless the value is
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
    int64_t* words = reinterpret_cast<int64_t*>(out);
    for (size_t i = 0; i < n; ++i) {
        const uint8_t* p = source.base + cells[i].offset;
        const uint64_t header = load64(p), count = header >> 48, negative = header >> 30 & 1;
        // The header's low half may contain only a sign and the scale.
        mismatch |= (header & 0xbfffffff) ^ static_cast<uint64_t>(scale);
        mismatch |= static_cast<uint32_t>(cells[i].length) ^ (8 + 2 * count);
        bad |= 4 - count;
        // Four digits; missing ones become leading zeros. The shift has two steps, because a shift by 64 does nothing.
        const uint64_t half = 8 * (4 - count) & 63;
        const uint64_t digits = load64(p + 8) >> half >> half;
        mismatch |= ((digits + 0x58f058f058f058f0ull) | digits) & 0x8000800080008000ull;
        const uint64_t eights = (digits >> 16 & 0x0000ffff0000ffffull) * 10000 + (digits & 0x0000ffff0000ffffull);
        const uint64_t value = (eights >> 32) * 100000000 + (eights & 0xffffffff);
        // The lowest decimal place of the last digit, as a power of ten in thousandths of 10^-scale. In this unit the
        // power is never negative for a value that fits, so the value is multiplied first and then divided by 1000.
        const int weight = static_cast<int16_t>(header >> 32);
        const uint32_t place = static_cast<uint32_t>(4 * (weight - static_cast<int>(count) + 1) + scale + 3);
        unsigned long long high;
        const uint64_t low = _mulx_u64(value, POWERS.of[place < 20 ? place : 20], &high), quotient = low / 1000;
        mismatch |= high | (quotient * 1000 ^ low);
        bad |= limit - quotient;
        const int64_t signed_value = static_cast<int64_t>((quotient ^ (0 - negative)) + negative);
        words[2 * i] = signed_value;
        words[2 * i + 1] = signed_value >> 63;
    }
    return !mismatch && !(bad >> 63);
}

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

// ---- dates and times --------------------------------------------------------------------------------------------

// For each month * 64 + day: the number of the day in a year that begins in March, counted from 1. An entry of 0 means
// that there is no such day.
struct DayOfYear {
    uint16_t of[16 * 64];
    constexpr DayOfYear() : of() {
        const int days[12] = {31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 29};
        for (int k = 0, number = 1; k < 12; ++k)
            for (int day = 1; day <= days[k]; ++day)
                of[((k + 2) % 12 + 1) * 64 + day] = static_cast<uint16_t>(number++);
    }
};
inline constexpr DayOfYear DAY_OF_YEAR{};
constexpr uint32_t FEBRUARY_29 = 2 * 64 + 29, MARCH = 3 * 64;

// Returns days since 1970. Sets the highest bit of `bad` if the date does not exist. The day must be below 64, so that
// it does not change the month.
inline int32_t days_of(uint32_t year, uint32_t month_day, uint32_t* bad) {
    const uint32_t number = DAY_OF_YEAR.of[month_day & 1023];
    const uint32_t y = year - (month_day < MARCH), century = y / 100;
    *bad |= (number - 1) | (year - 1) | (1023 - month_day);
    if (__builtin_expect(month_day == FEBRUARY_29, 0) && !is_leap(year)) *bad = UINT32_MAX;
    return static_cast<int32_t>((1461 * y >> 2) - century + (century >> 2) + number) - 719469;
}

// Factors that join two pairs of digits: to a year, to month * 64 + day, or to minutes.
constexpr int YEAR_FACTORS = 0x00010064, MONTH_FACTORS = 0x00010040, MINUTE_FACTORS = 0x0001003c;

inline bool dates(Source source, const Cell* cells, size_t n, int32_t* out, const Column& column) noexcept {
    if (column.statistics.longest > 10 || column.statistics.shortest < 10 || n < 2) return false;
    const __m256i expected = _mm256_broadcastsi128_si256(
        _mm_setr_epi8('0', '0', '0', '0', '-', '0', '0', '-', '0', '0', 0, 0, 0, 0, 0, 0));
    const __m256i largest =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(9, 9, 9, 9, 0, 1, 9, 0, 3, 9, -1, -1, -1, -1, -1, -1));
    const __m256i compact =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 5, 6, 8, 9, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m256i factors = _mm256_setr_epi32(YEAR_FACTORS, MONTH_FACTORS, 0, 0, YEAR_FACTORS, MONTH_FACTORS, 0, 0);
    __m256i wrong_characters = _mm256_setzero_si256();
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i += 2) {
        if (i + 2 > n) i = n - 2;  // the last pair may overlap the one before it
        const __m256i x =
            _mm256_xor_si256(load_two(source.base + cells[i].offset, source.base + cells[i + 1].offset), expected);
        wrong_characters = _mm256_or_si256(wrong_characters, _mm256_subs_epu8(x, largest));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_shuffle_epi8(x, compact), _mm256_set1_epi16(0x010a));
        const __m256i fields = _mm256_madd_epi16(pairs, factors);
        const uint64_t a = static_cast<uint64_t>(low_number(fields)), b = static_cast<uint64_t>(high_number(fields));
        out[i] = days_of(static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), &bad);
        out[i + 1] = days_of(static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32), &bad);
    }
    return static_cast<int32_t>(bad) >= 0 && is_zero(wrong_characters);
}

// Reads "YYYY-MM-DD HH:MM:SS", a fraction of two to seven characters or none, and "+00" with `zoned`. A cell fills a
// register: the low half ends with the minutes, the high half has the rest. Missing digits are zeros.
template <bool zoned>
bool timestamps(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    constexpr uint32_t zone = zoned ? 3 : 0;
    if (column.statistics.longest > 26 + zone || column.statistics.shortest < 19 + zone) return false;
    const __m256i expected =
        _mm256_setr_epi8('0', '0', '0', '0', '-', '0', '0', '-', '0', '0', ' ', '0', '0', ':', '0', '0',
                         ':', '0', '0', '.', '0', '0', '0', '0', '0', '0', 0, 0, 0, 0, 0, 0);
    const __m256i largest = _mm256_setr_epi8(9, 9, 9, 9, 0, 1, 9, 0, 3, 9, 0, 2, 9, 0, 5, 9,
                                             0, 5, 9, 0, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0);
    const __m256i compact = _mm256_setr_epi8(0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, -1, -1, -1, -1,
                                             1, 2, 4, 5, 6, 7, 8, 9, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i factors = _mm256_setr_epi32(YEAR_FACTORS, MONTH_FACTORS, MINUTE_FACTORS, 0,
                                              YEAR_FACTORS, YEAR_FACTORS, 0, 0);
    __m256i wrong_characters = _mm256_setzero_si256();
    uint32_t bad = 0, mismatch = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint8_t* p = source.base + cells[i].offset;
        const uint32_t length = static_cast<uint32_t>(cells[i].length);
        __m256i x = _mm256_xor_si256(load_wide(p), expected);
        x = _mm256_and_si256(x, first_lanes_wide(length - zone));
        wrong_characters = _mm256_or_si256(wrong_characters, _mm256_subs_epu8(x, largest));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_shuffle_epi8(x, compact), _mm256_set1_epi16(0x010a));
        const __m256i fields = _mm256_madd_epi16(pairs, factors);
        const uint64_t date = static_cast<uint64_t>(low_number(fields));
        const uint32_t minutes = static_cast<uint32_t>(_mm256_extract_epi32(fields, 2));
        const uint64_t rest = static_cast<uint64_t>(high_number(fields));
        mismatch |= length == 20 + zone;
        if (zoned) {
            uint32_t offset;
            std::memcpy(&offset, p + length - 4, sizeof offset);
            mismatch |= (offset >> 8) ^ 0x30302b;
        }
        bad |= 1439 - minutes;
        const int64_t days = days_of(static_cast<uint32_t>(date), static_cast<uint32_t>(date >> 32), &bad);
        const uint64_t clock = minutes * 60000000ull + (rest & 0xffffffff) * 10000 + (rest >> 32);
        out[i] = days * MICROS_PER_DAY + static_cast<int64_t>(clock);
    }
    return static_cast<int32_t>(bad) >= 0 && !mismatch && is_zero(wrong_characters);
}

// ---- bool -------------------------------------------------------------------------------------------------------

inline bool bools(Source source, const Cell* cells, size_t n, uint8_t* __restrict out, const Column& column) noexcept {
    if (column.statistics.longest > 1) return false;
    uint32_t bad = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t c = source.base[cells[i].offset] ^ 'f';
        bad |= c & ~uint32_t{'t' ^ 'f'};  // 't' and 'f' differ in bits 4 and 1 only
        bad |= (c >> 4 ^ c >> 1) & 1;     // and never in just one of them
        out[i] = c >> 4;
    }
    return !bad;
}

inline bool binary_bools(Source source, const Cell* cells, size_t n, uint8_t* __restrict out,
                         const Column& column) noexcept {
    if (column.statistics.longest > 1) return false;
    uint32_t all = 0;
    for (size_t i = 0; i < n; ++i) all |= out[i] = source.base[cells[i].offset];
    return all <= 1;
}

// ---- hexadecimal ------------------------------------------------------------------------------------------------

// All ones in lanes that hold 0-9 or a-f.
inline __m256i are_hex(__m256i c) {
    const __m256i digit = _mm256_sub_epi8(c, _mm256_set1_epi8('0')), letter = _mm256_sub_epi8(c, _mm256_set1_epi8('a'));
    return _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_min_epu8(digit, _mm256_set1_epi8(9)), digit),
                           _mm256_cmpeq_epi8(_mm256_min_epu8(letter, _mm256_set1_epi8(5)), letter));
}
// Joins 32 digits to 16 bytes.
inline __m128i join_hex(__m256i c) {
    const __m256i letter = _mm256_and_si256(_mm256_srli_epi16(c, 6), _mm256_set1_epi8(1));
    const __m256i nibble = _mm256_add_epi8(_mm256_and_si256(c, _mm256_set1_epi8(15)),
                                           _mm256_add_epi8(_mm256_slli_epi16(letter, 3), letter));
    const __m256i pairs = _mm256_maddubs_epi16(nibble, _mm256_set1_epi16(0x0110));
    return _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

// Copies UUIDs that are text and stay text, and checks their form. `out` must have space for 36 n bytes and SLACK.
inline bool uuids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets, const Column&) noexcept {
    const __m256i dashes = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1,
                                            0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i dash = _mm256_set1_epi8('-');
    __m256i good = _mm256_set1_epi8(-1);
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint8_t* p = source.base + (cells[i].offset & present);
        const __m256i x = load_wide(p);
        uint32_t last;
        std::memcpy(&last, p + 32, sizeof last);
        const __m256i fits = _mm256_and_si256(_mm256_blendv_epi8(are_hex(x), _mm256_cmpeq_epi8(x, dash), dashes),
                                              are_hex(_mm256_set1_epi32(static_cast<int>(last))));
        good = _mm256_and_si256(good, _mm256_or_si256(fits, _mm256_set1_epi32(static_cast<int>(~present))));
        bad |= (cells[i].length != 36) & present;
        store_wide(out, x);
        std::memcpy(out + 32, &last, sizeof last);
        out += 36 & present;
        at += static_cast<int32_t>(36 & present);
        offsets[i + 1] = at;
    }
    return !bad && _mm256_testc_si256(good, _mm256_set1_epi8(-1));
}

// Prints UUIDs of 16 bytes each. `out` must have space for 36 n bytes and SLACK.
inline bool binary_uuids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                         const Column&) noexcept {
    const __m128i letters = load(reinterpret_cast<const uint8_t*>("0123456789abcdef")), low = _mm_set1_epi8(15);
    const __m128i first = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, 8, 9, 10, 11, -1, 12, 13);
    const __m128i second = _mm_setr_epi8(0, 1, -1, 2, 3, 4, 5, -1, 6, 7, 8, 9, 10, 11, 12, 13);
    const __m128i first_dashes = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, '-', 0, 0, 0, 0, '-', 0, 0);
    const __m128i second_dashes = _mm_setr_epi8(0, 0, '-', 0, 0, 0, 0, '-', 0, 0, 0, 0, 0, 0, 0, 0);
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const __m128i x = load(source.base + (cells[i].offset & present));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(x, 4), low);
        const __m128i left = _mm_shuffle_epi8(letters, _mm_unpacklo_epi8(high, _mm_and_si128(x, low)));
        const __m128i right = _mm_shuffle_epi8(letters, _mm_unpackhi_epi8(high, _mm_and_si128(x, low)));
        const __m128i middle = _mm_alignr_epi8(right, left, 14);
        bad |= (cells[i].length != 16) & present;
        store(out, _mm_or_si128(_mm_shuffle_epi8(left, first), first_dashes));
        store(out + 16, _mm_or_si128(_mm_shuffle_epi8(middle, second), second_dashes));
        const int end = _mm_extract_epi32(right, 3);
        std::memcpy(out + 32, &end, sizeof end);
        out += 36 & present;
        at += static_cast<int32_t>(36 & present);
        offsets[i + 1] = at;
    }
    return !bad;
}

// Reads bytea in hex format. `out` must have space for half of the cells' bytes and SLACK.
inline bool byteas(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets, const Column&) noexcept {
    const __m256i all = _mm256_set1_epi8(-1);
    __m256i good = all;
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint8_t* p = source.base + (cells[i].offset & present);
        uint16_t mark;
        std::memcpy(&mark, p, sizeof mark);
        const uint32_t length = static_cast<uint32_t>(cells[i].length);
        bad |= ((length < 2) | (length & 1) | (mark != 0x785c)) & present;
        uint32_t digits = (length - 2) & present & (0 - static_cast<uint32_t>(length >= 2));
        const uint32_t size = digits / 2;
        p += 2;
        uint8_t* to = out;
        for (;;) {
            const __m256i x = load_wide(p), behind = first_lanes_wide(digits < 32 ? digits : 32);
            good = _mm256_and_si256(good, _mm256_or_si256(are_hex(x), _mm256_xor_si256(behind, all)));
            store(to, join_hex(x));
            if (digits <= 32) break;
            digits -= 32;
            p += 32;
            to += 16;
        }
        out += size;
        at += static_cast<int32_t>(size);
        offsets[i + 1] = at;
    }
    return !bad && _mm256_testc_si256(good, all);
}

// ---- text -------------------------------------------------------------------------------------------------------

// Does what gather_cells does, for cells with readable bytes after them. `out` must have space for all copied bytes and
// SLACK. Values are copied in pieces of one or two vectors. An unnecessary vector costs less than a loop whose end the
// processor cannot predict.
template <uint32_t skip, int vectors>
Gathered gather_pieces(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets) noexcept {
    constexpr uint32_t piece = 32 * vectors;
    __m256i seen = _mm256_setzero_si256();
    Gathered found;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint32_t size = (static_cast<uint32_t>(cells[i].length) - skip) & present;
        const uint8_t* p = source.base + (cells[i].offset & present);
        if (skip) found.others |= (*p ^ uint32_t{1}) & present;
        p += skip & present;
        uint8_t* to = out;
        uint32_t rest = size;
        for (; rest > piece; rest -= piece, p += piece, to += piece) {
            for (int k = 0; k < vectors; ++k) {
                const __m256i x = load_wide(p + 32 * k);
                store_wide(to + 32 * k, x);
                seen = _mm256_or_si256(seen, x);
            }
        }
        for (int k = 0; k < vectors; ++k) {
            const __m256i x = load_wide(p + 32 * k);
            store_wide(to + 32 * k, x);
            // Only the bytes of the last piece that belong to the value count.
            seen = _mm256_or_si256(seen, _mm256_and_si256(x, load_wide(MASKS.first + 64 - rest + 32 * k)));
        }
        out += size;
        at += static_cast<int32_t>(size);
        offsets[i + 1] = at;
    }
    found.ascii = !_mm256_movemask_epi8(seen);
    return found;
}

template <uint32_t skip>
Gathered gather(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                const Column& column) noexcept {
    const bool two = column.statistics.longest > 32;
    return (two ? gather_pieces<skip, 2> : gather_pieces<skip, 1>)(source, cells, n, out, offsets);
}

}  // namespace pgo::avx2

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
