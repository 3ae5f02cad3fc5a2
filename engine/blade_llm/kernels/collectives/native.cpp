// Collectives of the ranks of one host through memory that they share. Every rank adds up in rank order, so all get the
// same bits, which do not depend on who comes when.
//
// Whatever is written before a barrier is read behind it and, of long messages, behind the next: with three slots a
// rank may write into the third meanwhile, and one barrier for each is enough.
#include <algorithm>
#include <cstring>

#include "group.h"
#include "operators.h"

namespace blade::collectives {
namespace {

constexpr int64_t ONE_SHOT_BYTES = 64 << 10;  // to read from others; more is worth a second barrier, to read less
constexpr int64_t PARTS = 64;                 // what the threads of a rank divide a step into
constexpr int64_t ALIGNED = 64;               // items that do not share a cache line with others

struct Range {
    int64_t begin, end;
    int64_t length() const { return end - begin; }
};

// What rank `rank` adds up of `count` items.
Range share_of(int rank, int size, int64_t count) {
    const int64_t each = ((count + size - 1) / size + ALIGNED - 1) / ALIGNED * ALIGNED;
    return {std::min(count, each * rank), std::min(count, each * (rank + 1))};
}

// Of the PARTS of `whole`, those from `begin` to before `end`.
Range parts_of(const Range& whole, int64_t begin, int64_t end) {
    const auto boundary = [&](int64_t part) {
        return part == PARTS ? whole.end : whole.begin + whole.length() * part / PARTS / ALIGNED * ALIGNED;
    };
    return {boundary(begin), boundary(end)};
}

int start(Group& group, const Call& call) {
    if (group.status) return group.status;
    if (!group.segment) {
        snprintf(group.message, sizeof group.message, "rank %d has left the group", group.rank);
        return group.status = INVALID;
    }
    announce(group, call);
    if (const uint64_t broken = group.segment->broken.load()) return fail_broken(group, broken);
    return OK;
}

// Everybody reads everything.
int reduce_at_once(Group& group, DType dtype, char* data, int64_t count) {
    memcpy(group.slot(group.rank), data, count * item_bytes(dtype));
    if (const int status = barrier(group, true)) return status;
    Sum sum{dtype, group.size, {}, data};
    for (int rank = 0; rank < group.size; rank++) sum.parts[rank] = rank == group.rank ? data : group.slot(rank);
    split(count, count * group.size / 4, [&](int64_t begin, int64_t end) { sum_parts(sum, begin, end); });
    group.phase++;
    return OK;
}

// A message in steps of a slot, each on its way through three stages: written, added up by the rank whose share it is,
// and read. Between two barriers every rank does all three, for three steps.
struct Steps {
    Group& group;
    DType dtype;
    char* data;
    int64_t count;
    int64_t item = item_bytes(dtype), most = SLOT_BYTES / item, number = (count + most - 1) / most;
    uint64_t first = group.phase;

    char* own(int64_t step) const { return data + step * SLOT_BYTES; }
    char* slot(int rank, int64_t step) const { return group.segment->slot(rank, first + step); }
    Range share(int rank, int64_t step) const {
        return share_of(rank, group.size, std::min(most, count - step * most));
    }

