// Ranges, composites and points: a cell is split into one cell per field, and every field's converter converts a whole
// block of them. Multiranges are lists of ranges.
#pragma once
#include <cstdint>
#include <cstring>

#include "columns/column.hpp"
#include "types/convert.hpp"
#include "types/convert_list.hpp"

namespace pgo {

enum class SlicedFields : uint8_t { GOOD, BAD, DIFFERENT, ESCAPED };

// The characters that make record_out or range_out quote a value. Brackets matter only to range_out.
constexpr uint8_t IN_RECORD = 1, IN_RANGE = 2;
inline constexpr struct Quoted {
    uint8_t by[256] = {};
    constexpr Quoted() {
        for (char c : {'"', '\\', '(', ')', ',', ' ', '\t', '\n', '\v', '\f', '\r'})
            by[static_cast<unsigned char>(c)] = IN_RECORD | IN_RANGE;
        by[static_cast<unsigned char>('[')] = by[static_cast<unsigned char>(']')] = IN_RANGE;
    }
} QUOTED;

// The field cells of one block: all cells of the first field, then all of the second, and so on. They point into the
// payload. If any value of the block has doubled quotes or backslashes, all fields are copied into the arena.
struct Fields {
    std::vector<uint8_t>& arena;
    const uint8_t* base;
    bool copied;

