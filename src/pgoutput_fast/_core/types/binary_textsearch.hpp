// Prints tsvector and tsquery as the server does.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "columns/buffer.hpp"
#include "types/printing.hpp"
#include "protocol/reasons.hpp"
#include "types/utf8.hpp"
#include "protocol/wire.hpp"

namespace pgo {

// The length of the NUL-terminated string at p, or -1 if there is no NUL before `end`.
inline int64_t lexeme_length(const uint8_t* p, const uint8_t* end) noexcept {
    if (p == end) return -1;
    const void* nul = std::memchr(p, 0, static_cast<size_t>(end - p));
    return nul ? static_cast<const uint8_t*>(nul) - p : -1;
}

// Quotes and backslashes are doubled, so `out` must have space for 2 n + 2 bytes.
inline uint8_t* print_lexeme(const uint8_t* p, size_t n, uint8_t* out) noexcept {
    *out++ = '\'';
    for (size_t i = 0; i < n; ++i) {
        if (p[i] == '\'' || p[i] == '\\') *out++ = p[i];
        *out++ = p[i];
    }
    *out++ = '\'';
    return out;
}

// For eight bytes: sets the highest bit of every zero byte, and possibly of some bytes after such a byte.
inline uint64_t zero_bytes(uint64_t eight) noexcept {
    return (eight - 0x0101010101010101) & ~eight & 0x8080808080808080;
}

// Prints a lexeme of less than sixteen bytes without characters to double. Returns its length, or -1 for other lexemes
// or if it is too close to the cell's end; any output is then to be ignored. `out` must have space for 18 bytes. ORs
// the lexeme's bytes into `seen`.
inline int64_t print_short_lexeme(const uint8_t* p, const uint8_t* end, uint8_t* out, uint64_t* seen) noexcept {
    out[0] = '\'';
    for (int64_t at = 0; at < 16 && end - p >= at + 8; at += 8) {
        const uint64_t eight = load64_raw(p + at), nul = zero_bytes(eight);
        const uint64_t quotes = zero_bytes(eight ^ 0x2727272727272727) | zero_bytes(eight ^ 0x5c5c5c5c5c5c5c5c);
        std::memcpy(out + 1 + at, &eight, sizeof eight);
        // The bytes before the first NUL.
        const uint64_t before = nul ? ((nul & (0 - nul)) >> 7) - 1 : UINT64_MAX;
        *seen |= eight & before;
        if (quotes & before) return -1;
        if (!nul) continue;
        const int64_t length = at + (__builtin_ctzll(nul) >> 3);
        out[1 + length] = '\'';
        return length;
    }
    return -1;
}

// A lexeme has a string, a count of positions, and the positions. The two highest bits of a position are its weight (3
// is A).
inline Reason print_tsvector(const uint8_t* p, uint32_t n, Buffer& out) {
    const uint8_t* const end = p + n;
    const size_t before = out.size();
    if (n < 4) return BAD_LENGTH;
    const int32_t lexemes = static_cast<int32_t>(load32(p));
    p += 4;
    if (lexemes < 0 || lexemes > (end - p) / 3) return BAD_LENGTH;
    uint64_t seen = 0;  // its highest bits show non-ASCII bytes
    // Nearly every text is less than twice as long as its value.
    const size_t likely = 2 * static_cast<size_t>(n) + 32;
    uint8_t* q = out.reserve(likely);
    uint8_t* limit = q + likely;
    const auto reserve = [&](size_t more) {
        if (static_cast<size_t>(limit - q) >= more) return;
        more += 2 * static_cast<size_t>(end - p);
        out.set_size(static_cast<size_t>(q - out.data()));
        q = out.reserve(more);
        limit = q + more;
    };
    for (int32_t i = 0; i < lexemes; ++i) {
        reserve(19);
        *q = ' ';
        int64_t length = print_short_lexeme(p, end, q + (i != 0), &seen);
        if (length >= 0) {
            q += (i != 0) + length + 2;
        } else {
            length = lexeme_length(p, end);
            if (length < 0) return BAD_LENGTH;
            reserve(2 * static_cast<size_t>(length) + 3);
            if (i) *q++ = ' ';
            q = print_lexeme(p, static_cast<size_t>(length), q);
            seen = UINT64_MAX;
        }
        if (end - p < length + 3) return BAD_LENGTH;
        p += length + 3;
        const unsigned positions = load16(p - 2);
        if (end - p < 2 * static_cast<int64_t>(positions)) return BAD_LENGTH;
        reserve(7 * positions);
        for (unsigned k = 0; k < positions; ++k, p += 2) {
            const unsigned entry = load16(p), position = entry & 0x3fff;
            *q++ = k ? ',' : ':';
            if (position < 10) *q++ = static_cast<uint8_t>('0' + position);
            else q = position < 100 ? print_pair(position, q) : print_short(position, q);
            if (entry >> 14) *q++ = static_cast<uint8_t>('D' - (entry >> 14));
        }
    }
    out.set_size(static_cast<size_t>(q - out.data()));
    if (p != end) return BAD_LENGTH;
    if (!(seen & 0x8080808080808080)) return OK;
    return is_utf8(out.data() + before, out.size() - before) ? OK : NOT_UTF8;
}

// A tsquery is a tree. The server sends an operator first, then its right operand, then its left operand. Reading and
// printing do not recurse, because the tree may be as deep as the value is long.
class TsqueryPrinter {
public:
    Reason print(const uint8_t* p, uint32_t n, Buffer& out) {
        const size_t before = out.size();
        if (Reason reason = read(p, n)) return reason;
        if (items_.empty()) return OK;
        tasks_.push_back({NODE, 0, 0, false});
        while (!tasks_.empty()) {
            const Task task = tasks_.back();
            tasks_.pop_back();
            if (task.what == NODE) print_node(task, out);
            else if (task.what == OPERATOR) print_operator(items_[task.item], out);
            else out.append(" )", 2);
        }
        return is_utf8(out.data() + before, out.size() - before) ? OK : NOT_UTF8;
    }

private:
    enum Kind : uint8_t { VALUE = 0, NOT = 1, AND = 2, OR = 3, PHRASE = 4 };
    enum What : uint8_t { NODE, OPERATOR, CLOSE };

