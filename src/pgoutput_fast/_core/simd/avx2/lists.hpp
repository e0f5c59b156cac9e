// Splits the text of arrays, composites and ranges for processors with AVX2; see simd/avx2/registers.hpp.
//
// 32 or 64 characters at a time become masks with one bit per character: the delimiters, the quotes, and other special
// characters. A part of a value ends at a delimiter outside of quotes. A text with an escape or anything unusual is
// refused. Windows of 64 characters save a loop for long texts, windows of 32 take half as many instructions.
#pragma once
#include <cstdint>
#include <cstring>
#include "columns/cell_list.hpp"
#include "columns/column.hpp"
#include "simd/avx2/registers.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// Two tables define the special characters: one by the lower half of a character, one by the upper half. A character is
// special if both entries have a common bit. Every bit stands for one upper half.
struct SpecialTable {
    uint8_t of[16];
};
constexpr uint8_t CONTROL = 1, PUNCTUATION = 2, BRACKET = 4, BRACE = 8;
inline constexpr SpecialTable HIGH{{CONTROL, 0, PUNCTUATION, 0, 0, BRACKET, 0, BRACE, 0, 0, 0, 0, 0, 0, 0, 0}};

// array_out quotes an element with blanks, braces or backslashes, or with the delimiter. An element without quotes is
// never empty, and an unquoted NULL is a null.
template <uint8_t delimiter>
struct ArrayText {
    static constexpr uint8_t between = delimiter;
    static constexpr bool opens(uint8_t c) { return c == '{'; }
    static constexpr bool closes(uint8_t c) { return c == '}'; }
    static constexpr bool has_null_word = true;
    static constexpr SpecialTable low{{PUNCTUATION, 0, 0, 0, 0, 0, 0, 0, 0, CONTROL, CONTROL, CONTROL | BRACE,
                                       CONTROL | BRACKET, CONTROL | BRACE, 0, 0}};
};
// record_out quotes a field with blanks, parentheses or backslashes, or with a comma. An empty field without quotes is
// null.
struct RecordText {
    static constexpr uint8_t between = ',';
    static constexpr bool opens(uint8_t c) { return c == '('; }
    static constexpr bool closes(uint8_t c) { return c == ')'; }
    static constexpr bool has_null_word = false;
    static constexpr SpecialTable low{{PUNCTUATION, 0, 0, 0, 0, 0, 0, 0, PUNCTUATION, PUNCTUATION | CONTROL, CONTROL,
                                       CONTROL, CONTROL | BRACKET, CONTROL, 0, 0}};
};

// range_out quotes bounds in the same way, and also those with brackets. A missing bound is empty.
struct RangeText {
    static constexpr uint8_t between = ',';
    static constexpr bool opens(uint8_t c) { return c == '[' || c == '('; }
    static constexpr bool closes(uint8_t c) { return c == ']' || c == ')'; }
    static constexpr bool has_null_word = false;
    static constexpr SpecialTable low{{PUNCTUATION, 0, 0, 0, 0, 0, 0, 0, PUNCTUATION, PUNCTUATION | CONTROL, CONTROL,
                                       CONTROL | BRACKET, CONTROL | BRACKET, CONTROL | BRACKET, 0, 0}};
};

inline __m256i both_halves(const SpecialTable& table) { return _mm256_broadcastsi128_si256(load(table.of)); }

// A window of 32 characters.
struct Window32 {
    static constexpr uint32_t size = 32;
    __m256i x;
    explicit Window32(const uint8_t* p) : x(load_wide(p)) {}
    uint64_t find(char c) const { return mask_of(_mm256_cmpeq_epi8(x, _mm256_set1_epi8(c))); }
    // Finds a letter in either case.
    uint64_t find_letter(char lower) const {
        return mask_of(_mm256_cmpeq_epi8(_mm256_or_si256(x, _mm256_set1_epi8(0x20)), _mm256_set1_epi8(lower)));
    }
    uint64_t find_special(__m256i low, __m256i high) const {
        const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
        const __m256i found = _mm256_and_si256(_mm256_shuffle_epi8(low, x), _mm256_shuffle_epi8(high, upper));
        return mask_of(_mm256_cmpeq_epi8(found, _mm256_setzero_si256())) ^ 0xffffffff;
    }
};
struct Window64 {
    static constexpr uint32_t size = 64;
    Window32 x, y;
    explicit Window64(const uint8_t* p) : x(p), y(p + 32) {}
    uint64_t find(char c) const { return x.find(c) | y.find(c) << 32; }
    uint64_t find_letter(char lower) const { return x.find_letter(lower) | y.find_letter(lower) << 32; }
    uint64_t find_special(__m256i low, __m256i high) const {
        return x.find_special(low, high) | y.find_special(low, high) << 32;
    }
};