    Cell cell_of(const uint8_t* p, size_t n) {
        if (!copied) return {static_cast<uint32_t>(p - base), static_cast<int32_t>(n)};
        const Cell cell{static_cast<uint32_t>(arena.size()), static_cast<int32_t>(n)};
        arena.insert(arena.end(), p, p + n);
        return cell;
    }
    // Copies [p, end) and writes each doubled character once.
    Cell undoubled(const uint8_t* p, const uint8_t* end) {
        const size_t start = arena.size();
        for (; p < end; ++p) {
            if (*p == '"' || *p == '\\') ++p;
            arena.push_back(*p);
        }
        return {static_cast<uint32_t>(start), static_cast<int32_t>(arena.size() - start)};
    }
};

// Returns the first quote or backslash at p or after it, or `end`.
inline const uint8_t* find_quote(const uint8_t* p, const uint8_t* end) noexcept {
    constexpr uint64_t ones = 0x0101010101010101ull, highs = 0x8080808080808080ull;
    for (; end - p >= 8; p += 8) {
        const uint64_t eight = load64_raw(p), quote = eight ^ ones * '"', backslash = eight ^ ones * '\\';
        // The lowest set high bit marks the first zero byte, and that byte is the match.
        const uint64_t found = ((quote - ones) & ~quote & highs) | ((backslash - ones) & ~backslash & highs);
        if (found) return p + (__builtin_ctzll(found) >> 3);
    }
    while (p < end && *p != '"' && *p != '\\') ++p;
    return p;
}

// Reads a bound or a field in text and moves p past it. An empty text without quotes is null.
template <uint8_t where>
inline SlicedFields take_text_field(const uint8_t*& p, const uint8_t* end, Fields& fields, Cell* out) {
    if (p < end && *p == '"') {
        const uint8_t* const start = ++p;
        bool doubled = false;
        for (;; ++p) {
            p = find_quote(p, end);
            if (p == end) return SlicedFields::BAD;
            const bool twice = p + 1 < end && p[1] == *p;
            if (!twice) break;
            doubled = true;
            ++p;
        }
        if (*p != '"') return SlicedFields::BAD;
        if (doubled) {
            if (!fields.copied) return SlicedFields::ESCAPED;
            *out = fields.undoubled(start, p);
        } else {
            *out = fields.cell_of(start, static_cast<size_t>(p - start));
        }
        ++p;
        return SlicedFields::GOOD;
    }
    const uint8_t* const start = p;
    while (p < end && !(QUOTED.by[*p] & where)) ++p;
    *out = p == start ? Cell{0, CELL_NULL} : fields.cell_of(start, static_cast<size_t>(p - start));
    return SlicedFields::GOOD;
}

// Reads a length and that many bytes. A length of -1 is null.
inline bool take_binary_field(const uint8_t*& p, const uint8_t* end, Fields& fields, Cell* out) {
    if (end - p < 4) return false;
    const int32_t length = static_cast<int32_t>(load32(p));
    p += 4;
    if (length == -1) {
        *out = {0, CELL_NULL};
        return true;
    }
    if (length < 0 || length > end - p) return false;
    *out = fields.cell_of(p, static_cast<size_t>(length));
    p += length;
    return true;
}

// Slice is SlicedFields(const uint8_t* p, const uint8_t* end, Fields&, Cell* out, size_t row). It writes the cells of
// the first `width` fields to out[0], out[n], out[2 * n] and so on. Split is size_t(size_t row, Cell* out): it does the
// same for usual cells from `row` on, and returns the number of rows split. This function converts these fields. The
// caller fills all others.
template <bool binary, class Slice, class Split>
inline void convert_fields(Column& column, Source source, const Cell* cells, size_t n, Issues& issues, size_t width,
                           Slice slice, Split split) {
    const size_t first_issue = issues.size();
    column.scratch.cells.count = 0;
    Cell* const out = column.scratch.cells.reserve(width * n);
    Fields fields{column.scratch.arena, source.base, false};
    for (size_t i = 0; i < n; ++i) {
        if (!fields.copied && (i += split(i, out + i)) == n) break;
        if (cells[i].length >= 0) {
            const uint8_t* p = source.base + cells[i].offset;
            const SlicedFields sliced = slice(p, p + cells[i].length, fields, out + i, i);
            if (sliced == SlicedFields::GOOD) continue;
            if (sliced == SlicedFields::ESCAPED) {
                // Starts again at the beginning of the block, now with copies.
                fields.copied = true;
                fields.arena.assign(ARENA_FRONT, 0);
                issues.resize(first_issue);
                i = static_cast<size_t>(-1);
                continue;
            }
            const Reason reason = sliced == SlicedFields::BAD ? BAD_NESTED : FIELDS_DIFFER;
            issues.push_back({static_cast<uint32_t>(i), reason, false});
        }
        for (size_t k = 0; k < width; ++k) out[k * n + i] = {0, CELL_NULL};
    }
    if (fields.copied) fields.arena.resize(fields.arena.size() + SLACK);
    const Source inner = fields.copied
        ? Source{fields.arena.data(), fields.arena.data() + fields.arena.size()}
        : source;
    Issues& within = column.scratch.field_issues;
    within.clear();
    for (size_t k = 0; k < width; ++k) {
        Column& field = *column.fields[k];
        convert_cells(field, binary ? field.plan.binary : field.plan.text, inner, out + k * n, n, within);
    }
    take_issues(issues, first_issue, within, [](uint32_t row) { return row; });
}

// For cells without a vector loop to split them.
inline size_t split_none(size_t, Cell*) noexcept { return 0; }

// ---- composites: record_out and record_send ----------------------------------------------------------------------

inline SlicedFields slice_text_record(const uint8_t* p, const uint8_t* end, Fields& fields, Cell* out, size_t n,
                                      size_t width) {
    if (end - p < 2 || *p != '(' || end[-1] != ')') return SlicedFields::BAD;
    ++p;
    if (width == 0 && p + 1 == end) return SlicedFields::GOOD;
    size_t k = 0;
    for (;; ++k) {
        Cell beyond;
        const SlicedFields sliced = take_text_field<IN_RECORD>(p, end, fields, k < width ? out + k * n : &beyond);
        if (sliced != SlicedFields::GOOD) return sliced;
        if (p == end) return SlicedFields::BAD;
        if (*p != ',') break;
        ++p;
    }
    if (*p != ')' || p + 1 != end) return SlicedFields::BAD;
    return k + 1 == width ? SlicedFields::GOOD : SlicedFields::DIFFERENT;
}

inline SlicedFields slice_binary_record(const uint8_t* p, const uint8_t* end, Fields& fields, Cell* out, size_t n,
                                        const std::vector<uint32_t>& oids) {
    if (end - p < 4) return SlicedFields::BAD;
    const int64_t count = static_cast<int32_t>(load32(p));
    p += 4;
    if (count < 0 || count > (end - p) / 8) return SlicedFields::BAD;
    const size_t width = oids.size();
    bool same = static_cast<size_t>(count) == width;
    for (size_t k = 0; k < static_cast<size_t>(count); ++k) {
        Cell beyond;
        if (end - p < 8) return SlicedFields::BAD;
        same = same && load32(p) == oids[k];
        p += 4;
        if (!take_binary_field(p, end, fields, k < width ? out + k * n : &beyond)) return SlicedFields::BAD;
    }
    if (p != end) return SlicedFields::BAD;
    return same ? SlicedFields::GOOD : SlicedFields::DIFFERENT;
}

template <bool binary>
void convert_composite(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    const size_t width = column.fields.size();
    const QuickSplitRecords quick =
        !binary && width && column.statistics.readable_around ? PGO_AVX_QUICK(split_records) : nullptr;
    convert_fields<binary>(column, source, cells, n, issues, width,
                           [&, n](const uint8_t* p, const uint8_t* end, Fields& fields, Cell* out, size_t) {
                               return binary ? slice_binary_record(p, end, fields, out, n, column.plan.field_oids)
                                             : slice_text_record(p, end, fields, out, n, width);
                           },
                           [&, n, quick](size_t i, Cell* out) -> size_t {
                               if (!quick) return 0;
                               return quick(source, cells + i, n - i, column.scratch.parts, width, out, n,
                                            column.statistics.longest);
                           });
}

// ---- points ------------------------------------------------------------------------------------------------------

template <bool binary>
void convert_point(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    convert_fields<binary>(
        column, source, cells, n, issues, 2,
        [n](const uint8_t* p, const uint8_t* end, Fields& fields, Cell* out, size_t) {
            if (binary) {
                if (end - p != 16) return SlicedFields::BAD;
                out[0] = fields.cell_of(p, 8);
                out[n] = fields.cell_of(p + 8, 8);
                return SlicedFields::GOOD;
            }
            if (end - p < 2 || *p != '(' || end[-1] != ')') return SlicedFields::BAD;
            ++p, --end;
            const auto* comma = static_cast<const uint8_t*>(std::memchr(p, ',', static_cast<size_t>(end - p)));
            if (!comma) return SlicedFields::BAD;
            out[0] = fields.cell_of(p, static_cast<size_t>(comma - p));
            out[n] = fields.cell_of(comma + 1, static_cast<size_t>(end - comma - 1));
            return SlicedFields::GOOD;
        },
        split_none);
}

// ---- ranges: range_out and range_send ----------------------------------------------------------------------------

inline SlicedFields slice_text_range(const uint8_t* p, const uint8_t* end, Fields& fields, Cell* lower, Cell* upper,
                               uint8_t* lower_inc, uint8_t* upper_inc, uint8_t* empty) {
    *lower = *upper = {0, CELL_NULL};
    if (end - p < 3) return SlicedFields::BAD;
    *empty = end - p == 5 && std::memcmp(p, "empty", 5) == 0;
    *lower_inc = *p == '[';
    *upper_inc = end[-1] == ']';
    if (*empty) return SlicedFields::GOOD;
    if (!*lower_inc && *p != '(') return SlicedFields::BAD;
    ++p;
    SlicedFields sliced = take_text_field<IN_RANGE>(p, end, fields, lower);
    if (sliced != SlicedFields::GOOD) return sliced;
    if (p == end || *p != ',') return SlicedFields::BAD;
    ++p;
    sliced = take_text_field<IN_RANGE>(p, end, fields, upper);
    if (sliced != SlicedFields::GOOD) return sliced;
    if (p + 1 != end || (*p != ']' && *p != ')')) return SlicedFields::BAD;
    // An absent bound cannot be inclusive.
    if ((*lower_inc && lower->length < 0) || (*upper_inc && upper->length < 0)) return SlicedFields::BAD;
    return SlicedFields::GOOD;
}

constexpr uint8_t RANGE_EMPTY = 1, RANGE_LOWER_INC = 2, RANGE_UPPER_INC = 4, RANGE_NO_LOWER = 8, RANGE_NO_UPPER = 16;

inline SlicedFields slice_binary_range(const uint8_t* p, const uint8_t* end, Fields& fields, Cell* lower, Cell* upper,
                                 uint8_t* lower_inc, uint8_t* upper_inc, uint8_t* empty) {
    *lower = *upper = {0, CELL_NULL};
    if (p == end) return SlicedFields::BAD;
    const uint8_t flags = *p++;
    *empty = flags == RANGE_EMPTY;
    *lower_inc = (flags & RANGE_LOWER_INC) != 0;
    *upper_inc = (flags & RANGE_UPPER_INC) != 0;
    if (*empty) return p == end ? SlicedFields::GOOD : SlicedFields::BAD;
    constexpr uint8_t known = RANGE_LOWER_INC | RANGE_UPPER_INC | RANGE_NO_LOWER | RANGE_NO_UPPER;
    if (flags & ~known) return SlicedFields::BAD;
    if ((*lower_inc && flags & RANGE_NO_LOWER) || (*upper_inc && flags & RANGE_NO_UPPER)) return SlicedFields::BAD;
    if (!(flags & RANGE_NO_LOWER) && (!take_binary_field(p, end, fields, lower) || lower->length < 0))
        return SlicedFields::BAD;
    if (!(flags & RANGE_NO_UPPER) && (!take_binary_field(p, end, fields, upper) || upper->length < 0))
        return SlicedFields::BAD;
    return p == end ? SlicedFields::GOOD : SlicedFields::BAD;
}

// The fields are lower, upper, lower_inc, upper_inc and empty.
template <bool binary>
void convert_range(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    constexpr size_t BOUNDS = 2, FLAGS = 3;
    uint8_t* flags[FLAGS];
    for (size_t k = 0; k < FLAGS; ++k) {
        column.fields[BOUNDS + k]->scratch.valid.assign(n, 0);
        flags[k] = column.fields[BOUNDS + k]->scratch.valid.data();
    }
    const size_t first_issue = issues.size();
    const bool missing = column.statistics.missing;
    const QuickSplitRanges quick =
        !binary && column.statistics.readable_around ? PGO_AVX_QUICK(split_ranges) : nullptr;
    convert_fields<binary>(column, source, cells, n, issues, BOUNDS,
                           [&, n](const uint8_t* p, const uint8_t* end, Fields& fields, Cell* out, size_t i) {
                               return (binary ? slice_binary_range : slice_text_range)(
                                   p, end, fields, out, out + n, flags[0] + i, flags[1] + i, flags[2] + i);
                           },
                           [&, n, quick](size_t i, Cell* out) -> size_t {
                               if (!quick) return 0;
                               return quick(source, cells + i, n - i, column.scratch.parts, out, n,
                                            {flags[0] + i, flags[1] + i, flags[2] + i}, column.statistics.longest);
                           });
    // The flags of a null range are null.
    const uint8_t* valid = nullptr;
    if (missing || issues.size() != first_issue) {
        column.scratch.valid.resize(n);
        for (size_t i = 0; i < n; ++i) column.scratch.valid[i] = cells[i].length >= 0;
        for (size_t k = first_issue; k < issues.size(); ++k)
            if (!issues[k].inside) column.scratch.valid[issues[k].row] = 0;
        valid = column.scratch.valid.data();
    }
    for (size_t k = 0; k < FLAGS; ++k) {
        Column& flag = *column.fields[BOUNDS + k];
        append_bits(flag.buffers.data, flag.buffers.rows, flags[k], n);
        flag.buffers.append_validity(valid, n);
    }
}

// ---- multiranges: multirange_out and multirange_send -------------------------------------------------------------

// Determines only the beginning and end of every range; the range converter checks the rest. A multirange contains no
// null and no empty range.
inline SlicedList slice_text_multirange(const uint8_t* p, const uint8_t* end, Elements& elements) {
    if (end - p < 2 || *p != '{' || end[-1] != '}') return SlicedList::BAD;
    if (end - p == 2) return SlicedList::GOOD;
    ++p;
    for (;;) {
        const uint8_t* const start = p;
        if (*p != '[' && *p != '(') return SlicedList::BAD;
        for (++p; p < end && *p != ']' && *p != ')'; ++p) {
            if (*p != '"') continue;
            for (++p; p < end && *p != '"'; ++p)
                if (*p == '\\') ++p;
            if (p >= end) return SlicedList::BAD;
        }
        if (end - p < 2) return SlicedList::BAD;
        ++p;
        elements.add(start, static_cast<size_t>(p - start));
        if (*p == '}') return p + 1 == end ? SlicedList::GOOD : SlicedList::BAD;
        if (*p != ',') return SlicedList::BAD;
        ++p;
    }
}

inline SlicedList slice_binary_multirange(const uint8_t* p, const uint8_t* end, Elements& elements) {
    if (end - p < 4) return SlicedList::BAD;
    const int64_t count = static_cast<int32_t>(load32(p));
    p += 4;
    if (count < 0 || count > (end - p) / 5) return SlicedList::BAD;
    for (int64_t i = 0; i < count; ++i) {
        if (end - p < 5) return SlicedList::BAD;
        const int32_t length = static_cast<int32_t>(load32(p));
        p += 4;
        if (length <= 0 || length > end - p || *p & RANGE_EMPTY) return SlicedList::BAD;
        elements.add(p, static_cast<size_t>(length));
        p += length;
    }
    return p == end ? SlicedList::GOOD : SlicedList::BAD;
}

template <bool binary>
struct SliceMultirange {
    static constexpr Reason malformed = BAD_NESTED;
    static QuickSplit quick() noexcept { return binary ? nullptr : PGO_AVX_QUICK(split_multiranges); }
    static SlicedList slice(const uint8_t* p, const uint8_t* end, const Column&, Elements& elements, Reason*) {
        return binary ? slice_binary_multirange(p, end, elements) : slice_text_multirange(p, end, elements);
    }
};

}  // namespace pgo
