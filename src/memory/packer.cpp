// Placement is the skyline heuristic of strip packing. Time runs along the horizontal axis, addresses
// upwards. Take the lowest stretch of the skyline and lay on it the first block, in some order of priority,
// whose lifetime fits within the stretch. A stretch on which nothing fits is raised to its lower neighbour;
// only there is memory wasted.
#include "headroom/memory/packer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "headroom/core/checked.h"

namespace headroom {
namespace {

// Blocks placed, over all rounds, before the search for a better order ends. Small traces leave the largest
// gaps and cost the least, so they get the most rounds: with 40,000 a trace of 10,000 blocks packs in 30 ms.
constexpr std::size_t kSearchBudget = 40'000;

// A block as the packer sees it: times are ranks among the distinct endpoints, so they fit 32 bits.
struct Item {
  int begin = 0;
  int end = 0;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;

  [[nodiscard]] std::int64_t top() const { return offset + bytes; }
  [[nodiscard]] double duration() const { return end - begin; }
  [[nodiscard]] double area() const { return duration() * static_cast<double>(bytes); }
};

// Item ids, highest priority first.
using Order = std::vector<std::size_t>;

// Finds the unplaced item of highest priority that lives within an interval. A k-d tree over the points
// (begin, end); the boxes stay, the ranks are set anew for each round.
class CandidateTree {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  explicit CandidateTree(const std::vector<Item>& items) : leaf_of_(items.size()) {
    while (leaves_ < items.size()) leaves_ *= 2;
    nodes_.resize(2 * leaves_);
    Order ids(items.size());
    std::iota(ids.begin(), ids.end(), 0);
    build(items, ids, 1, &Item::begin, &Item::end);
  }

  void reset(const Order& order) {
    for (std::size_t rank = 0; rank < order.size(); ++rank) nodes_[leaf_of_[order[rank]]].rank = rank;
    for (std::size_t k = leaves_ - 1; k > 0; --k) nodes_[k].rank = lowest_rank_below(k);
  }

  void erase(std::size_t id) {
    std::size_t k = leaf_of_[id];
    nodes_[k].rank = kNone;
    while ((k /= 2) > 0) nodes_[k].rank = lowest_rank_below(k);
  }

  // The item's rank, or kNone.
  [[nodiscard]] std::size_t find(int begin, int end) const { return find_below(1, begin, end, kNone); }

 private:
  struct Node {
    int min_begin = std::numeric_limits<int>::max();
    int max_begin = -1;
    int min_end = std::numeric_limits<int>::max();
    int max_end = -1;
    std::size_t rank = kNone;  // the lowest among the unplaced items below
  };

  [[nodiscard]] std::size_t lowest_rank_below(std::size_t k) const {
    return std::min(nodes_[2 * k].rank, nodes_[2 * k + 1].rank);
  }

  [[nodiscard]] std::size_t find_below(std::size_t k, int begin, int end, std::size_t best) const {
    const Node& node = nodes_[k];
    if (node.rank >= best || node.max_begin < begin || node.min_end > end) return best;
    if (node.min_begin >= begin && node.max_end <= end) return node.rank;
    // The more promising child first: what it finds often rules the other one out.
    const std::size_t first = 2 * k + (nodes_[2 * k + 1].rank < nodes_[2 * k].rank ? 1 : 0);
    return find_below(first ^ 1, begin, end, find_below(first, begin, end, best));
  }

  void build(const std::vector<Item>& items, std::span<std::size_t> ids, std::size_t k, int Item::*axis,
             int Item::*other_axis) {
    Node& node = nodes_[k];
    for (const std::size_t id : ids) {
      node.min_begin = std::min(node.min_begin, items[id].begin);
      node.max_begin = std::max(node.max_begin, items[id].begin);
      node.min_end = std::min(node.min_end, items[id].end);
      node.max_end = std::max(node.max_end, items[id].end);
    }
    if (k >= leaves_) {
      if (!ids.empty()) leaf_of_[ids[0]] = k;
      return;
    }
    const std::size_t half = (ids.size() + 1) / 2;
    std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(half), ids.end(),
                     [&](std::size_t a, std::size_t b) { return items[a].*axis < items[b].*axis; });
    build(items, ids.first(half), 2 * k, other_axis, axis);
    build(items, ids.subspan(half), 2 * k + 1, other_axis, axis);
  }

  std::size_t leaves_ = 1;
  std::vector<Node> nodes_;  // the children of node k are 2k and 2k + 1; the root is 1
  std::vector<std::size_t> leaf_of_;
};

// The skyline: stretches of one height, each named by its left edge. The horizon names a wall that is the
// neighbour of both the first and the last stretch.
class Skyline {
 public:
  explicit Skyline(int horizon) : stretches_(static_cast<std::size_t>(horizon) + 1) {
    at(horizon).height = std::numeric_limits<std::int64_t>::max();
    at(0).left = horizon;
    lay(0, horizon, 0);
  }

  struct Stretch {
    std::int64_t height = kInside;
    int left = 0;   // edge of the left neighbour
    int right = 0;  // of the right one: where this stretch ends
  };

  void lay(int left, int right, std::int64_t height) {
    at(left).height = height;
    at(left).right = right;
    at(right).left = left;
    lowest_.emplace(height, left);
  }

