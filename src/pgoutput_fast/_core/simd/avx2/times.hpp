// Dates, times and timestamps for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstdint>
#include <cstring>
#include "columns/column.hpp"
#include "simd/avx2/integers.hpp"
#include "types/text_times.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// Indexed by month * 64 + day: the day of a year that begins in March, counted from 1. An entry of 0 means that the day
// does not exist.
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

constexpr size_t TIMES = 4;  // times per step of the loop

// Reads "HH:MM:SS", optionally with a point and one to six digits.
inline bool times(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    if (column.statistics.longest > 15 || column.statistics.shortest < 8) return false;
    if (n < TIMES) {
        Cell four[TIMES];
        int64_t values[TIMES];
        for (size_t k = 0; k < TIMES; ++k) four[k] = cells[k < n ? k : 0];
        const bool good = times(source, four, TIMES, values, column);
        std::memcpy(out, values, n * sizeof(int64_t));
        return good;
    }
    const __m256i expected = _mm256_broadcastsi128_si256(
        _mm_setr_epi8('0', '0', ':', '0', '0', ':', '0', '0', '.', '0', '0', '0', '0', '0', '0', 0));
    const __m256i largest =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(2, 9, 0, 5, 9, 0, 5, 9, 0, 9, 9, 9, 9, 9, 9, 0));
    const __m256i compact =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 3, 4, 6, 7, 9, 10, 11, 12, 13, 14, -1, -1, -1, -1));
    const __m256i factors =
        _mm256_broadcastsi128_si256(_mm_setr_epi32(MINUTE_FACTORS, YEAR_FACTORS, YEAR_FACTORS, 0));
    // The weights of the fields of a half: minutes, hundredths of a second, the fraction's last four digits.
    const __m256i evens = _mm256_setr_epi32(60000000, 0, 1, 0, 60000000, 0, 1, 0);
    const __m256i odds = _mm256_setr_epi32(10000, 0, 0, 0, 10000, 0, 0, 0);
    const __m256i most = _mm256_setr_epi32(1439, INT32_MAX, INT32_MAX, 0, 1439, INT32_MAX, INT32_MAX, 0);
    __m256i wrong_characters = _mm256_setzero_si256(), beyond = wrong_characters;
    uint32_t lone_point = 0;
    for (size_t i = 0; i < n; i += TIMES) {
        if (i + TIMES > n) i = n - TIMES;  // the last group may overlap the one before it
        __m256i micros[2];
        for (size_t k = 0; k < 2; ++k) {
            // The cells k and k + 2 share a register, so that the four values end up in order.
            const Cell &a = cells[i + k], &b = cells[i + k + 2];
            const uint32_t a_length = static_cast<uint32_t>(a.length), b_length = static_cast<uint32_t>(b.length);
            __m256i x = _mm256_xor_si256(load_two(source.base + a.offset, source.base + b.offset), expected);
            x = _mm256_and_si256(x, load_two(MASKS.first + 64 - a_length, MASKS.first + 64 - b_length));
            wrong_characters = _mm256_or_si256(wrong_characters, _mm256_subs_epu8(x, largest));
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_shuffle_epi8(x, compact), _mm256_set1_epi16(0x010a));
            const __m256i fields = _mm256_madd_epi16(pairs, factors);
            beyond = _mm256_or_si256(beyond, _mm256_cmpgt_epi32(fields, most));
            lone_point |= (a_length == 9) | (b_length == 9);
            micros[k] = _mm256_add_epi64(_mm256_mul_epu32(fields, evens),
                                         _mm256_mul_epu32(_mm256_srli_epi64(fields, 32), odds));
        }
        const __m256i sum = _mm256_add_epi64(_mm256_unpacklo_epi64(micros[0], micros[1]),
                                             _mm256_unpackhi_epi64(micros[0], micros[1]));
        store_wide(reinterpret_cast<uint8_t*>(out + i), sum);
    }
    return !lone_point && is_zero(_mm256_or_si256(wrong_characters, beyond));
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
