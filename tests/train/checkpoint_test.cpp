#include "headroom/train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "core/faulty_disk.h"
#include "core/temporary_folder.h"
#include "headroom/core/files.h"
#include "headroom/core/random.h"
#include "headroom/model/safetensors.h"
#include "model/host_tensors.h"
#include "train/small_training.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

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

TEST(Checkpoint, OneThatCannotBeRemovedStaysAndIsNamed) {
  const TemporaryFolder root;
  const WithoutPrivileges user(root);
  for (std::int64_t step = 1; step <= 3; ++step) at_step(step).save(root.path());
  forbid_writing(root / "step-00000001");
  EXPECT_THAT(
      remove_old_checkpoints(root.path(), 1),
      ElementsAre(fmt::format("cannot remove {}: Permission denied", (root / "step-00000001").string())));
  EXPECT_THAT(names(root.path()), ElementsAre("step-00000001", "step-00000003"));
  // Nor is a leftover that cannot be removed in the way of other steps.
  fs::rename(root / "step-00000001", root / ".step-00000001.tmp");
  at_step(4).save(root.path());
  EXPECT_EQ(latest_step(root.path()), 4);
  allow_writing(root / ".step-00000001.tmp");
}

TEST(Checkpoint, ADamagedConfigIsDamageWhateverItSays) {
  const TemporaryFolder root;
  const fs::path path = at_step(3).save(root.path());
  for (const ModelConfig& config : {built_in_model("demo"), built_in_model("llama3-8b")}) {
    put(path / "config.json", to_json(config));
    EXPECT_THAT(error_of([&] { Training().load(path); }), HasSubstr("config.json is damaged"));
  }
  put(path / "config.json", "{");
  EXPECT_THAT(error_of([&] { Training().load(path); }), HasSubstr("config.json is damaged"));
}

TEST(Checkpoint, ReplacesOneOfTheSameStep) {
  const TemporaryFolder root;
  Training training = at_step(3);
  training.state.settings = {{"old", ""}};
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
  EXPECT_THAT(error_of([&] { single.load(path); }), HasSubstr("holds BF16, this run's is f32"));
}

TEST(Checkpoint, RefusesWrongBuffers) {
  const TemporaryFolder root;
  Training training = at_step(3);
  training.with_tensors([&](Context& context, const TrainBuffers& b, Staging& staging) {
    const Tensor none;
    const Tensor shorter = context.allocate({.name = "shorter", .shape = {64}});
    const Tensor integers = context.allocate({.name = "integers", .dtype = DType::i32, .shape = {0}});
    if (context.phantom()) return;
    const auto message = [&](const TrainBuffers& buffers) {
      return error_of(
          [&] { write_checkpoint(root.path(), training.config, training.state, buffers, staging); });
    };
    EXPECT_THAT(message({b.weights, none, b.first_moment, b.second_moment}),
                HasSubstr("master weights is f32 of shape [0]"));
    EXPECT_THAT(message({b.weights, b.master, b.weights, b.second_moment}),
                HasSubstr("the second moment is f32"));
    EXPECT_THAT(message({b.weights, b.master, b.first_moment, shorter}), HasSubstr("shape [64]"));
    EXPECT_THAT(message({b.first_moment, b.master, b.first_moment, b.second_moment}),
                HasSubstr("weights are f32 and have master"));
    EXPECT_THAT(message({integers, b.master, b.first_moment, b.second_moment}), HasSubstr("weights are i32"));
    training.state.step = -1;
    EXPECT_THAT(message(b), HasSubstr("step -1"));
    training.state = {.settings = {{"data", "\xff"}}};
    EXPECT_THAT(message(b), HasSubstr("no UTF-8"));
  });
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
  EXPECT_THAT(damaged("state.json", replaced("\"tokens\": 300", "\"tokens\": 301")),
              HasSubstr("state.json is damaged: its checksum is "));
  EXPECT_THAT(damaged("state.json", replaced("\"checksum\"", "\"checksun\"")),
              HasSubstr("checksum is missing"));
  EXPECT_THAT(damaged("state.json", replaced("\"format\": 2", "\"format\": 3")),
              HasSubstr("format is 3; accepted: 2"));
  EXPECT_THAT(damaged("state.json", replaced("\"format\": 2", "\"format\": 1")),
              HasSubstr("format 1 is of an earlier version and cannot be resumed"));
  EXPECT_THAT(damaged("state.json", [](auto& text) { text.resize(10); }), HasSubstr("state.json: not JSON"));
  EXPECT_THAT(damaged("config.json", replaced("qwen3", "gemma")), HasSubstr("config.json is damaged"));
  EXPECT_THAT(damaged("config.json", replaced("\"architectures\"", "\"architectured\"")),
              HasSubstr("config.json is damaged"));
  EXPECT_THAT(damaged("model.safetensors", [](auto& text) { text.pop_back(); }),
              HasSubstr("model.safetensors: "));
  EXPECT_THAT(damaged("model.safetensors", replaced("model.norm", "model.nirm")),
              HasSubstr("model.safetensors: the header is damaged"));
  EXPECT_THAT(damaged("optimizer.safetensors", [](auto& text) { text.resize(text.size() / 2); }),
              HasSubstr("optimizer.safetensors: "));
  EXPECT_THAT(damaged("optimizer.safetensors", [](auto& text) { text.back() ^= 1; }),
              HasSubstr("optimizer.safetensors: tensor \"second_moment.model.norm.weight\" is damaged"));
  EXPECT_THAT(error_of([&] { Training().load(root / "none"); }), HasSubstr("state.json: No such file"));
}

