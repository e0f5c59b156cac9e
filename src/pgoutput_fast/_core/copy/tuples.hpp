// Makes a table of cells from the tuples of a binary COPY. The end of a row is known only after its last cell, so
// complete rows are sliced one after another.
#pragma once
#include <cstdint>

#include "columns/column.hpp"
#include "copy/binary_format.hpp"
#include "protocol/limits.hpp"
#include "protocol/reasons.hpp"
#include "protocol/wire.hpp"

namespace pgo {

// No cell has this length.
constexpr int64_t VARYING = INT64_MIN;

// The length of all cells of the last block, from the column's statistics; VARYING if they differ.
inline int64_t fixed_length_of(const Column& column) noexcept {
    const ColumnStatistics& cells = column.statistics;
    return cells.shortest == cells.longest ? static_cast<int64_t>(cells.longest) : VARYING;
}

enum CopyStop : uint8_t {
    COPY_FULL,  // the requested number of rows or bytes
    COPY_MORE,  // the rest is not a complete row
    COPY_END,   // at the trailer
    COPY_BAD,   // an error, see CopyPlace
};

// Where slicing stopped, and the error there, if any.
struct CopyPlace {
    const uint8_t* at = nullptr;
    Reason reason = OK;
    int32_t column = -1, sent = -1;
    int64_t row = 0;  // its ordinal among the sliced rows
};

// Output of slicing. The cells of column c are cells[c * stride ..]; `start` and `length` locate the rows.
struct CopyCells {
    Cell* cells = nullptr;
    int64_t stride = 0;
    uint32_t* start = nullptr;   // of every row that was read, relative to base
    uint32_t* length = nullptr;
    uint32_t* row_message = nullptr;  // per taken row: its ordinal among the rows read
    int64_t met = 0, rows = 0, bytes = 0;
};

// Slices rows from `p` on until it has read `most_rows` rows or `most_bytes` bytes, or no complete row is left. Rows
// that are not `taken` get no cells. `fixed_length` has the expected length of all cells per column, or VARYING. With
// these lengths, the processor need not wait for the length of a value to locate the next one.
inline CopyStop slice_copied(const uint8_t* p, const uint8_t* end, const uint8_t* base, int32_t columns,
                             int64_t most_rows, int64_t most_bytes, const uint8_t* taken, const int64_t* fixed_length,
                             CopyCells* out, CopyPlace* place) noexcept {
    const uint8_t* const first = p;
    const int64_t stride = out->stride;
    const auto bad = [&](const uint8_t* at, Reason reason, int32_t column) {
        place->at = at;
        place->reason = reason;
        place->column = column;
        place->row = out->met;
        return COPY_BAD;
    };
    out->met = out->rows = out->bytes = 0;
    place->at = p;
    for (; out->met < most_rows && p - first < most_bytes; ++out->met) {
        const uint8_t* q = p;
        if (end - q < 2) return COPY_MORE;
        const uint16_t sent = load16(q);
        if (sent == COPY_TRAILER) return COPY_END;
        if (sent != columns) {
            place->sent = sent;
            return bad(q, BAD_CELL_COUNT, -1);
        }
        q += 2;
        Cell* cell = out->cells + out->rows;
        for (int32_t c = 0; c < columns; ++c, cell += stride) {
            if (__builtin_expect(end - q < 4, 0)) return end - p > MAX_PAYLOAD ? bad(p, ROW_TOO_LONG, c) : COPY_MORE;
            const int32_t length = static_cast<int32_t>(load32(q));
            q += 4;
            *cell = {static_cast<uint32_t>(q - base), length};
            // With this comparison, the processor continues speculatively with the expected length.
            int64_t size = fixed_length[c];
            if (length != size) {
                if (__builtin_expect(length < -1, 0)) return bad(q - 4, BAD_CELL_LENGTH, c);
                if (__builtin_expect(length > MAX_PAYLOAD, 0)) return bad(q - 4, ROW_TOO_LONG, c);
                size = length < 0 ? 0 : length;
            }
            if (__builtin_expect(end - q < size, 0)) {
                // The row's length up to the end of this value is known. If that exceeds the limit, the row can never
                // be complete.
                return (q - p) + size > MAX_PAYLOAD ? bad(p, ROW_TOO_LONG, c) : COPY_MORE;
            }
            q += size;
        }
        if (q - p > MAX_PAYLOAD) return bad(p, ROW_TOO_LONG, -1);
        out->start[out->met] = static_cast<uint32_t>(p - base);
        out->length[out->met] = static_cast<uint32_t>(q - p);
        if (taken[out->met]) {
            out->row_message[out->rows] = static_cast<uint32_t>(out->met);
            out->rows += 1;
            out->bytes += q - p;
        }
        place->at = p = q;
    }
    return COPY_FULL;
}

}  // namespace pgo
