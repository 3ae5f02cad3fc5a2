// What the ranks of one host share: a file in memory that all of them map. No pointers are in it, and all zeros but its
// first line is what a new one holds.
#pragma once

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace blade::collectives {

constexpr int MAX_RANKS = 32;
constexpr int64_t SLOT_BYTES = 512 << 10;  // a step of a long message; three of them stay in a core's caches
constexpr int SLOTS = 3;                   // read behind one barrier, behind the next, and written meanwhile
constexpr uint64_t MAGIC = 0x31736b6e61726c62;

// What a rank is about to do together with the others, who compare it with what they do.
struct Call {
    int32_t operation, dtype;
    int64_t bytes;
    bool operator==(const Call& other) const {
        return operation == other.operation && dtype == other.dtype && bytes == other.bytes;
    }
};

// What one rank tells the others, in a cache line that only it writes while nobody sleeps.
struct alignas(64) Arrival {
    std::atomic<uint32_t> phase;     // of the last barrier that it came to; others wait for it to change
    std::atomic<uint32_t> sleepers;  // who have to be woken then
    Call calls[SLOTS];               // of the phases that others may still look at
};

// The first bytes of the file; slots follow, those of a rank side by side.
struct Segment {
    uint64_t magic;
    int32_t size, slots;
    int64_t slot_bytes;
    alignas(64) std::atomic<uint64_t> joined;  // a bit for each rank
    // Why the ranks cannot go on, or 0: a Reason in the upper half, a bit for each rank it is about in the lower one.
    alignas(64) std::atomic<uint64_t> broken;
    Arrival arrivals[MAX_RANKS];

    char* slot(int rank, uint64_t phase) {
        return reinterpret_cast<char*>(this) + HEADER_BYTES + (rank * SLOTS + phase % SLOTS) * SLOT_BYTES;
    }
    static constexpr int64_t HEADER_BYTES = 4096;
    static int64_t bytes(int size) { return HEADER_BYTES + int64_t{size} * SLOTS * SLOT_BYTES; }
};
static_assert(sizeof(Segment) <= Segment::HEADER_BYTES);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

enum class Reason : uint64_t { lost = 1, left = 2, late = 3, out_of_step = 4 };

// Between processes, so not the private futexes of most locks.
inline void sleep_while(std::atomic<uint32_t>& word, uint32_t value, int64_t nanoseconds) {
    const timespec most{nanoseconds / 1000000000, nanoseconds % 1000000000};
    syscall(SYS_futex, &word, FUTEX_WAIT, value, &most, nullptr, 0);
}

inline void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Makes every waiting collective fail; the first reason is kept. Only this one is safe while others use the segment.
inline void break_up(Segment& segment, Reason reason, uint64_t ranks) {
    uint64_t none = 0;
    segment.broken.compare_exchange_strong(none, static_cast<uint64_t>(reason) << 32 | ranks);
    for (Arrival& each : segment.arrivals) wake_all(each.phase);
}

// Memory is reserved now: a full file system is an error here, and would be a SIGBUS later. Returns an errno.
inline int create(int file, int size) {
    if (size < 1 || size > MAX_RANKS) return EINVAL;
    if (const int error = posix_fallocate(file, 0, Segment::bytes(size))) return error;
    void* at = mmap(nullptr, Segment::HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return errno;
    auto* segment = static_cast<Segment*>(at);
    segment->size = size;
    segment->slots = SLOTS;
    segment->slot_bytes = SLOT_BYTES;
    segment->magic = MAGIC;
    munmap(at, Segment::HEADER_BYTES);
    return 0;
}

// The first `bytes` of a segment of `size` ranks (0: any number); null, with errno, for anything else.
inline Segment* attach(int file, int size, int64_t bytes) {
    struct stat about;
    if (fstat(file, &about)) return nullptr;
    errno = EINVAL;
    if (about.st_size < bytes) return nullptr;
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (at == MAP_FAILED) return nullptr;
    auto* segment = static_cast<Segment*>(at);
    if (segment->magic == MAGIC && segment->slots == SLOTS && segment->slot_bytes == SLOT_BYTES &&
        about.st_size == Segment::bytes(segment->size) && (!size || segment->size == size))
        return segment;
    munmap(at, bytes);
    errno = EINVAL;
    return nullptr;
}

}  // namespace blade::collectives
