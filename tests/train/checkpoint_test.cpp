#include "headroom/train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>

#include "core/faulty_disk.h"
#include "core/temporary_folder.h"
#include "headroom/core/files.h"
#include "headroom/core/random.h"
#include "headroom/model/safetensors.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A small model in training: every element of every buffer is known from the step.
class Training {
 public:
  explicit Training(DType dtype = DType::bf16) : dtype_(dtype) {
    config.vocab = 9;
    config.hidden = 12;
    config.layers = 1;
    config.head_dim = 8;
    config.mlp = 10;
    table = ParameterTable(config);
    const auto size = static_cast<std::size_t>(table.elements());
    for (auto* buffer : {&weights, &master, &first, &second}) buffer->assign(size, 0);
  }

  void advance_to(std::int64_t step) {
    state = {.step = step,
             .tokens = 100 * step,
             .samples = 3 * step,
             .seed = ~std::uint64_t{7},
             .settings = "lr 0.1\nseq 64"};
    std::uint32_t salt = 0;
    for (auto* buffer : {&weights, &master, &first, &second}) {
      ++salt;
      for (std::size_t i = 0; i < buffer->size(); ++i) {
        // Any bits at all, as long as they say where they belong.
        (*buffer)[i] =
            static_cast<std::uint32_t>(i * 2654435761u) ^ (salt << 28) ^ static_cast<std::uint32_t>(step);
      }
    }
    const TrainBuffers views = buffers();
    for (const TensorView& view : {views.weights, views.master, views.first_moment, views.second_moment}) {
      if (view.elements() > 0) table.clear_padding(view);
    }
    if (dtype_ != DType::f32) {  // the upper half of the buffer is not part of it
      std::memset(reinterpret_cast<char*>(weights.data()) + table.elements() * 2, 0,
                  static_cast<std::size_t>(table.elements() * 2));
    } else {
      std::ranges::fill(master, 0);
    }
  }

  TrainBuffers buffers() {
    const auto view = [&](std::vector<std::uint32_t>& data, DType dtype) {
      return TensorView(data.data(), dtype, {table.elements()});
    };
    return {.weights = view(weights, dtype_),
            .master = dtype_ == DType::f32 ? TensorView() : view(master, DType::f32),
            .first_moment = view(first, DType::f32),
            .second_moment = view(second, DType::f32)};
  }

  fs::path save(const fs::path& root) { return write_checkpoint(root, config, state, buffers()); }
  void load(const fs::path& checkpoint) { state = read_checkpoint(checkpoint, config, buffers()); }
  bool operator==(const Training& other) const {
    return state == other.state && weights == other.weights && master == other.master &&
           first == other.first && second == other.second;
  }

  ModelConfig config = built_in_model("demo");
  ParameterTable table{config};
  TrainState state;
  std::vector<std::uint32_t> weights, master, first, second;

 private:
  DType dtype_;
};

Training at_step(std::int64_t step, DType dtype = DType::bf16) {
  Training training(dtype);
  training.advance_to(step);
  return training;
}

// The latest checkpoint of a root, which has to be whole and of the step that it says.
std::int64_t latest_step(const fs::path& root) {
  const auto latest = latest_checkpoint(root);
  if (!latest) return -1;
  Training loaded;
  loaded.load(*latest);
  EXPECT_TRUE(loaded == at_step(loaded.state.step)) << *latest;
  return loaded.state.step;
}

TEST(Checkpoint, ReadsBackEveryBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const TemporaryFolder folder;
    const fs::path root = folder / "runs/one";  // made where it is missing
    EXPECT_EQ(latest_checkpoint(root), std::nullopt);
    Training training = at_step(120, dtype);
    const fs::path path = training.save(root);
    EXPECT_EQ(path, root / "step-00000120");
    EXPECT_THAT(names(path),
                ElementsAre("config.json", "model.safetensors", "optimizer.safetensors", "state.json"));
    EXPECT_EQ(latest_checkpoint(root), path);
    Training loaded(dtype);
    for (auto* buffer : {&loaded.first, &loaded.second})
      std::ranges::fill(*buffer, 0xffffffffu);  // padding too
    loaded.load(path);
    EXPECT_TRUE(loaded == training) << name(dtype);
    // As a plain model.
    std::vector<float> weights(static_cast<std::size_t>(training.table.elements()));
    load_weights(path, training.table, TensorView(weights.data(), DType::f32, {std::ssize(weights)}));
    EXPECT_EQ(parse_model_config(content(path / "config.json")), training.config);
  }
}

