// Converters from binary cells to the text that the server would send for the same value.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "types/binary_bits.hpp"
#include "types/binary_geometry.hpp"
#include "types/binary_network.hpp"
#include "types/binary_system.hpp"
#include "types/binary_textsearch.hpp"
#include "types/binary_timetz.hpp"
#include "types/convert.hpp"

namespace pgo {

// A converter wrote more bytes than it had reserved. It may have damaged memory, so the process is aborted.
[[noreturn]] inline void end_after_overrun() {
    std::fputs("registry.hpp: `longest` of a print_fixed is less than what its function prints\n", stderr);
    std::abort();
}

// Prints values of one width. Their text has at most `longest` characters; the bound must be right, because no more
// memory is reserved. Print returns the end of its text, or nullptr for a value that no server sends.
template <uint32_t width, size_t longest, uint8_t* (*Print)(const uint8_t*, uint8_t*)>
void print_fixed(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    bool usual = !column.statistics.missing && n <= (MAX_OFFSET - column.buffers.data.size()) / longest;
    for (size_t i = 0; i < n; ++i) usual &= cells[i].length == static_cast<int32_t>(width);
    if (usual) {
        const size_t offsets_before = column.buffers.offsets.size();
        int32_t* offsets = column.buffers.reserve_offsets(n);
        uint8_t* const start = column.buffers.data.reserve(n * longest);
        uint8_t* out = start;
        for (size_t i = 0; i < n; ++i) {
            out = Print(source.base + cells[i].offset, out);
            if (!out) break;
            offsets[i + 1] = offsets[0] + static_cast<int32_t>(out - start);
        }
        if (out) {
            if (static_cast<size_t>(out - start) > n * longest) end_after_overrun();
            column.buffers.data.set_size(static_cast<size_t>(offsets[n]));
            return;
        }
        column.buffers.offsets.set_size(offsets_before);
    }
    column.statistics.total = std::min<size_t>(column.statistics.total / width * longest, MAX_OFFSET);
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (length != width) return BAD_LENGTH;
        uint8_t* const start = out.reserve(longest);
        uint8_t* const end = Print(p, start);
        if (!end) return OUT_OF_RANGE;
        if (static_cast<size_t>(end - start) > longest) end_after_overrun();
        out.set_size(out.size() + static_cast<size_t>(end - start));
        return OK;
    });
}

// Prints values of any length. Print appends at most `growth` characters for each byte of the value.
template <uint32_t growth, Reason (*Print)(const uint8_t*, uint32_t, Buffer&)>
void print_variable(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        // Checked first, so that no memory is allocated for text that cannot fit.
        if (static_cast<size_t>(length) * growth > MAX_OFFSET) return DOES_NOT_FIT;
        return Print(p, length, out);
    });
}

inline void tsquery_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    TsqueryPrinter printer;
    write_bytes(column, source, cells, n, issues, [&printer](const uint8_t* p, uint32_t length, Buffer& out) {
        if (static_cast<size_t>(length) * 4 > MAX_OFFSET) return DOES_NOT_FIT;
        return printer.print(p, length, out);
    });
}

}  // namespace pgo