// Prefix XOR: sets each bit for which the number of set bits up to and including it is odd.
inline uint64_t prefix_xor(uint64_t bits) {
    for (int step = 1; step < 64; step *= 2) bits ^= bits << step;
    return bits;
}

// A text of at most this length fits in one window of 32 characters after its first character.
constexpr uint32_t SHORT_TEXT = 33;

// The state that a window of a text takes over from previous windows.
struct SplitState {
    uint32_t start;           // where the current part begins
    uint64_t begins = 1;      // bit 0: whether the window begins with the start of a part
    uint64_t within = 0;      // all ones if the window begins within quotes
    uint64_t was_closing = 0; // whether the previous window ended with a closing quote
    bool careful = false;     // whether parts may have quotes or be NULL
};

// Appends the parts that end at `ends`. The window begins at `at`. A part without an end keeps its start.
inline void add_parts(uint64_t ends, uint32_t at, SplitState& state, CellList& out) {
    if (!ends) return;
    const uint32_t next = at + static_cast<uint32_t>(64 - __builtin_clzll(ends));
    Cell* to = out.reserve(68);
    out.count += static_cast<size_t>(_mm_popcnt_u64(ends));
    uint32_t start = state.start;
    do {
        // Four at a time, because their number is hard to predict. Superfluous ones are overwritten later.
        for (int k = 0; k < 4; ++k) {
            const uint32_t end = at + static_cast<uint32_t>(_tzcnt_u64(ends));
            *to++ = {start, static_cast<int32_t>(end - start)};
            start = end + 1;
            ends = _blsr_u64(ends);
        }
    } while (ends);
    state.start = next;
}

// Removes the quotes of parts, and detects nulls. Returns false for a null word that the server does not print.
template <class Form>
inline bool finish_parts(const uint8_t* base, Cell* parts, const Cell* end) {
    bool good = true;
    for (; parts < end; ++parts) {
        const uint8_t* const p = base + parts->offset;
        const uint32_t quoted = *p == '"';
        uint32_t word;
        std::memcpy(&word, p, sizeof word);
        constexpr uint32_t LOWER = 0x6c6c756e, UPPER = 0x4c4c554e;  // null, NULL
        const bool null_word = Form::has_null_word && parts->length == 4 && (word | 0x20202020) == LOWER;
        good &= !null_word | (word == UPPER);
        const bool null = Form::has_null_word ? null_word : parts->length == 0;
        parts->offset = null ? READ_BEFORE : parts->offset + quoted;
        parts->length = null ? CELL_NULL : parts->length - static_cast<int32_t>(2 * quoted);
    }
    return good;
}

// Appends the parts of one text. If this returns false, nothing was appended.
template <class Form, class Window>
inline bool split_text(const uint8_t* base, Cell cell, CellList& out) {
    const uint32_t length = static_cast<uint32_t>(cell.length);
    if (length < 2 || !Form::opens(base[cell.offset]) || !Form::closes(base[cell.offset + length - 1])) return false;
    if (Form::has_null_word && length == 2) return true;
    const __m256i low_table = both_halves(Form::low), high_table = both_halves(HIGH);
    const size_t before = out.count;
    SplitState state;
    state.start = cell.offset + 1;
    uint64_t wrong = 0;
    uint32_t at = cell.offset + 1;
    for (uint32_t left = length - 1;; at += Window::size, left -= Window::size) {
        const Window window(base + at);
        const uint64_t in_range = _bzhi_u64(~uint64_t{0}, left < Window::size ? left : Window::size);
        const uint64_t last = left <= Window::size ? uint64_t{1} << (left - 1) : 0;
        const uint64_t special = window.find_special(low_table, high_table) & in_range & ~last;
        uint64_t ends = window.find(static_cast<char>(Form::between)) & in_range;
        const uint64_t quotes = window.find('"') & in_range;
        uint64_t within = 0;
        if (quotes | state.within) {
            within = prefix_xor(quotes) ^ state.within;
            state.careful = true;
            wrong |= window.find('\\') & in_range;
        }
        ends = (ends & ~within) | last;
        const uint64_t begins = ends << 1 | state.begins;
        if (state.careful) {
            // A quote opens at the beginning of a part, and closes at the end of a part.
            const uint64_t closing = quotes & ~within;
            wrong |= (quotes & within & ~begins) | (last & within);
            wrong |= (closing << 1 | state.was_closing) & ~ends & in_range;
            state.was_closing = closing >> (Window::size - 1);
            state.within = 0 - (within >> (Window::size - 1) & 1);
        }
        wrong |= special & ~within;
        if (Form::has_null_word) {
            state.careful |= (window.find_letter('n') & begins & in_range) != 0;
            wrong |= ends & begins;
        } else {
            state.careful |= (ends & begins) != 0;
        }
        state.begins = ends >> (Window::size - 1);
        const size_t before_window = out.count;
        add_parts(ends, at, state, out);
        if (wrong) break;
        if (state.careful && !finish_parts<Form>(base, out.memory.data() + before_window, out.end())) wrong = 1;
        if (last || wrong) break;
    }
    if (wrong) out.count = before;
    return !wrong;
}

