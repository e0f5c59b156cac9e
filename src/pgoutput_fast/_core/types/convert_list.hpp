// Arrays: a cell is split into element cells, and the converter of the element type converts these.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "columns/cells.hpp"
#include "columns/column.hpp"
#include "types/convert.hpp"

namespace pgo {

constexpr unsigned MAX_DIMENSIONS = 6;
// Number of bytes before the first value in the arena, because converters may read before a value. The offset of a
// missing element points to the end of these bytes.
constexpr size_t ARENA_FRONT = READ_BEFORE;

// The element cells of one block. They point into the payload. If any element of the block has an escape, all elements
// are copied without escapes into the arena, and the cells point there.
struct Elements {
    CellList& cells;
    std::vector<uint8_t>& arena;
    const uint8_t* base;
    bool copied;

    void add(const uint8_t* p, size_t n) {
        if (!copied) {
            cells.add({static_cast<uint32_t>(p - base), static_cast<int32_t>(n)});
            return;
        }
        cells.add({static_cast<uint32_t>(arena.size()), static_cast<int32_t>(n)});
        arena.insert(arena.end(), p, p + n);
    }
    void add_null() { cells.add({static_cast<uint32_t>(ARENA_FRONT), CELL_NULL}); }
};

enum class SlicedList : uint8_t { GOOD, SHIFTED, MULTI, BAD, ESCAPED };

// Reads an int32 in array_out's form of a bound. Moves p past it.
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

struct Dimensions {
    unsigned count = 0;
    int64_t sizes[MAX_DIMENSIONS];
};

// Reads bounds like "[2:4]=" before the brace. The server prints them only if a dimension does not begin at 1.
inline SlicedList read_text_bounds(const uint8_t*& p, const uint8_t* end, Dimensions* dimensions) noexcept {
    bool shifted = false;
    while (p < end && *p == '[') {
        int64_t lower = 0, upper = 0;
        if (!read_bound(++p, end, &lower) || p == end || *p != ':') return SlicedList::BAD;
        if (!read_bound(++p, end, &upper) || p == end || *p != ']') return SlicedList::BAD;
        ++p;
        if (lower > upper || dimensions->count == MAX_DIMENSIONS) return SlicedList::BAD;
        shifted = shifted || lower != 1;
        dimensions->sizes[dimensions->count++] = upper - lower + 1;
    }
    if (dimensions->count == 0) return SlicedList::GOOD;
    if (p == end || *p != '=' || !shifted) return SlicedList::BAD;
    ++p;
    return dimensions->count > 1 ? SlicedList::MULTI : SlicedList::SHIFTED;
}

// An element in array_out's text. `start` and `end` exclude its quotes.
struct TextElement {
    const uint8_t* start;
    const uint8_t* end;
    bool quoted, escaped;
    bool is_null() const noexcept { return !quoted && end - start == 4 && std::memcmp(start, "NULL", 4) == 0; }
};

// Reads an element and moves p past it. array_out quotes everything that could be misread, so special characters
// outside quotes are malformed. The element type decides the delimiter: a semicolon
// for box, a colon for PostGIS, a comma for all others.
template <uint8_t delimiter>
inline bool take_text_element(const uint8_t*& p, const uint8_t* end, TextElement* out) noexcept {
    out->escaped = false;
    out->quoted = p < end && *p == '"';
    if (out->quoted) {
        out->start = ++p;
        while (p < end && *p != '"') {
            if (*p == '\\') {
                out->escaped = true;
                if (++p == end) return false;
            }
            ++p;
        }
        if (p == end) return false;
        out->end = p++;
        return true;
    }
    out->start = p;
    for (; p < end && *p != delimiter && *p != '}'; ++p) {
        const uint8_t c = *p;
        if (c == '{' || c == '"' || c == '\\' || c == ' ' || (c >= '\t' && c <= '\r')) return false;
    }
    out->end = p;
    if (p - out->start == 4 && (out->start[0] | 32) == 'n' && (out->start[1] | 32) == 'u' &&
        (out->start[2] | 32) == 'l' && (out->start[3] | 32) == 'l')
        return out->is_null();
    return p != out->start;
}

// Whether the text is a multidimensional array in which all sub-arrays of a dimension have the same size. The sizes
// must match the bounds, if any.
template <uint8_t delimiter>
inline bool is_text_of_dimensions(const uint8_t* p, const uint8_t* end, const Dimensions& promised) noexcept {
    int64_t sizes[MAX_DIMENSIONS], counts[MAX_DIMENSIONS];
    unsigned depth = 0;
    for (; p < end && *p == '{'; ++p) {
        if (depth == MAX_DIMENSIONS) return false;
        sizes[depth] = -1;
        counts[depth++] = 0;
    }
    const unsigned dimensions = depth;
    if (dimensions < 2 || (promised.count && promised.count != dimensions)) return false;
    for (;;) {
        TextElement ignored;
        if (!take_text_element<delimiter>(p, end, &ignored)) return false;
        ++counts[depth - 1];
        for (; p < end && *p == '}'; ++p) {
            --depth;
            if (sizes[depth] < 0) sizes[depth] = counts[depth];
            if (sizes[depth] != counts[depth]) return false;
            if (depth == 0) {
                if (promised.count && std::memcmp(sizes, promised.sizes, dimensions * sizeof *sizes)) return false;
                return p + 1 == end;
            }
            ++counts[depth - 1];
        }
        if (p == end || *p++ != delimiter) return false;
        for (; depth < dimensions; ++p) {
            if (p == end || *p != '{') return false;
            counts[depth++] = 0;
        }
    }
}

template <uint8_t delimiter>
inline SlicedList slice_text_array(const uint8_t* p, const uint8_t* end, Elements& elements) {
    Dimensions promised;
    const SlicedList bounds = read_text_bounds(p, end, &promised);
    const size_t before = elements.cells.count;
    if (bounds == SlicedList::BAD) return bounds;
    if (end - p < 2 || *p != '{' || end[-1] != '}') return SlicedList::BAD;
    if (p[1] == '{') return is_text_of_dimensions<delimiter>(p, end, promised) ? SlicedList::MULTI : SlicedList::BAD;
    if (bounds == SlicedList::MULTI) return SlicedList::BAD;
    ++p;
    if (p + 1 == end) return bounds == SlicedList::GOOD ? SlicedList::GOOD : SlicedList::BAD;
    for (;;) {
        TextElement element;
        if (!take_text_element<delimiter>(p, end, &element)) return SlicedList::BAD;
        if (element.escaped) {
            if (!elements.copied) return SlicedList::ESCAPED;
            size_t at = elements.arena.size();
            for (const uint8_t* q = element.start; q < element.end; ++q) {
                if (*q == '\\') ++q;
                elements.arena.push_back(*q);
            }
            elements.cells.add({static_cast<uint32_t>(at), static_cast<int32_t>(elements.arena.size() - at)});
        } else if (element.is_null()) {
            elements.add_null();
        } else {
            elements.add(element.start, static_cast<size_t>(element.end - element.start));
        }
        if (p == end) return SlicedList::BAD;
        if (*p == '}') {
            const bool as_promised =
                bounds == SlicedList::GOOD || static_cast<int64_t>(elements.cells.count - before) == promised.sizes[0];
            return p + 1 == end && as_promised ? bounds : SlicedList::BAD;
        }
        if (*p != delimiter) return SlicedList::BAD;
        if (++p == end) return SlicedList::BAD;
    }
}

// Whether exactly `count` elements, each a length and its bytes, fill the value up to `end`. Calls `each` for every
// one.
template <class Each>
inline bool take_binary_elements(const uint8_t* p, const uint8_t* end, int64_t count, Each each) {
    if (count > (end - p) / 4) return false;
    for (int64_t i = 0; i < count; ++i) {
        if (end - p < 4) return false;
        const int32_t length = static_cast<int32_t>(load32(p));
        p += 4;
        if (length < -1 || length > end - p) return false;
        each(p, length);
        if (length > 0) p += length;
    }
    return p == end;
}

inline SlicedList slice_binary_array(const uint8_t* p, const uint8_t* end, uint32_t element_oid, Elements& elements,
                                 Reason* reason) {
    *reason = BAD_ARRAY;
    if (end - p < 12) return SlicedList::BAD;
    uint32_t dimensions = load32(p), flags = load32(p + 4), oid = load32(p + 8);
    p += 12;
    if (dimensions > MAX_DIMENSIONS || flags > 1) return SlicedList::BAD;
    if (element_oid && oid != element_oid) {
        *reason = BAD_ELEMENT;
        return SlicedList::BAD;
    }
    if (static_cast<size_t>(end - p) < 8 * static_cast<size_t>(dimensions)) return SlicedList::BAD;
    bool empty = dimensions == 0;
    int64_t count = 1;
    for (unsigned i = 0; i < dimensions; ++i) {
        const int64_t size = static_cast<int32_t>(load32(p + 8 * i));
        if (size < 0) return SlicedList::BAD;
        empty = empty || size == 0;
        // Multiplies only while the count does not exceed the remaining bytes. So the product cannot overflow.
        if (!empty && count <= end - p) count *= size;
    }
    const uint8_t* const bounds = p;
    p += 8 * dimensions;
    // A cast from int2vector can leave one dimension without elements.
    if (empty) return p == end ? SlicedList::GOOD : SlicedList::BAD;
    if (dimensions > 1)
        return take_binary_elements(p, end, count, [](const uint8_t*, int32_t) {}) ? SlicedList::MULTI
                                                                                   : SlicedList::BAD;
    const bool whole = take_binary_elements(p, end, count, [&elements](const uint8_t* at, int32_t length) {
        if (length < 0) elements.add_null();
        else elements.add(at, static_cast<size_t>(length));
    });
    if (!whole) return SlicedList::BAD;
    return load32(bounds + 4) != 1 ? SlicedList::SHIFTED : SlicedList::GOOD;
}

// How to split a list's cell. `quick` splits usual cells, or is null. `slice` appends the element cells of any cell. If
// it fails, the reason is `malformed`.
template <bool binary, uint8_t delimiter = ','>
struct SliceArray {
    static constexpr Reason malformed = BAD_ARRAY;
    static QuickSplit quick() noexcept {
        return binary ? nullptr : PGO_AVX_QUICK(split_lists<avx2::ArrayText<delimiter>>);
    }
    static SlicedList slice(const uint8_t* p, const uint8_t* end, const Column& column, Elements& elements,
                            Reason* reason) {
        return binary ? slice_binary_array(p, end, column.plan.element_oid, elements, reason)
                      : slice_text_array<delimiter>(p, end, elements);
    }
};

// A null composite takes few bytes on the wire, but one place in each of its leaf columns here. One null composite is
// always allowed, as it is outside arrays. The places of all others are limited, so that the output is proportional to
// the input and not to the input times the number of fields.
constexpr size_t PLACES_PER_ELEMENT = 32, PLACES_PER_FIELD = 4;

inline bool places_fit(size_t leaves, const CellList& elements, size_t first) noexcept {
    if (leaves <= PLACES_PER_ELEMENT) return true;
    size_t nulls = 0;
    for (size_t k = first; k < elements.count; ++k) nulls += elements.memory[k].length < 0;
    const size_t count = elements.count - first;
    return nulls * leaves <= leaves + PLACES_PER_ELEMENT * count + PLACES_PER_FIELD * leaves * (count - nulls);
}

template <bool binary, class Slicer>
void convert_list(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    Column& child = *column.child;
    const size_t first_issue = issues.size(), leaves = column.plan.leaves;
    int32_t* offsets = column.buffers.reserve_offsets(n);
    const int32_t base = static_cast<int32_t>(child.buffers.rows);
    Elements elements{column.scratch.cells, column.scratch.arena, source.base, false};
    const QuickSplit quick =
        column.statistics.readable_around && leaves <= PLACES_PER_ELEMENT ? Slicer::quick() : nullptr;
    for (size_t i = 0; i < n; ++i) {
        if (i == 0) {
            elements.cells.count = 0;
            if (elements.copied) elements.arena.assign(ARENA_FRONT, 0);
        }
        if (quick && !elements.copied) {
            i += quick(source, cells + i, n - i, elements.cells, offsets + i, base, column.statistics.longest);
            if (i == n) break;
        }
        if (cells[i].length >= 0) {
            const uint8_t* p = source.base + cells[i].offset;
            const uint8_t* end = p + cells[i].length;
            const size_t before = elements.cells.count;
            Reason reason = Slicer::malformed;
            SlicedList sliced = Slicer::slice(p, end, column, elements, &reason);
            if (sliced == SlicedList::ESCAPED) {
                // Starts again at the beginning of the block, now with copies.
                elements.copied = true;
                issues.resize(first_issue);
                i = static_cast<size_t>(-1);
                continue;
            }
            if (sliced == SlicedList::MULTI) reason = MULTI_DIMENSIONAL;
            if (sliced == SlicedList::SHIFTED) reason = LOWER_BOUND;
            if (leaves && sliced != SlicedList::BAD && !places_fit(leaves, elements.cells, before)) {
                sliced = SlicedList::MULTI;
                reason = TOO_MANY_ELEMENTS;
            }
            if (sliced != SlicedList::GOOD) issues.push_back({static_cast<uint32_t>(i), reason, false});
            if (sliced == SlicedList::BAD || sliced == SlicedList::MULTI) elements.cells.count = before;
        }
        offsets[i + 1] = base + static_cast<int32_t>(elements.cells.count);
    }
    if (elements.copied) elements.arena.resize(elements.arena.size() + SLACK);
    Source inner = elements.copied
        ? Source{elements.arena.data(), elements.arena.data() + elements.arena.size()}
        : source;
    child.scratch.child_issues.clear();
    convert_cells(child, binary ? child.plan.binary : child.plan.text, inner, elements.cells.begin(),
                  elements.cells.count, child.scratch.child_issues);
    const int32_t* const ends = column.buffers.int_offsets() + column.buffers.offsets.size() / sizeof(int32_t) - n;
    take_issues(issues, first_issue, child.scratch.child_issues, [=](uint32_t row) {
        return static_cast<uint32_t>(std::upper_bound(ends, ends + n, base + static_cast<int32_t>(row)) - ends);
    });
}

}  // namespace pgo
