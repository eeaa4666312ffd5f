#include "cli/bad_input_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "headroom/core/text.h"

namespace headroom {
namespace {

using namespace bad_input;

namespace fs = std::filesystem;

void add_commands(Table& table) {
  for (const auto& [line, named] : std::vector<std::pair<Line, std::string>>{
           {{}, "devices"},
           {{""}, "devices"},
           {{"trian"}, "trian"},
           {{"bench"}, "memory"},
           {{"verify"}, "memory"},
           {{"bench", "memroy"}, "memroy"},
           {{"verify", "everything"}, "everything"},
           {{"--frobnicate"}, "--frobnicate"},
           {{"-x"}, "-x"},
           {{"-"}, "-"},
           {{"--"}, "devices"},
           {{"--", "devices"}, "devices"},
           {{"--=x"}, "--=x"},
           {{"--version=2"}, "--version"},
           {{"devices\n"}, "devices"},
           {{"DEVICES"}, "DEVICES"},
           {{"devices", "--frobnicate"}, "--frobnicate"},
           {{"devices", "--", "--frobnicate"}, "--frobnicate"},
           {{"verify", "memory", "extra"}, "extra"},
           {{"--frobnicate", "devices"}, "--frobnicate"},
           {{"verify", "--bogus", "memory"}, "--bogus"},
           {{"plan"}, "--context"},
           {{"plan", "--context", "64"}, "--model"},
           {{"train"}, "--model"},
           {{"profile"}, "--model"},
           {{"plan", "--model", "demo"}, "--context"},
           {{"plan", "--model", "demo", "--context"}, "--context"},
           {{"plan", "--model", "--context", "64"}, "--context"},
           {{"plan", "--Context", "64"}, "--Context"},
           {{"plan", "-context", "64"}, "-context"},
           {{"plan", "--context:64"}, "--context:64"},
           {{"plan", "--context", "64", "demo"}, "demo"},
           {{"devices", "devices"}, "devices"},
           {{"devices", "--json", "plan"}, "plan"},
       }) {
    table.add(line, named);
  }
  for (const char* device :
       {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:one", "cuda:01", "cuda:0x1", "cuda:999", "cuda:70000",
        "cuda:99999999999999999999", "cpu:0", "[cpu]", "cpu,cpu", " cpu"}) {
    table.add(with(devices(), Line{device}), "device");
    for (const Line& line : {bench_attention(), verify_memory()})
      table.add(with(line, "--device", device), "device");
  }
  table.add({"devices", "tpu"}, "tpu");
  table.add({"devices", "cpu", "cpu"}, "cpu");
}

void add_plan(Table& table) {
  constexpr std::int64_t kMost = 2'147'483'647;
  for (const char* option : {"--context", "--batch", "--loss-chunk", "--mlp-tile", "--accumulation"}) {
    table.whole(plan(), option, 1, kMost);
  }
  table.size(plan(), "--budget");
  table.size(plan(), "--host-budget");
  table.name(plan(), "--model", "gpt-2");
  table.name(plan(), "--device", "h2000");
  table.name(plan(), "--dtype", "f64");
  for (const char* option : {"--state", "--optimizer", "--optimizer-state", "--runtime", "--program"})
    table.name(plan(), option, "none of it");
  for (const char* option : {"--torch-attention", "--torch-loss"}) {
    table.name(with(plan(), "--runtime", "pytorch"), option, "none of it");
  }
  table.mask(plan(), "--attention", false);
  table.add(with(plan(), "--attention", "full"), "causal");
  for (const char* bad :
       {"", ",", "keep", "keep:", "keep:x", "keep:01", "keep:-1", "keep:1,", "keep:1,,recompute:0", "kept:1",
        "keep:1,keep:0", "keep:2", "keep:0", "keep:1,every:0", "keep:1,every:2", "keep:9223372036854775808",
        "keep:1:1", "keep=1"}) {
    table.value(plan(), "--layers", bad);
  }
  for (const char* flag : {"--compare", "--json"}) table.flag(plan(), flag);
  table.flag(with(plan(), "--runtime", "pytorch"), "--no-checkpointing");
  // What a mode would ignore.
  const std::vector<Line> pins = {{"--layers", "keep:1"},        {"--mlp-tile", "8"},
                                  {"--accumulation", "1"},       {"--host-budget", "1GiB"},
                                  {"--optimizer-state", "host"}, {"--compare"},
                                  {"--attention", "window:8"},   {"--html", "page.html"}};
  for (const Line& ignored : pins) {
    table.add(with(with(plan(), "--runtime", "pytorch"), ignored), ignored[0]);
    table.add(with({"plan", "--program", "ring-softmax", "--context", "64"}, ignored), ignored[0]);
  }
  for (const Line& ignored : std::vector<Line>{{"--model", "demo"},
                                               {"--dtype", "f32"},
                                               {"--state", "f32"},
                                               {"--optimizer", "none"},
                                               {"--loss-chunk", "8"},
                                               {"--runtime", "headroom"},
                                               {"--torch-attention", "sdpa"},
                                               {"--torch-loss", "full"},
                                               {"--no-checkpointing"}}) {
    table.add(with({"plan", "--program", "ring-softmax", "--context", "64"}, ignored), ignored[0]);
  }
  for (const Line& ignored :
       std::vector<Line>{{"--torch-attention", "sdpa"}, {"--torch-loss", "full"}, {"--no-checkpointing"}}) {
    table.add(with(plan(), ignored), ignored[0]);
  }
  table.add(with(plan(), {"--runtime", "pytorch", "--torch-loss", "full", "--loss-chunk", "8"}),
            "--loss-chunk");
  table.add(with(plan(), {"--dtype", "f16", "--state", "bf16"}), "--state");
  table.add(with(plan(), {"--optimizer", "none", "--optimizer-state", "device"}), "--optimizer-state");
  table.add(with(plan(), {"--optimizer", "none", "--optimizer-state", "host"}), "--optimizer-state");
  table.whole(plan(), "--ranks", 1, 1024);
  for (const char* link : {"400", "Gb/s", "0Gb/s", "-1GB/s", "400gb/s", "1e99GB/s", "4 00Gb/s", ""}) {
    table.add(with(plan(), {"--ranks", "2", "--link", link}), "--link");
  }
  for (const char* latency : {"5", "us", "-5us", "5min", "nans", ""}) {
    table.add(with(plan(), {"--ranks", "2", "--latency", latency}), "--latency");
  }
  table.add(with(plan(), {"--link", "400Gb/s"}), "--ranks");
  table.add(with(plan(), {"--crossover"}), "--ranks");
  table.add(with(with(plan(), "--context", "5"), {"--ranks", "8"}), "divided over 8 ranks");
  table.add(with(plan(), {"--runtime", "pytorch", "--ranks", "2"}), "--ranks");
  table.add(with(plan(), {"--ranks", "4", "--ring", "3"}),
            "--ring 3 does not divide --ranks 4; accepted: 1, 2, 4");
  table.add(with(plan(), {"--ranks", "auto", "--ring", "2"}), "--ring");
  table.add(with(plan(), {"--ranks", "2", "--shard", "all"}), "--shard");
  table.add(with(plan(), {"--shard", "optimizer"}), "--shard optimizer divides state over ranks");
  table.add(with(plan(), {"--ranks", "2", "--shard", "optimizer", "--optimizer", "none"}), "--shard");
  table.add(with(plan(), {"--ranks", "2", "--loss-ranks", "words"}), "--loss-ranks");
  table.add(with(plan(), {"--loss-ranks", "vocabulary"}),
            "--loss-ranks vocabulary divides the loss over ranks, and there is one");
}

void add_train(Table& table, const fs::path& folder) {
  constexpr std::int64_t kTokens = 2'147'483'647;
  constexpr std::int64_t kCounted = std::int64_t{1} << 40;
  const Line line = train(folder);
  for (const char* option : {"--context", "--batch", "--accumulation"}) table.whole(line, option, 1, kTokens);
  table.whole(line, "--max-documents", 1, kTokens - 1);
  for (const char* option : {"--steps", "--save-every", "--keep-last"})
    table.whole(line, option, 1, kCounted);
  table.whole(line, "--warmup", 0, kCounted);
  table.whole(line, "--threads", 1, 4096);
  table.whole(line, "--ranks", 1, 1024);
  table.add(with(line, "--ranks", "65"), "divided over 65 ranks");  // more than the tokens
  for (const char* bad : {"", "20", "0s", "-1s", "1e3s", "20 s", "s", "20seconds", "9000000h"})
    table.value(line, "--rank-timeout", bad);
  table.add(with(line, "--warmup", "2"), "warm-up");  // more than the steps
  table.whole(line, "--ring", 1, 1024);
  table.add(with(line, {"--ranks", "4", "--ring", "3"}),
            "--ring 3 does not divide --ranks 4; accepted: 1, 2, 4");
  table.add(with(line, {"--ranks", "2", "--ring", "1"}), "cannot be divided over 2 groups of ranks");
  table.add(with(line, {"--ranks", "2", "--shard", "half"}), "--shard");
  table.add(with(line, {"--shard", "optimizer"}), "--shard optimizer divides state over ranks");
  for (const char* link : {"400", "Gb/s", "0Gb/s", ""}) {
    table.add(with(line, {"--ranks", "2", "--link", link}), "--link");
  }
  for (const char* latency : {"5", "-5us", ""}) {
    table.add(with(line, {"--ranks", "2", "--latency", latency}), "--latency");
  }
  table.add(with(line, {"--link", "400Gb/s"}), "--ranks");
  table.add(with(line, {"--ranks", "auto"}), "--ranks");
  table.add(with(line, {"--ranks", "2", "--loss-ranks", "words"}), "--loss-ranks");
  table.add(with(line, {"--loss-ranks", "vocabulary"}),
            "--loss-ranks vocabulary divides the loss over ranks, and there is one");
  for (const char* option : {"--learning-rate", "--final-fraction", "--weight-decay", "--clip"})
    table.number(line, option);
  for (const char* option : {"--learning-rate", "--final-fraction", "--weight-decay"})
    table.value(line, option, "inf");
  for (const char* option : {"--learning-rate", "--weight-decay", "--clip"})
    table.value(line, option, "1e39");
  table.value(line, "--final-fraction", "1.5");
  for (const char* bad : {"0", "9e-31"}) table.value(line, "--clip", bad);
  for (const char* bad : {"", "-1", "18446744073709551616", "0x1", "010", "1e5", "+1", " 1", "nan"})
    table.value(line, "--seed", bad);
  table.size(line, "--budget");
  table.name(line, "--model", "gpt-2");
  table.name(line, "--device", "cuda:77");
  table.add(with(line, "--device", "cpu,cpu"), "--device lists 2 devices and --ranks is 1");
  table.name(line, "--dtype", "f64");
  table.name(line, "--dtype", "f16");
  table.name(line, "--state", "f16");
  table.add(with(line, {"--dtype", "f32", "--state", "8bit"}), "--state");
  table.value(line, "--out", "");
  table.mask(line, "--attention", false);
  table.add(with(line, "--attention", "full"), "causal");
  table.add(with(line, "--attention", "dilated:8/2"), "causal");
  for (const char* bad : {"",
                          "recall:",
                          "recall:keys",
                          "recall:keys=",
                          "recall:keys=0",
                          "recall:keys=010",
                          "recall:keys=0x8",
                          "recall:keys=-1",
                          "recall:keys=8,",
                          "recall:,keys=8",
                          "recall:keys=8,,values=2",
                          "recall:keys=8,keys=8",
                          "recall:values=1",
                          "recall:keys=30001",
                          "recall:keys=99999999999999999999",
                          "recall:keys=33",
                          "recall:keys=8;values=8",
                          "recall:kezs=8",
                          "recall:keys=1e1",
                          "/no/such/file",
                          "/no/such.bin:uint64",
                          "/dev/zero",
                          "/dev/null"}) {
    table.add(with(line, "--data", bad), "data");
  }
  for (const char* flag : {"--resume", "--overwrite", "--bytes", "--json"}) table.flag(line, flag);
  table.add(with(line, {"--bytes"}), "--bytes");  // recall has tokens of its own
  table.add(with(line, {"--resume", "--overwrite"}), "--overwrite");
  table.add(with(line, "--max-documents", "4"), "--max-documents");  // recall has none
  for (const char* option : {"--model", "--data", "--context", "--steps", "--out"})
    table.add(without(line, option), option);
  table.add(with(line, {"--resume"}), "--resume");  // from nothing
}

void add_profile(Table& table, const fs::path& folder) {
  constexpr std::int64_t kTokens = 2'147'483'647;
  for (const char* option : {"--context", "--batch", "--accumulation"})
    table.whole(profile(), option, 1, kTokens);
  table.whole(profile(), "--steps", 1, 1000);
  for (const Line& line : {profile(), bench_step(), train(folder)}) {
    for (const char* option : {"--loss-chunk", "--mlp-tile"}) table.whole(line, option, 1, kTokens);
    table.name(line, "--optimizer-state", "disk");
    table.add(with(line, "--layers", "keep:7"), "--layers");
    table.size(line, "--host-budget");
    table.add(with(line, "--host-budget", "1GiB"), "--host-budget");  // a CPU has no memory of its own
    table.add(with(line, "--device", "cuda:77"), "cuda:77");
  }
  table.whole(profile(), "--threads", 1, 4096);
  table.size(profile(), "--budget");
  table.name(profile(), "--model", "gpt-2");
  table.name(profile(), "--dtype", "half");
  table.name(profile(), "--state", "half");
  table.add(with(profile(), "--state", "bf16"), "--dtype");
  table.mask(profile(), "--attention", false);
  table.add(with(profile(), "--attention", "full"), "causal");
  table.flag(profile(), "--json");
  const std::string page = (folder / "page").string();
  table.add(with(profile(), {"--html", page, "--trace", page}), "--trace");
  table.add(with(profile(), {"--html", page, "--trace", (folder / "." / "page").string()}), "--trace");
}

void add_bench(Table& table) {
  table.whole(bench_memory(), "--traces", 1, 100'000);
  table.whole(bench_memory(), "--blocks", 1, 1'000'000);
  table.whole(bench_memory(), "--large-events", 2, 10'000'000);
  table.flag(bench_memory(), "--json");
  for (const Line& line : {bench_attention(), bench_loss(), bench_ring(), bench_step()}) {
    table.whole(line, "--warmup", 0, 1000);
    table.whole(line, "--steps", 1, 100'000);
    table.whole(line, "--threads", 1, 4096);
    table.number(line, "--max-seconds");
    table.value(line, "--max-seconds", "inf");
    table.value(line, "--max-seconds", "1e7");
    table.size(line, "--budget");
    table.add(with(line, {"--json", "--csv"}), "--csv");
    table.add(with(line, {"--json", "--markdown"}), "--markdown");
    table.add(with(line, {"--csv", "--markdown"}), "--markdown");
    table.flag(line, "--json");
    table.flag(line, "--csv");
  }
  for (const Line& line : {bench_attention(), bench_loss(), bench_step()})
    table.names(line, "--dtype", "f64");
  table.name(bench_ring(), "--dtype", "f64");
  for (const char* option : {"--seq", "--head-dim", "--batch", "--heads"})
    table.numbers(bench_attention(), option, 1);
  table.whole(bench_attention(), "--kv-heads", 1, 2'147'483'647);
  table.add(with(bench_attention(), "--kv-heads", "3"), "heads_kv 3");
  table.mask(bench_attention(), "--mask", true);
  table.names(bench_attention(), "--impl", "fastest");
  table.name(without(without(bench_attention(), "--seq"), "--heads"), "--preset", "grid");
  for (const char* bad : {"60", "264", "7"}) table.add(with(bench_attention(), "--head-dim", bad), bad);
  for (const char* option : {"--seq", "--head-dim", "--batch", "--heads", "--kv-heads"}) {
    table.add({"bench", "attention", "--preset", "seed-grid", option, "8"}, option);
  }
  table.add({"bench", "attention", "--preset", "seed-grid", "--mask", "full"}, "--mask");
  table.add(with(bench_attention(), {"--explain", "--json"}), "--explain");
  table.add(with(bench_attention(), {"--explain", "--csv"}), "--explain");
  table.add(with(bench_attention(), {"--nondeterministic"}), "--nondeterministic");
  for (const char* option : {"--tokens", "--hidden", "--vocab"}) table.numbers(bench_loss(), option, 1);
  for (const char* option : {"--chunk-tokens", "--chunk-vocab"}) table.numbers(bench_loss(), option, 0);
  table.names(bench_loss(), "--impl", "fastest");
  for (const char* option : {"--ranks", "--seq"}) table.numbers(bench_ring(), option, 1);
  table.add(with(bench_ring(), "--ranks", "1025"), "--ranks");
  for (const char* option : {"--heads", "--kv-heads", "--head-dim"}) {
    table.whole(bench_ring(), option, 1, 2'147'483'647);
  }
  table.add(with(bench_ring(), "--kv-heads", "3"), "heads_kv 3");
  table.mask(bench_ring(), "--mask", true);
  table.names(bench_ring(), "--partition", "round-robin");
  table.names(bench_ring(), "--impl", "fastest");
  for (const char* bad :
       {"product", "product:", "product:0", "product:1", "product:02", "product:x", "product:1025"}) {
    table.add(with(bench_ring(), "--impl", bad), "product");
  }
  table.size(bench_ring(), "--link-rate");
  table.number(bench_ring(), "--link-share");
  for (const char* bad : {"", "5", "-1us", "us", "1e3s", "61s"}) {
    table.value(bench_ring(), "--latency", bad);
    table.value(bench_ring(), "--rest", bad);
  }
  table.add(with(bench_ring(), {"--link-rate", "1GB", "--link-share", "0.5"}), "--link-share");
  table.add(with(bench_ring(), "--device", "cuda:77"), "cuda:77");
  table.numbers(bench_step(), "--context", 1);
  table.numbers(bench_step(), "--ranks", 1);
  table.size(bench_step(), "--link-rate");
  table.number(bench_step(), "--link-share");
  table.add(with(bench_step(), {"--ranks", "2", "--link-rate", "1GB", "--link-share", "0.5"}),
            "--link-share");
  table.add(with(bench_step(), {"--ranks", "1,2", "--latency", "1ms"}), "--ranks");
  table.add(with(bench_step(), {"--ranks", "2", "--calibrate"}), "--calibrate");
  table.add(with(bench_step(), {"--ranks", "4", "--ring", "3"}), "--ring 3 does not divide --ranks 4");
  for (const char* option : {"--batch", "--accumulation"})
    table.whole(bench_step(), option, 1, 2'147'483'647);
  table.names(bench_step(), "--model", "gpt-2");
  table.name(bench_step(), "--state", "half");
  table.add(with(bench_step(), "--state", "bf16"), "--dtype");
  table.mask(bench_step(), "--attention", false);
  table.flag(bench_step(), "--calibrate");
  table.add(with(bench_loss(), "--device", "cuda:77"), "cuda:77");
}

void add_verify(Table& table) {
  for (const Line& line : {verify_attention(), verify_loss()}) {
    table.whole(line, "--every", 1, 1000);
    table.whole(line, "--threads", 1, 4096);
    table.name(line, "--impl", "fastest");
    table.name(line, "--impl", "reference");
    table.name(line, "--device", "cuda:77");
    table.flag(line, "--json");
  }
  table.whole(verify_ring(), "--every", 1, 1000);
  table.flag(verify_ring(), "--json");
  table.numbers(verify_ring(), "--ranks", 1);
  table.add(with(verify_ring(), "--ranks", "7"), "ranks");
  table.names(verify_ring(), "--device", "cuda:77");
  table.whole(verify_memory(), "--steps", 1, 1'000'000);
  table.whole(verify_memory(), "--threads", 1, 4096);
  table.size(verify_memory(), "--budget");
  table.add(with(verify_memory(), {"--budget", "1GiB", "--budget", "2GiB"}), "--budget");
  table.rows.push_back(
      {.arguments = with(verify_memory(), "--budget", "1B"), .named = "does not fit", .code = 3});
  table.rows.push_back(
      {.arguments = verify_memory(), .named = "TMPDIR", .environment = {{"TMPDIR", "/no/such/folder"}}});
  table.rows.push_back(
      {.arguments = devices(), .named = "HEADROOM_SIMD", .environment = {{"HEADROOM_SIMD", "sse\n"}}});
}

// Sizes that parse and cannot be: the planner refuses them within its own limit.
void add_large(Table& table, const fs::path& folder) {
  const std::string most = "2147483647";
  const auto refused = [&](const Line& line, const std::string& named, int code = 2) {
    table.rows.push_back({.arguments = line, .named = named, .code = code, .seconds = 5});
  };
  const Line large = {"--context", most, "--batch", most};
  const Line pytorch = {"--runtime", "pytorch"};
  const auto sized = [&](const Line& line) { return with(without(line, "--context"), large); };
  refused(sized(plan()), most.substr(0, 1));
  refused(with(sized(plan()), pytorch), "1,099,511,627,776 tokens are accepted");
  refused(sized(profile()), "tokens");
  refused(sized(train(folder)), "");
  refused(with(with(train(folder), "--batch", most), {"--accumulation", most}), "accumulation");
  refused(with(train(folder), "--batch", most), "does not fit", 3);
  refused(with(profile(), "--batch", most), "does not fit", 3);
  refused(with(train(folder), "--budget", "1B"), "does not fit", 3);
  refused(with(profile(), "--budget", "1B"), "does not fit", 3);
  refused({"plan", "--program", "ring-softmax", "--context", most, "--batch", most}, "64 bits");
  refused({"plan", "--program", "ring-softmax", "--context", most}, "64 bits");
  refused(with(with(plan(), "--context", "1000000"),
               {"--runtime", "pytorch", "--torch-loss", "chunked", "--loss-chunk", "8"}),
          "chunks");
  refused(with(with(plan(), "--batch", "7"), {"--accumulation", "2"}), "micro-steps");
  refused({"bench", "attention", "--seq", most, "--batch", most, "--heads", most}, "2147483392 are accepted");
  refused({"bench", "loss", "--tokens", most, "--vocab", most, "--hidden", most}, "64 bits");
  refused(with(bench_step(), "--context", most), "2147483392 are accepted");
}

// Text that a message must not pass on as it is.
void add_hostile_text(Table& table, const fs::path& folder) {
  const std::string long_name(100'000, 'x');
  const std::string long_digits(100'000, '9');
  for (const std::string& text :
       {std::string("\x1b[31mred\x1b[0m"), std::string("a\nheadroom: b"), std::string("\xff\xfe"),
        std::string("\xc2\x9b"
                    "31m"),
        std::string("\r\t\b\a"), std::string("{}{0}%s%n"), long_name}) {
    table.add(Line{text}, "");
    table.add(Line{"--" + text}, "");
    table.add(with(devices(), Line{text}), "device");
    for (const char* option :
         {"--model", "--device", "--dtype", "--attention", "--layers", "--budget", "--context"}) {
      table.add(with(plan(), option, text), "");
    }
    table.add(with(train(folder), "--data", text), "data");
    table.add(with(bench_attention(), "--mask", text), "mask");
    table.add(with(bench_attention(), "--mask", "documents:" + text), "");
    table.add(with(bench_ring(), "--mask", "documents:" + text), "");
    table.add(with(bench_loss(), "--impl", text), "");
    table.add(with(plan(), "--html", (folder / "no" / text).string()), "");
  }
  table.add(with(plan(), "--context", long_digits), "--context");
  table.add(with(plan(), "--budget", long_digits), "--budget");
  table.add(with(train(folder), "--learning-rate", long_digits), "--learning-rate");
  table.add(with(train(folder), "--learning-rate", "0." + long_digits + "x"), "--learning-rate");
  table.add(with(train(folder), "--seed", long_digits), "--seed");
  std::string many_masks = "causal";
  for (int i = 0; i < 10'000; ++i) many_masks += "+causal";
  table.add(with(plan(), "--attention", many_masks), "twice");
}

}  // namespace

std::vector<BadInput> bad_values(const fs::path& folder) {
  Table table;
  add_commands(table);
  add_plan(table);
  add_train(table, folder);
  add_profile(table, folder);
  add_bench(table);
  add_verify(table);
  add_large(table, folder);
  add_hostile_text(table, folder);
  return table.rows;
}

std::string describe(const BadInput& input) {
  std::string text = "headroom";
  for (const std::string& argument : input.arguments) text += " " + quote(argument);
  for (const auto& [name, value] : input.environment)
    text = fmt::format("{}={} {}", name, quote(value), text);
  return text;
}

std::string fault(const BadInput& input, int code, const std::string& out, const std::string& err) {
  constexpr std::size_t kLongest = 1600;
  std::vector<std::string> faults;
  if (code != input.code) faults.push_back(fmt::format("exit code {}, not {}", code, input.code));
  if (!out.empty()) faults.push_back(fmt::format("{} bytes on standard output", out.size()));
  if (!err.starts_with("headroom: ")) faults.emplace_back("no 'headroom: ' at the beginning");
  const std::string line = err.substr(0, err.find('\n'));
  if (line.size() + 1 != err.size()) faults.emplace_back("not one line");
  if (printable(line) != line) faults.emplace_back("control characters");
  if (err.size() > kLongest) faults.push_back(fmt::format("{} bytes long", err.size()));
  if (err.find(input.named) == std::string::npos)
    faults.push_back(fmt::format("'{}' is not named", input.named));
  for (const char* raw :
       {"exception", "filesystem error", "basic_string", "vector::", "std::", "fault of the program"}) {
    if (err.find(raw) != std::string::npos) faults.push_back(fmt::format("raw text '{}'", raw));
  }
  if (faults.empty()) return {};
  return fmt::format("{}\n  {}\n  {}", describe(input), fmt::join(faults, "; "),
                     shortened(printable(err), 400));
}

}  // namespace headroom
