// Converts cells into a column: computes statistics of the cells, runs the converter, and sets the validity of the
// rows.
#pragma once
#include <cstdint>

#include "columns/column.hpp"
#include "simd/dispatch.hpp"

namespace pgo {

inline void find_extent(const Cell* cells, size_t n, Extent* extent) noexcept {
    for (size_t i = 0; i < n; ++i) {
        const int32_t length = cells[i].length;
        const uint32_t offset = cells[i].offset, size = static_cast<uint32_t>(length < 0 ? 0 : length);
        extent->signs |= length;
        extent->total += size;
        // A missing cell has a negative length. As an unsigned number that is larger than every real length.
        if (static_cast<uint32_t>(length) < extent->shortest) extent->shortest = static_cast<uint32_t>(length);
        if (size > extent->longest) extent->longest = size;
        if (length >= 0 && offset < extent->first) extent->first = offset;
        if (length >= 0 && offset + size > extent->end) extent->end = offset + size;
    }
}

// Converts n cells of one format and sets the validity of their rows. The rows of the issues are relative to the first
// of `cells`.
inline void convert_cells(Column& column, Convert convert, Source source, const Cell* cells, size_t n, Issues& issues) {
    if (n == 0) return;
    Extent extent;
    size_t seen = 0;
    if (const QuickExtent look = PGO_QUICK(extent)) seen = look(cells, n, &extent);
    find_extent(cells + seen, n - seen, &extent);
    const size_t size = static_cast<size_t>(source.end - source.base);
    const bool missing = extent.signs < 0;
    ColumnStatistics& statistics = column.statistics;
    statistics.missing = missing;
    statistics.total = extent.total;
    statistics.shortest = extent.shortest;
    statistics.longest = extent.longest;
    statistics.bytes_after = size - extent.end;
    statistics.readable_around =
        extent.first >= READ_BEFORE && statistics.bytes_after >= READ_AFTER && size >= READ_AFTER;
    const size_t before = issues.size();
    convert(column, source, cells, n, issues);
    if (!missing && issues.size() == before) {
        column.buffers.append_validity(nullptr, n);
        return;
    }
    const QuickPresence presence = PGO_AVX_QUICK(presence_bits);
    if (presence && issues.size() == before && column.buffers.rows % 8 == 0) {
        uint8_t* bits = column.buffers.reserve_validity(n);
        column.buffers.nulls += n - presence(cells, n, bits);
        column.buffers.rows += n;
        return;
    }
    column.scratch.valid.resize(n);
    uint8_t* valid = column.scratch.valid.data();
    for (size_t i = 0; i < n; ++i) valid[i] = cells[i].length >= 0;
    for (size_t k = before; k < issues.size(); ++k)
        if (!issues[k].inside && issues[k].reason < FIRST_NOTED) valid[issues[k].row] = 0;
    column.buffers.append_validity(valid, n);
}

}  // namespace pgo
