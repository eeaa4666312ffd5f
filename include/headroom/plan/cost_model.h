// What a step costs in time: every piece of work that a rehearsal wrote down, at the rate of its kernel.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "headroom/core/device.h"
#include "headroom/memory/work.h"
#include "headroom/parallel/attention_time.h"

namespace headroom {

// Seconds of a run: start + flops / flops_per_second + bytes / bytes_per_second; a rate of 0 costs nothing.
// Kernels load while they multiply, but not what they read and write again at their ends.
struct KernelRate {
  double flops_per_second = 0;
  double bytes_per_second = 0;
  double start_seconds = 0;

  bool operator==(const KernelRate&) const = default;
};

class CostModel {
 public:
  // From a description's rates, with the fractions of them that kernels of their kind reach.
  CostModel(const DeviceDescription& device, DType dtype);
  // Kernels measured on this machine go before those.
  void set(std::string_view kernel, const KernelRate& rate) {
    kernels_.insert_or_assign(std::string(kernel), rate);
  }
  // So do copies between the host and a GPU, in bytes that cross the link one way.
  void set_host_link(double bytes_per_second) {
    copy_bytes_per_second_ = 2 * bytes_per_second;  // work counts what is read and what is written
  }
  [[nodiscard]] const std::map<std::string, KernelRate, std::less<>>& kernels() const { return kernels_; }
  // Bytes a second of kernels that only move them.
  [[nodiscard]] double memory_rate() const { return memory_.bytes_per_second; }
  // Operations per second of kernels that nobody has measured.
  [[nodiscard]] double arithmetic_rate() const { return arithmetic_.flops_per_second; }

  // Messages between ranks move over this link. Without one they move as fast as memory is copied.
  void set_rank_link(const LinkModel& link) { rank_link_ = link; }
  // For attention over ranks.
  [[nodiscard]] RankRates rank_rates() const;

  [[nodiscard]] double seconds(const Work& work) const;
  // Of its messages alone.
  [[nodiscard]] double message_seconds(const Work& work) const;

 private:
  KernelRate arithmetic_;  // kernels that have flops
  KernelRate memory_;      // the others
  double copy_bytes_per_second_ = 0;
  LinkModel rank_link_{};
  std::map<std::string, KernelRate, std::less<>> kernels_;
};

// The rate that fits measured runs best, in the sense of relative error: seconds = start + amount / rate.
struct MeasuredWork {
  double amount = 0;  // flops or bytes
  double seconds = 0;
};
struct FittedLine {
  double per_second = 0;
  double start_seconds = 0;
};
[[nodiscard]] FittedLine fit_line(std::span<const MeasuredWork> runs);

// Rates of this machine from what its runs took, one kernel at a time.
void calibrate(CostModel& model, std::span<const WorkRecord> records);

}  // namespace headroom
