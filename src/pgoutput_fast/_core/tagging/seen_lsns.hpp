// The non-transactional logical messages seen so far: a bounded set of their LSNs.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tagging/shared_map.hpp"

namespace pgo {

// Keeps the MOST largest distinct LSNs added. `floor()` is the largest LSN that it dropped. The order of additions does
// not matter, so the sets of several parts of a stream can be combined. Copies share memory until one of them is
// changed.
class SeenLsns {
public:
    static constexpr int64_t MOST = 1024;

    SeenLsns() = default;
    explicit SeenLsns(int64_t floor) : floor_(floor) {}
    // Returns false if the LSN is in the set or not above `floor()`: then it may have been added and dropped.
    bool add(int64_t lsn) {
        if (lsn <= floor_) return false;
        if (lsns_) {
            auto place = std::lower_bound(lsns_->begin() + gone_, lsns_->end(), lsn);
            if (place != lsns_->end() && *place == lsn) return false;
        }
        std::vector<int64_t>& lsns = own(lsns_);
        lsns.insert(std::lower_bound(lsns.begin() + gone_, lsns.end(), lsn), lsn);
        if (lsns.end() - (lsns.begin() + gone_) > MOST) floor_ = *(lsns.begin() + gone_++);
        // Erases many LSNs at a time, so that adding ascending LSNs is cheap.
        if (gone_ == MOST) {
            lsns.erase(lsns.begin(), lsns.begin() + gone_);
            gone_ = 0;
        }
        return true;
    }
    int64_t floor() const noexcept { return floor_; }
    // The largest LSN that was added; 0 for none.
    int64_t last() const noexcept { return lsns_ && !lsns_->empty() ? lsns_->back() : floor_; }
    // In ascending order.
    std::vector<int64_t> lsns() const {
        return lsns_ ? std::vector<int64_t>(lsns_->begin() + gone_, lsns_->end()) : std::vector<int64_t>();
    }

private:
    int64_t floor_ = 0;
    std::shared_ptr<std::vector<int64_t>> lsns_;
    std::ptrdiff_t gone_ = 0;  // number of dropped LSNs at the front of the vector
};

}  // namespace pgo
