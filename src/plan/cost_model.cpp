#include "headroom/plan/cost_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace headroom {
namespace {

// Of the rates that a description states: what large products and streaming kernels reach.
constexpr double kArithmeticFraction = 0.75;
constexpr double kMemoryFraction = 0.8;
// Of a core that nobody has measured: AVX-512 at 2.5 GHz.
constexpr double kUnknownCoreFlops = 160e9;
constexpr double kUnknownCoreBytes = 12e9;
// Of a multiprocessor of a GPU that is not in the catalogue: what those of consumer boards reach, from their
// data sheets. 16 bits are fast from tensor cores on.
constexpr double kUnknownMultiprocessorFlops = 0.4e12;
constexpr double kUnknownTensorCoreFlops = 1.2e12;
constexpr double kUnknownMultiprocessorBytes = 9e9;
// Between host and a GPU that nobody has described: PCIe of generation 4.
constexpr double kUnknownLinkBytes = 25e9;

double bounded(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

}  // namespace

CostModel::CostModel(const DeviceDescription& device, DType dtype) {
  double flops = dtype == DType::f32 || device.kind == DeviceKind::cpu ? device.f32_flops : device.half_flops;
  double bytes = device.memory_bytes_per_second;
  if (device.rate_source == RateSource::unknown && device.kind == DeviceKind::cpu) {
    flops = kUnknownCoreFlops * device.cores;
    bytes = kUnknownCoreBytes * device.cores;
  } else if (device.rate_source == RateSource::unknown) {
    const bool tensor_cores = dtype != DType::f32 && device.compute_major >= 7;
    flops = (tensor_cores ? kUnknownTensorCoreFlops : kUnknownMultiprocessorFlops) * device.cores;
    bytes = kUnknownMultiprocessorBytes * device.cores;
  }
  arithmetic_ = {.flops_per_second = kArithmeticFraction * flops,
                 .bytes_per_second = kMemoryFraction * bytes};
  memory_ = {.bytes_per_second = kMemoryFraction * bytes};
  copy_bytes_per_second_ = kMemoryFraction * bytes;
  if (device.kind == DeviceKind::cuda) {
    set_host_link(device.host_link_bytes_per_second > 0 ? device.host_link_bytes_per_second
                                                        : kUnknownLinkBytes);
  }
}

RankRates CostModel::rank_rates() const {
  const auto rate_of = [&](std::string_view kernel) {
    const auto known = kernels_.find(kernel);
    const KernelRate& rate = known != kernels_.end() ? known->second : arithmetic_;
    return PassRate{rate.flops_per_second, rate.bytes_per_second, rate.start_seconds};
  };
  RankRates rates{.forward = rate_of("attention"),
                  .backward = rate_of("attention backward"),
                  .memory_bytes_per_second = memory_.bytes_per_second,
                  .link = rank_link_};
  if (!std::isfinite(rates.link.bytes_per_second)) rates.link.bytes_per_second = memory_.bytes_per_second;
  return rates;
}

double CostModel::seconds(const Work& work) const {
  if (work.kind == WorkKind::copy) return bounded(work.bytes, copy_bytes_per_second_);
  if (work.kind == WorkKind::communication) return message_seconds(work);
  const double messages = work.sent_bytes > 0 ? message_seconds(work) : 0;
  const auto known = kernels_.find(work.kernel);
  const KernelRate& rate = known != kernels_.end() ? known->second : work.flops > 0 ? arithmetic_ : memory_;
  return messages + rate.start_seconds + bounded(work.flops, rate.flops_per_second) +
         bounded(work.bytes, rate.bytes_per_second);
}

double CostModel::message_seconds(const Work& work) const {
  const double latency = rank_link_.latency.count();
  if (!std::isfinite(rank_link_.bytes_per_second) && latency == 0) {
    const bool alone = work.kind == WorkKind::communication;  // then its bytes are those that move
    return bounded(alone ? work.bytes : static_cast<double>(work.sent_bytes), memory_.bytes_per_second);
  }
  const auto sent = static_cast<double>(work.sent_bytes);
  const double seconds = sent / rank_rates().link.bytes_per_second;
  if (work.rounds == 0 && work.workspace_bytes == 0) return seconds + latency;  // messages at once
  // A sum goes in rounds that fill its workspace; the next one is under way while a round is added up. So a
  // round takes as long as its bytes or as its latency, whichever is longer.
  const double rounds =
      work.rounds > 0 ? static_cast<double>(work.rounds) : sent / static_cast<double>(work.workspace_bytes);
  return std::max(seconds, rounds * latency) + 2 * latency;
}

namespace {

// Least squares of (start + slope * amount - seconds) / expected seconds of the run.
template <class Expected>
FittedLine fit_line(std::span<const MeasuredWork> runs, const Expected& expected) {
  double one = 0, x = 0, xx = 0, y = 0, xy = 0;
  for (const MeasuredWork& run : runs) {
    if (run.seconds <= 0) continue;
    const double seconds = expected(run);
    const double weight = 1 / (seconds * seconds);
    one += weight;
    x += weight * run.amount;
    xx += weight * run.amount * run.amount;
    y += weight * run.seconds;
    xy += weight * run.amount * run.seconds;
  }
  if (xx <= 0) return {};
  const double determinant = one * xx - x * x;
  double slope = xy / xx;  // through the origin
  double start = 0;
  if (determinant > 1e-9 * one * xx) {
    start = (y * xx - x * xy) / determinant;
    slope = (one * xy - x * y) / determinant;
    if (start < 0 || slope <= 0) {
      start = 0;
      slope = xy / xx;
    }
  }
  return {.per_second = 1 / slope, .start_seconds = start};
}

}  // namespace

FittedLine fit_line(std::span<const MeasuredWork> runs) {
  // Relative to what was measured, runs that happened to be short would count most, and the line would be too
  // fast. So the first line tells what is expected, and the next ones are relative to that.
  FittedLine line = fit_line(runs, [](const MeasuredWork& run) { return run.seconds; });
  constexpr int kRefinements = 4;
  for (int i = 0; i < kRefinements && line.per_second > 0; ++i) {
    line = fit_line(
        runs, [&](const MeasuredWork& run) { return line.start_seconds + run.amount / line.per_second; });
  }
  return line;
}

void calibrate(CostModel& model, std::span<const WorkRecord> records) {
  std::map<std::string_view, std::vector<MeasuredWork>> by_kernel;
  std::map<std::string_view, bool> arithmetic;
  for (const WorkRecord& record : records) {
    if (record.runs == 0 || record.work.kind != WorkKind::kernel) continue;
    const bool counts_flops = record.work.flops > 0;
    arithmetic[record.work.kernel] = counts_flops;
    double seconds = record.seconds / static_cast<double>(record.runs);
    // What the bytes of an arithmetic kernel cost is not known apart: they are taken to move at the rate of
    // memory, in half of its time at most.
    if (counts_flops) seconds -= std::min(seconds / 2, bounded(record.work.bytes, model.memory_rate()));
    by_kernel[record.work.kernel].push_back(
        {.amount = counts_flops ? record.work.flops : record.work.bytes, .seconds = seconds});
  }
  for (const auto& [kernel, runs] : by_kernel) {
    const FittedLine line = fit_line(runs);
    if (line.per_second <= 0) continue;
    KernelRate rate{.start_seconds = line.start_seconds};
    rate.bytes_per_second = model.memory_rate();
    (arithmetic[kernel] ? rate.flops_per_second : rate.bytes_per_second) = line.per_second;
    model.set(kernel, rate);
  }
}

}  // namespace headroom