TEST(Checkpoint, LatestIsTheHighestCompleteStep) {
  const TemporaryFolder root;
  for (const std::int64_t step : {5, 100'000'000, 99'999'999}) at_step(step).save(root.path());
  EXPECT_EQ(latest_checkpoint(root.path()), root / "step-100000000");
  fs::remove(root / "step-100000000/state.json");
  EXPECT_EQ(latest_checkpoint(root.path()), root / "step-99999999");
  for (const char* name : {"step-999999999999999999999", "step-0000012x", "step-7", "step--0000007", "other",
                           ".step-00000007.tmp"}) {
    fs::create_directory(root / name);
    for (const char* file : {"config.json", "model.safetensors", "optimizer.safetensors", "state.json"})
      put(root / name / file, "");
  }
  EXPECT_EQ(latest_checkpoint(root.path()), root / "step-99999999");
  at_step(100'000'001).save(root.path());
  EXPECT_FALSE(names(root.path()).contains(".step-00000007.tmp"));  // a leftover, removed by the next writer
  EXPECT_TRUE(names(root.path()).contains("other"));
  put(root / "file", "");
  EXPECT_THROW(static_cast<void>(latest_checkpoint(root / "file")), Error);
}

TEST(Checkpoint, KeepsTheLast) {
  const TemporaryFolder root;
  for (std::int64_t step = 1; step <= 4; ++step) at_step(step).save(root.path());
  remove_old_checkpoints(root.path(), 9);
  EXPECT_EQ(names(root.path()).size(), 4);
  remove_old_checkpoints(root.path(), 2);
  EXPECT_THAT(names(root.path()), ElementsAre("step-00000003", "step-00000004"));
  EXPECT_THAT(error_of([&] { remove_old_checkpoints(root.path(), 0); }), HasSubstr("keeping 0 checkpoints"));
}

TEST(Checkpoint, ReplacesOneOfTheSameStep) {
  const TemporaryFolder root;
  Training training = at_step(3);
  training.state.settings = "old";
  training.save(root.path());
  at_step(3).save(root.path());
  EXPECT_EQ(latest_step(root.path()), 3);
  EXPECT_THAT(names(root.path()), ElementsAre("step-00000003"));
}

TEST(Checkpoint, RefusesAnotherModelOrDtype) {
  const TemporaryFolder root;
  const fs::path path = at_step(3).save(root.path());
  Training wider;
  wider.config.mlp = 11;
  wider.table = ParameterTable(wider.config);
  for (auto* buffer : {&wider.weights, &wider.master, &wider.first, &wider.second})
    buffer->assign(static_cast<std::size_t>(wider.table.elements()), 0);
  EXPECT_THAT(error_of([&] { wider.load(path); }),
              HasSubstr("its intermediate_size is 10, this run's is 11"));
  Training single(DType::f32);
  EXPECT_THAT(error_of([&] { single.load(path); }), HasSubstr("holds BF16, this run's weights are f32"));
}

TEST(Checkpoint, RefusesWrongBuffers) {
  const TemporaryFolder root;
  Training training = at_step(3);
  const auto message = [&](auto breaks) {
    TrainBuffers buffers = training.buffers();
    breaks(buffers);
    return error_of([&] { write_checkpoint(root.path(), training.config, training.state, buffers); });
  };
  EXPECT_THAT(message([](auto& b) { b.master = TensorView(); }),
              HasSubstr("master weights is f32 of shape [0]"));
  EXPECT_THAT(message([](auto& b) { b.first_moment = b.weights; }), HasSubstr("the first moment is bf16"));
  EXPECT_THAT(message([](auto& b) { b.second_moment = b.second_moment.slice(0, 0, 64); }),
              HasSubstr("shape [64]"));
  EXPECT_THAT(message([](auto& b) { b.weights = b.first_moment; }),
              HasSubstr("weights are f32 and have master"));
  EXPECT_THAT(message([](auto& b) { b.weights = TensorView(nullptr, DType::i32, {0}); }),
              HasSubstr("weights are i32"));
  training.state.step = -1;
  EXPECT_THAT(message([](auto&) {}), HasSubstr("step -1"));
  training.state = {.settings = "\xff"};
  EXPECT_THAT(message([](auto&) {}), HasSubstr("no UTF-8"));
  EXPECT_TRUE(names(root.path()).empty());
}

TEST(Checkpoint, RefusesDamage) {
  const TemporaryFolder root;
  Training training = at_step(3);
  const auto damaged = [&](std::string_view file, auto change) {
    const fs::path path = training.save(root.path());
    std::string text = content(path / file);
    change(text);
    put(path / file, text);
    return error_of([&] { Training().load(path); });
  };
  const auto replaced = [](std::string_view from, std::string_view to) {
    return [=](std::string& text) { text.replace(text.find(from), from.size(), to); };
  };
  EXPECT_THAT(damaged("state.json", replaced("\"step\": 3", "\"step\": -3")), HasSubstr("step -3"));
  EXPECT_THAT(damaged("state.json", replaced("\"seed\"", "\"sead\"")), HasSubstr("seed is missing"));
  EXPECT_THAT(damaged("state.json", replaced("\"format\": 1", "\"format\": 2")),
              HasSubstr("format is 2; accepted: 1"));
  EXPECT_THAT(damaged("state.json", [](auto& text) { text.resize(10); }), HasSubstr("state.json: not JSON"));
  EXPECT_THAT(damaged("config.json", replaced("qwen3", "gemma")), HasSubstr("model_type is \"gemma\""));
  EXPECT_THAT(damaged("model.safetensors", [](auto& text) { text.pop_back(); }),
              HasSubstr("model.safetensors: "));
  EXPECT_THAT(damaged("model.safetensors", replaced("model.norm", "model.nirm")),
              HasSubstr("\"model.norm.weight\" is missing"));
  EXPECT_THAT(damaged("optimizer.safetensors", [](auto& text) { text.resize(text.size() / 2); }),
              HasSubstr("optimizer.safetensors: "));
  EXPECT_THAT(
      damaged("optimizer.safetensors", replaced("second_moment.model.norm", "second_mument.model.norm")),
      HasSubstr("\"second_moment.model.norm.weight\" is missing"));
  EXPECT_THAT(error_of([&] { Training().load(root / "none"); }), HasSubstr("state.json: No such file"));
}

