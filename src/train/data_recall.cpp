#include "train/data_recall.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"
#include "train/fingerprint.h"
#include "train/permutation.h"
#include "train/source_seed.h"

namespace headroom {
namespace {

constexpr std::int64_t kMost = 30'000;  // of keys and of values: their product stays a token

}  // namespace

Recall::Recall(std::string_view spec, std::string_view text, const DataOptions& options)
    : context(options.context), seed(source_seed(options.seed, SourceSeed::recall)) {
  bool keys_given = false;
  bool values_given = false;
  const auto parts =
      text.empty() ? std::vector<std::string_view>() : parse_list(fmt::format("data {}", quote(spec)), text);
  for (const std::string_view option : parts) {
    const std::size_t equals = option.find('=');
    const std::string_view name = option.substr(0, equals);
    check(equals != std::string_view::npos && (name == "keys" || name == "values"),
          "option {} of data {} is not understood; write recall:keys=K,values=V", quote(option), quote(spec));
    bool& given = name == "keys" ? keys_given : values_given;
    check(!given, "data {} says {} twice", quote(spec), name);
    given = true;
    (name == "keys" ? keys : values) = parse_whole(fmt::format("data {}: {}", quote(spec), name),
                                                   option.substr(equals + 1), name == "keys" ? 1 : 2, kMost);
  }
  check(context >= 2 * keys, "a context of {} is too short for data '{}' with {} keys; the least is {}",
        context, spec, keys, 2 * keys);
}

std::optional<double> Recall::floor() const {
  return std::log(static_cast<double>(values));
}

std::string Recall::fingerprint() const {
  return Fingerprint().shape("recall").shape(keys).shape(values).text();
}

std::string Recall::describe() const {
  return fmt::format("recall, {} keys with one of {} values each, asked for up to {} tokens later",
                     format_count(keys), format_count(values), format_count(context - 1));
}

void Recall::fill(std::int64_t index, const Samples& sample) const {
  auto* tokens = sample.tokens.data();
  auto* labels = sample.labels.data();
  auto* positions = sample.positions.data();
  // Draws 0 .. keys - 1 are the values, draw keys + i belongs to position i.
  const Random draw(seed, 2 * static_cast<std::uint64_t>(index));
  const Permutation order(Random(seed, 2 * static_cast<std::uint64_t>(index) + 1), keys);
  const auto value_of = [&](std::int64_t key) {
    return static_cast<std::int64_t>(
        draw.below(static_cast<std::uint64_t>(key), static_cast<std::uint64_t>(values)));
  };
  const auto random_key = [&](std::int64_t position) {
    return static_cast<std::int64_t>(
        draw.below(static_cast<std::uint64_t>(keys + position), static_cast<std::uint64_t>(keys)));
  };

  const std::int64_t assignments = std::max(keys, context / 4);
  for (std::int64_t i = 0; i < context; ++i) {
    std::int64_t token = filler_token();
    std::int64_t label = kIgnore;
    if (i < assignments) {
      const std::int64_t key = i < keys ? order(i) : random_key(i);
      token = assignment_token(key, value_of(key));
    } else if (i >= context / 2) {
      token = random_key(i);
      label = value_token(value_of(token));
    }
    tokens[i] = static_cast<std::int32_t>(token);
    labels[i] = static_cast<std::int32_t>(label);
    positions[i] = static_cast<std::int32_t>(i);
  }
}

}  // namespace headroom
