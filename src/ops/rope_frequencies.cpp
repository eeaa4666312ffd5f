#include "headroom/ops/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "headroom/core/error.h"

namespace headroom {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Wavelengths up to original_positions / high are kept, those from original_positions / low on are stretched,
// and between the two the frequency goes smoothly from one to the other.
double llama3_frequency(const RopeSettings& settings, double inverse) {
  const auto positions = static_cast<double>(settings.original_positions);
  const double wavelength = kTurn / inverse;
  if (wavelength < positions / settings.high_frequency_factor) return inverse;
  if (wavelength > positions / settings.low_frequency_factor) return inverse / settings.factor;
  const double smooth = (positions / wavelength - settings.low_frequency_factor) /
                        (settings.high_frequency_factor - settings.low_frequency_factor);
  return (1 - smooth) * inverse / settings.factor + smooth * inverse;
}

// Pairs before the range turn often enough to be kept, pairs after it are stretched.
struct YarnRange {
  double low;
  double high;
};

YarnRange yarn_range(const RopeSettings& settings, std::int64_t head_dim) {
  // The pair that makes so many turns over the original context.
  const auto pair_of = [&](double turns) {
    const auto positions = static_cast<double>(settings.original_positions);
    return static_cast<double>(head_dim) * std::log(positions / (turns * kTurn)) /
           (2 * std::log(settings.theta));
  };
  YarnRange range{pair_of(settings.beta_fast), pair_of(settings.beta_slow)};
  if (settings.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  range = {std::max(range.low, 0.0), std::min(range.high, static_cast<double>(head_dim - 1))};
  if (range.low == range.high) range.high += 0.001;  // as transformers does: no division by zero
  return range;
}

double yarn_frequency(const RopeSettings& settings, const YarnRange& range, int pair, double inverse) {
  const double ramp = std::clamp((pair - range.low) / (range.high - range.low), 0.0, 1.0);
  return inverse / settings.factor * ramp + inverse * (1 - ramp);
}

double yarn_magnitude(const RopeSettings& settings) {
  if (settings.attention_factor) return *settings.attention_factor;
  const auto scale = [&](double mscale) {
    return settings.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(settings.factor) + 1.0;
  };
  if (settings.mscale != 0 && settings.mscale_all_dim != 0) {
    return scale(settings.mscale) / scale(settings.mscale_all_dim);
  }
  return scale(1);
}

void check_settings(const RopeSettings& settings, std::int64_t head_dim) {
  check(head_dim >= 2 && head_dim <= std::int64_t{2} * kMaxRopeHalf && head_dim % 2 == 0,
        "rope: head_dim {} is not an even number from 2 to {}", head_dim, std::int64_t{2} * kMaxRopeHalf);
  check(settings.theta > 1 && std::isfinite(settings.theta), "rope: theta {} is not above 1", settings.theta);
  if (settings.kind == RopeKind::none) return;
  check(settings.factor >= 1 && std::isfinite(settings.factor), "rope: factor {} is not 1 or more",
        settings.factor);
  if (settings.kind == RopeKind::linear) return;
  check(settings.original_positions >= 1, "rope: original_positions {} is not 1 or more",
        settings.original_positions);
  if (settings.kind == RopeKind::llama3) {
    check(settings.low_frequency_factor > 0 && settings.high_frequency_factor > settings.low_frequency_factor,
          "rope: low_frequency_factor {} and high_frequency_factor {} do not rise from above 0",
          settings.low_frequency_factor, settings.high_frequency_factor);
    return;
  }
  check(settings.beta_slow > 0 && settings.beta_fast >= settings.beta_slow,
        "rope: beta_slow {} and beta_fast {} do not rise from above 0", settings.beta_slow,
        settings.beta_fast);
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeSettings& settings, std::int64_t head_dim) {
  check_settings(settings, head_dim);
  RopeFrequencies result{.half = static_cast<int>(head_dim / 2)};
  const bool yarn = settings.kind == RopeKind::yarn;
  const YarnRange range = yarn ? yarn_range(settings, head_dim) : YarnRange{};
  for (int i = 0; i < result.half; ++i) {
    const double inverse = std::pow(settings.theta, -2.0 * i / static_cast<double>(head_dim));
    switch (settings.kind) {
      case RopeKind::none: result.inverse[i] = inverse; break;
      case RopeKind::linear: result.inverse[i] = inverse / settings.factor; break;
      case RopeKind::llama3: result.inverse[i] = llama3_frequency(settings, inverse); break;
      case RopeKind::yarn: result.inverse[i] = yarn_frequency(settings, range, i, inverse); break;
    }
  }
  if (yarn) result.magnitude = yarn_magnitude(settings);
  return result;
}

}  // namespace headroom
