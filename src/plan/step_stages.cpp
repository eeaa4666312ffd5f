// A step in a few lines, as people look at it, and the tensors that live as long as the run.
#include <algorithm>
#include <array>

#include "headroom/plan/plan.h"

namespace headroom {
namespace {

constexpr StagePath kEmbedding{{StageKind::forward}, {StageKind::embedding}};
constexpr StagePath kFirstLayer{{StageKind::forward}, {StageKind::layer, 0}};
constexpr StagePath kForward{{StageKind::forward}};
constexpr StagePath kLoss{{StageKind::loss}};
constexpr StagePath kBackward{{StageKind::backward}};

}  // namespace

std::string_view name(StepStage stage) {
  switch (stage) {
    case StepStage::parameters: return "parameters";
    case StepStage::embedding: return "after embedding";
    case StepStage::first_layer: return "after the first layer";
    case StepStage::layers: return "after all layers";
    case StepStage::loss: return "loss";
    case StepStage::backward: return "backward";
    case StepStage::optimizer: return "optimizer step";
  }
  return {};
}

std::vector<StepStageUsage> step_stages(const Ledger& ledger) {
  struct Line {
    StepStage stage;
    Phase phase;
    StagePath path;
  };
  const std::array lines = {Line{StepStage::parameters, Phase::load, {}},
                            Line{StepStage::embedding, Phase::micro_step, kEmbedding},
                            Line{StepStage::first_layer, Phase::micro_step, kFirstLayer},
                            Line{StepStage::layers, Phase::micro_step, kForward},
                            Line{StepStage::loss, Phase::micro_step, kLoss},
                            Line{StepStage::backward, Phase::micro_step, kBackward},
                            Line{StepStage::optimizer, Phase::update, {}}};
  const std::vector<StageUsage> all = usage_by_stage(ledger, Space::device);
  std::vector<StepStageUsage> rows;
  for (const Line& line : lines) {
    const auto found = std::ranges::find_if(
        all, [&](const StageUsage& row) { return row.phase == line.phase && row.stage == line.path; });
    if (found == all.end()) continue;
    rows.push_back({line.stage, found->live_bytes, found->peak_bytes, found->at_peak});
  }
  return rows;
}

std::vector<StateBytes> state_bytes(const Ledger& ledger) {
  std::vector<StateBytes> rows;
  const auto load = ledger.find_phase(Phase::load);
  if (!load) return rows;
  for (const Event& event : ledger.phases()[*load].events) {
    if (event.kind != EventKind::allocate || event.lifetime != Lifetime::run) continue;
    if (event.category == Category::staging) continue;
    const std::string_view tensor = ledger.text(event.name);
    auto row = std::ranges::find(rows, tensor, &StateBytes::tensor);
    if (row == rows.end()) row = rows.insert(row, {.tensor = std::string(tensor), .space = event.space});
    row->bytes += event.bytes;
  }
  return rows;
}

std::optional<StepStage> step_stage_of(Phase phase, const StagePath& path) {
  if (phase == Phase::update) return StepStage::optimizer;
  if (path.inside(kEmbedding)) return StepStage::embedding;
  if (path.inside(kFirstLayer)) return StepStage::first_layer;
  if (path.inside(kForward)) return StepStage::layers;
  if (path.inside(kLoss)) return StepStage::loss;
  if (path.inside(kBackward)) return StepStage::backward;
  return std::nullopt;
}

}  // namespace headroom
