// Prints a float8 or a float4 as PostgreSQL 12 and later do: with the fewest digits that lie strictly within the rounding interval.
#pragma once
#include <cstdint>
#include <cstring>

#include "types/five_powers.hpp"
#include "types/printing.hpp"
#include "types/text_numbers.hpp"
#include "protocol/wire.hpp"

namespace pgo {

constexpr size_t LONGEST_FLOAT8 = 24;  // -2.2250738585072014e-308
constexpr size_t LONGEST_FLOAT4 = 15;  // -1.17549435e-38

constexpr int MOST_DIGITS = 17;

// The bits of a float. PostgreSQL prints numbers from 10^fixed_below on with an exponent.
template <class F>
struct FloatBits {
    static constexpr bool is_double = sizeof(F) == 8;
    static constexpr int fraction = is_double ? 52 : 23, bias = is_double ? 1023 : 127, fixed_below = is_double ? 15 : 6;
    static constexpr uint64_t infinite = uint64_t{2 * bias + 1} << fraction, one = uint64_t{bias} << fraction;

    static uint64_t load(const uint8_t* p) noexcept { return is_double ? load64(p) : load32(p); }
};

// d.ddd * 10^exponent, with 17 digits. The first one is not zero, and the last ones may be zeros.
struct ShortDecimal {
    uint64_t digits;
    int exponent;
};

// Four times a number, rounded to odd, and the smallest and the largest even integer strictly within four times its
// rounding interval, in units of 10^k. Compare them only with multiples of four: for these they are exact.
struct RoundingInterval {
    uint64_t value, least, most;
    int k;
};

// The first 64 bits of a product. The lowest bit is 1 if any later bit is set, except for the effect of rounding in
// `power`.
inline uint64_t rounded_to_odd(const FivePowers::Entry& power, uint64_t factor) noexcept {
    const unsigned __int128 low = static_cast<unsigned __int128>(power.low) * factor;
    const unsigned __int128 high = static_cast<unsigned __int128>(power.high) * factor + static_cast<uint64_t>(low >> 64);
    return static_cast<uint64_t>(high >> 64) | (static_cast<uint64_t>(high) > 1);
}

// Computes the digits of a finite positive number, in two steps. This is Raffaello Giulietti's method ("The Schubfach
// way to render doubles"). It compares the multiples of 10^k on both sides of the number, for the largest k for which
// at least one multiple lies within the rounding interval, and those of 10^(k + 1), of which at most one does. Unlike
// in the paper, the bounds of the interval are never part of it: PostgreSQL prints 1e+23 as 9.999999999999999e+22.
template <class F>
inline RoundingInterval rounding_interval(uint64_t bits) noexcept {
    constexpr int size = FloatBits<F>::fraction;
    const uint64_t fraction = bits & ((uint64_t{1} << size) - 1);
    const int biased = static_cast<int>(bits >> size);
    const uint64_t c = biased ? fraction | uint64_t{1} << size : fraction;
    const int q = (biased ? biased : 1) - FloatBits<F>::bias - size;  // the number is c * 2^q
    // Below a power of two, floats are twice as dense.
    const bool dense_below = !fraction && biased > 1;
    // floor(log10(2^q)), or of 3/4 * 2^q.
    const int k = (q * 1262611 - (dense_below ? 524031 : 0)) >> 22;
    // This shift aligns the power 10^-k, with the number's exponent. The second term is floor(log2(10^-k)).
    const int shift = q + ((-k * 1741647) >> 19) + 1;
    const FivePowers::Entry& power = FIVE_POWERS.of[-k - LEAST_POWER];
    return {rounded_to_odd(power, 4 * c << shift), rounded_to_odd(power, (4 * c - 2 + dense_below) << shift) + 1,
            rounded_to_odd(power, (4 * c + 2) << shift) - 1, k};
}

inline ShortDecimal shortest_decimal(const RoundingInterval& interval) noexcept {
    const auto [value, least, most, k] = interval;
    const uint64_t s = value / 4, tens = s / 10;
    // No branch, because it would be unpredictable for random numbers.
    const uint64_t lower_ten = least <= 40 * tens, upper_ten = 40 * tens + 40 <= most;
    // The nearer one of s and s + 1, or the even one. It lies within the interval, unless the lower half of the
    // interval is the shorter one.
    const uint64_t upper = (value + (s & 1) > 4 * s + 2) | (least > 4 * s);
    uint64_t digits = lower_ten | upper_ten ? 10 * (tens + upper_ten) : s + upper;
    int exponent = k + MOST_DIGITS - 1;
    // Of float8, only subnormal numbers have fewer than 16 digits: all others have at least 2^52 units.
    constexpr uint64_t seventeen = POWERS_OF_TEN[MOST_DIGITS - 1], sixteen = seventeen / 10;
    if (__builtin_expect(digits < sixteen, 0)) {
        for (; digits < sixteen; --exponent) digits *= 10;
    }
    const bool short_of_one = digits < seventeen;
    return {short_of_one ? 10 * digits : digits, exponent - short_of_one};
}

// The text of 17 digits: the first one, and eight more in each word. They stay in registers, because a copy that begins
// in the middle of digits just written would have to wait for them.
struct DigitText {
    uint64_t high, low;
    uint8_t first;
    int count;  // number of digits before the trailing zeros

