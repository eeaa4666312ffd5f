// The ledger: every allocation and free of a run with its bytes, category, name, stream and stage, phase by
// phase. A phase's first run records its trace; every later run has to repeat it, so the ledger stops growing
// after the first step and stays on for good. Rehearsal and run write the same ledger; comparing the two is
// comparing events.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "headroom/core/stream.h"
#include "headroom/memory/stage.h"

namespace headroom {

enum class Category : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  attention,
  logits,
  workspace,
  communication,
  staging,
};
inline constexpr int kCategoryCount = 9;
[[nodiscard]] std::string_view name(Category category);

// One arena each: the device's own memory, and host memory that it copies from and to.
enum class Space : std::uint8_t { device, host };
inline constexpr int kSpaceCount = 2;

// A block of a phase is freed before the phase ends; a block of the run has one offset for good.
enum class Lifetime : std::uint8_t { phase, run };

using CategoryBytes = std::array<std::int64_t, kCategoryCount>;
[[nodiscard]] std::int64_t total(const CategoryBytes& bytes);

enum class EventKind : std::uint8_t {
  allocate,
  free,
  stage_begin,
  stage_end,
  touch,
  send,
  receive,
  all_reduce,
  reduce_scatter,
  record,
  wait,
  wait_on_host
};

struct Event {
  EventKind kind = EventKind::allocate;
  Category category = Category::workspace;
  Space space = Space::device;
  Lifetime lifetime = Lifetime::phase;
  StreamId stream = StreamId::main;
  std::uint32_t name = 0;   // of the block; Ledger::text() reads it
  std::uint32_t stage = 0;  // it happened in, or that begins or ends; Ledger::stage_path() reads it
  // Block: the n-th allocation of its phase or run. Record and wait: the n-th record. Send and receive: the
  // other rank.
  std::uint32_t id = 0;
  std::int64_t bytes = 0;

  bool operator==(const Event&) const = default;
};

// Live bytes now and at the highest moment, of one space.
struct Usage {
  CategoryBytes live{};
  CategoryBytes peak{};     // each category's own highest
  CategoryBytes at_peak{};  // the categories at the moment when their sum was highest
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;

  void add(Category category, std::int64_t bytes);
  void remove(Category category, std::int64_t bytes);
};

class Ledger {
 public:
  // What happened in the first run of a phase.
  struct Trace {
    Phase phase = Phase::step;
    std::array<CategoryBytes, kSpaceCount> live_before{};  // what the run held when the phase first began
    std::vector<Event> events;
    std::int64_t runs = 0;
  };

  Ledger();

  // The same names and stages and no events: what a run starts from, so that ids mean the same on both sides.
  [[nodiscard]] Ledger same_vocabulary() const;

  // Opens a phase and returns its index. Its first run is recorded; later runs are only counted.
  std::size_t begin_phase(Phase phase);
  void end_phase();
  // Live bytes and stage go back to what they were when the phase began, and a first run's trace is dropped.
  // Peaks that the phase has reached stay.
  void abandon_phase();
  void append(const Event& event);

  void open_stage(const Stage& stage);
  void close_stage();
  [[nodiscard]] std::uint32_t stage() const { return stage_; }

  [[nodiscard]] std::uint32_t intern(std::string_view text);
  [[nodiscard]] std::string_view text(std::uint32_t id) const { return texts_[id]; }
  [[nodiscard]] StagePath stage_path(std::uint32_t stage) const;
  [[nodiscard]] std::string describe(const Event& event) const;

  [[nodiscard]] std::span<const Trace> phases() const { return phases_; }
  [[nodiscard]] std::optional<std::size_t> find_phase(Phase phase) const;
  [[nodiscard]] const Usage& usage(Space space) const { return usage_[static_cast<std::size_t>(space)]; }
  // Removes a block of the run that is freed outside of phases from the live bytes; there is no event.
  void remove_live(Space space, Category category, std::int64_t bytes) {
    usage(space).remove(category, bytes);
  }

 private:
  [[nodiscard]] Usage& usage(Space space) { return usage_[static_cast<std::size_t>(space)]; }

  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  struct StageNode {
    std::uint32_t parent = 0;
    Stage stage;

    bool operator==(const StageNode&) const = default;
  };
  struct StageHash {
    std::size_t operator()(const StageNode& node) const {
      const std::uint64_t kinds =
          (std::uint64_t{node.parent} << 32) | static_cast<std::uint64_t>(node.stage.kind);
      return (kinds ^ (static_cast<std::uint64_t>(node.stage.index) << 17)) * 0x9E3779B97F4A7C15u >> 7;
    }
  };

  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>> text_ids_;
  std::vector<StageNode> stages_;  // number 0 is the phase itself
  std::unordered_map<StageNode, std::uint32_t, StageHash> stage_ids_;
  std::vector<Trace> phases_;
  std::array<Usage, kSpaceCount> usage_{};
  std::array<CategoryBytes, kSpaceCount> live_at_begin_{};  // of the open phase
  std::uint32_t stage_ = 0;
  std::size_t phase_ = 0;
  bool recording_ = false;
};

}  // namespace headroom
