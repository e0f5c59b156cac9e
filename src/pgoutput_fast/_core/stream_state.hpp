// What a stream's position means: the open transactions, what was learnt in them, and the records of what happened.
// Plain data; the rules that move it are in transactions.pyx and tag.pyx.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "blocks.hpp"

namespace pgo {

// "null" among int64 values; no position, xid or ordinal can be it.
constexpr int64_t NONE64 = std::numeric_limits<int64_t>::min();

// Which version a relation oid stands for, and the message that said so. Negative slots: see below.
struct Known {
    int32_t slot = 0;
    int64_t seq = 0;
};
constexpr int32_t SLOT_UNKNOWN = -1;  // never described
constexpr int32_t SLOT_LOST = -2;     // its description could not be read

struct ScopedRelation {
    uint32_t oid = 0;
    uint32_t subxid = 0;
    Known known;
};

struct TypeName {
    std::string name_space;
    std::string name;
    int64_t seq = 0;
};

struct ScopedType {
    uint32_t oid = 0;
    uint32_t subxid = 0;
    TypeName type;
};

// What Relation and Type messages said inside a streamed transaction: of each oid what each subtransaction said last,
// in the order in which they said it.
struct Scope {
    std::unordered_map<uint32_t, std::vector<ScopedRelation>> relations;
    std::unordered_map<uint32_t, std::vector<ScopedType>> types;
};

// Copies of a state share their large parts until one of them writes: a call that may be undone keeps a copy.
template <class T>
T& own(std::shared_ptr<T>& shared) {
    if (!shared) shared = std::make_shared<T>();
    else if (shared.use_count() > 1) shared = std::make_shared<T>(*shared);
    return *shared;
}

// A transaction whose end has not come: streamed in blocks, being sent, or prepared.
struct Transaction {
    int64_t txn = NONE64;
    uint32_t xid = 0;
    int64_t commit_lsn = NONE64;
    int64_t commit_timestamp = NONE64;
    std::string gid;
    int64_t prepare_end_lsn = NONE64;
    int64_t prepare_timestamp = NONE64;
    bool doubtful = false;  // a message that may have ended it, or rolled some of it back, could not be read
    bool perhaps_ended = false;  // prepared, and a message that may have ended it could not be read
    bool has_origin = false;
    std::string origin;
    int64_t origin_lsn = NONE64;

    // Nothing is known of it yet but its key and xid.
    void begin(int64_t key, uint32_t its_xid) {
        txn = key;
        xid = its_xid;
        commit_lsn = commit_timestamp = prepare_end_lsn = prepare_timestamp = origin_lsn = NONE64;
        doubtful = perhaps_ended = has_origin = false;
        gid.clear();
        origin.clear();
        scope_.reset();
    }
    const Known* relation(uint32_t oid) const {
        if (!scope_) return nullptr;
        auto found = scope_->relations.find(oid);
        return found == scope_->relations.end() ? nullptr : &found->second.back().known;
    }
    const TypeName* type(uint32_t oid) const {
        if (!scope_) return nullptr;
        auto found = scope_->types.find(oid);
        return found == scope_->types.end() ? nullptr : &found->second.back().type;
    }
    void learn(const ScopedRelation& said) { file(own(scope_).relations[said.oid], said); }
    void learn(const ScopedType& said) { file(own(scope_).types[said.oid], said); }
    // DDL that is rolled back was never there.
    void forget(uint32_t subxid) {
        if (!scope_) return;
        Scope& scope = own(scope_);
        drop(scope.relations, subxid);
        drop(scope.types, subxid);
    }
    void lose_relations() {
        if (!scope_ || scope_->relations.empty()) return;
        for (auto& entry : own(scope_).relations)
            for (ScopedRelation& said : entry.second) said.known.slot = SLOT_LOST;
    }
    // What holds at its end, a value per oid; or all of it, in the order in which it was said.
    std::vector<ScopedRelation> last_relations() const { return scope_ ? lasts(scope_->relations) : std::vector<ScopedRelation>(); }
    std::vector<ScopedType> last_types() const { return scope_ ? lasts(scope_->types) : std::vector<ScopedType>(); }
    std::vector<ScopedRelation> all_relations() const {
        std::vector<ScopedRelation> all = scope_ ? flat(scope_->relations) : std::vector<ScopedRelation>();
        std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.known.seq < b.known.seq; });
        return all;
    }
    std::vector<ScopedType> all_types() const {
        std::vector<ScopedType> all = scope_ ? flat(scope_->types) : std::vector<ScopedType>();
        std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.type.seq < b.type.seq; });
        return all;
    }

private:
    template <class S>
    static void file(std::vector<S>& known, const S& said) {
        known.erase(std::remove_if(known.begin(), known.end(), [&](const S& s) { return s.subxid == said.subxid; }),
                    known.end());
        known.push_back(said);
    }
    template <class S>
    static void drop(std::unordered_map<uint32_t, std::vector<S>>& map, uint32_t subxid) {
        for (auto it = map.begin(); it != map.end();) {
            auto& known = it->second;
            known.erase(std::remove_if(known.begin(), known.end(), [&](const S& s) { return s.subxid == subxid; }),
                        known.end());
            it = known.empty() ? map.erase(it) : std::next(it);
        }
    }
    template <class S>
    static std::vector<S> lasts(const std::unordered_map<uint32_t, std::vector<S>>& map) {
        std::vector<S> found;
        for (const auto& entry : map) found.push_back(entry.second.back());
        return found;
    }
    template <class S>
    static std::vector<S> flat(const std::unordered_map<uint32_t, std::vector<S>>& map) {
        std::vector<S> found;
        for (const auto& entry : map) found.insert(found.end(), entry.second.begin(), entry.second.end());
        return found;
    }
    std::shared_ptr<Scope> scope_;
};

