// interval: months, days and microseconds. This file parses; schema/interval_text.py and encode/printed.py print. None
// of the three parts is ever converted into another. Text must be in IntervalStyle postgres; other styles are refused,
// never guessed.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

#include "protocol/reasons.hpp"
#include "types/text_numbers.hpp"
#include "types/text_times.hpp"
#include "protocol/wire.hpp"

namespace pgo {

// Arrow's month_day_nano_interval.
struct Interval {
    int32_t months;
    int32_t days;
    int64_t nanos;
};

inline Reason finish_interval(int32_t months, int32_t days, int64_t micros, Interval* out) noexcept {
    using int32 = std::numeric_limits<int32_t>;
    using int64 = std::numeric_limits<int64_t>;
    // All three at their limit mean infinity since PostgreSQL 17. In older versions they are an ordinary value that is
    // beyond the range of nanoseconds.
    if ((months == int32::max() && days == int32::max() && micros == int64::max()) ||
        (months == int32::min() && days == int32::min() && micros == int64::min()))
        return IS_INFINITE;
    out->months = months;
    out->days = days;
    return __builtin_mul_overflow(micros, int64_t{1000}, &out->nanos) ? BEYOND_RANGE : OK;
}

inline Reason read_interval(const uint8_t* p, Interval* out) noexcept {
    return finish_interval(static_cast<int32_t>(load32(p + 12)), static_cast<int32_t>(load32(p + 8)),
                           static_cast<int64_t>(load64(p)), out);
}

template <size_t n>
inline bool has_unit(const uint8_t* p, const uint8_t* end, const char (&unit)[n]) noexcept {
    return static_cast<size_t>(end - p) >= n - 1 && std::memcmp(p, unit, n - 1) == 0;
}

// Moves p past a unit and the blank before it. The server prints years, months and days in this order. `next` is the
// number of the first unit allowed, and becomes the number of the unit read. Returns whether there is a unit.
inline bool read_interval_unit(const uint8_t*& p, const uint8_t* end, int* next) noexcept {
    if (*next < 1 && has_unit(p, end, " year")) p += 5;
    else if (*next < 2 && has_unit(p, end, " mon")) *next = 1, p += 4;
    else if (*next < 3 && has_unit(p, end, " day")) *next = 2, p += 4;
    else return false;
    return true;
}

// Reads a sign and up to ten digits at p and moves p past them. The server prints "+" only after a negative field.
inline bool read_interval_number(const uint8_t*& p, const uint8_t* end, bool behind_negative, bool* negative,
                                 int64_t* out, std::ptrdiff_t* digits) noexcept {
    *negative = p < end && *p == '-';
    if (*negative) ++p;
    else if (behind_negative) {
        if (p == end || *p++ != '+') return false;
    }
    const uint8_t* const start = p;
    *out = 0;
    while (p < end && is_digit(*p) && p - start < 10) *out = *out * 10 + (*p++ - '0');
    *digits = p - start;
    return *digits > 0;
}

// Reads ":MM:SS[.ffffff]" after the hours as microseconds. Nothing may follow it.
inline bool read_interval_rest(const uint8_t* p, const uint8_t* end, int64_t* micros) noexcept {
    unsigned minutes, seconds;
    if (end - p < 6 || p[0] != ':' || p[3] != ':' || !two_digits(p + 1, &minutes) || !two_digits(p + 4, &seconds))
        return false;
    if (minutes > 59 || seconds > 59) return false;
    p += 6;
    int64_t fraction = 0;
    if (p != end) {
        if (*p++ != '.' || p == end || end - p > 6 || end[-1] == '0') return false;
        int places = 6;
        for (; p < end; ++p, --places) {
            if (!is_digit(*p)) return false;
            fraction = fraction * 10 + (*p - '0');
        }
        while (places--) fraction *= 10;
    }
    *micros = static_cast<int64_t>(minutes * 60 + seconds) * MICROS_PER_SECOND + fraction;
    return true;
}

// Reads "HH:MM:SS[.ffffff]" of less than a day. Returns false for everything else.
inline bool read_interval_clock(const uint8_t* p, const uint8_t* end, int64_t* micros) noexcept {
    const std::ptrdiff_t n = end - p;
    return n >= 8 && n <= 15 && (n == 8 || end[-1] != '0') && read_common_clock(p, static_cast<uint32_t>(n), micros);
}

// Reads a text like "1 year 2 mons -3 days +04:05:06.7". The server leaves out fields that are zero, unless all are.
inline Reason parse_interval(const uint8_t* p, uint32_t n, Interval* out) noexcept {
    const uint8_t* const end = p + n;
    int64_t fields[3] = {0, 0, 0};
    int128 micros = 0;
    int next = 0;
    bool negative = false, any = false;
    if (n == 0) return BAD_TEXT;
    if (is_infinity_text(p, n) == IS_INFINITE) return IS_INFINITE;
    while (p < end) {
        int64_t value;
        std::ptrdiff_t digits;
        if (any && *p++ != ' ') return BAD_TEXT;
        const bool behind_negative = negative;
        if (!read_interval_number(p, end, behind_negative, &negative, &value, &digits)) return BAD_TEXT;
        const uint8_t first = p[-digits];
        if (p < end && *p == ':') {
            int64_t rest;
            if (digits == 2 && read_interval_clock(p - 2, end, &rest)) {
                micros = rest;
            } else {
                if (digits < 2 || (digits > 2 && first == '0') || !read_interval_rest(p, end, &rest)) return BAD_TEXT;
                micros = static_cast<int128>(value) * 3600 * MICROS_PER_SECOND + rest;
            }
            if (micros == 0 && (any || negative)) return BAD_TEXT;
            if (negative) micros = -micros;
            any = true;
            break;
        }
        if (first == '0') return BAD_TEXT;
        if (negative) value = -value;
        if (!read_interval_unit(p, end, &next)) return BAD_TEXT;
        if (value != 1 && (p == end || *p++ != 's')) return BAD_TEXT;
        fields[next++] = value;
        any = true;
    }
    if (fields[1] > 11 || fields[1] < -11 || fields[0] * fields[1] < 0) return BAD_TEXT;
    const int64_t months = fields[0] * 12 + fields[1];
    if (months != static_cast<int32_t>(months) || fields[2] != static_cast<int32_t>(fields[2]) ||
        micros != static_cast<int64_t>(micros))
        return OUT_OF_RANGE;
    return finish_interval(static_cast<int32_t>(months), static_cast<int32_t>(fields[2]), static_cast<int64_t>(micros),
                           out);
}

}  // namespace pgo
