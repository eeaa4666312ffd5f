#include "jobs/same_run.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headroom/core/checksum.h"
#include "headroom/core/files.h"
#include "headroom/cpu/thread_pool.h"
#include "train/fingerprint.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

struct NamedText {
  std::string name;
  std::string text;
};

std::uint64_t text_hash(std::string_view text) {
  return static_cast<std::uint64_t>(text.size()) << 32 | crc32c(std::as_bytes(std::span(text)));
}

// The text of every rank, by rank. Numbers are all that ranks exchange before they have planned, so the text
// travels in pieces of eight characters.
std::vector<std::string> texts_of_ranks(std::string_view own, Communicator& ranks) {
  const std::span<const std::uint64_t> given = ranks.all_values(own.size());
  const std::vector<std::uint64_t> sizes(given.begin(), given.end());
  std::vector<std::string> texts(sizes.size());
  for (std::size_t begin = 0; begin < std::ranges::max(sizes); begin += sizeof(std::uint64_t)) {
    std::uint64_t piece = 0;
    if (begin < own.size()) own.substr(begin).copy(reinterpret_cast<char*>(&piece), sizeof piece);
    const std::span<const std::uint64_t> pieces = ranks.all_values(piece);
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      texts[rank].append(reinterpret_cast<const char*>(&pieces[rank]), sizeof piece);
    }
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank].resize(sizes[rank]);
  return texts;
}

// Every rank gives the same names in the same order.
void check_same_texts(const std::vector<NamedText>& own, Communicator& ranks) {
  std::string names;
  std::string all;
  for (const NamedText& one : own) {
    names += one.name + "\n";
    all += one.text + "\n";
  }
  ranks.check_same(text_hash(names), "version of the program");
  if (!ranks.difference(text_hash(all))) return;
  for (const NamedText& one : own) {
    const auto found = ranks.difference(text_hash(one.text));
    if (!found) continue;
    const std::vector<std::string> texts = texts_of_ranks(one.text, ranks);
    ranks.fail_on_all(found->rank, fmt::format("rank {} has {} {}, rank {} has {}", found->rank, one.name,
                                               texts[static_cast<std::size_t>(found->rank)], found->usual,
                                               texts[static_cast<std::size_t>(found->usual)]));
  }
}

template <class T>
std::string text_of(const T& value) {
  return fmt::format("{}", value);
}
template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : std::string(kNoSetting);
}

// All files of weights in a folder. Large ones are looked at in places, as those of data are.
std::string weights_fingerprint(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  Fingerprint fingerprint;
  PieceSizes sizes = kFingerprintPieces;
  sizes.count = std::max<std::int64_t>(2, sizes.count / std::max<std::int64_t>(1, std::ssize(files)));
  for (const fs::path& path : files) {
    const MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    fingerprint.shape(path.filename().string()).shape(std::ssize(bytes));
    for_each_piece(std::ssize(bytes), sizes, [&](std::int64_t begin, std::int64_t size) {
      const auto piece = bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
      fingerprint.contents(piece);
      file.release(piece);
    });
  }
  return fingerprint.text();
}

}  // namespace

void check_same_options(const TrainingOptions& options, Communicator& ranks) {
  const OptimizerSettings& optimizer = options.optimizer;
  check_same_texts({{"--model", options.model},
                    {"--data", options.data},
                    {"--bytes", text_of(options.bytes)},
                    {"--context", text_of(options.context)},
                    {"--batch", text_of(options.batch)},
                    {"--accumulation", text_of(options.accumulation)},
                    {"--max-documents", text_of(options.max_documents)},
                    {"--layers", text_of(options.pins.layers)},
                    {"--loss-chunk", text_of(options.pins.loss_chunk_tokens)},
                    {"--mlp-tile", text_of(options.pins.mlp_tile_tokens)},
                    {"--optimizer-state", text_of(options.pins.optimizer_state)},
                    {"--ring", text_of(options.pins.ring)},
                    {"--shard", text_of(options.pins.shard)},
                    {"--loss-ranks", text_of(options.pins.loss_ranks)},
                    {"--link", text_of(options.link)},
                    {"--latency", text_of(options.latency_seconds)},
                    {"--attention", options.attention},
                    {"--dtype", text_of(options.dtype)},
                    {"--state", options.state},
                    {"--steps", text_of(optimizer.steps)},
                    {"--learning-rate", text_of(optimizer.learning_rate)},
                    {"--warmup", text_of(options.warmup)},
                    {"--final-fraction", text_of(optimizer.final_fraction)},
                    {"--weight-decay", text_of(optimizer.weight_decay)},
                    {"--clip", text_of(optimizer.max_norm)},
                    {"--seed", text_of(options.seed)},
                    {"--out", options.out},
                    {"--save-every", text_of(options.save_every)},
                    {"--keep-last", text_of(options.keep_last)},
                    {"--resume", text_of(options.resume)},
                    {"--overwrite", text_of(options.overwrite)},
                    {"--device", fmt::format("{}", fmt::join(options.devices, ","))},
                    {"--rank-timeout", fmt::format("{:g}s", options.rank_timeout.count())}},
                   ranks);
}

int agreed_threads(const TrainingOptions& options, int ranks_here, Communicator& ranks) {
  const int own = options.threads > 0 ? options.threads : std::max(usable_cores() / ranks_here, 1);
  return static_cast<int>(std::ranges::min(ranks.all_values(static_cast<std::uint64_t>(own))));
}

void check_same_run(const TrainingPlan& plan, Communicator& ranks) {
  std::vector<NamedText> texts;
  for (const Setting& setting : plan.settings) {
    // --model was compared as an option. Here it is a whole path, which hosts may have elsewhere.
    if (setting.name != "model") texts.push_back({setting.name, setting.value});
  }
  const std::optional<fs::path>& begins_with = plan.checkpoint ? plan.checkpoint : plan.weights;
  texts.push_back(
      {"checkpoint", plan.checkpoint ? plan.checkpoint->filename().string() : std::string(kNoSetting)});
  texts.push_back(
      {"weights of fingerprint", begins_with ? weights_fingerprint(*begins_with) : std::string(kNoSetting)});
  check_same_texts(texts, ranks);
  ranks.check_same(hash(plan.fit.layout), "plan");
}

}  // namespace headroom