    // For a binary operator, `place` is the item of its left operand; its right operand is the next item. For a value,
    // `place` is the position of its lexeme in the cell.
    struct Item {
        Kind kind;
        uint8_t weights : 4;
        uint8_t prefix : 1;
        int16_t distance;
        uint32_t place;
        uint32_t length;
    };
    // `priority` is the priority of the enclosing operator. `right_of_phrase` says whether the item is the right
    // operand of a phrase operator.
    struct Task {
        What what;
        uint32_t item;
        uint8_t priority;
        bool right_of_phrase;
    };

    static uint8_t priority_of(Kind kind) noexcept {
        constexpr uint8_t priorities[] = {0, 4, 2, 1, 3};
        return priorities[kind];
    }

    Reason read(const uint8_t* p, uint32_t n) {
        const uint8_t* const end = p + n;
        cell_ = p;
        items_.clear();
        tasks_.clear();
        roots_.clear();
        if (n < 4) return BAD_LENGTH;
        const int32_t count = static_cast<int32_t>(load32(p));
        p += 4;
        if (count < 0 || count > (end - p) / 2) return BAD_LENGTH;
        for (int32_t i = 0; i < count; ++i) {
            if (end - p < 2) return BAD_LENGTH;
            Item item{};
            if (p[0] == 1) {
                if (end - p < 4) return BAD_LENGTH;
                if (p[1] > 15 || p[2] > 1) return OUT_OF_RANGE;
                item.weights = p[1] & 15;
                item.prefix = p[2] & 1;
                p += 3;
                const int64_t length = lexeme_length(p, end);
                if (length < 0) return BAD_LENGTH;
                item.place = static_cast<uint32_t>(p - cell_);
                item.length = static_cast<uint32_t>(length);
                p += length + 1;
            } else {
                if (p[0] != 2 || p[1] < NOT || p[1] > PHRASE) return OUT_OF_RANGE;
                item.kind = static_cast<Kind>(p[1]);
                p += 2;
                if (item.kind == PHRASE) {
                    if (end - p < 2) return BAD_LENGTH;
                    item.distance = static_cast<int16_t>(load16(p));
                    p += 2;
                }
            }
            items_.push_back(item);
        }
        if (p != end) return BAD_LENGTH;
        return link() ? OK : OUT_OF_RANGE;
    }

    // Determines the left operand of every operator, starting with the last item. The top of `roots_` is the operator's
    // right operand, and the entry below it is the left one.
    bool link() {
        for (size_t i = items_.size(); i-- > 0;) {
            Item& item = items_[i];
            if (item.kind == NOT) {
                if (roots_.empty()) return false;
                roots_.pop_back();
            } else if (item.kind != VALUE) {
                if (roots_.size() < 2) return false;
                roots_.pop_back();
                item.place = roots_.back();
                roots_.pop_back();
            }
            roots_.push_back(static_cast<uint32_t>(i));
        }
        return roots_.size() <= 1;
    }

    void print_node(const Task& task, Buffer& out) {
        const Item& item = items_[task.item];
        if (item.kind == VALUE) {
            print_value(item, out);
            return;
        }
        const uint8_t priority = priority_of(item.kind);
        if (priority < task.priority || (item.kind == PHRASE && task.right_of_phrase)) {
            out.append("( ", 2);
            tasks_.push_back({CLOSE, 0, 0, false});
        }
        tasks_.push_back({NODE, task.item + 1, priority, item.kind == PHRASE});
        if (item.kind == NOT) {
            out.append("!", 1);
            return;
        }
        tasks_.push_back({OPERATOR, task.item, 0, false});
        tasks_.push_back({NODE, item.place, priority, false});
    }

    void print_value(const Item& item, Buffer& out) const {
        uint8_t* start = out.reserve(2 * size_t{item.length} + 8);
        uint8_t* q = print_lexeme(cell_ + item.place, item.length, start);
        if (item.weights || item.prefix) *q++ = ':';
        if (item.prefix) *q++ = '*';
        for (int bit = 3; bit >= 0; --bit)
            if (item.weights >> bit & 1) *q++ = static_cast<uint8_t>('D' - bit);
        out.set_size(out.size() + static_cast<size_t>(q - start));
    }

    static void print_operator(const Item& item, Buffer& out) {
        uint8_t* start = out.reserve(LONGEST_INTEGER + 4);
        uint8_t* q = start;
        if (item.kind == AND) {
            q = print_literal(" & ", q);
        } else if (item.kind == OR) {
            q = print_literal(" | ", q);
        } else if (item.distance == 1) {
            q = print_literal(" <-> ", q);
        } else {
            q = print_literal(" <", q);
            q = print_integer<int>(item.distance, q);
            q = print_literal("> ", q);
        }
        out.set_size(out.size() + static_cast<size_t>(q - start));
    }

    const uint8_t* cell_ = nullptr;
    std::vector<Item> items_;
    std::vector<Task> tasks_;
    std::vector<uint32_t> roots_;
};

}  // namespace pgo
