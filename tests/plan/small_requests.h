// Small questions that the tests of plans ask.
#pragma once

#include "headroom/core/bytes.h"
#include "headroom/plan.h"

namespace headroom {

inline PlanRequest small_request(std::int64_t layers) {
  PlanRequest request;
  request.problem.config = find_model("demo");
  request.problem.config.layers = layers;
  request.problem.sizes = {.batch = 1, .context = 256};
  request.problem.mask = parse_mask("causal");
  request.device.cores = 2;
  request.budget_bytes = kGiB;
  return request;
}

inline CostModel costs_of(const PlanRequest& request) {
  return {request.device, request.problem.compute_dtype};
}

// Copies over a link that is slow beside the kernels.
inline PlanRequest gpu_request() {
  PlanRequest request = small_request(4);
  request.device = find_in_catalogue("h200").device;
  request.problem.compute_dtype = DType::bf16;
  request.problem.sizes.batch = 2;
  request.host_budget_bytes = kGiB;
  request.pins.loss_chunk_tokens = 96;
  request.pins.mlp_tile_tokens = 128;
  return request;
}

// On the host of a GPU while weights are loaded or saved: two flat f32 tensors, since each is smaller than a
// piece of staging, and a batch.
inline std::int64_t staging_bytes(const PlanRequest& request) {
  return 2 * 4 * ParameterTable(request.problem.config).elements() + 128 * kKiB;
}

}  // namespace headroom
