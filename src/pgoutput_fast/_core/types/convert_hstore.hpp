// hstore: a cell is split into keys and values, and the string converter converts a block of each.
#pragma once
#include <cstdint>
#include <cstring>

#include "columns/cells.hpp"
#include "columns/column.hpp"
#include "types/convert.hpp"
#include "types/convert_struct.hpp"
#include "types/utf8.hpp"

namespace pgo {

// The cells of a block's keys and values. Pair k of the block is key k with value k.
struct Pairs {
    CellList& keys;
    CellList& values;
    Fields fields;

    const uint8_t* bytes_of(Cell cell) const noexcept {
        return (fields.copied ? fields.arena.data() : fields.base) + cell.offset;
    }
    // hstore sorts its keys by length, then by bytes, and has none twice. Readers of maps depend on that.
    bool add(Cell key, Cell value, size_t first) {
        if (keys.count > first) {
            const Cell last = keys.memory[keys.count - 1];
            const bool ascending =
                last.length != key.length
                    ? last.length < key.length
                    : std::memcmp(bytes_of(last), bytes_of(key), static_cast<size_t>(key.length)) < 0;
            if (!ascending) return false;
        }
        keys.add(key);
        values.add(value);
        return true;
    }
};

// Reads a key or a value in quotes. hstore_out puts a backslash before quotes and backslashes.
inline SlicedFields take_quoted(const uint8_t*& p, const uint8_t* end, Fields& fields, Cell* out) {
    if (p == end || *p != '"') return SlicedFields::BAD;
    const uint8_t* const start = ++p;
    bool escaped = false;
    for (;; ++p) {
        p = find_quote(p, end);
        if (p == end) return SlicedFields::BAD;
        if (*p == '"') break;
        if (++p == end || (*p != '"' && *p != '\\')) return SlicedFields::BAD;
        escaped = true;
    }
    if (escaped && !fields.copied) return SlicedFields::ESCAPED;
    *out = escaped ? fields.undoubled(start, p) : fields.cell_of(start, static_cast<size_t>(p - start));
    ++p;
    return SlicedFields::GOOD;
}

inline bool take_literal(const uint8_t*& p, const uint8_t* end, const char* text, size_t n) noexcept {
    if (static_cast<size_t>(end - p) < n || std::memcmp(p, text, n)) return false;
    p += n;
    return true;
}

inline SlicedFields slice_text_hstore(const uint8_t* p, const uint8_t* end, Pairs& pairs, Reason* reason) {
    *reason = is_utf8(p, static_cast<size_t>(end - p)) ? BAD_NESTED : NOT_UTF8;
    if (*reason == NOT_UTF8) return SlicedFields::BAD;
    const size_t first = pairs.keys.count;
    while (p < end) {
        if (pairs.keys.count > first && !take_literal(p, end, ", ", 2)) return SlicedFields::BAD;
        Cell key, value{static_cast<uint32_t>(ARENA_FRONT), CELL_NULL};
        SlicedFields sliced = take_quoted(p, end, pairs.fields, &key);
        if (sliced != SlicedFields::GOOD) return sliced;
        if (!take_literal(p, end, "=>", 2)) return SlicedFields::BAD;
        if (!take_literal(p, end, "NULL", 4)) sliced = take_quoted(p, end, pairs.fields, &value);
        if (sliced != SlicedFields::GOOD) return sliced;
        if (!pairs.add(key, value, first)) return SlicedFields::BAD;
    }
    return SlicedFields::GOOD;
}

inline SlicedFields slice_binary_hstore(const uint8_t* p, const uint8_t* end, Pairs& pairs, Reason* reason) {
    *reason = BAD_NESTED;
    if (end - p < 4) return SlicedFields::BAD;
    const int64_t count = static_cast<int32_t>(load32(p));
    p += 4;
    if (count < 0 || count > (end - p) / 8) return SlicedFields::BAD;
    const size_t first = pairs.keys.count;
    bool whole = true;
    for (int64_t i = 0; i < count; ++i) {
        Cell key, value;
        if (!take_binary_field(p, end, pairs.fields, &key) || key.length < 0) return SlicedFields::BAD;
        if (!take_binary_field(p, end, pairs.fields, &value)) return SlicedFields::BAD;
        if (!pairs.add(key, value, first)) return SlicedFields::BAD;
        for (const Cell part : {key, value})
            whole &= part.length <= 0 || is_utf8(pairs.bytes_of(part), static_cast<size_t>(part.length));
    }
    if (p != end) return SlicedFields::BAD;
    if (!whole) *reason = NOT_UTF8;
    return whole ? SlicedFields::GOOD : SlicedFields::BAD;
}

// A key cannot be null, so a key or a value that is not UTF-8 makes the whole map null.
template <bool binary>
void convert_hstore(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    Column& child = *column.child;
    const size_t first_issue = issues.size();
    int32_t* offsets = column.buffers.reserve_offsets(n);
    const size_t base = child.buffers.rows;
    Pairs pairs{column.scratch.cells, column.scratch.parts, {column.scratch.arena, source.base, false}};
    pairs.keys.count = pairs.values.count = 0;
    for (size_t i = 0; i < n; ++i) {
        if (cells[i].length >= 0) {
            const uint8_t* p = source.base + cells[i].offset;
            const size_t before = pairs.keys.count;
            Reason reason;
            const SlicedFields sliced =
                (binary ? slice_binary_hstore : slice_text_hstore)(p, p + cells[i].length, pairs, &reason);
            if (sliced == SlicedFields::ESCAPED) {
                // Starts again at the beginning of the block, now with copies.
                pairs.fields.copied = true;
                pairs.fields.arena.assign(ARENA_FRONT, 0);
                pairs.keys.count = pairs.values.count = 0;
                issues.resize(first_issue);
                i = static_cast<size_t>(-1);
                continue;
            }
            if (sliced != SlicedFields::GOOD) {
                issues.push_back({static_cast<uint32_t>(i), reason, false});
                pairs.keys.count = pairs.values.count = before;
            }
        }
        offsets[i + 1] = static_cast<int32_t>(base + pairs.keys.count);
    }
    std::vector<uint8_t>& arena = pairs.fields.arena;
    if (pairs.fields.copied) arena.resize(arena.size() + SLACK);
    const Source inner = pairs.fields.copied ? Source{arena.data(), arena.data() + arena.size()} : source;
    const size_t count = pairs.keys.count;
    Issues& none = child.scratch.child_issues;
    none.clear();
    convert_cells(*child.fields[0], string_any, inner, pairs.keys.begin(), count, none);
    convert_cells(*child.fields[1], string_any, inner, pairs.values.begin(), count, none);
    child.buffers.append_validity(nullptr, count);
}

}  // namespace pgo
