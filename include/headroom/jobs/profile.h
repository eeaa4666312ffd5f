// Real steps of the planned strategy on random tokens, with what happened beside what was planned: bytes by
// stage, time by kernel, resident memory beside the arena, or a GPU's free memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/plan/implementations.h"
#include "headroom/plan/plan.h"
#include "headroom/plan/question.h"
#include "headroom/report/page.h"

namespace headroom {

struct ProfileOptions {
  std::string model;                           // a built-in name (random weights), or a Hugging Face folder
  std::int64_t context = 0;                    // tokens of a sequence
  std::int64_t batch = 1;                      // sequences at a time
  std::int64_t accumulation = 1;               // batches per update
  std::optional<std::int64_t> budget_bytes{};  // without it: what is free now
  std::optional<std::int64_t> host_budget_bytes{};  // as RunDeviceOptions has it
  PinOptions pins{};                                // parts of the strategy
  std::string attention = "causal";                 // as parse_mask() reads it
  std::optional<std::string> dtype{};               // f32 or bf16; without it: what is fast on the device
  std::string state = "f32";                        // of weights, gradients and moments: f32, bf16 or 8bit
  std::int64_t steps = 3;                           // after one that does not count
  std::optional<std::string> trace{};               // a file for the last step as a Chrome trace
  std::string device = "cpu";
  int threads = 0;  // 0: every core
};

// One kind of kernel, over a step.
struct KernelTime {
  std::string_view kernel;
  std::int64_t calls = 0;
  double seconds = 0;
  double predicted_seconds = 0;
  double flops = 0;
  double bytes = 0;
};

// What is free of a memory of the device's own.
struct FreeMemory {
  std::int64_t before_bytes = 0;            // the arena was reserved; the backend was open
  std::int64_t reserved_bytes = 0;          // after that
  std::vector<std::int64_t> after_steps{};  // each of those that count

  [[nodiscard]] bool constant() const;  // over the steps
};

struct Profile {
  ProfileOptions options;
  std::string device;   // its maker's name
  std::string budgets;  // as describe_budgets() has them; empty on a CPU
  TrainingFit fit;
  std::vector<StepImplementation> implementations;
  std::vector<StepStageUsage> planned;
  std::vector<StepStageUsage> measured;
  std::vector<double> stage_seconds;  // beside measured
  std::vector<KernelTime> kernels;    // those that took longest first
  std::int64_t reserved_bytes = 0;    // of the device, as the backend counted it
  std::int64_t live_peak_bytes = 0;
  std::int64_t resident_before_bytes = 0;  // the program itself
  std::int64_t resident_peak_bytes = 0;
  std::optional<FreeMemory> free{};  // on a GPU
  double step_seconds = 0;
  double predicted_seconds = 0;
  std::optional<double> peak_flops{};  // measured on a CPU, the catalogue's of a GPU that it has
  std::string peak_source{};
};

// An error of kind memory where no strategy fits the budget.
[[nodiscard]] Profile profile_step(const ProfileOptions& options);

// The keys are in docs/cli.md.
[[nodiscard]] std::string json(const Profile& profile);

[[nodiscard]] Page profile_page(const Profile& profile);
// Of the page, also printed.
[[nodiscard]] Table kernel_table(const Profile& profile);

}  // namespace headroom
