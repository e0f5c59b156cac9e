// numeric in the format of numeric_send: count, weight, sign and display scale, then digits in base 10000.
#pragma once
#include <cstdint>
#include <cstring>

#include "columns/buffer.hpp"
#include "protocol/reasons.hpp"
#include "types/text_numbers.hpp"
#include "protocol/wire.hpp"

namespace pgo {

struct NumericHeader {
    unsigned count;   // base-10000 digits on the wire
    int weight;       // of the first one: its value is digit * 10000^weight
    unsigned sign;
    unsigned dscale;  // decimal digits shown after the point
};
constexpr unsigned NUMERIC_NEGATIVE = 0x4000, NUMERIC_NAN = 0xC000, NUMERIC_PLUS_INF = 0xD000,
                   NUMERIC_MINUS_INF = 0xF000, NUMERIC_MAX_DSCALE = 0x3fff;

inline Reason read_numeric_header(const uint8_t* p, uint32_t n, NumericHeader* h) noexcept {
    if (n < 8) return BAD_LENGTH;
    h->count = load16(p);
    h->weight = static_cast<int16_t>(load16(p + 2));
    h->sign = load16(p + 4);
    h->dscale = load16(p + 6);
    if (n != 8 + 2 * h->count) return BAD_LENGTH;
    if (h->dscale > NUMERIC_MAX_DSCALE) return OUT_OF_RANGE;
    for (unsigned i = 0; i < h->count; ++i)
        if (load16(p + 8 + 2 * i) > 9999) return OUT_OF_RANGE;
    if (h->sign == 0 || h->sign == NUMERIC_NEGATIVE) return OK;
    if (h->sign == NUMERIC_NAN) return IS_NAN;
    return h->sign == NUMERIC_PLUS_INF || h->sign == NUMERIC_MINUS_INF ? IS_INFINITE : OUT_OF_RANGE;
}

// Reads the usual decimal: its display scale is the column's scale, and it has at most four digits in base 10000.
// Returns false for all others, which are left to read_decimal.
inline bool read_usual_decimal(const uint8_t* p, uint32_t n, int precision, int scale, int128* out) noexcept {
    if (n < 8 || precision > 18) return false;
    const unsigned count = load16(p), sign = load16(p + 4), dscale = load16(p + 6);
    const int weight = static_cast<int16_t>(load16(p + 2));
    if (count > 4 || n != 8 + 2 * count || (sign & ~NUMERIC_NEGATIVE) || dscale != static_cast<unsigned>(scale))
        return false;
    uint64_t value = 0;
    bool good = true;
    for (unsigned i = 0; i < count; ++i) {
        const unsigned digit = load16(p + 8 + 2 * i);
        good &= digit <= 9999;
        value = value * 10000 + digit;
    }
    // The decimal place of the last digit, as a power of ten in units of 10^-scale.
    const int place = 4 * (weight - static_cast<int>(count) + 1) + scale;
    if (value == 0) {
        // Zero may have any weight.
    } else if (place < 0) {
        if (place < -3 || value % POWERS_OF_TEN[-place]) return false;
        value /= POWERS_OF_TEN[-place];
    } else {
        if (place > 18 || value > UINT64_MAX / POWERS_OF_TEN[place]) return false;
        value *= POWERS_OF_TEN[place];
    }
    if (!good || value >= POWERS_OF_TEN[precision]) return false;
    *out = sign ? -static_cast<int128>(value) : static_cast<int128>(value);
    return true;
}

// Reads a numeric as an integer in units of 10^-scale. The result is exact, or there is none.
inline Reason read_decimal(const uint8_t* p, uint32_t n, int precision, int scale, int128* out) noexcept {
    if (read_usual_decimal(p, n, precision, scale, out)) return OK;
    NumericHeader h;
    if (Reason reason = read_numeric_header(p, n, &h)) return reason;
    uint128 value = 0;
    const uint128 limit = power_of_ten(static_cast<unsigned>(precision));
    for (unsigned i = 0; i < h.count; ++i) {
        unsigned digit = load16(p + 8 + 2 * i);
        // Decimal digits beyond dscale are not part of the number. numeric_recv and numeric_out cut them off too.
        int hidden = 4 * (static_cast<int>(i) - h.weight) - static_cast<int>(h.dscale);
        if (hidden > 0) digit -= hidden >= 4 ? digit : digit % (hidden == 1 ? 10 : hidden == 2 ? 100 : 1000);
        // The decimal place of this digit, as a power of ten in units of 10^-scale.
        int place = 4 * (h.weight - static_cast<int>(i)) + scale;
        if (place <= -4) {
            if (digit) return DOES_NOT_FIT;
            continue;
        }
        if (place < 0) {
            unsigned cut = place == -1 ? 10 : place == -2 ? 100 : 1000;
            if (digit % cut) return DOES_NOT_FIT;
            digit /= cut;
            place = 0;
        }
        if (!digit) continue;
        if (place > 37) return DOES_NOT_FIT;
        uint128 part = power_of_ten(static_cast<unsigned>(place));
        // digit * 10^place may need 42 decimal digits, more than 128 bits. So the comparison comes before the
        // multiplication.
        if (part >= limit || digit > (limit - 1) / part) return DOES_NOT_FIT;
        value += part * digit;
        if (value >= limit) return DOES_NOT_FIT;
    }
    *out = h.sign == NUMERIC_NEGATIVE ? -static_cast<int128>(value) : static_cast<int128>(value);
    return OK;
}

// Appends the number as numeric_out prints it, with dscale digits after the point. Digits beyond that are cut off; the
// server never sends any.
inline Reason print_numeric(const uint8_t* p, uint32_t n, Buffer& out) {
    NumericHeader h;
    Reason reason = read_numeric_header(p, n, &h);
    if (reason == IS_NAN) out.append("NaN", 3);
    else if (reason == IS_INFINITE && h.sign == NUMERIC_PLUS_INF) out.append("Infinity", 8);
    else if (reason == IS_INFINITE) out.append("-Infinity", 9);
    else if (reason) return reason;
    if (reason) return OK;
    size_t integral = h.weight < 0 ? 1 : 4 * (static_cast<size_t>(h.weight) + 1);
    uint8_t* start = out.reserve(integral + h.dscale + 8);
    uint8_t* q = start + 1;  // the first character is reserved for a minus
    unsigned seen = 0;
    auto digit = [&](int i) -> unsigned {
        return i >= 0 && static_cast<unsigned>(i) < h.count ? load16(p + 8 + 2 * i) : 0;
    };
    if (h.weight < 0) {
        *q++ = '0';
    } else {
        bool leading = true;
        for (int i = 0; i <= h.weight; ++i) {
            unsigned d = digit(i);
            const unsigned part[4] = {d / 1000, d / 100 % 10, d / 10 % 10, d % 10};
            for (unsigned k : part) {
                leading = leading && k == 0;
                if (!leading) *q++ = static_cast<uint8_t>('0' + k);
                seen |= k;
            }
        }
        if (leading) *q++ = '0';
    }
    if (h.dscale) {
        *q++ = '.';
        unsigned left = h.dscale;
        for (int i = h.weight + 1; left; ++i) {
            // Digits between the point and the first digit on the wire (i < 0) are zeros.
            unsigned d = digit(i);
            const unsigned part[4] = {d / 1000, d / 100 % 10, d / 10 % 10, d % 10};
            for (unsigned k = 0; k < 4 && left; ++k, --left) {
                *q++ = static_cast<uint8_t>('0' + part[k]);
                seen |= part[k];
            }
        }
    }
    if (h.sign == NUMERIC_NEGATIVE && seen) *start = '-';
    else std::memmove(start, start + 1, static_cast<size_t>(--q - start));
    out.set_size(out.size() + static_cast<size_t>(q - start));
    return OK;
}

}  // namespace pgo
