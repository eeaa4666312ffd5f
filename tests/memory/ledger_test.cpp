#include "headroom/memory/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/memory/usage.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

// A phase or stage that nobody knows does not compile: they are types, and texts are none.
template <class Name>
concept NamesAPhase = requires(Context& context, Name name) { context.phase(name, [] {}); };
template <class Name>
concept NamesAStage = requires(Context& context, Name name) { static_cast<void>(context.stage(name)); };
static_assert(NamesAPhase<Phase> && !NamesAPhase<const char*> && !NamesAPhase<std::string_view>);
static_assert(NamesAStage<StageKind> && !NamesAStage<const char*> && !NamesAStage<int>);

Tensor make(Context& context, std::string_view name, Category category, std::int64_t bytes,
            Lifetime lifetime = Lifetime::phase) {
  return context.allocate(
      {.name = name, .category = category, .dtype = DType::u8, .shape = {bytes}, .lifetime = lifetime});
}

// parameters 1000 for the run; forward: layer 0 keeps 100, layer 1 keeps 200 with a workspace of 50; then all
// go.
void program(Context& context) {
  Tensor weight;
  context.phase(Phase::load,
                [&] { weight = make(context, "weight", Category::parameters, 1000, Lifetime::run); });
  context.phase(Phase::step, [&] {
    Tensor kept[2];
    {
      const auto forward = context.stage(StageKind::forward);
      for (int i = 0; i < 2; ++i) {
        const auto layer = context.stage(StageKind::layer, i);
        kept[i] = make(context, "kept", Category::activations, (i + 1) * 100);
        if (i == 1) make(context, "scratch", Category::workspace, 50).free();
      }
    }
    const auto backward = context.stage(StageKind::backward);
    kept[1].free();
    kept[0].free();
  });
}

TEST(Ledger, LiveAndPeakByCategory) {
  Context context(DeviceDescription{.name = "made up"});
  context.phase(Phase::step, [&] {
    Tensor a = make(context, "a", Category::activations, 100);
    {
      const Tensor b = make(context, "b", Category::logits, 1000);
      EXPECT_EQ(context.ledger().usage(Space::device).live_bytes, 1100);
      EXPECT_EQ(context.ledger().usage(Space::device).live[static_cast<int>(Category::logits)], 1000);
    }
    const Tensor c = make(context, "c", Category::activations, 500);
    const Usage& usage = context.ledger().usage(Space::device);
    EXPECT_EQ(usage.live_bytes, 600);
    EXPECT_EQ(usage.peak_bytes, 1100);
    EXPECT_EQ(usage.peak[static_cast<int>(Category::activations)], 600);     // its own highest
    EXPECT_EQ(usage.at_peak[static_cast<int>(Category::activations)], 100);  // when the sum was highest
    EXPECT_EQ(context.ledger().usage(Space::host).peak_bytes, 0);
  });
  EXPECT_EQ(context.ledger().usage(Space::device).live_bytes, 0);
}

TEST(Ledger, UsageByStage) {
  const Layout layout = rehearse(program);
  std::vector<std::tuple<std::string, std::string, std::int64_t, std::int64_t>> rows;
  for (const StageUsage& row : usage_by_stage(layout.rehearsal, Space::device)) {
    rows.emplace_back(name(row.phase), row.stage.text(), row.live_bytes, row.peak_bytes);
  }
  using Row = std::tuple<std::string, std::string, std::int64_t, std::int64_t>;
  EXPECT_THAT(rows, testing::ElementsAre(
                        Row{"load", "", 1000, 1000}, Row{"step", "", 1000, 1350},
                        Row{"step", "forward", 1300, 1350}, Row{"step", "forward/layer 0", 1100, 1100},
                        Row{"step", "forward/layer 1", 1300, 1350}, Row{"step", "backward", 1000, 1300}));
}

TEST(Ledger, PathsOfStages) {
  StagePath path{{StageKind::forward}, {StageKind::layer, 12}};
  EXPECT_EQ(path.text(), "forward/layer 12");
  const StagePath layer = path;
  path.open({StageKind::attention});
  EXPECT_EQ(path.text(), "forward/layer 12/attention");
  EXPECT_TRUE(path.inside(layer));
  EXPECT_TRUE(layer.inside(layer));
  EXPECT_TRUE(layer.inside({}));
  EXPECT_FALSE(layer.inside(path));
  EXPECT_FALSE(path.inside({{StageKind::forward}, {StageKind::layer, 1}}));  // "layer 12" begins with it
  EXPECT_EQ(StagePath().text(), "");
  for (std::size_t i = path.depth(); i < StagePath::kMaxDepth; ++i) path.open({StageKind::again});
  EXPECT_THROW(path.open({StageKind::again}), Error);
}

TEST(Ledger, EveryPhaseAndStageHasAName) {
  for (int i = 0; i < kPhaseCount; ++i) EXPECT_FALSE(name(static_cast<Phase>(i)).empty()) << i;
  for (int i = 0; i < kStageKindCount; ++i) EXPECT_FALSE(name(static_cast<StageKind>(i)).empty()) << i;
}

TEST(Ledger, UsageOfAlignedBlocks) {
  const Layout layout = rehearse(program);
  const std::vector<StageUsage> rows = usage_by_stage(layout.rehearsal, Space::device, 256);
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[0].live_bytes, 1024);
  EXPECT_EQ(rows[1].live_bytes, 1024);
  EXPECT_EQ(rows[1].peak_bytes, 1024 + 3 * 256);  // two that are kept, one at work
  EXPECT_EQ(rows[1].peak_bytes, layout.reserved(Space::device));
  EXPECT_EQ(rows[3].peak_bytes, 1024 + 256);
}

TEST(Ledger, NamesWhatIsAliveAtThePeak) {
  const std::vector<LiveBlock> blocks = blocks_at_peak(rehearse(program).rehearsal, Space::device);
  ASSERT_EQ(blocks.size(), 4U);
  EXPECT_EQ(blocks[0].name, "weight");
  EXPECT_EQ(blocks[0].allocated_in, "load");
  EXPECT_EQ(blocks[1].name, "kept");
  EXPECT_EQ(blocks[1].bytes, 200);
  EXPECT_EQ(blocks[1].allocated_in, "step/forward/layer 1");
  EXPECT_EQ(blocks[3].name, "scratch");
}

TEST(Ledger, StopsGrowingAfterTheFirstRunOfAPhase) {
  Context context(DeviceDescription{.name = "made up"});
  for (int i = 0; i < 5; ++i) {
    context.phase(Phase::step, [&] { const Tensor a = make(context, "a", Category::activations, 100); });
  }
  ASSERT_EQ(context.ledger().phases().size(), 1U);
  EXPECT_EQ(context.ledger().phases()[0].events.size(), 2U);
  EXPECT_EQ(context.ledger().phases()[0].runs, 5);
}

}  // namespace
}  // namespace headroom
