// Checks whether the server prints a given text, for types whose text is unchanged. The checks cover the grammar, not
// the meaning, and only types whose grammar takes a few lines. The text of two types depends on the server's version:
// it becomes the same text as for a binary value.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "types/binary_system.hpp"
#include "types/convert.hpp"

namespace pgo {

inline bool is_bits(const uint8_t* p, size_t n) noexcept {
    constexpr uint64_t zeros = 0x3030303030303030ull;
    uint64_t other = 0;
    if (n >= 8) {
        // The last eight bytes may overlap the previous eight.
        for (size_t i = 0; i + 8 < n; i += 8) other |= load64_raw(p + i) ^ zeros;
        other |= load64_raw(p + n - 8) ^ zeros;
    } else {
        for (size_t i = 0; i < n; ++i) other |= p[i] ^ '0';
    }
    return (other & ~0x0101010101010101ull) == 0;
}

// The classes of characters in an address.
constexpr uint8_t IS_LOWER_HEX = 1, IS_COLON = 2;
inline constexpr struct AddressCharacters {
    uint8_t by[256] = {};
    constexpr AddressCharacters() {
        for (int c = '0'; c <= '9'; ++c) by[c] = IS_LOWER_HEX;
        for (int c = 'a'; c <= 'f'; ++c) by[c] = IS_LOWER_HEX;
        by[static_cast<int>(':')] = IS_COLON;
    }
} ADDRESS;

// Reads a number without leading zeros, at most `most`. Moves p past it.
inline bool take_number(const uint8_t*& p, const uint8_t* end, uint64_t most) noexcept {
    const uint8_t* const start = p;
    uint64_t value = 0;
    for (; p < end && is_digit(*p); ++p) {
        const unsigned digit = *p - '0';
        if (value > (most - digit) / 10) return false;
        value = value * 10 + digit;
    }
    return p != start && (*start != '0' || p - start == 1);
}

inline bool is_xid8(const uint8_t* p, size_t n) noexcept {
    const uint8_t* const end = p + n;
    return take_number(p, end, UINT64_MAX) && p == end;
}

inline bool is_tid(const uint8_t* p, size_t n) noexcept {
    const uint8_t* const end = p + n;
    if (n < 2 || *p++ != '(' || !take_number(p, end, UINT32_MAX) || p == end || *p++ != ',') return false;
    return take_number(p, end, UINT16_MAX) && p + 1 == end && *p == ')';
}

inline bool is_lower_hex(uint8_t c) noexcept { return ADDRESS.by[c] == IS_LOWER_HEX; }

template <size_t bytes>
inline bool is_macaddr(const uint8_t* p, size_t n) noexcept {
    if (n != 3 * bytes - 1) return false;
    uint8_t hex = ADDRESS.by[p[0]] & ADDRESS.by[p[1]], colons = IS_COLON;
    for (size_t i = 1; i < bytes; ++i) {
        colons &= ADDRESS.by[p[3 * i - 1]];
        hex &= ADDRESS.by[p[3 * i]] & ADDRESS.by[p[3 * i + 1]];
    }
    return hex & colons >> 1;
}

inline bool take_dotted(const uint8_t*& p, const uint8_t* end) noexcept {
    for (int i = 0; i < 4; ++i) {
        if (i && (p == end || *p++ != '.')) return false;
        const uint8_t* const start = p;
        unsigned value = 0;
        while (p < end && is_digit(*p) && p - start < 3) value = value * 10 + (*p++ - '0');
        if (p == start || value > 255 || (*start == '0' && p - start > 1)) return false;
    }
    return true;
}

// These return one bit per byte: `which_are` marks the bytes that equal `c`, `which_are_digits` marks digits.
inline unsigned high_bits(uint64_t highs) noexcept {
    return static_cast<unsigned>((highs >> 7) * 0x0102040810204080ull >> 56);
}
inline unsigned which_are(uint64_t eight, uint8_t c) noexcept {
    constexpr uint64_t lows = 0x7f7f7f7f7f7f7f7full;
    const uint64_t other = eight ^ 0x0101010101010101ull * c;
    return high_bits(~(((other & lows) + lows) | other | lows));
}
inline unsigned which_are_digits(uint64_t eight) noexcept {
    constexpr uint64_t lows = 0x7f7f7f7f7f7f7f7full;
    const uint64_t value = eight ^ 0x3030303030303030ull;
    return high_bits(~(((value & lows) + 0x7676767676767676ull) | value | lows));
}

// Like take_dotted, for a whole text and without a branch per digit.
inline bool is_dotted(const uint8_t* p, size_t n) noexcept {
    if (n < 8 || n > 15) return n == 7 && take_dotted(p, p + n);
    const uint64_t first = load64_raw(p), last = load64_raw(p + n - 8);
    unsigned dots = which_are(first, '.') | which_are(last, '.') << (n - 8);
    const unsigned digits = which_are_digits(first) | which_are_digits(last) << (n - 8);
    bool good = (dots | digits) == (1u << n) - 1;
    if (__builtin_popcount(dots) != 3) return false;
    dots |= 1u << n;
    for (unsigned i = 0, start = 0; i < 4; ++i) {
        const unsigned length = static_cast<unsigned>(__builtin_ctz(dots)) - start;
        const uint8_t* const q = p + start;
        const bool three = length == 3;
        // Compares three digits with "255" as characters.
        good &= length - 1 <= 2;
        good &= !((*q == '0') & (length > 1));
        good &= !three | ((q[0] << 16 | q[three] << 8 | q[2 * three]) <= 0x323535);
        start += length + 1;
        dots &= dots - 1;
    }
    return good;
}

// Reads eight groups of up to four digits. "::" may stand once for groups that are zero, and the last two groups may be
// in dotted form.
inline bool take_v6(const uint8_t*& p, const uint8_t* end) noexcept {
    int groups = 0;
    bool shortened = false;
    if (end - p >= 2 && p[0] == ':' && p[1] == ':') {
        shortened = true;
        p += 2;
    }
    while (p < end && *p != '/') {
        const uint8_t* q = p;
        while (q < end && is_lower_hex(*q)) ++q;
        if (q == p || groups == 8) return false;
        if (q < end && *q == '.') {
            if (!take_dotted(p, end)) return false;
            groups += 2;
            break;
        }
        if (q - p > 4 || (*p == '0' && q - p > 1)) return false;
        ++groups;
        p = q;
        if (p == end || *p == '/') break;
        if (*p++ != ':' || p == end) return false;
        if (*p == ':') {
            if (shortened) return false;
            shortened = true;
            ++p;
        } else if (*p == '/') {
            return false;
        }
    }
    return shortened ? groups < 8 : groups == 8;
}

template <bool is_cidr>
inline bool is_inet(const uint8_t* p, size_t n) noexcept {
    const uint8_t* const end = p + n;
    const size_t prefix = n < 4 ? 0 : p[n - 2] == '/' ? 2 : p[n - 3] == '/' ? 3 : p[n - 4] == '/' ? 4 : 0;
    const bool v4 = is_dotted(p, n - prefix);
    if (v4) p = end - prefix;
    else if (!take_v6(p, end)) return false;
    if (p == end) return !is_cidr;
    return *p++ == '/' && take_number(p, end, v4 ? 32 : 128) && p == end;
}

// Keeps a text as it is if `IsValid` accepts it. `IsValid` accepts only ASCII, so the text needs no UTF-8 check.
template <bool (*IsValid)(const uint8_t*, size_t) noexcept>
inline void checked_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    bool good = true;
    for (size_t i = 0; i < n; ++i)
        if (cells[i].length >= 0) good &= IsValid(source.base + cells[i].offset, static_cast<size_t>(cells[i].length));
    if (good) {
        gather_bytes<0>(column, source, cells, n);
        return;
    }
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (!IsValid(p, length)) return BAD_TEXT;
        out.append(p, length);
        return OK;
    });
}