// Splits lists up to the first unusual one, and writes the end of each list's elements. Returns the number of lists
// split.
template <class Form, class Window>
size_t split_lists_by(Source source, const Cell* cells, size_t n, CellList& out, int32_t* offsets, int32_t first) {
    for (size_t i = 0; i < n; ++i) {
        if (cells[i].length >= 0 && !split_text<Form, Window>(source.base, cells[i], out)) return i;
        offsets[i + 1] = first + static_cast<int32_t>(out.count);
    }
    return n;
}
template <class Form>
size_t split_lists(Source source, const Cell* cells, size_t n, CellList& out, int32_t* offsets, int32_t first,
                   uint32_t longest) {
    const auto split = longest <= SHORT_TEXT ? split_lists_by<Form, Window32> : split_lists_by<Form, Window64>;
    return split(source, cells, n, out, offsets, first);
}

// Splits a vector of pgvector, which has numbers between brackets, and neither quotes nor nulls. If this returns false,
// nothing was appended.
inline bool split_vector(const uint8_t* base, Cell cell, CellList& out) {
    const uint32_t length = static_cast<uint32_t>(cell.length);
    if (length < 3 || base[cell.offset] != '[' || base[cell.offset + length - 1] != ']') return false;
    const size_t before = out.count;
    SplitState state;
    state.start = cell.offset + 1;
    uint32_t at = cell.offset + 1, left = length - 1;
    uint64_t wrong = 0;
    for (; !wrong && left > Window64::size; at += Window64::size, left -= Window64::size) {
        const uint64_t ends = Window64(base + at).find(',');
        wrong = ends & (ends << 1 | state.begins);
        state.begins = ends >> 63;
        add_parts(ends, at, state, out);
    }
    if (!wrong) {
        const uint64_t last = uint64_t{1} << (left - 1);
        const uint64_t ends = (Window64(base + at).find(',') & (last - 1)) | last;
        wrong = ends & (ends << 1 | state.begins);
        add_parts(ends, at, state, out);
    }
    if (wrong) out.count = before;
    return !wrong;
}
inline size_t split_vectors(Source source, const Cell* cells, size_t n, CellList& out, int32_t* offsets, int32_t first,
                            uint32_t) {
    for (size_t i = 0; i < n; ++i) {
        if (cells[i].length >= 0 && !split_vector(source.base, cells[i], out)) return i;
        offsets[i + 1] = first + static_cast<int32_t>(out.count);
    }
    return n;
}

// Splits composites up to the first unusual one. Field k of row i becomes the cell out[k * stride + i]. Returns the
// number of composites split.
template <class Window>
size_t split_records_by(Source source, const Cell* cells, size_t n, CellList& parts, size_t width, Cell* out,
                        size_t stride) {
    for (size_t i = 0; i < n; ++i) {
        parts.count = 0;
        if (cells[i].length < 0) {
            for (size_t k = 0; k < width; ++k) out[k * stride + i] = {0, CELL_NULL};
            continue;
        }
        if (!split_text<RecordText, Window>(source.base, cells[i], parts) || parts.count != width) return i;
        for (size_t k = 0; k < width; ++k) out[k * stride + i] = parts.memory[k];
    }
    return n;
}
inline size_t split_records(Source source, const Cell* cells, size_t n, CellList& parts, size_t width, Cell* out,
                            size_t stride, uint32_t longest) {
    const auto split = longest <= SHORT_TEXT ? split_records_by<Window32> : split_records_by<Window64>;
    return split(source, cells, n, parts, width, out, stride);
}