TEST(Checkpoint, ComparesSettings) {
  const TrainState state{.step = 7, .settings = "lr 0.1\nseq 64"};
  check_same_settings(state, "lr 0.1\nseq 64");
  check_same_settings({}, "");
  EXPECT_EQ(error_of([&] { check_same_settings(state, "lr 0.1\nseq 128"); }),
            "the checkpoint of step 7 was made with \"seq 64\", this run has \"seq 128\"");
  EXPECT_THAT(error_of([&] { check_same_settings(state, "lr 0.1"); }), HasSubstr("this run has \"\""));
  EXPECT_THAT(error_of([&] { check_same_settings(state, "lr 0.1\nseq 64\nmore"); }),
              HasSubstr("made with \"\""));
}

TEST(Checkpoint, LosesNothingWhereverTheDiskFails) {
  const TemporaryFolder root;
  at_step(1).save(root.path());
  bool failed = true;
  for (int call = 1; failed; ++call) {
    try {
      const ArmedDisk disk(call, ENOSPC);
      at_step(2).save(root.path());
      failed = false;
      EXPECT_GT(call, 25);  // four files of five calls and more, and the folder's
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
      EXPECT_EQ(error.kind(), ErrorKind::runtime);
    }
    EXPECT_GE(latest_step(root.path()), 1) << call;
  }
  EXPECT_THAT(names(root.path()), ElementsAre("step-00000001", "step-00000002"));
}

// Runs in a child process that is killed: before its n-th call of the system, or by `kill_after` from
// outside.
void in_killed_child(int kill_at, useconds_t kill_after, const std::function<void()>& work, bool* killed) {
  const pid_t child = fork();
  if (child == 0) {
    faulty_disk() = {.kill_at = kill_at, .armed = kill_at > 0, .log = {}};
    work();
    _exit(0);
  }
  if (kill_at == 0) {
    usleep(kill_after);
    kill(child, SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  *killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  ASSERT_TRUE(*killed || WEXITSTATUS(status) == 0) << status;
}

TEST(Checkpoint, LosesNothingWhereverItIsKilled) {
  for (const bool replaces : {false, true}) {
    const TemporaryFolder root;
    at_step(1).save(root.path());
    if (replaces) at_step(2).save(root.path());
    bool killed = true;
    int call = 1;
    for (; killed; ++call) {
      if (!replaces && fs::exists(root / "step-00000002")) remove_folder(root / "step-00000002");
      in_killed_child(
          call, 0,
          [&] {
            at_step(2).save(root.path());
            remove_old_checkpoints(root.path(), 9);
          },
          &killed);
      EXPECT_GE(latest_step(root.path()), replaces ? 2 : 1) << call;
    }
    EXPECT_GT(call, 25);
    EXPECT_EQ(latest_step(root.path()), 2);
    EXPECT_THAT(names(root.path()), ElementsAre("step-00000001", "step-00000002"));
  }
}

TEST(Checkpoint, LosesNothingWheneverItIsKilled) {
  const TemporaryFolder root;
  at_step(1).save(root.path());
  const auto begin = std::chrono::steady_clock::now();
  at_step(1).save(root.path());
  const std::chrono::duration<double, std::micro> one_save = std::chrono::steady_clock::now() - begin;
  // From a child that has hardly begun to one that has saved a few times.
  const auto longest = static_cast<std::uint64_t>(std::clamp(3 * one_save.count(), 3'000.0, 500'000.0));
  const Random random(11);
  std::int64_t before = 1;
  for (std::uint64_t round = 0; round < 50; ++round) {
    bool killed = false;
    in_killed_child(
        0, static_cast<useconds_t>(random.below(round, longest)),
        [&] {
          for (std::int64_t step = before + 1;; ++step) {
            at_step(step).save(root.path());
            remove_old_checkpoints(root.path(), 2);
          }
        },
        &killed);
    EXPECT_TRUE(killed);
    const std::int64_t after = latest_step(root.path());
    EXPECT_GE(after, before) << round;
    before = after;
  }
  EXPECT_GT(before, 1);  // some of them came to the end of a save
  at_step(before + 1).save(root.path());
  remove_old_checkpoints(root.path(), 1);
  EXPECT_EQ(names(root.path()).size(), 1);
}

}  // namespace
}  // namespace headroom