inline bool is_upper_hex(uint8_t c) noexcept { return is_digit(c) || (c >= 'A' && c <= 'F'); }

// Returns the start of the digits after the slash of a pg_lsn, or nullptr for a text that no server prints. Since
// version 19, they are always eight.
inline const uint8_t* lsn_low(const uint8_t* p, const uint8_t* end) noexcept {
    const uint8_t* slash = p;
    while (slash < end && is_upper_hex(*slash)) ++slash;
    if (slash == p || slash - p > 8 || slash == end || *slash != '/' || (*p == '0' && slash - p > 1)) return nullptr;
    const uint8_t* const low = slash + 1;
    const uint8_t* q = low;
    while (q < end && is_upper_hex(*q)) ++q;
    if (q == low || q != end || q - low > 8 || (*low == '0' && q - low > 1 && q - low < 8)) return nullptr;
    return low;
}

// Without the leading zeros after the slash, as servers before version 19 print it.
inline void lsn_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    bool as_before = true;
    for (size_t i = 0; i < n && as_before; ++i) {
        if (cells[i].length < 0) continue;
        const uint8_t* const p = source.base + cells[i].offset;
        const uint8_t* const low = lsn_low(p, p + cells[i].length);
        as_before = low && (*low != '0' || low + 1 == p + cells[i].length);
    }
    if (as_before) {
        gather_bytes<0>(column, source, cells, n);
        return;
    }
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        const uint8_t* const end = p + length;
        const uint8_t* const low = lsn_low(p, end);
        if (!low) return BAD_TEXT;
        const uint8_t* digits = low;
        while (*digits == '0' && digits + 1 < end) ++digits;
        out.append(p, static_cast<size_t>(low - p));
        out.append(digits, static_cast<size_t>(end - digits));
        return OK;
    });
}

// Servers before version 15 print a non-ASCII byte as it is, which is not valid UTF-8. Later ones print the form of
// print_char.
inline void char_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    bool as_it_is = true;
    for (size_t i = 0; i < n; ++i) as_it_is &= cells[i].length != 1 || source.base[cells[i].offset] < 0x80;
    if (as_it_is) {
        string_any(column, source, cells, n, issues);
        return;
    }
    column.statistics.total = std::min<size_t>(column.statistics.total * LONGEST_CHAR, MAX_OFFSET);
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (length == 1 && *p >= 0x80) {
            uint8_t* const start = out.reserve(LONGEST_CHAR);
            out.set_size(out.size() + static_cast<size_t>(print_char(p, start) - start));
            return OK;
        }
        if (!is_utf8(p, length)) return NOT_UTF8;
        out.append(p, length);
        return OK;
    });
}

inline void tid_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    if (append_quickly(column, source, cells, n, PGO_AVX_QUICK(tids), column.statistics.total)) return;
    checked_text<is_tid>(column, source, cells, n, issues);
}
template <bool is_cidr>
void network_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    if (append_quickly(column, source, cells, n, PGO_AVX_QUICK(networks<is_cidr>), column.statistics.total)) return;
    checked_text<is_inet<is_cidr>>(column, source, cells, n, issues);
}

}  // namespace pgo
