// The parts of a binary COPY stream around its rows: a header with signature, flags and an extension, the number of
// fields before every row, and a trailer after the last row.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "protocol/wire.hpp"

namespace pgo {

constexpr uint8_t COPY_SIGNATURE[] = {'P', 'G', 'C', 'O', 'P', 'Y', '\n', 0xff, '\r', '\n', 0};
// Offsets of the flags, of the extension's length, and of the extension.
constexpr int64_t COPY_FLAGS_AT = sizeof COPY_SIGNATURE;
constexpr int64_t COPY_LENGTH_AT = COPY_FLAGS_AT + 4;
constexpr int64_t COPY_HEADER_BYTES = COPY_LENGTH_AT + 4;

// The trailer takes the place of a row's number of fields, and has the same size.
constexpr uint16_t COPY_TRAILER = 0xffff;
constexpr int64_t COPY_TRAILER_BYTES = 2;

// The part of the stream that the next byte belongs to.
enum CopyStage : uint8_t {
    IN_HEADER,
    IN_EXTENSION,
    IN_ROWS,
    AFTER_TRAILER,
};

// Parser state of the header of a stream that may be split anywhere. Initially all zeros.
struct CopyHeader {
    CopyStage stage;
    int64_t skip;    // bytes of the extension that are still to be read
    int64_t bad_at;  // offset in the header of the invalid field
};

// Consumes bytes of the header at p, unless the header is complete. Returns the number of bytes consumed: 0 if more
// input is needed, -1 if this is not a header or has unknown options.
inline int64_t take_copy_header(CopyHeader* header, const uint8_t* p, int64_t size,
                                int64_t longest_extension) noexcept {
    const auto bad = [&](int64_t at) {
        header->bad_at = at;
        return int64_t{-1};
    };
    if (header->stage == IN_HEADER) {
        const int64_t there = std::min(size, COPY_FLAGS_AT);
        if (there && std::memcmp(p, COPY_SIGNATURE, static_cast<size_t>(there)) != 0) return bad(0);
        if (size < COPY_HEADER_BYTES) return 0;
        // A reader may ignore the lower half of the flags. Bit 16 once meant that every row has an oid before its
        // fields.
        if (load32(p + COPY_FLAGS_AT) >> 16) return bad(COPY_FLAGS_AT);
        const int64_t length = static_cast<int32_t>(load32(p + COPY_LENGTH_AT));
        if (length < 0 || length > longest_extension) return bad(COPY_LENGTH_AT);
        header->skip = length;
        header->stage = length ? IN_EXTENSION : IN_ROWS;
        return COPY_HEADER_BYTES;
    }
    const int64_t taken = std::min(size, header->skip);
    header->skip -= taken;
    if (header->skip == 0) header->stage = IN_ROWS;
    return taken;
}

}  // namespace pgo
