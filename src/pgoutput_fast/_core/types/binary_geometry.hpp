// Geometric types: float8 numbers between brackets. For types of fixed width, the caller has checked the length.
#pragma once
#include <cstdint>

#include "columns/buffer.hpp"
#include "protocol/reasons.hpp"
#include "types/binary_values.hpp"
#include "types/shortest_float.hpp"

namespace pgo {

constexpr uint32_t POINT_BYTES = 16;
constexpr size_t LONGEST_POINT = 2 * LONGEST_FLOAT8 + 3;

template <int n>
inline uint8_t* print_pair_at(const PrintedFloats<n>& floats, int first, uint8_t* out) noexcept {
    *out++ = '(';
    out = floats.print(first, out);
    *out++ = ',';
    out = floats.print(first + 1, out);
    *out++ = ')';
    return out;
}

inline uint8_t* print_point(const uint8_t* p, uint8_t* out) noexcept {
    return print_pair_at(PrintedFloats<2>(p), 0, out);
}

inline uint8_t* print_box(const uint8_t* p, uint8_t* out) noexcept {
    const PrintedFloats<4> floats(p);
    out = print_pair_at(floats, 0, out);
    *out++ = ',';
    return print_pair_at(floats, 2, out);
}

inline uint8_t* print_lseg(const uint8_t* p, uint8_t* out) noexcept {
    *out++ = '[';
    out = print_box(p, out);
    *out++ = ']';
    return out;
}

inline uint8_t* print_line(const uint8_t* p, uint8_t* out) noexcept {
    const PrintedFloats<3> floats(p);
    *out++ = '{';
    for (int i = 0; i < 3; ++i) {
        if (i) *out++ = ',';
        out = floats.print(i, out);
    }
    *out++ = '}';
    return out;
}

inline uint8_t* print_circle(const uint8_t* p, uint8_t* out) noexcept {
    const PrintedFloats<3> floats(p);
    *out++ = '<';
    out = print_pair_at(floats, 0, out);
    *out++ = ',';
    out = floats.print(2, out);
    *out++ = '>';
    return out;
}

inline Reason print_points(const uint8_t* p, uint32_t n, uint8_t open, uint8_t close, Buffer& out) {
    if (n < 4) return BAD_LENGTH;
    const uint32_t count = load32(p);
    // Every path and every polygon has at least one point.
    if (count == 0 || n - 4 != static_cast<uint64_t>(count) * POINT_BYTES) return BAD_LENGTH;
    p += 4;
    uint8_t* start = out.reserve(count * (LONGEST_POINT + 1) + 1);
    uint8_t* q = start;
    for (uint32_t i = 0; i < count; ++i, p += POINT_BYTES) {
        *q++ = i ? ',' : open;
        q = print_point(p, q);
    }
    *q++ = close;
    out.set_size(out.size() + static_cast<size_t>(q - start));
    return OK;
}

inline Reason print_polygon(const uint8_t* p, uint32_t n, Buffer& out) { return print_points(p, n, '(', ')', out); }

// The server prints a closed path in the same way as a polygon.
inline Reason print_path(const uint8_t* p, uint32_t n, Buffer& out) {
    if (n == 0) return BAD_LENGTH;
    if (*p > 1) return OUT_OF_RANGE;
    return *p ? print_points(p + 1, n - 1, '(', ')', out) : print_points(p + 1, n - 1, '[', ']', out);
}

inline uint8_t* print_corner(const uint8_t* p, uint32_t dimensions, uint8_t* out) noexcept {
    *out++ = '(';
    for (uint32_t i = 0; i < dimensions; ++i) {
        if (i) out = print_literal(", ", out);
        out = PrintedFloats<1>(p + 8 * i).print(0, out);
    }
    *out++ = ')';
    return out;
}

// cube: the number of dimensions, with the highest bit set for a point, and one corner or two. The server prints one
// corner if both are equal.
inline Reason print_cube(const uint8_t* p, uint32_t n, Buffer& out) {
    constexpr uint32_t POINT = uint32_t{1} << 31, MOST_DIMENSIONS = 100;
    if (n < 4) return BAD_LENGTH;
    const uint32_t header = load32(p), dimensions = header & ~POINT, corner = 8 * dimensions;
    const bool point = header & POINT;
    if (dimensions > MOST_DIMENSIONS) return OUT_OF_RANGE;
    if (n - 4 != (point ? corner : 2 * corner)) return BAD_LENGTH;
    p += 4;
    bool equal = true;
    for (uint32_t i = 0; !point && i < dimensions; ++i) {
        double a, b;
        read_float8(p + 8 * i, &a);
        read_float8(p + corner + 8 * i, &b);
        equal &= a == b;
    }
    uint8_t* const start = out.reserve(2 * (dimensions * (LONGEST_FLOAT8 + 2) + 3));
    uint8_t* at = print_corner(p, dimensions, start);
    if (!equal) {
        *at++ = ',';
        at = print_corner(p + corner, dimensions, at);
    }
    out.set_size(out.size() + static_cast<size_t>(at - start));
    return OK;
}

}  // namespace pgo