    void write(uint8_t* out) const noexcept {
        *out = first;
        write_words(high, low, out + 1);
    }
    // Writes the sixteen digits after the first one, without the first n < 16 of them.
    void write_behind(int n, uint8_t* out) const noexcept {
        const unsigned __int128 rest = (static_cast<unsigned __int128>(low) << 64 | high) >> 8 * n;
        write_words(static_cast<uint64_t>(rest), static_cast<uint64_t>(rest >> 64), out);
    }

private:
    static void write_words(uint64_t a, uint64_t b, uint8_t* out) noexcept {
        std::memcpy(out, &a, sizeof a);
        std::memcpy(out + sizeof a, &b, sizeof b);
    }
};

inline DigitText digit_text(uint64_t digits) noexcept {
    constexpr uint64_t limit = 100000000;
    const uint64_t over = digits / limit;
    const auto [high, low] = sixteen_digits(static_cast<uint32_t>(over % limit), static_cast<uint32_t>(digits % limit));
    // Its highest bit is in the last digit that is not zero. Digits leave half of their bytes free, so there is room
    // for a bit that stands for the first digit.
    const uint64_t last = (low ? low : high) << 4 | 1;
    const int count = (low ? MOST_DIGITS - 8 : 1) + (67 - __builtin_clzll(last)) / 8;
    return {high | EIGHT_ZEROS, low | EIGHT_ZEROS, static_cast<uint8_t>('0' + over / limit), count};
}

// Several numbers that are printed together. Printing one is a long chain of dependent steps. So each step is done for
// all numbers before the next step.
template <int n, class F = double>
class PrintedFloats {
public:
    // Reads n floats at p.
    explicit PrintedFloats(const uint8_t* p) noexcept {
        RoundingInterval intervals[n];
        for (int i = 0; i < n; ++i) {
            bits_[i] = Bits::load(p + sizeof(F) * i);
            const uint64_t magnitude = bits_[i] & MAGNITUDE;
            intervals[i] = rounding_interval<F>(magnitude ? magnitude : Bits::one);  // zero has no digits
        }
        ShortDecimal decimals[n];
        for (int i = 0; i < n; ++i) decimals[i] = shortest_decimal(intervals[i]);
        for (int i = 0; i < n; ++i) {
            exponents_[i] = decimals[i].exponent;
            texts_[i] = digit_text(decimals[i].digits);
        }
    }

    uint8_t* print(int i, uint8_t* out) const noexcept {
        const uint64_t magnitude = bits_[i] & MAGNITUDE;
        uint8_t* const start = out;
        *out = '-';
        out += bits_[i] > MAGNITUDE;
        if (__builtin_expect(magnitude - 1 >= Bits::infinite - 1, 0)) {
            if (magnitude == 0) return print_literal("0", out);
            if (magnitude == Bits::infinite) return print_literal("Infinity", out);
            return print_literal("NaN", start);
        }
        const DigitText& text = texts_[i];
        const int exponent = exponents_[i];  // of the first digit
        if (exponent >= 0 && exponent < Bits::fixed_below) {
            text.write(out);
            if (text.count <= exponent + 1) return out + exponent + 1;
            text.write_behind(exponent, out + exponent + 2);
            out[exponent + 1] = '.';
            return out + text.count + 1;
        }
        if (exponent < 0 && exponent >= -4) {
            std::memcpy(out, "0.000", 5);
            text.write(out + 1 - exponent);
            return out + 1 - exponent + text.count;
        }
        *out++ = text.first;
        if (text.count > 1) {
            *out = '.';
            text.write_behind(0, out + 1);
            out += text.count;
        }
        *out++ = 'e';
        *out++ = exponent < 0 ? '-' : '+';
        const unsigned size = static_cast<unsigned>(exponent < 0 ? -exponent : exponent);
        return size < 100 ? print_pair(size, out) : print_integer(size, out);
    }

private:
    using Bits = FloatBits<F>;
    static constexpr uint64_t MAGNITUDE = (uint64_t{1} << (8 * sizeof(F) - 1)) - 1;

    uint64_t bits_[n];
    int exponents_[n];
    DigitText texts_[n];
};

}  // namespace pgo
