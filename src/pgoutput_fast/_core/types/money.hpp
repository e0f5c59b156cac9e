// money: an int64 of hundredths. Its text depends on lc_monetary; this reads only the text of the C locale.
#pragma once
#include <cstdint>
#include <limits>

#include "protocol/reasons.hpp"
#include "types/text_numbers.hpp"
#include "protocol/wire.hpp"

namespace pgo {

inline Reason read_money(const uint8_t* p, int128* out) noexcept {
    *out = static_cast<int64_t>(load64(p));
    return OK;
}

// Reads a text like -$1,234.50: groups of three digits, and two digits after the point.
inline Reason parse_money(const uint8_t* p, uint32_t n, int128* out) noexcept {
    const uint8_t* const end = p + n;
    const bool negative = n && *p == '-';
    p += negative;
    if (p == end || *p++ != '$') return BAD_TEXT;
    const uint8_t* const whole = p;
    uint128 cents = 0;
    const uint128 enough = static_cast<uint128>(1) << 100;  // far above the range of int64, and far from an overflow
    unsigned group = 0;
    bool grouped = false;
    for (; p < end && *p != '.'; ++p) {
        if (*p == ',') {
            if (group == 0 || (grouped && group != 3)) return BAD_TEXT;
            grouped = true;
            group = 0;
            continue;
        }
        if (!is_digit(*p) || ++group > 3) return BAD_TEXT;
        if (cents < enough) cents = cents * 10 + (*p - '0');
    }
    if (group == 0 || (grouped && group != 3) || (*whole == '0' && p - whole > 1)) return BAD_TEXT;
    if (end - p != 3 || !is_digit(p[1]) || !is_digit(p[2])) return BAD_TEXT;
    cents = cents * 100 + static_cast<unsigned>((p[1] - '0') * 10 + (p[2] - '0'));
    if (negative && cents == 0) return BAD_TEXT;
    if (cents > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) + negative) return OUT_OF_RANGE;
    *out = negative ? -static_cast<int128>(cents) : static_cast<int128>(cents);
    return OK;
}

}  // namespace pgo
