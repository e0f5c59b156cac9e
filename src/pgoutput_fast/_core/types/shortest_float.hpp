// Prints a float8 as PostgreSQL 12 and later do: with the fewest digits that lie strictly within the rounding interval.
#pragma once
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "types/printing.hpp"

namespace pgo {

constexpr size_t LONGEST_FLOAT8 = 24;  // -2.2250738585072014e-308

// The parts of a number in the form d.ddde+XX.
struct Scientific {
    uint8_t digits[20];
    unsigned count;
    int exponent;  // of the first digit
};

inline Scientific read_scientific(const char* p, const char* end) noexcept {
    Scientific s{};
    for (; *p != 'e'; ++p)
        if (*p != '.') s.digits[s.count++] = static_cast<uint8_t>(*p);
    const bool negative = p[1] == '-';
    for (p += 2; p < end; ++p) s.exponent = s.exponent * 10 + (*p - '0');
    if (negative) s.exponent = -s.exponent;
    return s;
}

// Whether the number lies exactly in the middle between two neighbouring doubles. It does if it is an odd number of 54
// bits times a power of two. Of the shortest forms, only multiples of a power of ten can be one.
inline bool is_midpoint(const Scientific& s) noexcept {
    int power = s.exponent - static_cast<int>(s.count) + 1;
    if (power < 0 || power > 23) return false;
    uint64_t digits = 0;
    for (unsigned i = 0; i < s.count; ++i) digits = digits * 10 + (s.digits[i] - '0');
    unsigned __int128 odd = digits >> __builtin_ctzll(digits);
    while (power--) odd *= 5;
    return (odd >> 53) == 1;
}

// std::to_chars counts the bounds of the rounding interval as part of it, PostgreSQL does not. So PostgreSQL prints
// 1e+23 as 9.999999999999999e+22.
inline uint8_t* print_float8(double value, uint8_t* out) noexcept {
    if (value != value) return print_literal("NaN", out);
    if (std::signbit(value)) {
        *out++ = '-';
        value = -value;
    }
    if (value == 0) return print_literal("0", out);
    if (std::isinf(value)) return print_literal("Infinity", out);
    char text[40];
    const char* end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
    Scientific s = read_scientific(text, end);
    if (is_midpoint(s)) {
        for (int places = static_cast<int>(s.count) - 1; places <= 16; ++places) {
            end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific, places).ptr;
            s = read_scientific(text, end);
            double back = 0;
            std::from_chars(text, end, back);
            if (back == value && !is_midpoint(s)) break;
        }
    }
    if (s.exponent < -4 || s.exponent >= 15) {
        std::memcpy(out, text, static_cast<size_t>(end - text));
        return out + (end - text);
    }
    if (s.exponent < 0) {
        out = print_literal("0.", out);
        for (int i = -1; i > s.exponent; --i) *out++ = '0';
        std::memcpy(out, s.digits, s.count);
        return out + s.count;
    }
    const unsigned whole = static_cast<unsigned>(s.exponent) + 1;
    for (unsigned i = 0; i < whole; ++i) *out++ = i < s.count ? s.digits[i] : '0';
    if (s.count > whole) {
        *out++ = '.';
        std::memcpy(out, s.digits + whole, s.count - whole);
        out += s.count - whole;
    }
    return out;
}

}  // namespace pgo
