#include "headroom/memory/ledger.h"

#include <algorithm>
#include <numeric>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"

namespace headroom {

std::string_view name(Category category) {
  constexpr std::array<std::string_view, kCategoryCount> kNames = {
      "parameters", "gradients", "optimizer",     "activations", "attention",
      "logits",     "workspace", "communication", "staging"};
  return kNames[static_cast<std::size_t>(category)];
}

std::int64_t total(const CategoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

void Usage::add(Category category, std::int64_t bytes) {
  const auto index = static_cast<std::size_t>(category);
  live[index] += bytes;
  live_bytes += bytes;
  peak[index] = std::max(peak[index], live[index]);
  if (live_bytes > peak_bytes) {
    peak_bytes = live_bytes;
    at_peak = live;
  }
}

void Usage::remove(Category category, std::int64_t bytes) {
  live[static_cast<std::size_t>(category)] -= bytes;
  live_bytes -= bytes;
}

Ledger::Ledger() : stages_(1) {}

Ledger Ledger::same_vocabulary() const {
  Ledger copy;
  copy.texts_ = texts_;
  copy.text_ids_ = text_ids_;
  copy.stages_ = stages_;
  copy.stage_ids_ = stage_ids_;
  return copy;
}

std::size_t Ledger::begin_phase(Phase phase) {
  const std::optional<std::size_t> known = find_phase(phase);
  recording_ = !known;
  live_at_begin_ = {usage(Space::device).live, usage(Space::host).live};
  if (recording_) phases_.push_back({.phase = phase, .live_before = live_at_begin_, .events = {}, .runs = 0});
  phase_ = known.value_or(phases_.size() - 1);
  ++phases_[phase_].runs;
  return phase_;
}

void Ledger::end_phase() {
  recording_ = false;
}

void Ledger::abandon_phase() {
  for (const Space space : {Space::device, Space::host}) {
    usage(space).live = live_at_begin_[static_cast<std::size_t>(space)];
    usage(space).live_bytes = total(usage(space).live);
  }
  stage_ = 0;
  if (recording_) phases_.pop_back();
  recording_ = false;
}

void Ledger::append(const Event& event) {
  if (event.kind == EventKind::allocate) usage(event.space).add(event.category, event.bytes);
  if (event.kind == EventKind::free) usage(event.space).remove(event.category, event.bytes);
  if (recording_) phases_[phase_].events.push_back(event);
}

void Ledger::open_stage(const Stage& stage) {
  const StageNode wanted{stage_, stage};
  const auto found = stage_ids_.find(wanted);
  if (found != stage_ids_.end()) {
    stage_ = found->second;
    return;
  }
  stage_ = static_cast<std::uint32_t>(stages_.size());
  stages_.push_back(wanted);
  stage_ids_.emplace(wanted, stage_);
}

void Ledger::close_stage() {
  stage_ = stages_[stage_].parent;
}

std::uint32_t Ledger::intern(std::string_view text) {
  const auto found = text_ids_.find(text);
  if (found != text_ids_.end()) return found->second;
  const auto id = static_cast<std::uint32_t>(texts_.size());
  texts_.emplace_back(text);
  text_ids_.emplace(text, id);
  return id;
}

StagePath Ledger::stage_path(std::uint32_t stage) const {
  if (stage == 0) return {};
  StagePath path = stage_path(stages_[stage].parent);
  path.open(stages_[stage].stage);
  return path;
}

std::string Ledger::describe(const Event& event) const {
  const std::string_view stream = headroom::name(event.stream);
  const std::string path = stage_path(event.stage).text();
  const std::string stage = path.empty() ? "" : " in " + path;
  switch (event.kind) {
    case EventKind::allocate:
    case EventKind::free:
      return fmt::format("{} {} (block {}, {}, {} bytes{}{}){}",
                         event.kind == EventKind::allocate ? "allocate" : "free", text(event.name), event.id,
                         name(event.category), format_count(event.bytes),
                         event.space == Space::host ? ", host" : "",
                         event.lifetime == Lifetime::run ? ", for the run" : "", stage);
    case EventKind::stage_begin: return fmt::format("begin stage {}", path);
    case EventKind::stage_end: return fmt::format("end stage {}", path);
    case EventKind::touch:
      return fmt::format("touch {} (block {}) on stream {}{}", text(event.name), event.id, stream, stage);
    case EventKind::send:
    case EventKind::receive:
      return fmt::format("{} {} bytes of {} {} rank {}{}", event.kind == EventKind::send ? "send" : "receive",
                         format_count(event.bytes), text(event.name),
                         event.kind == EventKind::send ? "to" : "from", event.id, stage);
    case EventKind::reduce_scatter:
      return fmt::format("reduce-scatter {} bytes{}", format_count(event.bytes), stage);
    case EventKind::all_reduce: return fmt::format("all-reduce {} bytes{}", format_count(event.bytes), stage);
    case EventKind::record: return fmt::format("record {} on stream {}{}", event.id, stream, stage);
    case EventKind::wait: return fmt::format("stream {} waits for record {}{}", stream, event.id, stage);
    case EventKind::wait_on_host: return fmt::format("the host waits for record {}{}", event.id, stage);
  }
  return {};
}

std::optional<std::size_t> Ledger::find_phase(Phase phase) const {
  const auto found = std::ranges::find(phases_, phase, &Trace::phase);
  if (found == phases_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - phases_.begin());
}

}  // namespace headroom
