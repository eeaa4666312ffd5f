// What a search chooses from, and what it may cost.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/plan/plan.h"

namespace headroom {

// Throws where a problem is too large to plan.
void check_sizes(const TrainingProblem& problem);

// The parts of a search space, each in the order in which they are tried. No value is there twice.
[[nodiscard]] std::vector<std::int64_t> accumulation_choices(const PlanRequest& request);
// Of a loss that divides what is pinned, or tokens.
[[nodiscard]] std::vector<LossChunks> loss_chunk_choices(const PlanRequest& request);
[[nodiscard]] std::vector<LayerCut> layer_cut_choices(const PlanRequest& request);
[[nodiscard]] std::vector<bool> optimizer_choices(const PlanRequest& request);
// Those that take least memory for their kind, what takes least of the device first.
[[nodiscard]] std::vector<LayerPolicy> smallest_policies(const PlanRequest& request);

// The request with its ring, its sharding and what it divides of the loss pinned, for every way in which its
// ranks may divide a step. What divides least comes first.
[[nodiscard]] std::vector<PlanRequest> division_choices(const PlanRequest& request);
// Of them one for each way to divide the loss, with the ring and the sharding that take least memory.
[[nodiscard]] std::vector<PlanRequest> least_divisions(const PlanRequest& request);
// The ranks of a row that divide the heads of attention where that is fastest; 1 is a ring.
[[nodiscard]] std::int64_t fastest_head_group(const PlanRequest& request, const CostModel& costs);
// What every strategy of the request has in common, where ranks divide heads in groups of so many. Its pins
// are those of a division.
[[nodiscard]] Strategy common_strategy(const PlanRequest& request, std::int64_t head_group);

[[nodiscard]] std::vector<std::int64_t> divisors_of(std::int64_t value);
// The most tokens of a micro-step's batch that a rank has.
[[nodiscard]] std::int64_t rank_tokens(const PlanRequest& request, std::int64_t accumulation);

// How many strategies of a model are rehearsed whole for one part of an answer, at 0.1 ms a layer with the
// packing.
[[nodiscard]] std::int64_t whole_rehearsals(std::int64_t layers);

// Bounds are near what strategies take, so that almost always the first that may fit does. Where so many have
// been rehearsed and did not, those are passed over that would barely fit: they have to by their bound and
// this part of it, 1/1024 and twice that after as many again.
[[nodiscard]] double slack_after(std::int64_t rehearsed, std::int64_t layers);

}  // namespace headroom
