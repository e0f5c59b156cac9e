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

// The exact values of 10^k and, from NEGATIVE on, of -10^k. No number has more places than MOST_PLACES; other entries
// are never used for a result.
constexpr uint64_t MOST_PLACES = 19, NEGATIVE = 32;
struct Divisors {
    double of[2 * NEGATIVE];
    constexpr Divisors() : of() {
        double power = 1;
        for (uint64_t k = 0; k < NEGATIVE; ++k) {
            of[k] = power;
            of[NEGATIVE + k] = -power;
            if (k < MOST_PLACES) power *= 10;
        }
    }
};
inline constexpr Divisors DIVISORS{};

// Returns value / divisor for four values below 2^64, correctly rounded. avx512::quotients explains why.
inline __m256d quotients(__m256i value, __m256d divisor) {
    // The bits of 2^84 + high * 2^32 and of 2^52 + low, as doubles.
    const __m256i high_bits = _mm256_or_si256(_mm256_srli_epi64(value, 32), _mm256_set1_epi64x(0x4530000000000000));
    const __m256i low_bits = _mm256_blend_epi32(value, _mm256_set1_epi64x(0x4330000000000000), 0xaa);
    const __m256d high = _mm256_sub_pd(_mm256_castsi256_pd(high_bits), _mm256_set1_pd(0x1p84));
    const __m256d low = _mm256_sub_pd(_mm256_castsi256_pd(low_bits), _mm256_set1_pd(0x1p52));
    const __m256d most = _mm256_add_pd(high, low), least = _mm256_sub_pd(low, _mm256_sub_pd(most, high));
    const __m256d quotient = _mm256_div_pd(most, divisor);
    const __m256d rest = _mm256_add_pd(_mm256_fnmadd_pd(quotient, divisor, most), least);
    return _mm256_add_pd(quotient, _mm256_div_pd(rest, divisor));
}

inline void store_floats(double* out, __m256d x) { _mm256_storeu_pd(out, x); }
inline void store_floats(float* out, __m256d x) { _mm_storeu_ps(out, _mm256_cvtpd_ps(x)); }

// Not inlined, so that the loop keeps its registers.
template <class F>
__attribute__((noinline)) bool parse_other(const uint8_t* p, int32_t length, F* out) noexcept {
    return parse_float(p, static_cast<uint32_t>(length), out) == OK;
}

constexpr size_t FLOATS = 4;  // floats per step of the loop

