// Limits the text size of binary numerics inside an array, range or composite.
#pragma once
#include <cstdint>
#include <vector>

#include "types/binary_numeric.hpp"
#include "columns/cells.hpp"
#include "columns/column.hpp"
#include "types/convert_list.hpp"
#include "types/convert_struct.hpp"
#include "protocol/limits.hpp"

namespace pgo {

// One numeric of any length is always allowed, as it is outside arrays. Beyond that, a value may print at most this
// many characters per byte, so that the output is proportional to the input.
constexpr size_t TEXT_PER_BYTE = 32;

// The number of characters before and after the point announced by a numeric's header.
inline size_t announced_text(const uint8_t* p, size_t n) noexcept {
    if (n < 8 || (load16(p + 4) & ~NUMERIC_NEGATIVE)) return 0;
    const int weight = static_cast<int16_t>(load16(p + 2));
    return (weight < 0 ? 1 : 4 * (static_cast<size_t>(weight) + 1)) + 1 + load16(p + 6);
}

// Adds to `total` the number of characters announced by the numerics in a binary value. Stops at the first malformed
// part and returns its reason.
inline Reason add_numeric_text(Column& column, Source source, const Cell& cell, size_t* total) {
    if (column.plan.numerics == Numerics::NONE || cell.length < 0) return OK;
    const uint8_t* const p = source.base + cell.offset;
    const uint8_t* const end = p + cell.length;
    if (column.plan.numerics == Numerics::ITSELF) {
        *total += announced_text(p, static_cast<size_t>(cell.length));
        return OK;
    }
    if (column.plan.numerics == Numerics::IN_ARRAY || column.plan.numerics == Numerics::IN_MULTIRANGE) {
        column.scratch.cells.count = 0;
        Elements elements{column.scratch.cells, column.scratch.arena, source.base, false};
        const bool array = column.plan.numerics == Numerics::IN_ARRAY;
        Reason reason = array ? BAD_ARRAY : BAD_NESTED;
        const SlicedList sliced = array ? slice_binary_array(p, end, column.plan.element_oid, elements, &reason)
                                    : slice_binary_multirange(p, end, elements);
        if (sliced == SlicedList::BAD) return reason;
        if (sliced == SlicedList::MULTI) return OK;  // its elements are not converted
        for (const Cell& element : column.scratch.cells)
            if (Reason inside = add_numeric_text(*column.child, source, element, total)) return inside;
        return OK;
    }
    Fields fields{column.scratch.arena, source.base, false};
    if (column.plan.numerics == Numerics::IN_RANGE) {
        Cell bounds[2];
        uint8_t flags[3];
        if (slice_binary_range(p, end, fields, bounds, bounds + 1, flags, flags + 1, flags + 2) != SlicedFields::GOOD)
            return BAD_NESTED;
        for (size_t k = 0; k < 2; ++k)
            if (Reason inside = add_numeric_text(*column.fields[k], source, bounds[k], total)) return inside;
        return OK;
    }
    column.scratch.cells.count = 0;
    Cell* const found = column.scratch.cells.reserve(column.fields.size());
    const SlicedFields sliced = slice_binary_record(p, end, fields, found, 1, column.plan.field_oids);
    if (sliced == SlicedFields::DIFFERENT) return OK;  // its fields are not converted
    if (sliced != SlicedFields::GOOD) return BAD_NESTED;
    for (size_t k = 0; k < column.fields.size(); ++k)
        if (Reason inside = add_numeric_text(*column.fields[k], source, found[k], total)) return inside;
    return OK;
}

// Like convert_cells, for a column of a relation. Refuses values whose numerics would print too much text.
inline void convert_column(Column& column, Convert convert, Source source, const Cell* cells, size_t n,
                           Issues& issues) {
    Issues refused;
    if (column.plan.numerics > Numerics::ITSELF && convert == column.plan.binary) {
        for (size_t i = 0; i < n; ++i) {
            if (cells[i].length < 0) continue;
            size_t total = 0;
            const Reason reason = add_numeric_text(column, source, cells[i], &total);
            if (total > LONGEST_NUMERIC + TEXT_PER_BYTE * static_cast<size_t>(cells[i].length))
                refused.push_back({static_cast<uint32_t>(i), reason ? reason : TOO_MUCH_TEXT, false});
        }
    }
    if (refused.empty()) {
        convert_cells(column, convert, source, cells, n, issues);
        return;
    }
    std::vector<Cell> accepted(cells, cells + n);
    for (const Issue& issue : refused) accepted[issue.row].length = CELL_NULL;
    convert_cells(column, convert, source, accepted.data(), n, issues);
    issues.insert(issues.end(), refused.begin(), refused.end());
}

}  // namespace pgo
