#include "headroom/memory/caching_allocator.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "memory/lifetimes.h"

namespace headroom {
namespace {

constexpr std::int64_t kRound = 512;
constexpr std::int64_t kSmallRequest = kMiB;  // up to here: the small pool
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kLargeSegment = 20 * kMiB;  // for requests below kOwnSegment
constexpr std::int64_t kOwnSegment = 10 * kMiB;
constexpr std::int64_t kOwnSegmentStep = 2 * kMiB;

struct Piece {
  std::int64_t bytes = 0;
  std::int64_t segment_bytes = 0;  // of the segment it is part of
  bool small = false;
  bool free = false;
  bool starts_segment = false;
};

class CachingAllocator {
 public:
  explicit CachingAllocator(std::int64_t capacity) : capacity_(capacity) {}

  // Address of the piece, or nothing where the capacity does not suffice.
  std::optional<std::int64_t> allocate(std::int64_t bytes) {
    const bool small = bytes <= kSmallRequest;
    auto& pool = free_pieces_[small];
    auto fit = pool.lower_bound({bytes, std::numeric_limits<std::int64_t>::min()});
    if (fit == pool.end()) {
      if (!add_segment(bytes, small)) return std::nullopt;
      fit = pool.lower_bound({bytes, std::numeric_limits<std::int64_t>::min()});
    }
    const std::int64_t address = fit->second;
    pool.erase(fit);
    Piece& piece = pieces_.at(address);
    piece.free = false;
    const std::int64_t rest = piece.bytes - bytes;
    if (small ? rest >= kRound : rest > kSmallRequest) {
      piece.bytes = bytes;
      add_free(address + bytes, {rest, piece.segment_bytes, small, true, false});
    }
    result_.allocated_peak_bytes =
        std::max(result_.allocated_peak_bytes, allocated_ += pieces_.at(address).bytes);
    return address;
  }

  void free(std::int64_t address) {
    auto piece = pieces_.find(address);
    allocated_ -= piece->second.bytes;
    Piece merged = piece->second;
    merged.free = true;
    const auto next = std::next(piece);
    if (next != pieces_.end() && !next->second.starts_segment && next->second.free) {
      merged.bytes += next->second.bytes;
      free_pieces_[merged.small].erase({next->second.bytes, next->first});
      pieces_.erase(next);
    }
    if (!merged.starts_segment) {
      const auto previous = std::prev(piece);
      if (previous->second.free) {
        free_pieces_[merged.small].erase({previous->second.bytes, previous->first});
        address = previous->first;
        merged.bytes += previous->second.bytes;
        merged.starts_segment = previous->second.starts_segment;
        pieces_.erase(previous);
      }
    }
    pieces_.erase(piece);
    add_free(address, merged);
  }

  CachingAllocatorResult& result() { return result_; }

 private:
  bool add_segment(std::int64_t bytes, bool small) {
    const std::int64_t segment = small                 ? kSmallSegment
                                 : bytes < kOwnSegment ? kLargeSegment
                                                       : round_up(bytes, kOwnSegmentStep);
    if (capacity_ > 0 && reserved_ + segment > capacity_) give_back_unused();
    if (capacity_ > 0 && reserved_ + segment > capacity_) return false;
    reserved_ = checked_add(reserved_, segment);
    result_.reserved_peak_bytes = std::max(result_.reserved_peak_bytes, reserved_);
    ++result_.segments;
    add_free(next_address_, {segment, segment, small, true, true});
    next_address_ = checked_add(next_address_, segment);
    return true;
  }

  void add_free(std::int64_t address, const Piece& piece) {
    pieces_[address] = piece;
    free_pieces_[piece.small].insert({piece.bytes, address});
  }

  void give_back_unused() {
    std::erase_if(pieces_, [&](const auto& entry) {
      const auto& [address, piece] = entry;
      if (!piece.free || piece.bytes != piece.segment_bytes) return false;
      reserved_ -= piece.bytes;
      free_pieces_[piece.small].erase({piece.bytes, address});
      return true;
    });
  }

  std::map<std::int64_t, Piece> pieces_;                            // by address
  std::set<std::pair<std::int64_t, std::int64_t>> free_pieces_[2];  // (bytes, address): [large, small]
  std::int64_t capacity_;
  std::int64_t next_address_ = 0;
  std::int64_t reserved_ = 0;
  std::int64_t allocated_ = 0;
  CachingAllocatorResult result_;
};

}  // namespace

CachingAllocatorResult simulate_caching_allocator(std::span<const BlockLifetime> blocks,
                                                  std::int64_t capacity_bytes) {
  CachingAllocator allocator(capacity_bytes);
  std::vector<std::int64_t> addresses(blocks.size());
  for (const LifetimeEdge& edge : edges_in_time(blocks)) {
    if (blocks[edge.block].bytes == 0) continue;  // no request reaches the allocator
    if (!edge.is_begin) {
      allocator.free(addresses[edge.block]);
      continue;
    }
    const std::int64_t bytes = round_up(blocks[edge.block].bytes, kRound);
    const std::optional<std::int64_t> address = allocator.allocate(bytes);
    if (!address) {
      allocator.result().failed_block = edge.block;
      allocator.result().failed_bytes = bytes;
      break;
    }
    addresses[edge.block] = *address;
  }
  return allocator.result();
}

}  // namespace headroom
