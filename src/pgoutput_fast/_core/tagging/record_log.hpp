// A log of records that become tables beside the changes. Records are appended to chunks that never move, and read in
// order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "columns/buffer.hpp"

namespace pgo {

// The encoding of a record, in at most MOST bytes. `write` and `read` return the end of these bytes.
template <class R>
struct RecordForm {
    static_assert(std::is_trivially_copyable<R>::value, "records that own anything need a form of their own");
    static constexpr size_t MOST = sizeof(R);
    static uint8_t* write(uint8_t* to, const R& record) noexcept {
        std::memcpy(to, &record, sizeof record);
        return to + sizeof record;
    }
    static const uint8_t* read(const uint8_t* from, R& record) noexcept {
        std::memcpy(&record, from, sizeof record);
        return from + sizeof record;
    }
};

// Writes the values that are not `none`, after a mask of their positions.
inline uint8_t* write_some(uint8_t* to, const int64_t* values, int count, int64_t none) noexcept {
    uint8_t* at = to + sizeof(uint16_t);
    uint16_t mask = 0;
    for (int k = 0; k < count; ++k) {
        const bool there = values[k] != none;
        std::memcpy(at, &values[k], sizeof(int64_t));
        at += there * sizeof(int64_t);
        mask = static_cast<uint16_t>(mask | there << k);
    }
    std::memcpy(to, &mask, sizeof mask);
    return at;
}
inline const uint8_t* read_some(const uint8_t* from, int64_t* values, int count, int64_t none) noexcept {
    uint16_t mask;
    std::memcpy(&mask, from, sizeof mask);
    from += sizeof mask;
    for (int k = 0; k < count; ++k) {
        values[k] = none;
        if (!(mask >> k & 1)) continue;
        std::memcpy(&values[k], from, sizeof(int64_t));
        from += sizeof(int64_t);
    }
    return from;
}

template <class R>
class RecordLog {
public:
    size_t size() const noexcept { return size_; }
    void push_back(const R& record) {
        using Form = RecordForm<R>;
        if (space_ < Form::MOST) add_chunk();
        uint8_t* at = chunks_.back().data() + chunks_.back().size();
        const size_t taken = static_cast<size_t>(Form::write(at, record) - at);
        chunks_.back().set_size(chunks_.back().size() + taken);
        space_ -= taken;
        ++size_;
    }
    void clear() noexcept {
        chunks_.clear();
        size_ = space_ = 0;
    }
    void swap(RecordLog& other) noexcept {
        chunks_.swap(other.chunks_);
        std::swap(size_, other.size_);
        std::swap(space_, other.space_);
    }

private:
    template <class>
    friend class RecordReader;
    static constexpr size_t FIRST = size_t{1} << 12, LARGEST = size_t{1} << 20;

    void add_chunk() {
        const size_t n = chunks_.empty() ? FIRST : std::min(2 * chunks_.back().capacity(), LARGEST);
        Buffer chunk;
        chunk.reserve(n);
        chunks_.push_back(std::move(chunk));
        space_ = chunks_.back().capacity();
    }

    std::vector<Buffer> chunks_;
    size_t size_ = 0;
    size_t space_ = 0;  // in the last chunk
};

// Reads a log from the start. The log must not change meanwhile.
template <class R>
class RecordReader {
public:
    void begin(const RecordLog<R>& log) noexcept {
        log_ = &log;
        chunk_ = at_ = 0;
    }
    // Returns false at the end of the log.
    bool next(R& record) noexcept {
        while (chunk_ < log_->chunks_.size() && at_ == log_->chunks_[chunk_].size()) ++chunk_, at_ = 0;
        if (chunk_ == log_->chunks_.size()) return false;
        const uint8_t* data = log_->chunks_[chunk_].data();
        at_ = static_cast<size_t>(RecordForm<R>::read(data + at_, record) - data);
        return true;
    }

private:
    const RecordLog<R>* log_ = nullptr;
    size_t chunk_ = 0, at_ = 0;
};

}  // namespace pgo
