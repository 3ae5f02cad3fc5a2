// One rank's place among the ranks of its host, and how it waits for the others.
#pragma once

#include <cstdio>
#include <ctime>
#include <mutex>

#include "sum.h"

namespace blade::collectives {

constexpr int64_t SPIN_NANOSECONDS = 20'000;       // then others may need the core to come at all
constexpr int64_t SLEEP_NANOSECONDS = 50'000'000;  // until a waiting rank looks again whether the ranks can go on
constexpr int PAUSES = 16;                         // about a microsecond between two looks at the clock

// What collectives return; the numbers are those of native.py.
enum Status : int { OK = 0, LOST = 1, MISMATCH = 2, INVALID = 3 };

enum Operation : int32_t { ALL_REDUCE = 1, ALL_GATHER = 2, LEAST = 3, ALL_TO_ALL = 4 };

struct Group {
    std::mutex calling;   // held during a collective
    std::mutex attached;  // held while the segment may not go
    Segment* segment = nullptr;
    int rank = 0, size = 0;
    bool completed = false;  // by this rank, the last to join
    int64_t timeout = 0;     // in nanoseconds, of each wait
    uint64_t phase = 1;      // of the next barrier: the same number in all ranks
    Call call{};             // under way
    int status = OK;         // of the first collective that failed: ranks cannot find together again
    char message[512] = "";

    Arrival& own() { return segment->arrivals[rank]; }
    char* slot(int of) { return segment->slot(of, phase); }
};

inline int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// Text that is cut where the space ends.
struct Text {
    char* at;
    char* end;
    template <class... Values>
    void add(const char* format, Values... values) {
        const int wrote = snprintf(at, end - at, format, values...);
        at = wrote < end - at ? at + wrote : end - 1;
    }
};

inline void describe(Text& text, const Call& call) {
    constexpr const char* names[] = {"nothing", "all_reduce", "all_gather", "least", "all_to_all"};
    const int32_t known = call.operation <= ALL_TO_ALL ? call.operation : 0;
    text.add("%s of %lld bytes", names[known], static_cast<long long>(call.bytes));
    if (call.operation == ALL_REDUCE)
        text.add(" of %s", call.dtype == 0 ? "fp32" : call.dtype == 1 ? "bf16" : "fp16");
}

// Fails, for good, because the segment says that the ranks cannot go on.
inline int fail_broken(Group& group, uint64_t broken) {
    const uint64_t ranks = broken & 0xffffffff;
    const bool several = ranks & (ranks - 1);
    Text text{group.message, group.message + sizeof group.message};
    text.add(several ? "ranks" : "rank");
    const char* separator = " ";
    for (int rank = 0; rank < MAX_RANKS; rank++) {
        if (!(ranks >> rank & 1)) continue;
        text.add("%s%d", separator, rank);
        separator = ", ";
    }
    const auto reason = static_cast<Reason>(broken >> 32);
    text.add(several ? " are " : " is ");
    text.add(reason == Reason::out_of_step ? "out of step, as their own errors say, before " : "lost: ");
    switch (reason) {
        case Reason::out_of_step: break;
        case Reason::lost: text.add("the group was aborted before "); break;
        case Reason::left: text.add("%s left the group before ", several ? "they" : "it"); break;
        case Reason::late:
            text.add("%s did not come within %.6g s to ", several ? "they" : "it", group.timeout / 1e9);
            break;
    }
    describe(text, group.call);
    return group.status = reason == Reason::out_of_step ? MISMATCH : LOST;
}

inline int fail_mismatch(Group& group, int other, const Call& call) {
    break_up(*group.segment, Reason::out_of_step, uint64_t{1} << group.rank | uint64_t{1} << other);
    Text text{group.message, group.message + sizeof group.message};
    text.add("ranks are out of step: rank %d is at ", other);
    describe(text, call);
    text.add(", rank %d at ", group.rank);
    describe(text, group.call);
    return group.status = MISMATCH;
}

inline bool has_come(const Arrival& other, uint64_t phase) {
    return static_cast<int32_t>(other.phase.load() - static_cast<uint32_t>(phase)) >= 0;
}

inline uint64_t missing(Group& group) {
    uint64_t ranks = 0;
    for (int rank = 0; rank < group.size; rank++)
        if (!has_come(group.segment->arrivals[rank], group.phase)) ranks |= uint64_t{1} << rank;
    return ranks;
}

// Until `other` has come to the barrier. A rank that has come is believed even if it is gone since.
inline int wait_for(Group& group, Arrival& other) {
    if (has_come(other, group.phase)) return OK;
    const int64_t start = now();
    for (int64_t time = start; time - start < SPIN_NANOSECONDS; time = now()) {
        for (int i = 0; i < PAUSES; i++) {
            _mm_pause();
            if (has_come(other, group.phase)) return OK;
        }
    }
    other.sleepers.fetch_add(1);
    int status = OK;
    while (true) {
        const uint32_t seen = other.phase.load();
        if (has_come(other, group.phase)) break;
        if (const uint64_t broken = group.segment->broken.load()) {
            status = fail_broken(group, broken);
            break;
        }
        const int64_t left = start + group.timeout - now();
        if (left > 0)
            sleep_while(other.phase, seen, left < SLEEP_NANOSECONDS ? left : SLEEP_NANOSECONDS);
        else if (const uint64_t ranks = missing(group))
            break_up(*group.segment, Reason::late, ranks);
    }
    other.sleepers.fetch_sub(1);
    return status;
}

// Shows the others what this rank is about to do, behind the next barrier.
inline void announce(Group& group, const Call& call) {
    group.call = call;
    group.own().calls[group.phase % SLOTS] = call;
}

// Tells the others that this rank's slot is written, and waits for theirs. `checked`: they announced what they do.
inline int barrier(Group& group, bool checked) {
    group.own().phase.store(static_cast<uint32_t>(group.phase));
    if (group.own().sleepers.load()) wake_all(group.own().phase);
    for (int rank = 0; rank < group.size; rank++) {
        if (rank == group.rank) continue;
        Arrival& other = group.segment->arrivals[rank];
        if (const int status = wait_for(group, other)) return status;
        const Call& call = other.calls[group.phase % SLOTS];
        if (checked && !(call == group.call)) return fail_mismatch(group, rank, call);
    }
    return OK;
}

}  // namespace blade::collectives