    void copy(char* to, const char* from, const Range& items) const {
        memcpy(to + items.begin * item, from + items.begin * item, items.length() * item);
    }
    void write(int64_t step, int64_t begin, int64_t end) const {
        for (int rank = 0; rank < group.size; rank++)
            if (rank != group.rank) copy(slot(group.rank, step), own(step), parts_of(share(rank, step), begin, end));
    }
    void add_up(int64_t step, int64_t begin, int64_t end) const {
        const Range items = parts_of(share(group.rank, step), begin, end);
        Sum sum{dtype, group.size, {}, own(step)};
        for (int rank = 0; rank < group.size; rank++)
            sum.parts[rank] = rank == group.rank ? own(step) : slot(rank, step);
        sum_parts(sum, items.begin, items.end);
        copy(slot(group.rank, step), own(step), items);
    }
    void read(int64_t step, int64_t begin, int64_t end) const {
        for (int rank = 0; rank < group.size; rank++)
            if (rank != group.rank) copy(own(step), slot(rank, step), parts_of(share(rank, step), begin, end));
    }
};

int reduce_in_steps(Group& group, DType dtype, char* data, int64_t count) {
    const Steps steps{group, dtype, data, count};
    for (int64_t at = 0; at < steps.number + 2; at++) {
        split(PARTS, std::min(count, steps.most) / 2, [&](int64_t begin, int64_t end) {
            if (at < steps.number) steps.write(at, begin, end);
            if (at >= 1 && at <= steps.number) steps.add_up(at - 1, begin, end);
            if (at >= 2) steps.read(at - 2, begin, end);
        });
        if (at > steps.number) break;
        if (const int status = barrier(group, at == 0)) return status;
        group.phase++;
    }
    return OK;
}

// Puts the bytes from `begin` to before `end` of the rows of `rank`, each of `width` bytes, where they belong in `out`,
// [rows, size, width].
void put_beside(const Group& group, int rank, int64_t width, const char* from, int64_t begin, int64_t end, char* out) {
    for (int64_t at = begin, run; at < end; at += run) {
        const int64_t row = at / width, column = at % width;
        run = std::min(width - column, end - at);
        memcpy(out + (row * group.size + rank) * width + column, from + (at - begin), run);
    }
}

// Rows of `width` bytes, those of all ranks beside each other: `out` is [bytes / width, size, width].
int gather(Group& group, const char* x, int64_t bytes, int64_t width, char* out) {
    int64_t done = 0;
    do {  // once even for nothing, so that all meet
        const int64_t some = std::min(SLOT_BYTES, bytes - done);
        memcpy(group.slot(group.rank), x + done, some);
        if (const int status = barrier(group, done == 0)) return status;
        for (int rank = 0; rank < group.size; rank++)
            put_beside(group, rank, width, group.slot(rank), done, done + some, out);
        group.phase++;
        done += some;
    } while (done < bytes);
    return OK;
}

// Of the bytes of `rows` rows of `width`, those that `rank` gets in an all-to-all.
Range rows_of(const Group& group, int rank, int64_t rows, int64_t width) {
    return {rows * rank / group.size * width, rows * (rank + 1) / group.size * width};
}

// Each rank gets its share of everybody's `rows` rows of `width` bytes: `out` is [own rows, size, width]. A slot has room
// for each of the others.
int exchange(Group& group, const char* x, int64_t rows, int64_t width, char* out) {
    const int64_t room = group.size == 1 ? SLOT_BYTES : SLOT_BYTES / (group.size - 1) / ALIGNED * ALIGNED;
    const auto from_to = [&](int from, int to) { return group.slot(from) + (to - (to > from)) * room; };
    const Range own = rows_of(group, group.rank, rows, width);
    const int64_t most = (rows + group.size - 1) / group.size * width;
    put_beside(group, group.rank, width, x + own.begin, 0, own.length(), out);
    int64_t done = 0;
    do {  // once even for nothing, so that all meet
        for (int rank = 0; rank < group.size; rank++) {
            const Range theirs = rows_of(group, rank, rows, width);
            const int64_t some = std::min(room, theirs.length() - done);
            if (rank != group.rank && some > 0) memcpy(from_to(group.rank, rank), x + theirs.begin + done, some);
        }
        if (const int status = barrier(group, done == 0)) return status;
        const int64_t end = std::min(done + room, own.length());
        for (int rank = 0; rank < group.size; rank++)
            if (rank != group.rank) put_beside(group, rank, width, from_to(rank, group.rank), done, end, out);
        group.phase++;
        done += room;
    } while (done < most);
    return OK;
}

void join(Group& group, int file) {
    errno = EINVAL;
    Segment* segment = nullptr;
    if (0 <= group.rank && group.rank < group.size && group.size <= MAX_RANKS)
        segment = attach(file, group.size, Segment::bytes(group.size));
    if (!segment) {
        snprintf(group.message, sizeof group.message, "not a segment for rank %d of %d: %s", group.rank, group.size,
                 strerror(errno));
        group.status = INVALID;
        return;
    }
    const uint64_t all = (uint64_t{1} << group.size) - 1, own = uint64_t{1} << group.rank;
    const uint64_t before = segment->joined.fetch_or(own);
    if (before & own) {
        munmap(segment, Segment::bytes(group.size));
        snprintf(group.message, sizeof group.message, "rank %d has already joined", group.rank);
        group.status = INVALID;
        return;
    }
    group.completed = (before | own) == all;
    group.segment = segment;
}

}  // namespace
}  // namespace blade::collectives

