// Slices four tuples in parallel. A cell's position is known only after the previous cell has been read, so the
// processor would wait with a single tuple; four tuples take little longer than one. There is no branch on a cell's
// kind, because nulls are hard to predict.
#pragma once
#include <cstdint>

#include "protocol/wire.hpp"

namespace pgo {

// What a cell's first byte encodes, packed into one word. The low 32 bits are a mask for the length, 0 for a null.
// Above them are the size of the cell's header and flags: bit 0 for text, bit 1 for binary, UNUSUAL for cells that are
// left to slice_message.
constexpr int HEADER_SHIFT = 32, MET_SHIFT = 40;
constexpr uint64_t UNUSUAL = 0x80;
struct CellKinds {
    uint64_t of[256];
    constexpr CellKinds() : of() {
        for (uint64_t& kind : of) kind = uint64_t{1} << HEADER_SHIFT | UNUSUAL << MET_SHIFT;
        of['t'] = uint64_t{1} << MET_SHIFT | uint64_t{5} << HEADER_SHIFT | 0xffffffff;
        of['b'] = uint64_t{2} << MET_SHIFT | uint64_t{5} << HEADER_SHIFT | 0xffffffff;
        of['n'] = uint64_t{1} << HEADER_SHIFT;
    }
};
inline constexpr CellKinds CELL_KINDS{};

// This many bytes after the end of a message must be readable.
constexpr int64_t HEADER_READ_AFTER = 8;

// The five bytes of a cell's header, in memory order.
constexpr uint64_t HEADER_BITS = (uint64_t{1} << 40) - 1;

// Slices `columns` cells of each of four tuples. The four cells of a column are adjacent, and columns are `stride`
// cells apart. Returns true if every tuple ends with its message and has only values and nulls. `formats` receives the
// format bits of the cells.
//
// `shared_header` has, per column, the header that all cells have had so far, or 0 if they differ. With `learn` it is
// filled, otherwise it is used. If a column's cells share a header, the position of the next cell is known without
// waiting for the length: that is usual for numbers, times and UUIDs.
inline bool slice_four_tuples(const uint8_t* const starts[4], const uint8_t* const ends[4], const uint8_t* base,
                              int32_t columns, int64_t stride, Cell* cell, uint8_t* formats, uint64_t* shared_header,
                              bool learn) noexcept {
    const uint8_t* at[4] = {starts[0], starts[1], starts[2], starts[3]};
    uint64_t met = 0;
    for (int32_t c = 0; c < columns; ++c, cell += stride) {
        int64_t space = 0;  // negative if a tuple is longer than its message
        if (learn) {
            const uint64_t header = load64_raw(at[0]) & HEADER_BITS;
            const uint64_t others =
                (load64_raw(at[1]) ^ header) | (load64_raw(at[2]) ^ header) | (load64_raw(at[3]) ^ header);
            // A null has no length: the bytes after its first byte are not its header.
            shared_header[c] = (others & HEADER_BITS) || *at[0] == 'n' ? 0 : header;
        } else if (shared_header[c]) {
            const uint64_t header = shared_header[c];
            const uint64_t differences = (load64_raw(at[0]) ^ header) | (load64_raw(at[1]) ^ header) |
                                         (load64_raw(at[2]) ^ header) | (load64_raw(at[3]) ^ header);
            if (__builtin_expect(!(differences & HEADER_BITS), 1)) {
                const uint32_t length = __builtin_bswap32(static_cast<uint32_t>(header >> 8));
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                    cell[k] = {static_cast<uint32_t>(at[k] - base) + 5, static_cast<int32_t>(length)};
                    at[k] += uint64_t{length} + 5;
                    space |= ends[k] - at[k];
                }
                met |= CELL_KINDS.of[header & 0xff];
                if (__builtin_expect(space < 0 || (met & UNUSUAL << MET_SHIFT), 0)) return false;
                continue;
            }
            shared_header[c] = 0;
        }
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            const uint64_t kind = CELL_KINDS.of[*at[k]];
            const uint32_t mask = static_cast<uint32_t>(kind), length = load32(at[k] + 1);
            at[k] += kind >> HEADER_SHIFT & 0xff;
            cell[k] = {static_cast<uint32_t>(at[k] - base), static_cast<int32_t>(length | ~mask)};
            at[k] += length & mask;
            space |= ends[k] - at[k];
            met |= kind;
        }
        if (__builtin_expect(space < 0 || (met & UNUSUAL << MET_SHIFT), 0)) return false;
    }
    *formats = static_cast<uint8_t>(met >> MET_SHIFT & 3);
    return at[0] == ends[0] && at[1] == ends[1] && at[2] == ends[2] && at[3] == ends[3];
}

}  // namespace pgo
