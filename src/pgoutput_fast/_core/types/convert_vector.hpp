// pgvector's vectors: vector and halfvec become lists of float4, sparsevec becomes its text.
#pragma once
#include <cstdint>
#include <cstring>

#include "columns/column.hpp"
#include "types/convert.hpp"
#include "types/convert_list.hpp"
#include "types/shortest_float.hpp"

namespace pgo {

// Text: numbers between brackets, without blanks, quotes or nulls. The converter of float4 reads the numbers.
inline SlicedList slice_text_vector(const uint8_t* p, const uint8_t* end, Elements& elements) {
    if (end - p < 3 || *p != '[' || end[-1] != ']') return SlicedList::BAD;
    for (const uint8_t* start = ++p;; ++p) {
        if (*p != ',' && p != end - 1) continue;
        if (p == start) return SlicedList::BAD;
        elements.add(start, static_cast<size_t>(p - start));
        if (p == end - 1) return SlicedList::GOOD;
        start = p + 1;
    }
}

struct SliceVector {
    static constexpr Reason malformed = BAD_NESTED;
    static QuickSplit quick() noexcept { return PGO_AVX_QUICK(split_vectors); }
    static SlicedList slice(const uint8_t* p, const uint8_t* end, const Column&, Elements& elements, Reason*) {
        return slice_text_vector(p, end, elements);
    }
};

struct Float4Wire {
    static constexpr uint32_t width = 4;
    static float read(const uint8_t* p) noexcept {
        float value;
        read_float4(p, &value);
        return value;
    }
};

// A half has a sign, 5 bits of exponent and 10 of fraction. Every half is a float4.
struct HalfWire {
    static constexpr uint32_t width = 2;
    static float read(const uint8_t* p) noexcept {
        const uint32_t half = load16(p), magnitude = half & 0x7fff;
        const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
        uint32_t bits;
        std::memcpy(&bits, &subnormal, sizeof bits);
        if (magnitude >= 0x0400) bits = (magnitude << 13) + ((127 - 15) << 23);
        if (magnitude >= 0x7c00) bits = magnitude == 0x7c00 ? 0x7f800000 : 0x7fc00000;
        bits |= magnitude <= 0x7c00 ? (half & 0x8000) << 16 : 0;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
};

constexpr uint32_t VECTOR_HEADER = 4;

// Binary: the number of elements and an unused number, 16 bits each, and the elements.
template <class Wire>
void vector_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    ColumnBuffers& elements = column.child->buffers;
    int32_t* offsets = column.buffers.reserve_offsets(n);
    const size_t before = elements.rows;
    elements.data.reserve(column.statistics.total / Wire::width * sizeof(float));
    size_t rows = before;
    for (size_t i = 0; i < n; ++i) {
        if (cells[i].length >= 0) {
            const uint8_t* p = source.base + cells[i].offset;
            const uint32_t length = static_cast<uint32_t>(cells[i].length);
            const uint32_t count = length < VECTOR_HEADER ? 0 : load16(p);
            if (count == 0 || length != VECTOR_HEADER + count * Wire::width || load16(p + 2)) {
                issues.push_back({static_cast<uint32_t>(i), BAD_NESTED, false});
            } else {
                float* out = elements.reserve_values<float>(count);
                for (uint32_t k = 0; k < count; ++k) out[k] = Wire::read(p + VECTOR_HEADER + k * Wire::width);
                rows += count;
            }
        }
        offsets[i + 1] = static_cast<int32_t>(rows);
    }
    elements.append_validity(nullptr, rows - before);
}

// Prints {index:value,...}/size. The indices are sent from 0 up and printed from 1 up.
inline Reason print_sparsevec(const uint8_t* p, uint32_t length, Buffer& out) {
    if (length < 12) return BAD_LENGTH;
    const int32_t size = static_cast<int32_t>(load32(p)), count = static_cast<int32_t>(load32(p + 4));
    if (size < 1 || count < 0 || count > size || load32(p + 8)) return OUT_OF_RANGE;
    if (length - 12 != static_cast<uint64_t>(count) * 8) return BAD_LENGTH;
    const uint8_t* indices = p + 12;
    const uint8_t* values = indices + 4 * static_cast<size_t>(count);
    uint8_t* const start = out.reserve(static_cast<size_t>(count) * (LONGEST_INTEGER + LONGEST_FLOAT4 + 2) + 14);
    uint8_t* at = start;
    *at++ = '{';
    int32_t last = -1;
    for (int32_t i = 0; i < count; ++i, indices += 4, values += 4) {
        const int32_t index = static_cast<int32_t>(load32(indices));
        if (index <= last || index >= size) return OUT_OF_RANGE;
        last = index;
        if (i) *at++ = ',';
        at = print_integer(static_cast<int64_t>(index) + 1, at);
        *at++ = ':';
        at = PrintedFloats<1, float>(values).print(0, at);
    }
    *at++ = '}';
    *at++ = '/';
    at = print_integer(size, at);
    out.set_size(out.size() + static_cast<size_t>(at - start));
    return OK;
}

}  // namespace pgo