using namespace blade::collectives;

// `file`: empty and writable. Returns 0 or an errno.
BLADE_EXPORT int blade_segment_create(int file, int size) { return create(file, size); }

// From a process that is no rank. Returns 0 or an errno.
BLADE_EXPORT int blade_segment_abort(int file, int rank) {
    Segment* segment = attach(file, 0, Segment::HEADER_BYTES);
    if (!segment) return errno;
    const bool valid = 0 <= rank && rank < segment->size;
    if (valid) break_up(*segment, Reason::lost, uint64_t{1} << rank);
    munmap(segment, Segment::HEADER_BYTES);
    return valid ? 0 : EINVAL;
}

// Never freed: decoder layers may keep the address, and a group that was left gives an error. `timeout`: nanoseconds.
// What failed is in its status already.
BLADE_EXPORT Group* blade_group_join(int file, int rank, int size, int64_t timeout) {
    auto* group = new Group;
    group->rank = rank;
    group->size = size;
    group->timeout = timeout;
    join(*group, file);
    return group;
}

BLADE_EXPORT int blade_group_status(Group* group) { return group->status; }

BLADE_EXPORT int blade_group_completed(Group* group) { return group->completed; }

BLADE_EXPORT const char* blade_group_message(Group* group) { return group->message; }

BLADE_EXPORT int blade_group_all_reduce(Group* group, int dtype, void* data, int64_t count) {
    const std::lock_guard<std::mutex> lock(group->calling);
    const auto type = static_cast<DType>(dtype);
    const int64_t bytes = count * item_bytes(type);
    if (const int status = start(*group, {ALL_REDUCE, dtype, bytes})) return status;
    if (group->size == 1) return OK;
    const auto reduce = bytes * (group->size - 1) <= ONE_SHOT_BYTES ? reduce_at_once : reduce_in_steps;
    return reduce(*group, type, static_cast<char*>(data), count);
}

// `x`: rows of `width` bytes; `out`: [rows, size, width].
BLADE_EXPORT int blade_group_all_gather(Group* group, const void* x, int64_t bytes, int64_t width, void* out) {
    const std::lock_guard<std::mutex> lock(group->calling);
    if (const int status = start(*group, {ALL_GATHER, 0, bytes})) return status;
    return gather(*group, static_cast<const char*>(x), bytes, width, static_cast<char*>(out));
}

// `x`: `rows` rows of `width` bytes; `out`: [own rows, size, width].
BLADE_EXPORT int blade_group_all_to_all(Group* group, const void* x, int64_t rows, int64_t width, void* out) {
    const std::lock_guard<std::mutex> lock(group->calling);
    if (const int status = start(*group, {ALL_TO_ALL, 0, rows * width})) return status;
    return exchange(*group, static_cast<const char*>(x), rows, width, static_cast<char*>(out));
}

BLADE_EXPORT int blade_group_least(Group* group, int64_t* value) {
    const std::lock_guard<std::mutex> lock(group->calling);
    if (const int status = start(*group, {LEAST, 0, sizeof *value})) return status;
    int64_t values[MAX_RANKS];
    auto* out = reinterpret_cast<char*>(values);
    const int status = gather(*group, reinterpret_cast<const char*>(value), sizeof *value, sizeof *value, out);
    if (!status) *value = *std::min_element(values, values + group->size);
    return status;
}

// From any thread. False for a rank that there is not.
BLADE_EXPORT int blade_group_abort(Group* group, int rank) {
    if (rank < 0 || rank >= group->size) return 0;
    const std::lock_guard<std::mutex> lock(group->attached);
    if (group->segment) break_up(*group->segment, Reason::lost, uint64_t{1} << rank);
    return 1;
}

// From any thread: a collective that waits fails.
BLADE_EXPORT void blade_group_leave(Group* group) {
    {
        const std::lock_guard<std::mutex> lock(group->attached);
        if (group->segment) break_up(*group->segment, Reason::left, uint64_t{1} << group->rank);
    }
    const std::lock_guard<std::mutex> finished(group->calling);
    const std::lock_guard<std::mutex> lock(group->attached);
    if (group->segment) munmap(group->segment, Segment::bytes(group->size));
    group->segment = nullptr;
}
