// Bad input: one line on standard error that names what was wrong, exit 2, nothing on standard output.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/run.h"

namespace headroom {
namespace {

struct Case {
  std::vector<std::string> arguments;
  std::string named;  // has to stand in the message
};

class BadInput : public testing::TestWithParam<Case> {};

TEST_P(BadInput, OneLineAndExitTwo) {
  const CliResult result = run_command(GetParam().arguments);
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.starts_with("headroom: ")) << result.err;
  EXPECT_NE(result.err.find(GetParam().named), std::string::npos) << result.err;
}

Case budget(const std::string& text, const std::string& named = {}) {
  return {{"verify", "memory", "--budget=" + text}, named.empty() ? text : named};
}

Case attention(const std::string& option, const std::string& value, const std::string& named) {
  return {{"bench", "attention", option, value}, named};
}

Case loss(const std::string& option, const std::string& value, const std::string& named) {
  return {{"bench", "loss", option, value}, named};
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadInput,
    testing::Values(
        // Commands
        Case{{}, "devices"}, Case{{"trian"}, "trian"}, Case{{"bench"}, "memory"}, Case{{"verify"}, "memory"},
        Case{{"bench", "memroy"}, "memroy"}, Case{{"verify", "everything"}, "everything"},
        Case{{""}, "devices"}, Case{{"--frobnicate"}, "--frobnicate"},
        Case{{"devices", "--frobnicate"}, "--frobnicate"}, Case{{"verify", "memory", "extra"}, "extra"},
        Case{{"--frobnicate", "devices"}, "--frobnicate"}, Case{{"verify", "--bogus", "memory"}, "--bogus"},
        Case{{"verify", "memory", "--budget", ""}, "size"}, Case{{"devices\n"}, "devices"},
        // Plans
        Case{{"plan", "--model", "demo", "--context", "64", "--optimizer-state", "disk"}, "disk"},
        Case{{"plan", "--model", "demo", "--context", "64", "--optimizer-state"}, "--optimizer-state"},
        // Budgets
        budget("0", "zero"), budget("0GiB", "zero"), budget("12XB"), budget("GiB"), budget("-1"),
        budget("-5GiB"), budget("1e9"), budget("nan"), budget("inf"), budget("99999999999999999999"),
        budget("9223372036854775808"), budget("8192PiB"), budget("1000000PB"), budget("1..5GiB"),
        budget("1.5.5"), budget("0x100"), budget("80gib"), budget("80 GiB extra"), budget("٣GiB"),
        budget("0.0000000001GB", "zero"), budget(".", "."), budget("1,5GiB"), budget("80GiB "),
        Case{{"verify", "memory", "--budget"}, "--budget"},
        Case{{"verify", "memory", "--budget", "1GiB", "--budget", "2GiB"}, "--budget"},
        // Devices
        Case{{"devices", "gpu"}, "gpu"}, Case{{"devices", "cuda:"}, "cuda:"},
        Case{{"devices", "cuda:-1"}, "cuda:-1"}, Case{{"devices", "cuda:one"}, "cuda:one"},
        Case{{"devices", "cuda:999"}, "cuda:999"},
        Case{{"devices", "cuda:99999999999999999999"}, "cuda:99999999999999999999"},
        Case{{"devices", "cpu", "tpu"}, "tpu"}, Case{{"verify", "memory", "--device", "h200"}, "h200"},
        Case{{"verify", "memory", "--device", ""}, "device"},
        Case{{"verify", "memory", "--device", "cuda:998"}, "cuda:998"},
        // Attention
        attention("--mask", "windo:3", "windo:3"), attention("--mask", "window:0", "window '0'"),
        attention("--mask", "window:x", "'x'"), attention("--mask", "dilated:8192", "dilated:8192"),
        attention("--mask", "dilated:8/0", "rate '0'"), attention("--mask", "documents:/no/such", "/no/such"),
        attention("--seq", "0", "--seq"), attention("--seq", "many", "many"),
        attention("--head-dim", "60", "60"), attention("--head-dim", "264", "264"),
        attention("--kv-heads", "3", "heads_kv 3"), attention("--dtype", "f64", "f64"),
        attention("--dtype", "half", "half"), attention("--impl", "fastest", "fastest"),
        attention("--preset", "grid", "grid"), attention("--budget", "0", "zero"),
        attention("--steps", "0", "--steps"), attention("--device", "cuda:77", "cuda:77"),
        Case{{"bench", "attention", "--json", "--csv"}, "--csv"},
        Case{{"bench", "attention", "--preset", "seed-grid", "--head-dim", "64"}, "--head-dim"},
        Case{{"verify", "attention", "--impl", "fastest"}, "fastest"},
        // Loss
        loss("--tokens", "0", "--tokens"), loss("--tokens", "many", "many"), loss("--vocab", "-1", "--vocab"),
        loss("--hidden", "0", "--hidden"), loss("--dtype", "f64", "f64"),
        loss("--impl", "fastest", "fastest"), loss("--chunk-tokens", "-1", "--chunk-tokens"),
        loss("--chunk-vocab", "all", "all"), loss("--budget", "0", "zero"), loss("--steps", "0", "--steps"),
        loss("--device", "cuda:77", "cuda:77"), Case{{"bench", "loss", "--json", "--markdown"}, "--markdown"},
        Case{{"verify", "loss", "--impl", "fastest"}, "fastest"},
        Case{{"verify", "loss", "--impl", "reference"}, "reference"},
        Case{{"verify", "loss", "--every", "0"}, "--every"},
        // Numbers
        Case{{"verify", "memory", "--steps", "0"}, "--steps"},
        Case{{"verify", "memory", "--steps", "-3"}, "--steps"},
        Case{{"verify", "memory", "--steps", "many"}, "many"},
        Case{{"verify", "memory", "--steps", "99999999999999999999"}, "--steps"},
        Case{{"verify", "memory", "--threads", "0"}, "--threads"},
        Case{{"verify", "memory", "--threads", "1e3"}, "1e3"},
        Case{{"bench", "memory", "--traces", "0"}, "--traces"},
        Case{{"bench", "memory", "--blocks", "-1"}, "--blocks"},
        Case{{"bench", "memory", "--blocks", "9223372036854775808"}, "--blocks"},
        Case{{"bench", "memory", "--large-events", "1"}, "--large-events"},
        Case{{"bench", "memory", "--json", "yes"}, "yes"}));

}  // namespace
}  // namespace headroom
