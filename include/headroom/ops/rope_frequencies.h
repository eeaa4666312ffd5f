// The frequencies of rotary position embedding, as Hugging Face transformers defines them
// (modeling_rope_utils), in double.
#pragma once

#include <cstdint>
#include <optional>

namespace headroom {

enum class RopeKind : std::uint8_t { none, linear, llama3, yarn };

// The fields of a configuration's rope parameters; those a kind does not name are not read.
struct RopeSettings {
  double theta = 10'000;
  RopeKind kind = RopeKind::none;
  double factor = 1;                         // linear, llama3, yarn: at least 1
  std::int64_t original_positions = 0;       // llama3, yarn: the context before it was stretched
  double low_frequency_factor = 1;           // llama3
  double high_frequency_factor = 4;          // llama3
  double beta_fast = 32;                     // yarn
  double beta_slow = 1;                      // yarn
  std::optional<double> attention_factor{};  // yarn; without it 0.1 ln(factor) + 1
  bool truncate = true;                      // yarn: whole numbers bound the correction range
  double mscale = 0;                         // yarn: both nonzero give the attention factor as a quotient
  double mscale_all_dim = 0;

  bool operator==(const RopeSettings&) const = default;
};

inline constexpr int kMaxRopeHalf = 128;

struct RopeFrequencies {
  int half = 0;                       // head_dim / 2
  double inverse[kMaxRopeHalf] = {};  // radians per position
  double magnitude = 1;               // factor of cos and sin
};

// head_dim is even, 2 to 256.
[[nodiscard]] RopeFrequencies rope_frequencies(const RopeSettings& settings, std::int64_t head_dim);

}  // namespace headroom