// Splits a range of one window without quotes at its comma.
inline bool split_plain_range(const uint8_t* base, Cell cell, Cell* lower, Cell* upper) {
    const uint32_t length = static_cast<uint32_t>(cell.length);
    if (length < 3 || length > SHORT_TEXT) return false;
    if (!RangeText::opens(base[cell.offset]) || !RangeText::closes(base[cell.offset + length - 1])) return false;
    const Window32 window(base + cell.offset + 1);
    const uint64_t in_range = (uint64_t{1} << (length - 2)) - 1;
    const uint64_t special = window.find_special(both_halves(RangeText::low), both_halves(HIGH)) | window.find('"');
    const uint64_t commas = window.find(',') & in_range;
    if ((special & in_range) || !commas || _blsr_u64(commas)) return false;
    const uint32_t comma = static_cast<uint32_t>(_tzcnt_u64(commas));
    const auto bound = [](uint32_t start, uint32_t size) {
        return size ? Cell{start, static_cast<int32_t>(size)} : Cell{READ_BEFORE, CELL_NULL};
    };
    *lower = bound(cell.offset + 1, comma);
    *upper = bound(cell.offset + comma + 2, length - 3 - comma);
    return true;
}

// Splits ranges up to the first unusual one. The bounds of row i become the cells out[i] and out[stride + i]. Returns
// the number of ranges split.
template <class Window>
size_t split_ranges_by(Source source, const Cell* cells, size_t n, CellList& parts, Cell* out, size_t stride,
                       RangeFlags flags) {
    for (size_t i = 0; i < n; ++i) {
        parts.count = 0;
        out[i] = out[stride + i] = {0, CELL_NULL};
        if (cells[i].length < 0) continue;
        const uint8_t* const p = source.base + cells[i].offset;
        if (cells[i].length == 5 && std::memcmp(p, "empty", 5) == 0) {
            flags.empty[i] = 1;
            continue;
        }
        Cell lower, upper;
        if (Window::size > SHORT_TEXT || !split_plain_range(source.base, cells[i], &lower, &upper)) {
            if (!split_text<RangeText, Window>(source.base, cells[i], parts) || parts.count != 2) return i;
            lower = parts.memory[0];
            upper = parts.memory[1];
        }
        const bool lower_inc = *p == '[', upper_inc = p[cells[i].length - 1] == ']';
        // An absent bound cannot be inclusive.
        if ((lower_inc && lower.length < 0) || (upper_inc && upper.length < 0)) return i;
        flags.lower_inc[i] = lower_inc;
        flags.upper_inc[i] = upper_inc;
        out[i] = lower;
        out[stride + i] = upper;
    }
    return n;
}
inline size_t split_ranges(Source source, const Cell* cells, size_t n, CellList& parts, Cell* out, size_t stride,
                           RangeFlags flags, uint32_t longest) {
    const auto split = longest <= SHORT_TEXT ? split_ranges_by<Window32> : split_ranges_by<Window64>;
    return split(source, cells, n, parts, out, stride, flags);
}

// Appends the ranges of a multirange of at most 65 characters.
inline bool split_multirange(const uint8_t* base, Cell cell, CellList& out) {
    const uint32_t length = static_cast<uint32_t>(cell.length), at = cell.offset + 1;
    if (length < 2 || length > 65 || base[cell.offset] != '{' || base[cell.offset + length - 1] != '}') return false;
    if (length == 2) return true;
    const Window64 window(base + at);
    const uint64_t last = uint64_t{1} << (length - 2), in_range = last - 1;
    const uint64_t quotes = window.find('"') & in_range;
    uint64_t within = 0;
    if (quotes) {
        if (window.find('\\') & in_range) return false;
        within = prefix_xor(quotes);
    }
    const uint64_t outside = in_range & ~within;
    const uint64_t opening = (window.find('[') | window.find('(')) & outside;
    const uint64_t closing = (window.find(']') | window.find(')')) & outside;
    const uint64_t commas = window.find(',') & outside;
    // A range begins at the first character and after every comma that follows a range.
    uint64_t wrong = (within & last) | (opening ^ ((uint64_t{1} | closing << 2) & in_range));
    wrong |= (closing << 1) & ~(commas | last);
    wrong |= ~(closing << 1) & last;
    if (wrong) return false;
    Cell* to = out.reserve(64);
    uint32_t start = at;
    for (uint64_t ends = closing; ends; ends = _blsr_u64(ends)) {
        const uint32_t end = at + static_cast<uint32_t>(_tzcnt_u64(ends)) + 1;
        *to++ = {start, static_cast<int32_t>(end - start)};
        start = end + 1;
    }
    out.count = static_cast<size_t>(to - out.memory.data());
    return true;
}
inline size_t split_multiranges(Source source, const Cell* cells, size_t n, CellList& out, int32_t* offsets,
                                int32_t first, uint32_t) {
    for (size_t i = 0; i < n; ++i) {
        if (cells[i].length >= 0 && !split_multirange(source.base, cells[i], out)) return i;
        offsets[i + 1] = first + static_cast<int32_t>(out.count);
    }
    return n;
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
