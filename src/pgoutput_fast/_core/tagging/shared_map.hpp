// Maps by oid or xid with copy-on-write: copies share the parts that none of them has changed.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace pgo {

// Returns a value for writing. A shared value is copied first. So a call that may be undone can keep a cheap copy of
// the state.
template <class T>
T& own(std::shared_ptr<T>& shared) {
    if (!shared) shared = std::make_shared<T>();
    else if (shared.use_count() > 1) shared = std::make_shared<T>(*shared);
    return *shared;
}

// Copying the map is free, and the first change afterwards copies a 64th of it. So calls stay cheap with large maps. A
// pointer to a value stays valid until the map is copied and then changed.
template <class T>
class SharedMap {
public:
    bool empty() const noexcept { return size_ == 0; }
    size_t size() const noexcept { return size_; }
    const T* find(uint32_t key) const {
        if (!parts_ || !(*parts_)[part_of(key)]) return nullptr;
        const Part& part = *(*parts_)[part_of(key)];
        auto found = part.find(key);
        return found == part.end() ? nullptr : &found->second;
    }
    size_t count(uint32_t key) const { return find(key) != nullptr; }
    // Returns the value for writing. It is created if the key is missing.
    T& operator[](uint32_t key) {
        auto made = own(own(parts_)[part_of(key)]).try_emplace(key);
        size_ += made.second;
        return made.first->second;
    }
    T* edit(uint32_t key) { return &(*this)[key]; }
    void erase(uint32_t key) {
        if (count(key)) size_ -= own(own(parts_)[part_of(key)]).erase(key);
    }
    void clear() noexcept {
        parts_.reset();
        size_ = 0;
    }
    // In ascending order.
    std::vector<uint32_t> keys() const {
        std::vector<uint32_t> found;
        if (!parts_) return found;
        found.reserve(size_);
        for (const auto& part : *parts_)
            if (part)
                for (const auto& entry : *part) found.push_back(entry.first);
        std::sort(found.begin(), found.end());
        return found;
    }
    // Keys whose values differ from those of an earlier copy, in ascending order. Skips shared parts.
    std::vector<uint32_t> changed_since(const SharedMap& before) const {
        std::vector<uint32_t> found;
        if (!parts_ || parts_ == before.parts_) return found;
        for (size_t k = 0; k < parts_->size(); ++k) {
            const auto& part = (*parts_)[k];
            if (!part || (before.parts_ && (*before.parts_)[k] == part)) continue;
            for (const auto& entry : *part) {
                const T* then = before.find(entry.first);
                if (!then || !(*then == entry.second)) found.push_back(entry.first);
            }
        }
        std::sort(found.begin(), found.end());
        return found;
    }

private:
    using Part = std::unordered_map<uint32_t, T>;
    static size_t part_of(uint32_t key) noexcept { return (key * 2654435769u) >> 26; }
    std::shared_ptr<std::array<std::shared_ptr<Part>, 64>> parts_;
    size_t size_ = 0;
};

}  // namespace pgo
