// What the table of bad inputs is made of: command lines that work, and the ways to spoil one.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/bad_inputs.h"
#include "headroom/core/text.h"

// Names of its own: the program has a Table too.
namespace headroom::bad_input {

using Line = std::vector<std::string>;

// Lines that work, so that one bad value is all that is wrong; should it be taken, the work is small.
inline Line devices() {
  return {"devices"};
}
inline Line plan() {
  return {"plan", "--model", "demo", "--context", "64"};
}
inline Line train(const std::filesystem::path& folder) {
  return {"train",
          "--model",
          "demo",
          "--data",
          "recall",
          "--context",
          "64",
          "--steps",
          "1",
          "--out",
          (folder / "never").string()};
}
inline Line profile() {
  return {"profile", "--model", "demo", "--context", "64", "--steps", "1"};
}
inline Line bench_memory() {
  return {"bench", "memory", "--traces", "1", "--blocks", "10", "--large-events", "10"};
}
inline Line bench_attention() {
  return {"bench", "attention", "--seq", "16", "--heads", "1", "--steps", "1", "--warmup", "0"};
}
inline Line bench_loss() {
  return {"bench",   "loss", "--tokens", "16", "--hidden", "16",
          "--vocab", "32",   "--steps",  "1",  "--warmup", "0"};
}
inline Line bench_ring() {
  return {"bench", "ring", "--ranks", "2", "--seq", "16", "--heads", "2", "--steps", "1", "--warmup", "0"};
}
inline Line bench_step() {
  return {"bench", "step", "--context", "16", "--steps", "1", "--warmup", "0"};
}
inline Line verify_attention() {
  return {"verify", "attention", "--every", "1000", "--impl", "tiled"};
}
inline Line verify_loss() {
  return {"verify", "loss", "--every", "1000", "--impl", "fused"};
}
inline Line verify_ring() {
  return {"verify", "ring", "--every", "1000"};
}
inline Line verify_memory() {
  return {"verify", "memory", "--steps", "1"};
}

// The line with an option set to a value, or with a flag.
inline Line with(Line line, const std::string& option, const std::string& value) {
  const auto found = std::ranges::find(line, option);
  if (found != line.end()) {
    *(found + 1) = value;
  } else {
    line.insert(line.end(), {option, value});
  }
  return line;
}
inline Line with(Line line, const Line& more) {
  line.insert(line.end(), more.begin(), more.end());
  return line;
}
inline Line without(Line line, const std::string& option) {
  const auto found = std::ranges::find(line, option);
  return line.erase(found, found + 2), line;
}

class Table {
 public:
  std::vector<BadInput> rows;

  void add(Line line, std::string named) {
    rows.push_back({.arguments = std::move(line), .named = std::move(named)});
  }

  // A value that an option of a line must not take; the message names the option.
  void value(const Line& line, const std::string& option, const std::string& bad) {
    add(with(line, option, bad), option);
  }

  void whole(const Line& line, const std::string& option, std::int64_t least, std::int64_t most) {
    for (const char* bad : {"", "many", "010", "0x10", "+5", "-1", " 5", "5 ", "5\n", "1e3", "5.0", "nan",
                            "1_000", "1,000", "٣", "9223372036854775808", "99999999999999999999"}) {
      value(line, option, bad);
    }
    if (least > 0) value(line, option, std::to_string(least - 1));
    value(line, option, std::to_string(most + 1));
    add(with(line, {option + "="}), option);
  }

  void number(const Line& line, const std::string& option) {
    for (const char* bad :
         {"",   "nan", "-nan", "infinity", "-inf", "-1", "-0",    "+1",     "0x1p3", "010", ".5",
          "5.", "1e",  "1,5",  "1 ",       " 1",   "1f", "1e999", "1e-999", "one",   "5\n"}) {
      value(line, option, bad);
    }
  }

  void size(const Line& line, const std::string& option) {
    for (const char* bad : {"",
                            "0",
                            "0GiB",
                            "12XB",
                            "GiB",
                            "-1",
                            "-5GiB",
                            "+5GiB",
                            "1e9",
                            "nan",
                            "inf",
                            "99999999999999999999",
                            "9223372036854775808",
                            "8192PiB",
                            "1..5GiB",
                            "1.5.5",
                            "0x100",
                            "010",
                            "080GiB",
                            ".5GiB",
                            "1.GiB",
                            "80gib",
                            "80 GiB extra",
                            "80GiB ",
                            " 80GiB",
                            "80  GiB",
                            "٣GiB",
                            "0.0000000001GB",
                            ".",
                            "1,5GiB",
                            "1GiB\n"}) {
      value(line, option, bad);
    }
  }

  void numbers(const Line& line, const std::string& option, std::int64_t least) {
    for (const char* bad : {"", ",", "64,,128", ",64", "64,", "64 128", "64;128", "64,x", "64,-1", "[64,128]",
                            "64,010", "0x40", "64,99999999999999999999", "64, 128"}) {
      value(line, option, bad);
    }
    if (least > 0) value(line, option, "64,0");
    add(with(with(line, option, "64"), Line{"128"}), "128");
  }

  // A list of names, or one name; the message names the value where it does not the option.
  void names(const Line& line, const std::string& option, const std::string& unknown) {
    for (const char* bad : {"", ",", "f32,,f32", ",f32", "f32,"}) value(line, option, bad);
    add(with(line, option, unknown), unknown);
  }
  void name(const Line& line, const std::string& option, const std::string& unknown) {
    value(line, option, "");
    add(with(line, option, unknown), unknown);
    add(with(line, {option + "="}), option);
  }

  void flag(const Line& line, const std::string& option) {
    for (const char* bad : {"=", "=true", "=false", "=1", "=yes"}) add(with(line, {option + bad}), option);
    add(with(line, {option, option}), option);
    add(with(line, {option, "yes"}), "yes");
  }

  void mask(const Line& line, const std::string& option, bool listed) {
    for (const char* bad : {"windo:3",       "window:",           "window:0",
                            "window:x",      "window:010",        "window:0x10",
                            "window:-3",     "window:1e3",        "window:9223372036854775808",
                            "window",        "dilated:8192",      "dilated:8/0",
                            "dilated:/2",    "dilated:8/",        "dilated:8/2/2",
                            "causal+",       "+causal",           "causal++window:3",
                            "causal+causal", "window:3+window:4", "full+causal",
                            "Causal",        " causal",           "causal:1"}) {
      add(with(line, option, bad), "");
    }
    value(line, option, "");
    if (listed) value(line, option, "causal,,full");
  }
};

}  // namespace headroom::bad_input
