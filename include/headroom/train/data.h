// What a run trains on. A sample is one sequence of `context` tokens and a pure function of (source, seed,
// sample index): whoever saved an index can go on with the same bits, in any order and on any thread. Samples
// are written into memory of the caller; nothing is allocated for one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headroom {

inline constexpr std::int32_t kIgnore = -100;  // the label of a token that predicts nothing

struct DataOptions {
  std::int64_t context = 0;          // tokens in a sequence
  std::int64_t vocab = 0;            // of the model; 0: not known yet, as large as the source needs
  std::uint64_t seed = 0;            // of every order and every draw
  std::int64_t max_documents = 256;  // pieces of documents in a sequence, where the source has boundaries
  bool bytes = false;                // bytes are tokens 0 to 255: of any file, for a model of any vocabulary
};

// Host memory for one sample, or for several, one after the other.
struct Samples {
  std::span<std::int32_t> tokens;           // [context]
  std::span<std::int32_t> labels;           // [context]: what token i is to predict, or kIgnore
  std::span<std::int32_t> positions;        // [context]: position inside its document
  std::span<std::int32_t> document_starts;  // [max_documents + 1], rising from 0, then context; empty: no
                                            // boundaries

  // Returns the sample at an index, where this holds `count` of them.
  [[nodiscard]] Samples sample(std::int64_t index, std::int64_t count) const {
    const auto part = [&](std::span<std::int32_t> all) {
      const std::size_t each = all.size() / static_cast<std::size_t>(count);
      return all.subspan(static_cast<std::size_t>(index) * each, each);
    };
    return {part(tokens), part(labels), part(positions), part(document_starts)};
  }
};

class Data {
 public:
  // The spec says what the source is:
  //   recall, recall:keys=K,values=V  the built-in long-range recall task
  //   directory                       every file in it is a document of text, bytes are tokens
  //   file.bin, file.bin:uint32       tokens of 16 bits, or as said
  //   any other file                  text, bytes are tokens
  // Text has to be UTF-8 without control characters, as far as pieces of it show, and the model's vocabulary
  // at most 256, unless options.bytes is set. Throws where the spec names nothing of that kind, and where the
  // options do not suit the source.
  [[nodiscard]] static Data open(std::string_view spec, const DataOptions& options);

  Data(Data&&) noexcept;
  Data& operator=(Data&&) noexcept;
  ~Data();

  // The least vocabulary of a model that can read this. A file of tokens is not searched for its largest:
  // there it is the vocabulary that was given, or all that 16 bits can name.
  [[nodiscard]] std::int64_t vocab_needed() const;
  // Whether samples have document boundaries.
  [[nodiscard]] bool documents() const;
  // Samples until everything was seen once; without a value they never repeat.
  [[nodiscard]] std::optional<std::int64_t> samples_per_epoch() const;
  // Mean loss, in nats, of the best model that does not see what it would have to look up; where it is known.
  // A lower one proves that attention reaches.
  [[nodiscard]] std::optional<double> floor() const;
  // 16 hexadecimal digits that depend on the contents alone: on every byte of up to 256 MiB, on 1,024 pieces
  // of 256 KiB of more, on all sizes and on documents' names; not on path, time, context or seed. Reads the
  // source.
  [[nodiscard]] std::string fingerprint() const;
  // One line for people.
  [[nodiscard]] std::string describe() const;

  // Writes sample `index`, counted from 0 through all epochs. May be called by several threads at a time.
  void fill(std::int64_t index, const Samples& sample) const;

 private:
  struct State;
  explicit Data(std::unique_ptr<const State> state);

  std::unique_ptr<const State> state_;
};

}  // namespace headroom
