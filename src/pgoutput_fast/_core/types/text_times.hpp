// Parsers for dates and times as PostgreSQL prints them with DateStyle ISO. Other styles are refused, never guessed.
#pragma once
#include <cstddef>
#include <cstdint>

#include "protocol/reasons.hpp"
#include "types/text_numbers.hpp"

namespace pgo {

constexpr int64_t MICROS_PER_SECOND = 1000000;
constexpr int64_t MICROS_PER_DAY = 86400 * MICROS_PER_SECOND;
// From the Unix epoch to PostgreSQL's epoch, 2000-01-01.
constexpr int64_t EPOCH_DAYS = 10957;
constexpr int64_t EPOCH_MICROS = EPOCH_DAYS * MICROS_PER_DAY;

inline bool two_digits(const uint8_t* p, unsigned* out) noexcept {
    unsigned tens = static_cast<unsigned>(p[0]) - '0', ones = static_cast<unsigned>(p[1]) - '0';
    *out = tens * 10 + ones;
    return (tens <= 9) & (ones <= 9);
}

inline bool is_leap(int64_t y) noexcept { return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0; }

inline unsigned days_in_month(int64_t y, unsigned m) noexcept {
    static const uint8_t days[13] = {0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return m == 2 && is_leap(y) ? 29 : days[m];
}

// Days since 1970-01-01 of a proleptic Gregorian date. Years begin in March here, so that the leap day is last.
inline int64_t days_from_civil(int64_t y, unsigned m, unsigned d) noexcept {
    y -= m <= 2;
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    unsigned year_of_era = static_cast<unsigned>(y - era * 400);
    unsigned day_of_year = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    unsigned day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + static_cast<int64_t>(day_of_era) - 719468;
}

struct CivilDate {
    int64_t year;  // as written, without regard to a " BC" at the end of the text
    unsigned month, day;
};
// Reads a date at p and moves p past it.
inline bool read_civil_date(const uint8_t*& p, const uint8_t* end, CivilDate* date) noexcept {
    if (end - p >= 10 && p[4] == '-' && p[7] == '-') {
        // Nearly every date has a year of four digits.
        unsigned century, rest;
        bool good = two_digits(p, &century) & two_digits(p + 2, &rest) & two_digits(p + 5, &date->month) &
                    two_digits(p + 8, &date->day);
        date->year = century * 100 + rest;
        p += 10;
        return good && date->year != 0 && date->month - 1 < 12 && date->day >= 1;
    }
    const uint8_t* start = p;
    int64_t year = 0;
    while (p < end && is_digit(*p) && p - start < 7) year = year * 10 + (*p++ - '0');
    std::ptrdiff_t length = p - start;
    if (length < 4 || (length > 4 && *start == '0') || year == 0) return false;
    if (end - p < 6 || p[0] != '-' || p[3] != '-') return false;
    date->year = year;
    bool good = two_digits(p + 1, &date->month) & two_digits(p + 4, &date->day);
    p += 6;
    return good && date->month - 1 < 12 && date->day >= 1;
}

// Removes a trailing " BC" from [p, end).
inline bool take_bc(const uint8_t* p, const uint8_t*& end) noexcept {
    if (end - p < 3 || end[-1] != 'C' || end[-2] != 'B' || end[-3] != ' ') return false;
    end -= 3;
    return true;
}

// Reads HH:MM:SS[.ffffff] at p and moves p past it. Accepts 24:00:00; the caller must decide about that time.
inline bool read_clock(const uint8_t*& p, const uint8_t* end, int64_t* micros) noexcept {
    unsigned h, m, s;
    if (end - p < 8 || p[2] != ':' || p[5] != ':') return false;
    if (!(two_digits(p, &h) & two_digits(p + 3, &m) & two_digits(p + 6, &s))) return false;
    if (h > 24 || m > 59 || s > 59) return false;
    p += 8;
    int64_t value = (static_cast<int64_t>(h) * 3600 + m * 60 + s) * MICROS_PER_SECOND;
    unsigned high, middle, low;
    if (end - p >= 7 && *p == '.' &&
        (two_digits(p + 1, &high) & two_digits(p + 3, &middle) & two_digits(p + 5, &low))) {
        value += high * 10000 + middle * 100 + low;
        p += 7;
        if (p < end && is_digit(*p)) return false;
    } else if (p < end && *p == '.') {
        static const uint32_t scale[7] = {0, 100000, 10000, 1000, 100, 10, 1};
        const uint8_t* start = ++p;
        uint32_t fraction = 0;
        while (p < end && is_digit(*p) && p - start < 7) fraction = fraction * 10 + (*p++ - '0');
        std::ptrdiff_t digits = p - start;
        if (digits < 1 || digits > 6) return false;
        value += static_cast<int64_t>(fraction) * scale[digits];
    }
    if (value > MICROS_PER_DAY) return false;
    *micros = value;
    return true;
}

// ---- the form that nearly all dates and times have: a year of four digits, and UTC ----

// Checks eight characters. Where a byte of `pattern` is 0x7f, the character must be the one in `expected`; where it is
// 0x76, it must be a digit. Returns true if all are right. Byte k of `pairs` is then the number formed by characters k
// and k + 1.
inline bool read_pattern(const uint8_t* p, uint64_t expected, uint64_t pattern, uint64_t* pairs) noexcept {
    uint64_t v = load64_raw(p) ^ expected;
    *pairs = v * 10 + (v >> 8);
    return !(((v + pattern) | v) & 0x8080808080808080ull);
}

// Reads "YYYY-MM-DD" as days since 1970. Returns false for any other text, even a valid date.
inline bool read_common_date(const uint8_t* p, int32_t* days) noexcept {
    // The number of days before each month, in a year that begins in March.
    static const uint16_t before[13] = {0, 306, 337, 0, 31, 61, 92, 122, 153, 184, 214, 245, 275};
    uint64_t pairs;
    unsigned day;
    bool good = read_pattern(p, 0x2d30302d30303030ull, 0x7f76767f76767676ull, &pairs) & two_digits(p + 8, &day);
    unsigned year = (pairs & 0xff) * 100 + (pairs >> 16 & 0xff), month = pairs >> 40 & 0xff;
    if (!good | !year | (month - 1 > 11) | !day) return false;
    if (day > 28 && day > days_in_month(year, month)) return false;
    unsigned y = year - (month < 3);
    *days = static_cast<int32_t>(365 * y + y / 4 - y / 100 + y / 400 + before[month] + day) - 719469;
    return true;
}

// Reads "HH:MM:SS" and up to six digits after a point, n characters in all. Returns false for any other text.
inline bool read_common_clock(const uint8_t* p, uint32_t n, int64_t* micros) noexcept {
    static const uint32_t scale[7] = {0, 100000, 10000, 1000, 100, 10, 1};
    uint64_t pairs;
    if (!read_pattern(p, 0x30303a30303a3030ull, 0x76767f76767f7676ull, &pairs)) return false;
    unsigned h = pairs & 0xff, m = pairs >> 24 & 0xff, s = pairs >> 48 & 0xff;
    if ((h > 23) | (m > 59) | (s > 59)) return false;
    int64_t value = static_cast<int64_t>(h * 3600 + m * 60 + s) * MICROS_PER_SECOND;
    if (n != 8) {
        if (n < 10 || n > 15 || p[8] != '.') return false;
        uint64_t bad = 0;
        value += static_cast<int64_t>(digits8_backed(p + n, n - 9, bad)) * scale[n - 9];
        if (bad) return false;
    }
    *micros = value;
    return true;
}

inline Reason is_infinity_text(const uint8_t* p, uint32_t n) noexcept {
    if ((n == 8 && std::memcmp(p, "infinity", 8) == 0) || (n == 9 && std::memcmp(p, "-infinity", 9) == 0))
        return IS_INFINITE;
    return BAD_TEXT;
}

inline Reason finish_civil_date(const CivilDate& date, bool bc, int64_t* days) noexcept {
    int64_t year = bc ? 1 - date.year : date.year;
    if (date.day > days_in_month(year, date.month)) return BAD_TEXT;
    *days = days_from_civil(year, date.month, date.day);
    return OK;
}

inline Reason parse_date(const uint8_t* p, uint32_t n, int32_t* out) noexcept {
    if (n == 10 && read_common_date(p, out)) return OK;
    const uint8_t* end = p + n;
    const uint8_t* q = p;
    CivilDate date;
    bool bc = take_bc(p, end);
    if (!read_civil_date(q, end, &date) || q != end) return is_infinity_text(p, n);
    int64_t days = 0;
    Reason reason = finish_civil_date(date, bc, &days);
    *out = static_cast<int32_t>(days);
    return reason == OK && *out != days ? BEYOND_RANGE : reason;
}

inline Reason parse_time(const uint8_t* p, uint32_t n, int64_t* out) noexcept {
    if (n >= 8 && read_common_clock(p, n, out)) return OK;
    const uint8_t* end = p + n;
    if (!read_clock(p, end, out) || p != end) return BAD_TEXT;
    return *out == MICROS_PER_DAY ? HOUR_24 : OK;
}

// The range of offsets in timestamps. POSIX zones like utc+20 have the largest ones. Their standard time is up to 168
// hours away from UTC (167:59:60). Their daylight saving time is one hour further east if its rule gives no offset.
constexpr int64_t FURTHEST_WEST = 168 * 3600, FURTHEST_EAST = 169 * 3600;

// Reads an offset like +00, -03:30, +00:19:32 or -100 at q as seconds east of UTC. Moves q past it.
inline bool read_offset(const uint8_t*& q, const uint8_t* end, int64_t* east) noexcept {
    if (end - q < 3 || (*q != '+' && *q != '-')) return false;
    const bool west = *q++ == '-';
    unsigned part;
    if (!two_digits(q, &part)) return false;
    q += 2;
    if (q != end && is_digit(*q)) {
        if (part < 10) return false;  // three digits never begin with a zero
        part = part * 10 + (*q++ - '0');
    }
    int64_t offset = part * 3600;
    for (int unit = 60; unit >= 1 && q != end; unit /= 60) {
        if (end - q < 3 || *q != ':' || !two_digits(q + 1, &part) || part > 59) return false;
        offset += static_cast<int64_t>(part) * unit;
        q += 3;
    }
    *east = west ? -offset : offset;
    return offset <= (west ? FURTHEST_WEST : FURTHEST_EAST);
}

// Reads a timestamp as microseconds since 1970. With `zoned`, it must have an offset like +00, -03:30 or +00:19:32.
template <bool zoned>
inline Reason parse_timestamp(const uint8_t* p, uint32_t n, int64_t* out) noexcept {
    int64_t clock, offset = 0;
    int32_t common_days;
    const uint32_t zone = zoned ? 3 : 0;
    if (n >= 19 + zone && p[10] == ' ' && (!zoned || std::memcmp(p + n - 3, "+00", 3) == 0) &&
        read_common_date(p, &common_days) && read_common_clock(p + 11, n - 11 - zone, &clock)) {
        *out = common_days * MICROS_PER_DAY + clock;
        return OK;
    }
    const uint8_t* end = p + n;
    const uint8_t* q = p;
    CivilDate date;
    bool bc = take_bc(p, end);
    if (!read_civil_date(q, end, &date)) return is_infinity_text(p, n);
    if (q == end || *q++ != ' ' || !read_clock(q, end, &clock) || clock == MICROS_PER_DAY) return BAD_TEXT;
    if (zoned && !read_offset(q, end, &offset)) return BAD_TEXT;
    if (q != end) return BAD_TEXT;
    int64_t days = 0;
    Reason reason = finish_civil_date(date, bc, &days);
    if (reason) return reason;
    // PostgreSQL allows years beyond 294247, because its epoch is thirty years later. Here they overflow.
    int128 micros = static_cast<int128>(days) * MICROS_PER_DAY + clock - offset * MICROS_PER_SECOND;
    *out = static_cast<int64_t>(micros);
    return *out == micros ? OK : BEYOND_RANGE;
}

}  // namespace pgo