TEST(Checkpoint, FindsEveryFlippedBit) {
  const TemporaryFolder root;
  const fs::path path = at_step(3).save(root.path());
  const Random random(5);
  std::uint64_t draw = 0;
  for (const std::string_view file :
       {"config.json", "model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string whole = content(path / file);
    for (int i = 0; i < 100; ++i) {
      std::string flipped = whole;
      const std::uint64_t bit = random.below(draw++, 8 * whole.size());
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      put(path / file, flipped);
      EXPECT_THAT(error_of([&] { Training().load(path); }), HasSubstr(path.string()))
          << file << " bit " << bit;
    }
    put(path / file, whole);
  }
  EXPECT_EQ(latest_step(root.path()), 3);
}

TEST(Checkpoint, NeverHoldsWhatIsNotFinite) {
  const TemporaryFolder root;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    fs::remove_all(root / "step-00000001");
    at_step(1, dtype).save(root.path());
    Training training(dtype);
    const auto broken = [&](std::vector<std::uint32_t>& buffer, std::uint32_t bits) {
      training.advance_to(2);
      buffer[static_cast<std::size_t>(training.table.at("model.norm.weight").offset)] = bits;
      try {
        training.save(root.path());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::runtime);
        EXPECT_THAT(names(root.path()), ElementsAre("step-00000001"));
        return std::string(error.what());
      }
      return std::string("saved");
    };
    EXPECT_THAT(broken(training.second, 0x7f80'0000),
                HasSubstr("tensor \"second_moment.model.norm.weight\" is not finite"));
    EXPECT_THAT(broken(training.first, 0xff80'0000), HasSubstr("\"first_moment.model.norm.weight\""));
    if (dtype == DType::f32) {
      EXPECT_THAT(broken(training.weights, 0x7fc0'0001), HasSubstr("tensor \"model.norm.weight\""));
    } else {
      EXPECT_THAT(broken(training.master, 0x7fc0'0001), HasSubstr("\"master.model.norm.weight\""));
      training.advance_to(2);
      reinterpret_cast<std::uint16_t*>(training.weights.data())[5] = 0x7f80;
      EXPECT_THAT(error_of([&] { training.save(root.path()); }),
                  HasSubstr("tensor \"model.embed_tokens.weight\" is not finite"));
    }
  }
}

// The exponent that stands for infinity in a state of 8 bits.
TEST(Checkpoint, NeverHoldsEightBitMomentsThatAreNotFinite) {
  const TemporaryFolder root;
  const ModelConfig config = Training().config;
  const ParameterTable table(config);
  for (const bool broken : {false, true}) {
    run_rehearsed([&](Context& context) {
      context.phase(Phase::load, [&] {
        const auto take = [&](DType dtype, std::int64_t elements) {
          Tensor tensor = context.allocate({.name = "flat", .dtype = dtype, .shape = {elements}});
          context.run([&](const Stream&) {
            std::memset(tensor.view().raw(), 0, static_cast<std::size_t>(tensor.view().bytes()));
          });
          return tensor;
        };
        const Tensor none;
        const Tensor weights = take(DType::bf16, table.elements());
        const Tensor first = take(DType::u8, table.elements());
        const Tensor second = take(DType::u8, table.elements());
        const Tensor first_exponents = take(DType::u8, table.elements() / 64);
        const Tensor second_exponents = take(DType::u8, table.elements() / 64);
        Staging staging(context);
        if (context.phantom()) return;
        const Parameter& norm = table.at("model.norm.weight");
        if (broken) second_exponents.data<std::uint8_t>()[norm.offset / 64] = 255;
        TrainState state;
        state.step = broken ? 2 : 1;
        const auto save = [&] {
          write_checkpoint(root.path(), config, state,
                           {weights, none, first, second, first_exponents, second_exponents}, staging);
        };
        if (!broken) return save();
        EXPECT_THAT(error_of(save), HasSubstr("\"second_exponents.model.norm.weight\" is not finite"));
      });
    });
  }
  EXPECT_THAT(names(root.path()), ElementsAre("step-00000001"));
  const fs::path saved = root / "step-00000001";
  EXPECT_EQ(check_checkpoint(saved, config, DType::bf16, StatePrecision::eight_bit).step, 1);
  EXPECT_THAT(error_of([&] { check_checkpoint(saved, config, DType::bf16, StatePrecision::bf16); }),
              HasSubstr("holds U8, this run's is bf16"));
  EXPECT_THAT(error_of([&] { check_checkpoint(saved, config, DType::bf16); }),
              HasSubstr("\"master.model.embed_tokens.weight\" is missing"));
}

TEST(Checkpoint, IsOfTheStepThatItsFolderIsNamedAfter) {
  const TemporaryFolder root;
  const fs::path path = at_step(3).save(root.path());
  fs::rename(path, root / "step-00000004");
  EXPECT_THAT(error_of([&] { static_cast<void>(read_train_state(root / "step-00000004")); }),
              HasSubstr("is of step 3, its folder is named after step 4"));
  EXPECT_THAT(error_of([&] { Training().load(root / "step-00000004"); }), HasSubstr("of step 3"));
  fs::rename(root / "step-00000004", root / "best");  // a name that says nothing of steps
  EXPECT_EQ(read_train_state(root / "best").step, 3);
}

TEST(Checkpoint, IsCheckedWithoutMemoryForTheTensors) {
  const TemporaryFolder root;
  const Training training = at_step(3);
  const fs::path path = at_step(3).save(root.path());
  EXPECT_EQ(check_checkpoint(path, training.config, DType::bf16), training.state);
  EXPECT_THAT(error_of([&] { check_checkpoint(path, training.config, DType::f32); }),
              HasSubstr("holds BF16"));
  ModelConfig huge = training.config;
  huge.mlp = std::int64_t{1} << 24;
  huge.layers = 1000;  // of 50 TB
  EXPECT_THAT(error_of([&] { check_checkpoint(path, huge, DType::bf16); }), HasSubstr("is of another model"));
}

TEST(Checkpoint, NamesWhatIsIncomplete) {
  const TemporaryFolder root;
  EXPECT_TRUE(incomplete_checkpoints(root / "none").empty());
  for (const std::int64_t step : {3, 4, 5}) at_step(step).save(root.path());
  EXPECT_TRUE(incomplete_checkpoints(root.path()).empty());
  fs::remove(root / "step-00000005/optimizer.safetensors");
  put(root / "step-00000006", "no folder");
  fs::create_directory(root / "step-000000006");  // nine digits are another name
  const auto incomplete = incomplete_checkpoints(root.path());
  ASSERT_EQ(incomplete.size(), 2);
  EXPECT_EQ(incomplete[0].path, root / "step-00000005");
  EXPECT_EQ(incomplete[0].missing, "optimizer.safetensors");
  EXPECT_EQ(incomplete[1].path, root / "step-00000006");
  EXPECT_EQ(incomplete[1].missing, "config.json");
  remove_old_checkpoints(root.path(), 1);
  EXPECT_EQ(incomplete_checkpoints(root.path()).size(), 2);
  remove_checkpoints(root.path());
  EXPECT_THAT(names(root.path()), ElementsAre("step-000000006"));
}

TEST(Checkpoint, ComparesSettings) {
  const TrainState state{.step = 7,
                         .settings = {{"data", "a"}, {"lr", "0.1"}, {"seq", "64"}, {"simd", "avx2"}}};
  const auto settings = [](std::string lr, std::string seq, std::string simd) {
    return std::vector<Setting>{{"data", "b", SettingKind::free},
                                {"lr", std::move(lr)},
                                {"seq", std::move(seq)},
                                {"simd", std::move(simd), SettingKind::last_bits}};
  };
  EXPECT_EQ(compare_settings(state, settings("0.1", "64", "avx2")), "");
  EXPECT_EQ(compare_settings({}, {}), "");
  EXPECT_EQ(
      compare_settings(state, settings("0.1", "64", "avx512")),
      "the checkpoint of step 7 was made with simd avx2 (this run: avx512): the last bits of results may "
      "differ");
  EXPECT_EQ(error_of([&] { static_cast<void>(compare_settings(state, settings("0.2", "128", "avx512"))); }),
            "the checkpoint of step 7 was made with lr 0.1 (this run: 0.2), seq 64 (this run: 128)");
  auto more = settings("0.1", "64", "avx2");
  more.push_back({"new", "1"});
  EXPECT_THAT(error_of([&] { static_cast<void>(compare_settings(state, more)); }),
              HasSubstr("new none (this run: 1)"));
  more.erase(more.begin() + 1);
  EXPECT_THAT(error_of([&] { static_cast<void>(compare_settings(state, more)); }),
              HasSubstr("lr 0.1 (this run: none)"));
}

class ModelFolder {
 public:
  ModelFolder() {
    for (const auto& [name, text] : files) put(folder / name, text);
    put(folder / "config.json",
        R"({"model_type": "qwen3", "eos_token_id": [151645, 151643], "bos_token_id": 151643, "hidden_size": 1,
            "auto_map": {"AutoModel": "x.py"}})");
    put(folder / "README.md", "not carried");
  }

  std::map<std::string, std::string> files = {{"tokenizer.json", std::string(300'000, 't')},
                                              {"tokenizer_config.json", "{}"},
                                              {"merges.txt", ""},
                                              {"generation_config.json", "{\"top_k\": 20}"},
                                              {"chat_template.jinja", "{{ messages }}"}};
  TemporaryFolder folder;
};

TEST(ModelFiles, AreCarriedIntoCheckpoints) {
  const TemporaryFolder root;
  fs::path path;
  {
    const ModelFolder model;
    const ModelFiles files(model.folder.path(), root.path());
    EXPECT_THAT(names(root.path()), ElementsAre());
    fs::remove_all(model.folder.path());
    path = at_step(3).save(root.path(), files);
    for (const auto& [name, text] : model.files) EXPECT_EQ(content(path / name), text) << name;
    EXPECT_EQ(names(path).size(), model.files.size() + 4);
  }
  Training loaded;
  loaded.load(path);
  EXPECT_TRUE(loaded == at_step(3));
  EXPECT_THAT(content(path / "config.json"), HasSubstr("\"bos_token_id\": 151643"));
  EXPECT_THAT(content(path / "config.json"), testing::ContainsRegex("\"eos_token_id\": .[ \n]*151645"));
  EXPECT_THAT(content(path / "config.json"), HasSubstr("\"hidden_size\": 12"));
  EXPECT_THAT(content(path / "config.json"), testing::Not(HasSubstr("auto_map")));
  // And from one checkpoint to the next.
  const ModelFiles again(path, root.path());
  const std::set<std::string> before = names(path);
  const std::string config = content(path / "config.json");
  remove_folder(path);
  path = at_step(4).save(root.path(), again);
  EXPECT_EQ(names(path), before);
  EXPECT_EQ(content(path / "config.json"), config);
  EXPECT_EQ(content(path / "tokenizer.json"), std::string(300'000, 't'));
}

TEST(ModelFiles, RefusesWhatIsNoFile) {
  const TemporaryFolder root;
  const ModelFolder model;
  const auto message = [&] { return error_of([&] { ModelFiles files(model.folder.path(), root.path()); }); };
  fs::create_directory(model.folder / "vocab.json");
  EXPECT_THAT(message(), HasSubstr("vocab.json"));
  fs::remove(model.folder / "vocab.json");
  put(model.folder / "tokenizer.model", "");
  fs::resize_file(model.folder / "tokenizer.model", (128 << 20) + 1);
  EXPECT_THAT(message(), HasSubstr("tokenizer.model: it is larger than 128 MiB"));
  fs::remove(model.folder / "tokenizer.model");
  // As Hugging Face's cache has them.
  fs::rename(model.folder / "tokenizer.json", model.folder / "blob");
  fs::create_symlink("blob", model.folder / "tokenizer.json");
  const fs::path path = at_step(3).save(root.path(), ModelFiles(model.folder.path(), root.path()));
  EXPECT_EQ(content(path / "tokenizer.json"), std::string(300'000, 't'));
  EXPECT_FALSE(fs::is_symlink(path / "tokenizer.json"));
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
