// Parsers for numbers as PostgreSQL prints them. Every parser must consume the whole field.
//
// Precondition of the `_backed` functions: at least 16 bytes before the field are readable. A cell in a tuple always
// has them (message header, cell header). The arena for unescaped array elements has them too.
#pragma once
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "protocol/reasons.hpp"
#include "protocol/wire.hpp"

namespace pgo {

inline bool is_digit(uint8_t c) noexcept { return static_cast<uint8_t>(c - '0') <= 9; }

// The value of up to eight digits that end at `end`. Sets bits in `bad` if a character is not a digit.
inline uint64_t digits8_backed(const uint8_t* end, unsigned count, uint64_t& bad) noexcept {
    // Loads the eight bytes that end where the field ends, and sets those before the field (the low ones) to zero.
    uint64_t v = load64_raw(end - 8);
    unsigned shift = (8 - count) * 8;
    uint64_t keep = shift == 64 ? 0 : ~0ull << shift;
    v = ((v ^ 0x3030303030303030ull) & keep);
    bad |= (v + 0x7676767676767676ull) & 0x8080808080808080ull;
    bad |= v & 0x8080808080808080ull;
    v = (v * 10) + (v >> 8);
    return (((v & 0x000000ff000000ffull) * 0x000f424000000064ull) +
            (((v >> 16) & 0x000000ff000000ffull) * 0x0000271000000001ull)) >> 32;
}

// Reads an integer within the range of T: an optional minus, then digits; no blanks and no plus.
template <class T>
inline Reason parse_integer_backed(const uint8_t* p, uint32_t n, T* out) noexcept {
    const uint8_t* end = p + n;
    bool negative = false;
    if (std::is_signed_v<T>) {
        negative = n && *p == '-';
        n -= negative;
    }
    // No server prints a leading zero or a zero with a sign.
    if (n == 0 || (end[-static_cast<ptrdiff_t>(n)] == '0' && (n > 1 || negative))) return BAD_TEXT;
    uint64_t bad = 0;
    uint64_t value;
    if (n <= 8) {
        value = digits8_backed(end, n, bad);
    } else if (n <= 16) {
        value = digits8_backed(end, 8, bad) + 100000000ull * digits8_backed(end - 8, n - 8, bad);
    } else if (n <= 19) {
        uint64_t high = 0;
        for (const uint8_t* q = end - n; q < end - 16; ++q) {
            bad |= !is_digit(*q);
            high = high * 10 + static_cast<uint8_t>(*q - '0');
        }
        value = digits8_backed(end, 8, bad) + 100000000ull * digits8_backed(end - 8, 8, bad) +
                10000000000000000ull * high;
    } else {
        return BAD_TEXT;
    }
    if (bad) return BAD_TEXT;
    uint64_t limit = static_cast<uint64_t>(std::numeric_limits<T>::max()) + (negative ? 1 : 0);
    if (value > limit) return OUT_OF_RANGE;
    *out = static_cast<T>(negative ? 0 - value : value);
    return OK;
}

// "e+10", "e-300": a sign and two or three digits.
inline bool is_exponent(const uint8_t* p, size_t n) noexcept {
    if ((n != 4 && n != 5) || p[0] != 'e' || (p[1] != '+' && p[1] != '-')) return false;
    return is_digit(p[2]) && is_digit(p[3]) && (n == 4 || is_digit(p[4]));
}

// Reads PostgreSQL's float output: digits, point and exponent, or exactly NaN, Infinity or -Infinity.
template <class F>
inline Reason parse_float(const uint8_t* p, uint32_t n, F* out) noexcept {
    if (n == 0) return BAD_TEXT;
    const char* first = reinterpret_cast<const char*>(p);
    const char* last = first + n;
    const uint8_t* digits = *p == '-' && n > 1 ? p + 1 : p;
    if (!is_digit(*digits)) {
        if (n == 3 && std::memcmp(p, "NaN", 3) == 0) *out = std::numeric_limits<F>::quiet_NaN();
        else if (n == 8 && std::memcmp(p, "Infinity", 8) == 0) *out = std::numeric_limits<F>::infinity();
        else if (n == 9 && std::memcmp(p, "-Infinity", 9) == 0) *out = -std::numeric_limits<F>::infinity();
        else return BAD_TEXT;
        return OK;
    }
    if (*digits == '0' && digits + 1 < p + n && is_digit(digits[1])) return BAD_TEXT;
    // Most numbers have no exponent, so this first parses without one. That parse stops at an exponent, and only then
    // is its form checked.
    auto [rest, error] = std::from_chars(first, last, *out, std::chars_format::fixed);
    if (rest == first || !is_digit(static_cast<uint8_t>(rest[-1]))) return BAD_TEXT;
    if (rest != last) {
        if (!is_exponent(reinterpret_cast<const uint8_t*>(rest), static_cast<size_t>(last - rest))) return BAD_TEXT;
        error = std::from_chars(first, last, *out).ec;
    }
    if (error == std::errc::result_out_of_range || std::isinf(*out)) return BEYOND_RANGE;
    if (error != std::errc()) return BAD_TEXT;
    if (*out == 0)
        for (; digits < p + n && *digits != 'e'; ++digits)
            if (*digits != '0' && *digits != '.') return BEYOND_RANGE;  // a number too small for F is not zero
    return OK;
}

// Whether numeric_out prints this text: digits with at most one point between them, no leading zero, no negative zero.
inline bool is_numeric_text(const uint8_t* p, size_t n) noexcept {
    const bool negative = n && *p == '-';
    size_t i = negative;
    if (i == n || !is_digit(p[i]) || !is_digit(p[n - 1])) return false;
    if (p[i] == '0' && i + 1 < n && p[i + 1] != '.') return false;
    unsigned points = 0;
    bool zero = true;
    for (; i < n; ++i) {
        points += p[i] == '.';
        if (!is_digit(p[i]) && (p[i] != '.' || points > 1)) return false;
        zero = zero && (p[i] == '0' || p[i] == '.');
    }
    return !(negative && zero);
}
inline bool is_special_numeric(const uint8_t* p, size_t n) noexcept {
    return (n == 3 && std::memcmp(p, "NaN", 3) == 0) || (n == 8 && std::memcmp(p, "Infinity", 8) == 0) ||
           (n == 9 && std::memcmp(p, "-Infinity", 9) == 0);
}
inline Reason parse_numeric_float8(const uint8_t* p, uint32_t n, double* out) noexcept {
    return is_numeric_text(p, n) || is_special_numeric(p, n) ? parse_float<double>(p, n, out) : BAD_TEXT;
}

using int128 = __int128;
using uint128 = unsigned __int128;

inline uint128 power_of_ten(unsigned n) noexcept {
    uint128 v = 1;
    while (n--) v *= 10;
    return v;
}

inline constexpr uint64_t POWERS_OF_TEN[20] = {1ull,
                                               10ull,
                                               100ull,
                                               1000ull,
                                               10000ull,
                                               100000ull,
                                               1000000ull,
                                               10000000ull,
                                               100000000ull,
                                               1000000000ull,
                                               10000000000ull,
                                               100000000000ull,
                                               1000000000000ull,
                                               10000000000000ull,
                                               100000000000000ull,
                                               1000000000000000ull,
                                               10000000000000000ull,
                                               100000000000000000ull,
                                               1000000000000000000ull,
                                               10000000000000000000ull};

// The value of up to sixteen digits that end at `end`. It has no branch, because lengths vary between cells and a
// branch would often be mispredicted.
inline uint64_t digits16_backed(const uint8_t* end, unsigned count, uint64_t& bad) noexcept {
    const unsigned low = count < 8 ? count : 8;
    return digits8_backed(end, low, bad) + 100000000ull * digits8_backed(end - 8, count - low, bad);
}

// Like parse_float, with a shortcut for the form that nearly all floats have: up to seven digits, a point, up to
// sixteen more digits (19 in all), no exponent. A number of this form is a quotient of two 64-bit integers. One
// division is exact enough to round it correctly in one step.
template <class F>
inline Reason parse_float_backed(const uint8_t* p, uint32_t n, F* out) noexcept {
    const unsigned negative = n && *p == '-';
    const uint32_t length = n - negative;
    if (length < 8 || length > 20) return parse_float(p, n, out);
    // Finds the point among the first eight characters: it is the lowest zero byte.
    uint64_t v = load64_raw(p + negative) ^ 0x2e2e2e2e2e2e2e2eull;
    v = (v - 0x0101010101010101ull) & ~v & 0x8080808080808080ull;
    const unsigned whole = v ? static_cast<unsigned>(__builtin_ctzll(v)) / 8 : 0;
    const unsigned places = length - whole - 1;
    if (whole == 0 || places == 0 || places > 16 || (whole > 1 && p[negative] == '0')) return parse_float(p, n, out);
    uint64_t bad = 0;
    uint64_t value = digits8_backed(p + negative + whole, whole, bad);
    const uint64_t unit = POWERS_OF_TEN[places];
    value = value * unit + digits16_backed(p + n, places, bad);
    if (bad || value == 0) return parse_float(p, n, out);
    const int up = __builtin_clzll(value), down = __builtin_clzll(unit);
    const uint64_t divisor = unit << down;
    const uint128 dividend = static_cast<uint128>(value << up) << 62;
    // The quotient has 62 or 63 bits. Its lowest bit only says whether there is a remainder.
    uint64_t quotient = static_cast<uint64_t>(dividend / divisor);
    quotient |= static_cast<uint128>(quotient) * divisor != dividend;
    // The quotient is 2^(62 + up - down) times too large. This makes the power of two that corrects it.
    const uint64_t exponent = static_cast<uint64_t>(1023 - 62 + down - up) << 52;
    double power;
    std::memcpy(&power, &exponent, sizeof power);
    const F rounded = static_cast<F>(static_cast<int64_t>(quotient)) * static_cast<F>(power);
    *out = negative ? -rounded : rounded;
    return OK;
}

// Reads the form that nearly every decimal has: as many fractional digits as the scale says, and not too many digits in
// all. Returns false for all others, valid or not, which are left to parse_decimal.
inline bool parse_usual_decimal_backed(const uint8_t* p, uint32_t n, int precision, int scale, int128* out) noexcept {
    const bool negative = n && *p == '-';
    p += negative;
    const int whole = static_cast<int>(n) - negative - (scale ? scale + 1 : 0);
    if (whole < 1 || whole > 10 || scale > 8 || whole + scale > precision) return false;
    if (*p == '0' && (whole > 1 || negative)) return false;
    uint64_t bad = 0;
    uint64_t value = digits8_backed(p + whole, whole > 8 ? 8 : static_cast<unsigned>(whole), bad);
    if (whole > 8) value += 100000000ull * digits8_backed(p + whole - 8, static_cast<unsigned>(whole) - 8, bad);
    if (scale) {
        bad |= p[whole] != '.';
        value = value * POWERS_OF_TEN[scale] +
                digits8_backed(p + whole + 1 + scale, static_cast<unsigned>(scale), bad);
    }
    if (bad) return false;
    *out = negative ? -static_cast<int128>(value) : static_cast<int128>(value);
    return true;
}

// Reads a numeric as an exact integer in units of 10^-scale. Missing fractional digits are padded with zeros; extra
// ones must be zeros. A value that needs more than `precision` digits does not fit.
inline Reason parse_decimal(const uint8_t* p, uint32_t n, int precision, int scale, int128* out) noexcept {
    const uint8_t* end = p + n;
    bool negative = n && *p == '-';
    if (negative) ++p;
    if (p == end) return BAD_TEXT;
    if (!is_digit(*p)) {
        size_t left = static_cast<size_t>(end - p);
        if (!negative && left == 3 && std::memcmp(p, "NaN", 3) == 0) return IS_NAN;
        if (left == 8 && std::memcmp(p, "Infinity", 8) == 0) return IS_INFINITE;
        return BAD_TEXT;
    }
    if (*p == '0' && p + 1 < end && p[1] != '.') return BAD_TEXT;
    uint128 value = 0;
    bool zero = true;
    int digits = 0;  // significant digits only: leading zeros do not count
    int fraction = -1;
    bool overflow = false;
    for (; p < end; ++p) {
        uint8_t c = *p;
        if (c == '.') {
            if (fraction >= 0) return BAD_TEXT;
            fraction = 0;
            if (p + 1 == end) return BAD_TEXT;
            continue;
        }
        if (!is_digit(c)) return BAD_TEXT;
        zero = zero && c == '0';
        if (fraction >= 0) {
            if (fraction == scale) {
                if (c != '0') overflow = true;
                continue;
            }
            ++fraction;
        }
        if (digits || c != '0') ++digits;
        if (digits > 38) overflow = true;
        else value = value * 10 + (c - '0');
    }
    if (negative && zero) return BAD_TEXT;
    for (int f = fraction < 0 ? 0 : fraction; f < scale; ++f) {
        if (digits) ++digits;
        if (digits > 38) overflow = true;
        else value *= 10;
    }
    if (overflow || digits > precision) return DOES_NOT_FIT;
    *out = negative ? -static_cast<int128>(value) : static_cast<int128>(value);
    return OK;
}

}  // namespace pgo