// Reads floats without an exponent, with at most 19 significant digits and at most 16 characters before the point. All
// others are parsed one by one instead of refusing the chunk, because they may be frequent.
template <class F>
bool floats(Source source, const Cell* cells, size_t n, F* out, const Column& column) noexcept {
    if (n < FLOATS) {
        Cell four[FLOATS];
        F values[FLOATS];
        for (size_t k = 0; k < FLOATS; ++k) four[k] = cells[k < n ? k : 0];
        const bool good = floats(source, four, FLOATS, values, column);
        std::memcpy(out, values, n * sizeof(F));
        return good;
    }
    const __m256i zeros = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9);
    const __m128i points = _mm_set1_epi8('.');
    for (size_t i = 0; i < n; i += FLOATS) {
        if (i + FLOATS > n) i = n - FLOATS;  // the last group may overlap the one before it
        uint64_t unusual[FLOATS];  // the highest bit is set if the number must be parsed
        const double* divisors[FLOATS];
        __m256i x[FLOATS], wrong_characters[FLOATS];
        for (size_t k = 0; k < FLOATS; ++k) {
            const uint64_t length = static_cast<uint32_t>(cells[i + k].length);
            const uint8_t* p = source.base + cells[i + k].offset;
            const uint8_t* const end = p + length;
            const uint64_t negative = *p == '-', all = length - negative;
            p += negative;
            // The position of the point among the first sixteen characters; without a point, the end of the number.
            const uint64_t found = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(load(p), points)));
            const uint64_t whole = _tzcnt_u64(found | uint64_t{1} << (all & 63));
            const uint64_t pointed = whole < all, places = all - whole - pointed;
            // Keeps the characters after the point in place, and moves those before it one position to the right.
            const __m256i kept = load_wide(MASKS.last + (pointed ? places & 31 : 32));
            const __m256i digits = load_wide(MASKS.last + ((all - pointed) & 31));
            x[k] = _mm256_blendv_epi8(load_wide(end - 33), load_wide(end - 32), kept);
            x[k] = _mm256_and_si256(_mm256_xor_si256(x[k], zeros), digits);
            wrong_characters[k] = _mm256_subs_epu8(x[k], nine);
            x[k] = _mm256_madd_epi16(_mm256_maddubs_epi16(x[k], _mm256_set1_epi16(0x010a)),
                                     _mm256_set1_epi32(0x00010064));
            divisors[k] = DIVISORS.of + (places & 31) + NEGATIVE * negative;
            // A leading zero before another digit, no digit before the point or after it, too many characters.
            const uint64_t most_whole = *p == '0' ? 1 : 16;
            unusual[k] = (whole - 1) | (most_whole - whole) | (places - pointed) | (MOST_PLACES - places) | (25 - all);
        }
        __m256i joined[2];
        for (int k = 0; k < 2; ++k) {
            const __m256i fours = _mm256_packus_epi32(x[2 * k], x[2 * k + 1]);
            const __m256i eights = _mm256_madd_epi16(fours, _mm256_set1_epi32(0x00012710));
            joined[k] = _mm256_add_epi64(_mm256_mul_epu32(eights, _mm256_set1_epi64x(100000000)),
                                         _mm256_srli_epi64(eights, 32));
        }
        const __m256i high = _mm256_permute2x128_si256(joined[0], joined[1], 0x20);
        const __m256i low = _mm256_permute2x128_si256(joined[0], joined[1], 0x31);
        // 10^16 is 2^16 times a number of 38 bits.
        constexpr int64_t fives = 152587890625;
        const __m256i product =
            _mm256_add_epi64(_mm256_mul_epu32(high, _mm256_set1_epi64x(fives & 0xffffffff)),
                             _mm256_slli_epi64(_mm256_mul_epu32(high, _mm256_set1_epi64x(fives >> 32)), 32));
        const __m256i value = _mm256_add_epi64(low, _mm256_slli_epi64(product, 16));
        const __m256d divisor = _mm256_setr_pd(*divisors[0], *divisors[1], *divisors[2], *divisors[3]);
        const __m256d result = quotients(value, divisor);
        store_floats(out + i, result);
        __m256i others = _mm256_cmpgt_epi64(high, _mm256_set1_epi64x(999));
        if (sizeof(F) < sizeof(double)) {
            // A double halfway between two values of F may be the result of rounding, so it is parsed again.
            const __m256i behind = _mm256_and_si256(_mm256_castpd_si256(result), _mm256_set1_epi64x(0x1fffffff));
            others = _mm256_or_si256(others, _mm256_cmpeq_epi64(behind, _mm256_set1_epi64x(0x10000000)));
        }
        const __m256i wrong = _mm256_or_si256(_mm256_or_si256(wrong_characters[0], wrong_characters[1]),
                                              _mm256_or_si256(wrong_characters[2], wrong_characters[3]));
        const uint64_t any_unusual = unusual[0] | unusual[1] | unusual[2] | unusual[3];
        if (__builtin_expect(!(any_unusual >> 63) && is_zero(_mm256_or_si256(wrong, others)), 1)) continue;
        const uint32_t large = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(others)));
        for (size_t k = 0; k < FLOATS; ++k) {
            if (!(unusual[k] >> 63) && !(large >> k & 1) && is_zero(wrong_characters[k])) continue;
            const Cell& cell = cells[i + k];
            if (!parse_other(source.base + cell.offset, cell.length, out + i + k)) return false;
        }
    }
    return true;
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