enum Context : uint8_t { OUTSIDE = 0, PLAIN = 1, PREPARING = 2, STREAMING = 3 };

using RelationMap = std::unordered_map<uint32_t, Known>;
using TypeMap = std::unordered_map<uint32_t, TypeName>;

struct StreamState {
    int64_t next_seq = 0;
    Context context = OUTSIDE;
    bool lost = false;             // after a bad boundary, until the next one
    bool bad_type = false;         // the next Relation rests on a Type that could not be read
    bool session_starts = false;   // a new session begins with the next message
    // LSN of the last non-transactional message, and up to which such messages came in earlier sessions: they come again.
    int64_t message_lsn = 0, repeated_lsn = 0;
    Transaction current;           // in PLAIN and PREPARING; in STREAMING only its xid
    std::map<uint32_t, Transaction> streamed;  // by xid
    std::vector<Transaction> prepared;

    const RelationMap& relations() const { return *relations_; }
    const TypeMap& types() const { return *types_; }
    void describe(uint32_t oid, Known known) { own(relations_)[oid] = known; }
    void name_type(uint32_t oid, const TypeName& type) { own(types_)[oid] = type; }
    // Nothing that a Relation said, anywhere, is trusted until it is said again.
    void lose_relations() {
        for (auto& entry : own(relations_)) entry.second.slot = SLOT_LOST;
        for (auto& entry : streamed) entry.second.lose_relations();
        for (auto& transaction : prepared) transaction.lose_relations();
    }
    const Known* relation(uint32_t oid) const {
        auto found = relations_->find(oid);
        return found == relations_->end() ? nullptr : &found->second;
    }
    const TypeName* type(uint32_t oid) const {
        auto found = types_->find(oid);
        return found == types_->end() ? nullptr : &found->second;
    }
    // What a stream learnt holds for all now, unless something said later, outside of it, is known already.
    void promote(const Transaction& transaction) {
        for (const ScopedRelation& said : transaction.last_relations()) {
            const Known* plain = relation(said.oid);
            if (!plain || plain->seq < said.known.seq) describe(said.oid, said.known);
        }
        for (const ScopedType& said : transaction.last_types()) {
            const TypeName* plain = type(said.oid);
            if (!plain || plain->seq < said.type.seq) name_type(said.oid, said.type);
        }
    }

private:
    std::shared_ptr<RelationMap> relations_ = std::make_shared<RelationMap>();
    std::shared_ptr<TypeMap> types_ = std::make_shared<TypeMap>();
};

// What is the same for a stretch of messages.
struct Run {
    int64_t txn = NONE64;
    int64_t xid = NONE64;
    int64_t subxid = NONE64;
    int64_t commit_lsn = NONE64;
    int64_t commit_timestamp = NONE64;
    bool in_stream = false;
};

// ---- records: one row each of the tables beside the changes. Strings lie in Records::text. ----

struct Slice {
    int64_t offset = 0;
    int64_t length = -1;  // -1: null
};

struct BoundaryRecord {
    int64_t seq = 0, txn = NONE64, xid = NONE64, subxid = NONE64;
    int64_t lsn = NONE64, end_lsn = NONE64, timestamp = NONE64, prepare_timestamp = NONE64;
    int64_t origin_lsn = NONE64;
    Slice gid, origin;
    uint8_t kind = 0;
    int8_t first_segment = -1;
};

struct OutcomeRecord {
    int64_t txn = 0, subxid = NONE64, at_seq = 0, commit_lsn = NONE64, commit_timestamp = NONE64;
    bool committed = false;
};

struct TruncateRecord {
    int64_t seq = 0, txn = NONE64;
    int64_t first = 0, count = 0;  // in Records::oids
    bool cascade = false, restart_identity = false;
};

struct MessageRecord {
    int64_t seq = 0, lsn = NONE64, txn = NONE64, xid = NONE64;
    Slice prefix, content;
    bool transactional = false;
};

struct RejectRecord {
    int64_t seq = 0, lsn = NONE64, byte_offset = NONE64, type_oid = NONE64;
    int32_t slot = SLOT_UNKNOWN;  // of the relation version, where it is known
    int32_t column = -1;
    uint8_t change_type = 0xff;
    uint8_t format = 0;  // 't', 'b' or 0 for a whole message
    uint8_t reason = 0;
    int32_t described = -1, sent = -1;  // cell counts, where they differ
    Slice raw;
};

struct Records {
    std::vector<BoundaryRecord, Kept<BoundaryRecord>> boundaries;
    std::vector<OutcomeRecord, Kept<OutcomeRecord>> outcomes;
    std::vector<TruncateRecord, Kept<TruncateRecord>> truncates;
    std::vector<MessageRecord, Kept<MessageRecord>> messages;
    std::vector<RejectRecord, Kept<RejectRecord>> rejects;
    std::vector<int64_t, Kept<int64_t>> oids;
    std::vector<int64_t> forgotten;  // txn of transactions of which is not known what became of them
    std::string text;

    Slice keep(const uint8_t* p, size_t n) {
        Slice s{static_cast<int64_t>(text.size()), static_cast<int64_t>(n)};
        text.append(reinterpret_cast<const char*>(p), n);
        return s;
    }
};

}  // namespace pgo
