// What is around the rows of a COPY in binary format: a header, which is the signature, flags and an extension; before
// each row how many fields it has; and behind the last one a trailer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "protocol/wire.hpp"

namespace pgo {

constexpr uint8_t COPY_SIGNATURE[] = {'P', 'G', 'C', 'O', 'P', 'Y', '\n', 0xff, '\r', '\n', 0};
// Where the flags are, the length of the extension, and the extension.
constexpr int64_t COPY_FLAGS_AT = sizeof COPY_SIGNATURE;
constexpr int64_t COPY_LENGTH_AT = COPY_FLAGS_AT + 4;
constexpr int64_t COPY_HEADER_BYTES = COPY_LENGTH_AT + 4;

// Stands where a row would say how many fields it has, and is as long.
constexpr uint16_t COPY_TRAILER = 0xffff;
constexpr int64_t COPY_TRAILER_BYTES = 2;

// Where in the stream the next byte belongs.
enum CopyStage : uint8_t {
    IN_HEADER,
    IN_EXTENSION,
    IN_ROWS,
    BEHIND_TRAILER,
};

// Of a stream that may be cut anywhere. It begins as zeros.
struct CopyHeader {
    CopyStage stage;
    int64_t skip;    // bytes of the extension still to come
    int64_t bad_at;  // where in the header the field is that no COPY has
};

// Takes what is at p of the header, while that is not behind. Returns how many bytes that was: 0 if more must be there
// first, -1 if this is no header, or one with options that are not known.
inline int64_t take_copy_header(CopyHeader* header, const uint8_t* p, int64_t size, int64_t longest_extension) noexcept {
    const auto bad = [&](int64_t at) {
        header->bad_at = at;
        return int64_t{-1};
    };
    if (header->stage == IN_HEADER) {
        const int64_t there = std::min(size, COPY_FLAGS_AT);
        if (there && std::memcmp(p, COPY_SIGNATURE, static_cast<size_t>(there)) != 0) return bad(0);
        if (size < COPY_HEADER_BYTES) return 0;
        // A reader may ignore the lower half of the flags; bit 16 once meant oids before the fields.
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
