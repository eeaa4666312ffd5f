#include "jobs/metrics.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "report/json.h"

namespace headroom {
namespace {

constexpr std::int64_t kBlockBytes = 1 << 16;  // of the file at a time; a line has some hundred bytes

std::optional<std::int64_t> step_of(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<std::int64_t>();
}

// The size up to and with the last whole line of a step from 1 to `steps_done`, searched from the end.
std::int64_t kept_bytes(const AppendedFile& file, std::int64_t steps_done) {
  std::string block(kBlockBytes, '\0');
  std::int64_t end = file.size_bytes();
  while (end > 0) {
    const std::int64_t begin = std::max<std::int64_t>(end - kBlockBytes, 0);
    const std::string_view whole_block =
        file.read(begin, std::span(block).first(static_cast<std::size_t>(end - begin)));
    std::string_view text = whole_block;
    while (!text.empty()) {
      const bool finished = text.ends_with('\n');
      const std::size_t before = text.substr(0, text.size() - (finished ? 1 : 0)).rfind('\n');
      const bool begins_here = before != std::string_view::npos || begin == 0;
      // What begins in an earlier block is read again with it. A line longer than a block is none of ours.
      if (!begins_here && text.size() < whole_block.size()) break;
      const std::size_t first = before + 1;  // 0 where there is no line before
      if (finished && begins_here) {
        const std::optional<std::int64_t> step = step_of(text.substr(first));
        if (step && *step >= 1 && *step <= steps_done) return begin + static_cast<std::int64_t>(text.size());
      }
      text = text.substr(0, first);
    }
    end = begin + static_cast<std::int64_t>(text.size());
  }
  return 0;
}

}  // namespace

std::filesystem::path metrics_path(const std::filesystem::path& out) {
  return out / "metrics.jsonl";
}

Metrics::Metrics(const std::filesystem::path& out, std::int64_t steps_done) : file_(metrics_path(out)) {
  file_.cut(kept_bytes(file_, steps_done));
}

void Metrics::add(const StepReport& report) {
  const OrderedJson line = {{"step", report.step},
                            {"loss", json_or_null(report.loss)},
                            {"labels", report.labels},
                            {"learning_rate", report.learning_rate},
                            {"grad_norm", json_or_null(report.grad_norm)},
                            {"tokens", report.tokens},
                            {"seconds", report.seconds},
                            {"tokens_per_second", report.tokens_per_second},
                            {"live_peak_bytes", report.live_peak_bytes},
                            {"rank_live_peak_bytes", report.rank_live_peak_bytes}};
  file_.append(line.dump() + "\n");
}

void Metrics::before_checkpoint() const {
  check_folder();
  file_.sync();
}

}  // namespace headroom
