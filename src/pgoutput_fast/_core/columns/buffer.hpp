// A growable buffer, aligned to 64 bytes. Arrow arrays consist of such buffers.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#include "columns/blocks.hpp"

namespace pgo {

class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer() { BlockPool::release(data_); }

    uint8_t* data() noexcept { return data_; }
    const uint8_t* data() const noexcept { return data_; }
    size_t size() const noexcept { return size_; }
    size_t capacity() const noexcept { return capacity_; }
    void set_size(size_t n) noexcept { size_ = n; }

    // Reserves space for `extra` more bytes and the slack, even if `extra` is 0. Returns a pointer to the new bytes.
    // The size does not change.
    uint8_t* reserve(size_t extra) {
        if (size_ + extra > capacity_ || data_ == nullptr) grow(size_ + extra);
        return data_ + size_;
    }
    // Reserves space for an estimated `extra` more bytes. A capacity that is at most an eighth too small is kept, and a
    // new allocation is never larger than the estimate.
    void expect(size_t extra) {
        const size_t needed = size_ + extra;
        if (needed > capacity_ + capacity_ / 8 || data_ == nullptr) enlarge(needed);
    }
    uint8_t* append_uninitialized(size_t n) {
        uint8_t* at = reserve(n);
        size_ += n;
        return at;
    }
    void append(const void* from, size_t n) {
        if (n) std::memcpy(append_uninitialized(n), from, n);
        else reserve(0);
    }
    // Makes this a read-only buffer of `n` zero bytes: it can be released, but not written or grown.
    void assign_zero(size_t n) {
        BlockPool::release(data_);
        data_ = nullptr;
        size_ = capacity_ = 0;
        data_ = BlockPool::zeros(n);
        size_ = capacity_ = n;
    }
    // Gives the memory away. The receiver must call BlockPool::release.
    uint8_t* release() noexcept {
        uint8_t* data = data_;
        data_ = nullptr;
        size_ = capacity_ = 0;
        return data;
    }

private:
    void swap(Buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
    }
    void grow(size_t needed) {
        // Buffers from 4 to 128 KiB grow by only a quarter, because many relations may have such buffers. Larger ones
        // grow without a copy.
        const bool medium = capacity_ >= (1u << 12) && capacity_ < (1u << 17);
        const size_t wanted = capacity_ + (medium ? capacity_ / 4 : capacity_ / 2);
        enlarge(wanted < needed ? needed : wanted);
    }
    void enlarge(size_t wanted) {
        if (size_ == 0) {
            BlockPool::release(data_);
            data_ = nullptr;
            capacity_ = 0;
        }
        size_t capacity;
        data_ = BlockPool::grow(data_, size_, wanted, &capacity);
        capacity_ = capacity;
    }

    uint8_t* data_ = nullptr;
    size_t size_ = 0;
    size_t capacity_ = 0;
};

// Appends one bit per row, in Arrow's bit order, from one byte per row. `bits` is the number of bits already in the
// buffer.
inline void append_bits(Buffer& buffer, size_t bits, const uint8_t* bytes, size_t n) {
    size_t total = (bits + n + 7) / 8;
    if (total > buffer.size()) buffer.append_uninitialized(total - buffer.size());
    uint8_t* out = buffer.data();
    size_t i = 0;
    if (bits & 7) {
        uint8_t& first = out[bits >> 3];
        first &= static_cast<uint8_t>((1u << (bits & 7)) - 1);
        for (; i < n && ((bits + i) & 7); ++i) first |= static_cast<uint8_t>((bytes[i] & 1u) << ((bits + i) & 7));
    }
    for (; i + 8 <= n; i += 8) {
        uint64_t v;
        std::memcpy(&v, bytes + i, 8);
        // Collects the lowest bit of each of eight bytes: the multiplication moves bit 8k to bit 56 + k.
        out[(bits + i) >> 3] = static_cast<uint8_t>(((v & 0x0101010101010101ull) * 0x0102040810204080ull) >> 56);
    }
    if (i < n) {
        uint8_t last = 0;
        size_t at = (bits + i) >> 3;
        for (; i < n; ++i) last |= static_cast<uint8_t>((bytes[i] & 1u) << ((bits + i) & 7));
        out[at] = last;
    }
}

inline void append_ones(Buffer& buffer, size_t bits, size_t n) {
    size_t total = (bits + n + 7) / 8;
    if (total > buffer.size()) buffer.append_uninitialized(total - buffer.size());
    if (!n) return;
    uint8_t* out = buffer.data();
    if (bits & 7) {
        uint8_t low = static_cast<uint8_t>((1u << (bits & 7)) - 1);
        out[bits >> 3] = static_cast<uint8_t>((out[bits >> 3] & low) | ~low);
    }
    size_t from = (bits + 7) / 8;
    if (total > from) std::memset(out + from, 0xff, total - from);
    // Unused bits after the last one are always zero, so that equal columns have equal bytes.
    if ((bits + n) & 7) out[total - 1] &= static_cast<uint8_t>((1u << ((bits + n) & 7)) - 1);
}

// Truncates the buffer to its first n bits. Unused bits after the last one are always zero.
inline void keep_bits(Buffer& buffer, size_t n) noexcept {
    buffer.set_size((n + 7) / 8);
    if (n & 7) buffer.data()[n >> 3] &= static_cast<uint8_t>((1u << (n & 7)) - 1);
}

}  // namespace pgo
