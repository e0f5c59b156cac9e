// Arrays: a cell is sliced into element cells, and the elements go through the element type's own converter.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cells.hpp"
#include "column.hpp"
#include "convert.hpp"

namespace pgo {

constexpr unsigned MAX_DIMENSIONS = 6;
// Room before the arena's first byte, for the readers that look back; a missing element points behind it.
constexpr size_t ARENA_FRONT = ROOM_BEFORE;

// Element cells of one block. In the payload they lie as they are; once an escape turns up anywhere in the block,
// all of them are copied, unescaped, into the arena.
struct Elements {
    std::vector<Cell>& cells;
    std::vector<uint8_t>& arena;
    const uint8_t* base;
    bool copied;

    void add(const uint8_t* p, size_t n) {
        if (!copied) {
            cells.push_back({static_cast<uint32_t>(p - base), static_cast<int32_t>(n)});
            return;
        }
        cells.push_back({static_cast<uint32_t>(arena.size()), static_cast<int32_t>(n)});
        arena.insert(arena.end(), p, p + n);
    }
    void add_null() { cells.push_back({static_cast<uint32_t>(ARENA_FRONT), CELL_NULL}); }
};

enum class Sliced : uint8_t { GOOD, SHIFTED, MULTI, BAD, ESCAPED };

// An int32 as array_out prints a bound. Moves p behind it.
inline bool read_bound(const uint8_t*& p, const uint8_t* end, int64_t* out) noexcept {
    const bool negative = p < end && *p == '-';
    if (negative) ++p;
    const uint8_t* digits = p;
    int64_t value = 0;
    while (p < end && is_digit(*p) && p - digits < 10) value = value * 10 + (*p++ - '0');
    if (p == digits || (*digits == '0' && (negative || p - digits > 1))) return false;
    *out = negative ? -value : value;
    return *out >= INT32_MIN && *out <= INT32_MAX;
}

// "[2:4]=" before the brace, printed only where a dimension starts elsewhere than at 1. `length` becomes the number
// of elements that the bounds of a single dimension promise.
inline Sliced read_text_bounds(const uint8_t*& p, const uint8_t* end, int64_t* length) noexcept {
    unsigned dimensions = 0;
    bool shifted = false;
    while (p < end && *p == '[') {
        int64_t lower = 0, upper = 0;
        if (!read_bound(++p, end, &lower) || p == end || *p != ':') return Sliced::BAD;
        if (!read_bound(++p, end, &upper) || p == end || *p != ']') return Sliced::BAD;
        ++p;
        if (lower > upper || ++dimensions > MAX_DIMENSIONS) return Sliced::BAD;
        shifted = shifted || lower != 1;
        *length = upper - lower + 1;
    }
    if (dimensions == 0) return Sliced::GOOD;
    if (p == end || *p != '=' || !shifted) return Sliced::BAD;
    ++p;
    return dimensions > 1 ? Sliced::MULTI : Sliced::SHIFTED;
}

// array_out's text. It quotes whatever could be misread, so anything odd outside quotes is malformed. The delimiter is
// the element type's: a semicolon for box, a comma for all others.
template <uint8_t delimiter>
inline Sliced slice_text_array(const uint8_t* p, const uint8_t* end, Elements& elements) {
    int64_t promised = 0;
    const Sliced bounds = read_text_bounds(p, end, &promised);
    const size_t before = elements.cells.size();
    if (bounds == Sliced::BAD) return bounds;
    if (end - p < 2 || *p != '{' || end[-1] != '}') return Sliced::BAD;
    if (p[1] == '{') return bounds == Sliced::SHIFTED ? Sliced::BAD : Sliced::MULTI;
    if (bounds == Sliced::MULTI) return Sliced::BAD;
    ++p;
    if (p + 1 == end) return bounds == Sliced::GOOD ? Sliced::GOOD : Sliced::BAD;
    for (;;) {
        if (*p == '"') {
            const uint8_t* start = ++p;
            bool escaped = false;
            while (p < end && *p != '"') {
                if (*p == '\\') {
                    escaped = true;
                    if (++p == end) return Sliced::BAD;
                }
                ++p;
            }
            if (p == end) return Sliced::BAD;
            if (escaped) {
                if (!elements.copied) return Sliced::ESCAPED;
                size_t at = elements.arena.size();
                for (const uint8_t* q = start; q < p; ++q) {
                    if (*q == '\\') ++q;
                    elements.arena.push_back(*q);
                }
                elements.cells.push_back(
                    {static_cast<uint32_t>(at), static_cast<int32_t>(elements.arena.size() - at)});
            } else {
                elements.add(start, static_cast<size_t>(p - start));
            }
            ++p;
        } else {
            const uint8_t* start = p;
            for (; p < end && *p != delimiter && *p != '}'; ++p) {
                uint8_t c = *p;
                if (c == '{' || c == '"' || c == '\\' || c == ' ' || (c >= '\t' && c <= '\r')) return Sliced::BAD;
            }
            size_t n = static_cast<size_t>(p - start);
            if (n == 0) return Sliced::BAD;
            if (n == 4 && (start[0] | 32) == 'n' && (start[1] | 32) == 'u' && (start[2] | 32) == 'l' &&
                (start[3] | 32) == 'l') {
                if (std::memcmp(start, "NULL", 4)) return Sliced::BAD;
                elements.add_null();
            } else {
                elements.add(start, n);
            }
        }
        if (p == end) return Sliced::BAD;
        if (*p == '}') {
            const bool kept = bounds == Sliced::GOOD || static_cast<int64_t>(elements.cells.size() - before) == promised;
            return p + 1 == end && kept ? bounds : Sliced::BAD;
        }
        if (*p != delimiter) return Sliced::BAD;
        if (++p == end) return Sliced::BAD;
    }
}

inline Sliced slice_binary_array(const uint8_t* p, const uint8_t* end, uint32_t element_oid, Elements& elements,
                                 Reason* reason) {
    *reason = BAD_ARRAY;
    if (end - p < 12) return Sliced::BAD;
    uint32_t dimensions = load32(p), flags = load32(p + 4), oid = load32(p + 8);
    p += 12;
    if (dimensions > MAX_DIMENSIONS || flags > 1) return Sliced::BAD;
    if (element_oid && oid != element_oid) {
        *reason = BAD_ELEMENT;
        return Sliced::BAD;
    }
    if (static_cast<size_t>(end - p) < 8 * static_cast<size_t>(dimensions)) return Sliced::BAD;
    bool empty = dimensions == 0;
    for (unsigned i = 0; i < dimensions; ++i) {
        if (static_cast<int32_t>(load32(p + 8 * i)) < 0) return Sliced::BAD;
        empty = empty || load32(p + 8 * i) == 0;
    }
    // A cast from int2vector leaves one dimension of no elements.
    if (empty) return p + 8 * dimensions == end ? Sliced::GOOD : Sliced::BAD;
    if (dimensions > 1) return Sliced::MULTI;
    int64_t count = static_cast<int32_t>(load32(p));
    bool shifted = load32(p + 4) != 1;
    p += 8;
    if (count > (end - p) / 4) return Sliced::BAD;
    for (int64_t i = 0; i < count; ++i) {
        if (end - p < 4) return Sliced::BAD;
        int32_t length = static_cast<int32_t>(load32(p));
        p += 4;
        if (length == -1) {
            elements.add_null();
            continue;
        }
        if (length < 0 || length > end - p) return Sliced::BAD;
        elements.add(p, static_cast<size_t>(length));
        p += length;
    }
    if (p != end) return Sliced::BAD;
    return shifted ? Sliced::SHIFTED : Sliced::GOOD;
}

// What a list's cell is sliced by: `slice` appends the elements' cells, `malformed` is what to say if it cannot.
template <bool binary, uint8_t delimiter = ','>
struct SliceArray {
    static constexpr Reason malformed = BAD_ARRAY;
    static Sliced slice(const uint8_t* p, const uint8_t* end, const Column& column, Elements& elements, Reason* reason) {
        return binary ? slice_binary_array(p, end, column.element_oid, elements, reason)
                      : slice_text_array<delimiter>(p, end, elements);
    }
};

template <bool binary, class Slicer>
void convert_list(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    Column& child = *column.child;
    const size_t first_issue = issues.size();
    int32_t* offsets = column.reserve_offsets(n);
    const int32_t base = static_cast<int32_t>(child.rows);
    Elements elements{column.cells, column.arena, source.base, false};
    for (size_t i = 0; i < n; ++i) {
        if (i == 0) {
            elements.cells.clear();
            if (elements.copied) elements.arena.assign(ARENA_FRONT, 0);
        }
        if (cells[i].length >= 0) {
            const uint8_t* p = source.base + cells[i].offset;
            const uint8_t* end = p + cells[i].length;
            const size_t before = elements.cells.size();
            Reason reason = Slicer::malformed;
            Sliced sliced = Slicer::slice(p, end, column, elements, &reason);
            if (sliced == Sliced::ESCAPED) {
                // Once more from the block's beginning, with copies.
                elements.copied = true;
                issues.resize(first_issue);
                i = static_cast<size_t>(-1);
                continue;
            }
            if (sliced == Sliced::MULTI) reason = MULTI_DIMENSIONAL;
            if (sliced == Sliced::SHIFTED) reason = LOWER_BOUND;
            if (elements.cells.size() - before > column.most_elements && sliced != Sliced::BAD) {
                sliced = Sliced::MULTI;
                reason = TOO_MANY_ELEMENTS;
            }
            if (sliced != Sliced::GOOD) issues.push_back({static_cast<uint32_t>(i), reason, false});
            if (sliced == Sliced::BAD || sliced == Sliced::MULTI) elements.cells.resize(before);
        }
        offsets[i + 1] = base + static_cast<int32_t>(elements.cells.size());
    }
    if (elements.copied) elements.arena.resize(elements.arena.size() + SLACK);
    Source inner = elements.copied
        ? Source{elements.arena.data(), elements.arena.data() + elements.arena.size()}
        : source;
    child.child_issues.clear();
    convert_cells(child, binary ? child.binary : child.text, inner, elements.cells.data(), elements.cells.size(),
                  child.child_issues);
    const int32_t* const ends = column.int_offsets() + column.offsets.size() / sizeof(int32_t) - n;
    take_issues(issues, first_issue, child.child_issues, [=](uint32_t row) {
        return static_cast<uint32_t>(std::upper_bound(ends, ends + n, base + static_cast<int32_t>(row)) - ends);
    });
}

}  // namespace pgo