  // Takes the lowest stretch, with its level neighbours; something has to be laid there again.
  std::pair<int, int> take_lowest() {
    while (at(lowest_.top().second).height != lowest_.top().first) lowest_.pop();  // stale
    const auto [height, left] = lowest_.top();
    lowest_.pop();
    // Ties go to the lower edge, so this is the leftmost of its level.
    int right = at(left).right;
    while (at(right).height == height) {
      const int next = at(right).right;
      at(right).height = kInside;
      right = next;
    }
    return {left, right};
  }

  [[nodiscard]] std::int64_t height(int left) const {
    return stretches_[static_cast<std::size_t>(left)].height;
  }
  [[nodiscard]] std::int64_t lower_neighbour(int left, int right) const {
    return std::min(height(stretches_[static_cast<std::size_t>(left)].left), height(right));
  }

 private:
  static constexpr std::int64_t kInside = -1;  // this edge is inside some stretch
  Stretch& at(int left) { return stretches_[static_cast<std::size_t>(left)]; }

  using Entry = std::pair<std::int64_t, int>;  // height, left edge
  std::vector<Stretch> stretches_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> lowest_;
};

// Sets the offset of every item; returns the highest end.
std::int64_t place(std::vector<Item>& items, const Order& order, int horizon, CandidateTree& unplaced) {
  unplaced.reset(order);
  Skyline sky(horizon);
  std::int64_t packed = 0;
  for (std::size_t left_over = items.size(); left_over > 0;) {
    const auto [left, right] = sky.take_lowest();
    const std::int64_t height = sky.height(left);
    const std::size_t rank = unplaced.find(left, right);
    if (rank == CandidateTree::kNone) {
      sky.lay(left, right, sky.lower_neighbour(left, right));
      continue;
    }
    Item& item = items[order[rank]];
    unplaced.erase(order[rank]);
    --left_over;
    item.offset = height;
    packed = std::max(packed, item.top());
    if (left < item.begin) sky.lay(left, item.begin, height);
    sky.lay(item.begin, item.end, item.top());
    if (item.end < right) sky.lay(item.end, right, height);
  }
  return packed;
}

template <class Weight>
Order heaviest_first(const std::vector<Item>& items, Weight weight) {
  Order order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return weight(items[a]) > weight(items[b]); });
  return order;
}

}  // namespace

Packing pack(std::span<const BlockLifetime> blocks, std::int64_t alignment) {
  check(alignment > 0, "alignment {} is not positive", alignment);
  std::vector<std::int64_t> times;
  times.reserve(blocks.size() * 2);
  for (const BlockLifetime& block : blocks) times.insert(times.end(), {block.begin, block.end});
  std::ranges::sort(times);
  times.erase(std::ranges::unique(times).begin(), times.end());
  check(times.size() < static_cast<std::size_t>(std::numeric_limits<int>::max()),
        "{} events are too many to pack", times.size());
  const auto rank_of = [&](std::int64_t time) {
    return static_cast<int>(std::ranges::lower_bound(times, time) - times.begin());
  };

  std::vector<Item> items;
  std::vector<std::size_t> source;
  std::int64_t all_bytes = 0;  // no offset can pass this, so that it fits is all that has to be checked
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockLifetime& block = blocks[i];
    check(block.bytes >= 0, "block {} has {} bytes", i, block.bytes);
    if (block.bytes == 0 || block.begin >= block.end) continue;
    items.push_back({rank_of(block.begin), rank_of(block.end), round_up(block.bytes, alignment)});
    source.push_back(i);
    all_bytes = checked_add(all_bytes, items.back().bytes);
  }
  Packing packing{std::vector<std::int64_t>(blocks.size()), 0};
  if (items.empty()) return packing;

  std::vector<BlockLifetime> rounded;
  for (const Item& item : items) rounded.push_back({item.begin, item.end, item.bytes});
  const std::int64_t bound = live_peak(rounded);
  const int horizon = static_cast<int>(times.size()) - 1;
  CandidateTree unplaced(items);
  // Longest first is the best single order; the other two mend most of its failures. Each order is made for
  // its first turn, and revised after every one: what stuck out above the bound comes first the next time.
  constexpr std::array<double (*)(const Item&), 3> kWeights = {
      [](const Item& item) { return item.duration(); },
      [](const Item& item) { return item.area(); },
      [](const Item& item) { return item.area() * item.duration(); },
  };
  std::array<Order, kWeights.size()> orders;
  packing.bytes = std::numeric_limits<std::int64_t>::max();
  std::size_t placed = 0;
  for (std::size_t round = 0; packing.bytes > bound && (round < 2 || placed < kSearchBudget); ++round) {
    Order& order = orders[round % orders.size()];
    if (order.empty()) order = heaviest_first(items, kWeights[round]);
    const std::int64_t bytes = place(items, order, horizon, unplaced);
    placed += items.size();
    if (bytes < packing.bytes) {
      packing.bytes = bytes;
      for (std::size_t i = 0; i < items.size(); ++i) packing.offsets[source[i]] = items[i].offset;
    }
    std::ranges::stable_partition(order, [&](std::size_t id) { return items[id].top() > bound; });
  }
  return packing;
}

}  // namespace headroom
