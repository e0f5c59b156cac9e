// System types: positions, identifiers, snapshots, "char" and the vector types of the system catalogs. For types of
// fixed width, the caller has checked the length.
#pragma once
#include <cstdint>

#include "columns/buffer.hpp"
#include "types/hex.hpp"
#include "types/printing.hpp"
#include "protocol/reasons.hpp"
#include "protocol/wire.hpp"

namespace pgo {

constexpr size_t LONGEST_LSN = 17, LONGEST_TID = 18, LONGEST_OID = 10, LONGEST_CHAR = 4;

// Hexadecimal digits in upper case, without leading zeros.
inline uint8_t* print_upper_hex(uint32_t value, uint8_t* out) noexcept {
    int shift = value ? (31 - __builtin_clz(value)) / 4 * 4 : 0;
    for (; shift >= 0; shift -= 4) *out++ = static_cast<uint8_t>("0123456789ABCDEF"[value >> shift & 15]);
    return out;
}

inline uint8_t* print_lsn(const uint8_t* p, uint8_t* out) noexcept {
    out = print_upper_hex(load32(p), out);
    *out++ = '/';
    return print_upper_hex(load32(p + 4), out);
}

// A tid is a block number and an offset.
inline uint8_t* print_tid(const uint8_t* p, uint8_t* out) noexcept {
    *out++ = '(';
    out = print_integer(load32(p), out);
    *out++ = ',';
    out = print_integer<unsigned>(load16(p + 4), out);
    *out++ = ')';
    return out;
}

inline uint8_t* print_xid8(const uint8_t* p, uint8_t* out) noexcept { return print_integer(load64(p), out); }
inline uint8_t* print_oid(const uint8_t* p, uint8_t* out) noexcept { return print_integer(load32(p), out); }

// One byte. NUL prints as nothing. A non-ASCII byte prints as a backslash and three octal digits, as in servers since
// version 15.
inline uint8_t* print_char(const uint8_t* p, uint8_t* out) noexcept {
    const uint8_t c = *p;
    if (c >= 0x80) {
        *out++ = '\\';
        *out++ = static_cast<uint8_t>('0' + (c >> 6));
        *out++ = static_cast<uint8_t>('0' + (c >> 3 & 7));
        *out++ = static_cast<uint8_t>('0' + (c & 7));
    } else if (c) {
        *out++ = c;
    }
    return out;
}

// On the wire: the count of transactions in progress, xmin, xmax, then these transactions. Printed as
// xmin:xmax:xip,xip.
inline Reason print_snapshot(const uint8_t* p, uint32_t n, Buffer& out) {
    if (n < 20) return BAD_LENGTH;
    const uint32_t count = load32(p);
    if (n - 20 != static_cast<uint64_t>(count) * 8) return BAD_LENGTH;
    uint8_t* start = out.reserve((static_cast<size_t>(count) + 2) * (LONGEST_INTEGER + 1));
    uint8_t* q = print_integer(load64(p + 4), start);
    *q++ = ':';
    q = print_integer(load64(p + 12), q);
    *q++ = ':';
    for (uint32_t i = 0; i < count; ++i) {
        if (i) *q++ = ',';
        q = print_integer(load64(p + 20 + 8 * static_cast<size_t>(i)), q);
    }
    out.set_size(out.size() + static_cast<size_t>(q - start));
    return OK;
}

inline uint8_t* print_element(const uint8_t* p, uint8_t* out, uint32_t) noexcept { return print_oid(p, out); }
inline uint8_t* print_element(const uint8_t* p, uint8_t* out, int16_t) noexcept {
    return print_integer<int>(static_cast<int16_t>(load16(p)), out);
}

// The server sends oidvector and int2vector as arrays with one dimension that starts at 0. It prints them with blanks
// between the elements.
template <class T, uint32_t element_oid>
inline Reason print_vector(const uint8_t* p, uint32_t n, Buffer& out) {
    constexpr uint32_t step = 4 + sizeof(T);
    if (n != 12 && n < 20) return BAD_ARRAY;
    if (load32(p) != (n == 12 ? 0u : 1u) || load32(p + 4) != 0) return BAD_ARRAY;
    if (load32(p + 8) != element_oid) return BAD_ELEMENT;
    if (n == 12) return OK;
    const uint32_t count = load32(p + 12);
    if (load32(p + 16) != 0 || n - 20 != static_cast<uint64_t>(count) * step) return BAD_ARRAY;
    uint8_t* start = out.reserve(static_cast<size_t>(count) * (LONGEST_OID + 1));
    uint8_t* q = start;
    p += 20;
    for (uint32_t i = 0; i < count; ++i, p += step) {
        if (load32(p) != sizeof(T)) return BAD_ARRAY;
        if (i) *q++ = ' ';
        q = print_element(p + 4, q, T{});
    }
    out.set_size(out.size() + static_cast<size_t>(q - start));
    return OK;
}

}  // namespace pgo
