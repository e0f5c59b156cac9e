// Text fragments shared by the printers of binary values. All of them write to a Buffer, and may write some bytes more
// than they print, at most into its SLACK.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace pgo {

// The maximum length of a 64-bit integer, including a minus.
constexpr size_t LONGEST_INTEGER = 20;

constexpr uint64_t EIGHT_ZEROS = 0x3030303030303030;

// The eight decimal digits of a value below 10^8, one per byte, the first one in the lowest byte.
inline uint64_t eight_digits(uint32_t value) noexcept {
    // Splits fours into pairs, and pairs into digits, all at once.
    const uint64_t fours = value / 10000 | static_cast<uint64_t>(value % 10000) << 32;
    const uint64_t hundreds = (fours * 5243 >> 19) & 0x0000007f0000007f;
    const uint64_t pairs = hundreds | (fours - 100 * hundreds) << 16;
    const uint64_t tens = (pairs * 103 >> 10) & 0x000f000f000f000f;
    return tens | (pairs - 10 * tens) << 8;
}

// Two words of eight digits each.
struct SixteenDigits {
    uint64_t high, low;
};

// The digits of two values below 10^8, in the form of eight_digits.
inline SixteenDigits sixteen_digits(uint32_t high, uint32_t low) noexcept {
#ifdef __SSE2__
    const __m128i values = _mm_set_epi64x(low, high);
    const __m128i upper = _mm_srli_epi64(_mm_mul_epu32(values, _mm_set1_epi64x(0xd1b71759)), 45);  // values / 10000
    const __m128i lower = _mm_sub_epi32(values, _mm_mul_epu32(upper, _mm_set1_epi64x(10000)));
    const __m128i fours = _mm_or_si128(upper, _mm_slli_epi64(lower, 32));
    const __m128i hundreds = _mm_srli_epi16(_mm_mulhi_epu16(fours, _mm_set1_epi16(5243)), 3);
    const __m128i rest = _mm_sub_epi16(fours, _mm_mullo_epi16(hundreds, _mm_set1_epi16(100)));
    const __m128i pairs = _mm_or_si128(hundreds, _mm_slli_epi32(rest, 16));
    const __m128i tens = _mm_mulhi_epu16(pairs, _mm_set1_epi16(6554));  // pairs / 10
    const __m128i ones = _mm_sub_epi16(pairs, _mm_mullo_epi16(tens, _mm_set1_epi16(10)));
    const __m128i digits = _mm_or_si128(tens, _mm_slli_epi16(ones, 8));
    return {static_cast<uint64_t>(_mm_cvtsi128_si64(digits)),
            static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(digits, digits)))};
#else
    return {eight_digits(high), eight_digits(low)};
#endif
}

inline uint8_t* print_eight(uint32_t value, uint8_t* out) noexcept {
    const uint64_t text = eight_digits(value) | EIGHT_ZEROS;
    std::memcpy(out, &text, sizeof text);
    return out + sizeof text;
}

// Prints a value below 10^8 without leading zeros.
inline uint8_t* print_short(uint32_t value, uint8_t* out) noexcept {
    const uint64_t digits = eight_digits(value);
    const int zeros = __builtin_ctzll(digits | uint64_t{1} << 56) / 8;  // the last digit always stays
    const uint64_t text = (digits | EIGHT_ZEROS) >> 8 * zeros;
    std::memcpy(out, &text, sizeof text);
    return out + 8 - zeros;
}

template <class T>
inline uint8_t* print_integer(T value, uint8_t* out) noexcept {
    std::make_unsigned_t<T> rest = static_cast<std::make_unsigned_t<T>>(value);
    if (std::is_signed_v<T> && value < 0) {
        *out++ = '-';
        rest = 0 - rest;
    }
    constexpr uint64_t limit = 100000000;
    if (rest < limit) return print_short(static_cast<uint32_t>(rest), out);
    const uint64_t high = rest / limit;
    if (high < limit) out = print_short(static_cast<uint32_t>(high), out);
    else out = print_eight(static_cast<uint32_t>(high % limit), print_short(static_cast<uint32_t>(high / limit), out));
    return print_eight(static_cast<uint32_t>(rest % limit), out);
}

// Prints a value below 100 with two decimal digits.
inline uint8_t* print_pair(unsigned value, uint8_t* out) noexcept {
    out[0] = static_cast<uint8_t>('0' + value / 10);
    out[1] = static_cast<uint8_t>('0' + value % 10);
    return out + 2;
}

template <size_t n>
inline uint8_t* print_literal(const char (&text)[n], uint8_t* out) noexcept {
    std::memcpy(out, text, n - 1);
    return out + n - 1;
}

}  // namespace pgo
