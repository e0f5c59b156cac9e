// Why a message or a cell was not taken. The ground floor returns these codes with a place;
// errors.py is the one room that turns them into sentences.
#pragma once
#include <cstdint>

namespace pgo {

enum Reason : uint8_t {
    OK = 0,

    // Malformed: the bytes are not what the protocol, the Relation or the type allows.
    EMPTY_PAYLOAD = 1,
    UNKNOWN_TAG,
    TRUNCATED,
    TRAILING_BYTES,
    PAYLOAD_TOO_LONG,
    BAD_TUPLE_TAG,
    BAD_CELL_KIND,
    BAD_CELL_LENGTH,
    BAD_CELL_COUNT,
    BAD_FLAGS,
    BAD_STRING,
    BAD_COUNT,
    BAD_IDENTITY,
    BAD_POSITION,
    BAD_TIMESTAMP,
    DUPLICATE_COLUMN,
    NO_RELATION,
    RELATION_LOST,
    STATE_LOST,
    OUTSIDE_TRANSACTION,
    EXPECTED_COMMIT,
    STREAM_UNKNOWN,
    OTHER_COMMIT,
    BAD_TEXT,
    BAD_LENGTH,
    BAD_VERSION,
    BAD_ELEMENT,
    BAD_ARRAY,
    OUT_OF_RANGE,
    UNKNOWN_VERSION,
    TAGS_DISAGREE,
    BAD_NESTED = 44,

    // Not pgoutput's messages at all, but what is around them, or text made of them.
    TEXT_PAYLOAD = 40,
    FRAMED_PAYLOAD,
    UNKNOWN_FRAME,
    COPY_DATA_HEADER,

    // Boundaries out of order: what should have come first.
    EXPECTED_BEGIN = 48,
    EXPECTED_BEGIN_PREPARE,
    EXPECTED_PREPARE,
    EXPECTED_STREAM_START,
    EXPECTED_STREAM_STOP,
    OTHER_PREPARE,
    FATE_UNKNOWN,
    TYPE_CHANGED,

    // Of COPY's binary format. What ends too early, or goes on, is told by whoever has the stream: see errors.py.
    BAD_COPY_HEADER = 58,
    ROW_TOO_LONG = 62,

    // Unrepresentable: a legal value that the column's Arrow type cannot hold.
    FIRST_UNREPRESENTABLE = 64,
    IS_INFINITE = FIRST_UNREPRESENTABLE,
    IS_NAN,
    BEYOND_RANGE,
    HOUR_24,
    MULTI_DIMENSIONAL,
    NOT_UTF8,
    DOES_NOT_FIT,
    FIELDS_DIFFER = 84,
    TOO_MANY_ELEMENTS,
    TOO_MUCH_TEXT,

    // Kept, but something about the value is not: only a reject remembers it.
    FIRST_NOTED = 128,
    LOWER_BOUND = FIRST_NOTED,
};

}  // namespace pgo
