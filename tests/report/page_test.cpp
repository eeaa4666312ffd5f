#include "headroom/report/page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/temporary_folder.h"
#include "memory/rehearsed.h"
#include "report/thin.h"

namespace headroom {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kMostBytes = 2'000'000;  // of a page

Tensor make(Context& context, std::string_view name, Category category, std::int64_t bytes,
            Lifetime lifetime = Lifetime::phase) {
  return context.allocate(
      {.name = name, .category = category, .dtype = DType::u8, .shape = {bytes}, .lifetime = lifetime});
}

// 1,000 bytes of parameters for the run; a step whose two layers keep 100 and 200, with a workspace of 50 in
// the second; afterwards a smaller phase.
Ledger small_ledger() {
  Context context(DeviceDescription{.name = "made up"});
  {
    Tensor weight;
    context.phase(Phase::load,
                  [&] { weight = make(context, "weight", Category::parameters, 1000, Lifetime::run); });
    context.phase(Phase::step, [&] {
      Tensor kept[2];
      {
        const auto forward = context.stage(StageKind::forward);
        for (int i = 0; i < 2; ++i) {
          const auto layer = context.stage(StageKind::layer, i);
          const auto attention = context.stage(StageKind::attention);
          kept[i] = make(context, "kept", Category::activations, (i + 1) * 100);
          if (i == 1) make(context, "scratch", Category::workspace, 50).free();
        }
      }
      const auto backward = context.stage(StageKind::backward);
      kept[1].free();
      kept[0].free();
    });
    context.phase(Phase::update, [&] { make(context, "norms", Category::optimizer, 7).free(); });
  }
  return std::move(context).take_ledger();
}

// What the page would be drawn from.
nlohmann::json data_of(std::string_view page) {
  constexpr std::string_view kOpen = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(kOpen) + kOpen.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(MemoryTimeline, FollowsEveryAllocationOfThePhase) {
  const Ledger ledger = small_ledger();
  const MemoryTimeline timeline = memory_timeline(ledger, Phase::step);
  std::vector<std::tuple<std::int64_t, std::string, std::int64_t, std::int64_t>> moments;
  for (const MemoryTimeline::Moment& moment : timeline.moments) {
    moments.emplace_back(moment.number, moment.name, moment.change_bytes, total(moment.live));
  }
  using Row = std::tuple<std::int64_t, std::string, std::int64_t, std::int64_t>;
  EXPECT_THAT(moments,
              testing::ElementsAre(Row{0, "", 0, 1000}, Row{1, "kept", 100, 1100}, Row{2, "kept", 200, 1300},
                                   Row{3, "scratch", 50, 1350}, Row{4, "scratch", -50, 1300},
                                   Row{5, "kept", -200, 1100}, Row{6, "kept", -100, 1000}));
  EXPECT_EQ(timeline.moment_count, 7);
  EXPECT_EQ(timeline.moments[3].stage, "forward/layer 1/attention");
  EXPECT_EQ(timeline.moments[3].category, Category::workspace);
}

TEST(MemoryTimeline, MarksTheOutermostStages) {
  std::vector<std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>> stages;
  for (const MemoryTimeline::Stage& stage : memory_timeline(small_ledger(), Phase::step).stages) {
    stages.emplace_back(stage.path, stage.depth, stage.begin, stage.end);
  }
  using Row = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;
  EXPECT_THAT(stages, testing::ElementsAre(Row{"forward", 1, 1, 5}, Row{"forward/layer 0", 2, 1, 2},
                                           Row{"forward/layer 1", 2, 2, 5}, Row{"backward", 1, 5, 7}));
}

TEST(MemoryTimeline, ThePeakIsTheLedgersAndItsBlocksAddUp) {
  const Ledger ledger = small_ledger();
  const MemoryTimeline timeline = memory_timeline(ledger, Phase::step);
  const Usage& usage = ledger.usage(Space::device);
  EXPECT_EQ(timeline.moments[timeline.peak].live, usage.at_peak);
  EXPECT_EQ(total(timeline.moments[timeline.peak].live), usage.peak_bytes);
  ASSERT_EQ(timeline.blocks.size(), 4U);
  EXPECT_EQ(timeline.blocks[0].name, "weight");
  EXPECT_EQ(timeline.blocks[3].name, "scratch");
  EXPECT_EQ(timeline.blocks[3].allocated_in, "step/forward/layer 1/attention");
}

TEST(MemoryTimeline, EveryPhaseHasAPeakOfItsOwn) {
  const MemoryTimeline timeline = memory_timeline(small_ledger(), Phase::update);
  EXPECT_EQ(total(timeline.moments[timeline.peak].live), 1007);
  ASSERT_EQ(timeline.blocks.size(), 2U);
  EXPECT_EQ(timeline.blocks[1].name, "norms");
}

TEST(MemoryTimeline, APhaseThatIsNotThereIsAnError) {
  EXPECT_EQ(error_of([] { static_cast<void>(memory_timeline(small_ledger(), Phase::save)); }),
            "the ledger has no phase 'save'");
}

TEST(Thin, KeepsTheEndsAndEverySpansHighestAndLowest) {
  std::vector<std::int64_t> heights(10'000);
  for (std::size_t i = 0; i < heights.size(); ++i) heights[i] = static_cast<std::int64_t>(i * 7919 % 1009);
  heights[6543] = 5000;
  heights[6544] = 5000;
  heights[1234] = -5;
  const std::vector<std::size_t> kept = visible(std::span<const std::int64_t>(heights), 50);
  EXPECT_LE(kept.size(), 102U);
  EXPECT_TRUE(std::ranges::is_sorted(kept));
  EXPECT_EQ(kept.front(), 0U);
  EXPECT_EQ(kept.back(), heights.size() - 1);
  EXPECT_THAT(kept, testing::IsSupersetOf({std::size_t{1234}, std::size_t{6543}}));
  for (std::size_t span = 0; span < 50; ++span) {
    const auto part = std::span<const std::int64_t>(heights).subspan(span * 200, 200);
    const auto seen = [&](std::int64_t height) {
      return std::ranges::any_of(kept,
                                 [&](std::size_t i) { return i / 200 == span && heights[i] == height; });
    };
    EXPECT_TRUE(seen(std::ranges::max(part)) && seen(std::ranges::min(part))) << span;
  }
}

TEST(Thin, LeavesShortSeriesAlone) {
  const std::vector<double> heights(7, 1.0);
  EXPECT_EQ(visible(std::span<const double>(heights), 4).size(), 7U);
  EXPECT_TRUE(visible(std::span<const double>()).empty());
}

TEST(Page, HoldsExactBytesAndWhatTheyAreCalled) {
  Page page{.title = "A & B", .subtitle = "sub"};
  page.sections.emplace_back(Figures{{{"planned", bytes_cell(140'812'288), "note"}, {"loss", "0.2300"}}});
  Table table({"stage", "peak"});
  table.add({"forward", bytes_cell(1 << 20)});
  page.sections.emplace_back(TableSection{.title = "Stages", .table = table});
  page.sections.emplace_back(memory_timeline(small_ledger(), Phase::step));
  page.sections.emplace_back(LineChart{.title = "Memory",
                                       .x = {.label = "context", .unit = Unit::tokens, .logarithmic = true},
                                       .y = {.label = "peak", .unit = Unit::bytes},
                                       .series = {{"tiled", {{1024, 1 << 20}, {2048, 1 << 21}}}},
                                       .levels = {{"budget", 1 << 22}}});
  const std::string text = html(page);
  EXPECT_THAT(text, HasSubstr("<title>A &amp; B</title>"));
  const nlohmann::json data = data_of(text);
  EXPECT_EQ(data["sections"][0]["figures"][0]["value"]["bytes"], 140'812'288);
  EXPECT_EQ(data["sections"][0]["figures"][0]["value"]["text"], "134.29 MiB");
  EXPECT_FALSE(data["sections"][0]["figures"][1]["value"].contains("bytes"));
  EXPECT_EQ(data["sections"][1]["rows"][1][1]["bytes"], 1 << 20);
  const nlohmann::json& timeline = data["sections"][2];
  EXPECT_EQ(timeline["categories"], nlohmann::json({"parameters", "activations", "workspace"}));
  std::int64_t at_peak = 0;
  for (const nlohmann::json& column : timeline["live"]) {
    at_peak += column[timeline["peak"].get<std::size_t>()].get<std::int64_t>();
  }
  EXPECT_EQ(at_peak, 1350);
  EXPECT_EQ(data["sections"][3]["series"][0]["points"][1], nlohmann::json({2048.0, 2097152.0}));
  EXPECT_EQ(data["sections"][3]["levels"][0]["value"], 1 << 22);
}

TEST(Page, HoldsEveryWordOfFiguresTablesAndCharts) {
  Page page{.title = "Title", .subtitle = "subtitle", .notes = {"first note", "second note"}};
  page.sections.emplace_back(Figures{{{"planned", bytes_cell(2048), "a note"}}});
  Table table({"stage", "peak"});
  table.add({"forward", bytes_cell(1024)});
  page.sections.emplace_back(TableSection{.title = "Stages", .table = table, .note = "of the table"});
  page.sections.emplace_back(LineChart{.title = "Memory",
                                       .x = {.label = "context", .unit = Unit::tokens, .logarithmic = true},
                                       .y = {.label = "peak", .unit = Unit::bytes},
                                       .series = {{"tiled", {{1, 10}, {2, 20}}}, {"naive", {{1, 30}}}},
                                       .levels = {{"budget", 99}},
                                       .note = "of the chart"});
  EXPECT_EQ(data_of(html(page)), nlohmann::json::parse(R"({
    "title": "Title", "subtitle": "subtitle", "notes": ["first note", "second note"],
    "sections": [
      {"kind": "figures",
       "figures": [{"label": "planned", "value": {"text": "2 KiB", "bytes": 2048}, "note": "a note"}]},
      {"kind": "table", "title": "Stages", "note": "of the table",
       "rows": [[{"text": "stage"}, {"text": "peak"}], [{"text": "forward"}, {"text": "1 KiB", "bytes": 1024}]]},
      {"kind": "lines", "title": "Memory", "note": "of the chart",
       "x": {"label": "context", "unit": "tokens", "logarithmic": true},
       "y": {"label": "peak", "unit": "bytes", "logarithmic": false},
       "levels": [{"name": "budget", "value": 99.0}],
       "series": [{"name": "tiled", "points": [[1.0, 10.0], [2.0, 20.0]]}, {"name": "naive", "points": [[1.0, 30.0]]}]}
    ]})"));
}

// Names are numbers of a list there, so that each is written once.
TEST(Page, HoldsTheTimelineMomentByMoment) {
  const MemoryTimeline timeline = memory_timeline(small_ledger(), Phase::step);
  Page page{.title = "t"};
  page.sections.emplace_back(timeline);
  const nlohmann::json data = data_of(html(page))["sections"][0];
  const auto text = [&](const nlohmann::json& id) {
    return data["texts"][id.get<std::size_t>()].get<std::string>();
  };
  EXPECT_EQ(data["kind"], "timeline");
  EXPECT_EQ(data["title"], timeline.title);
  EXPECT_EQ(data["moment_count"], timeline.moment_count);
  EXPECT_EQ(data["peak"], timeline.peak);
  ASSERT_EQ(data["number"].size(), timeline.moments.size());
  for (std::size_t i = 0; i < timeline.moments.size(); ++i) {
    const MemoryTimeline::Moment& moment = timeline.moments[i];
    EXPECT_EQ(data["number"][i], moment.number);
    EXPECT_EQ(text(data["name"][i]), moment.name);
    EXPECT_EQ(text(data["stage"][i]), moment.stage);
    EXPECT_EQ(data["change"][i], moment.change_bytes);
    for (std::size_t c = 0; c < data["categories"].size(); ++c) {
      std::size_t category = 0;
      while (name(static_cast<Category>(category)) != data["categories"][c].get<std::string>()) ++category;
      EXPECT_EQ(data["live"][c][i], moment.live[category]) << i;
    }
  }
  ASSERT_EQ(data["stages"].size(), timeline.stages.size());
  for (std::size_t i = 0; i < timeline.stages.size(); ++i) {
    const MemoryTimeline::Stage& stage = timeline.stages[i];
    EXPECT_EQ(text(data["stages"][i][0]), stage.path);
    EXPECT_EQ(data["stages"][i][1], stage.depth);
    EXPECT_EQ(data["stages"][i][2], stage.begin);
    EXPECT_EQ(data["stages"][i][3], stage.end);
  }
  ASSERT_EQ(data["blocks"].size(), timeline.blocks.size());
  for (std::size_t i = 0; i < timeline.blocks.size(); ++i) {
    const LiveBlock& block = timeline.blocks[i];
    EXPECT_EQ(text(data["blocks"][i][0]), block.name);
    EXPECT_EQ(text(data["blocks"][i][1]), name(block.category));
    EXPECT_EQ(text(data["blocks"][i][2]), block.allocated_in);
    EXPECT_EQ(data["blocks"][i][3], block.bytes);
  }
  EXPECT_EQ(data["other_blocks"], timeline.other_blocks);
  EXPECT_EQ(data["other_bytes"], timeline.other_bytes);
}

// Nothing that a name holds ends the script it stands in, and nothing is fetched.
TEST(Page, NamesCannotBecomeMarkup) {
  const std::string name = "</script><script>hacked()</script><!-- \xff\xc3 \" \\ \u2028";
  Table table({name});
  table.add({name});
  const Page page{.title = name,
                  .subtitle = name,
                  .sections = {TableSection{.title = name, .table = table, .note = name}}};
  const std::string text = html(page);
  EXPECT_THAT(text, Not(HasSubstr("<script>hacked")));
  EXPECT_THAT(text, Not(HasSubstr("<!--")));
  const std::string shown = data_of(text)["sections"][0]["rows"][1][0]["text"];
  EXPECT_THAT(shown, testing::StartsWith("</script><script>hacked()</script><!-- \ufffd"));
  EXPECT_THAT(text, Not(HasSubstr("src=")));
  EXPECT_THAT(text, HasSubstr("default-src 'none'"));
}

TEST(Page, NumbersThatAreNoneLeaveAGap) {
  Page page{.title = "t"};
  page.sections.emplace_back(
      LineChart{.title = "Loss",
                .x = {.label = "step"},
                .y = {.label = "nats"},
                .series = {{"loss", {{1, std::numeric_limits<double>::quiet_NaN()}, {2, 1.5}}}}});
  EXPECT_EQ(data_of(html(page))["sections"][0]["series"][0]["points"][0][1], nullptr);
}

// Every name different, every block alive at the peak: the worst that a page can be made of.
TEST(Page, AHugeLedgerMakesASmallPageQuickly) {
  constexpr int kBlocks = 75'000;
  Context context(DeviceDescription{.name = "made up"});
  context.phase(Phase::step, [&] {
    std::vector<Tensor> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      const auto layer = context.stage(StageKind::layer, i / 5);
      blocks.push_back(make(context, fmt::format("a rather long name of block {}", i),
                            static_cast<Category>(i % kCategoryCount),
                            1'000'000'000'000 + i * 7919LL % 65'537));
    }
    while (!blocks.empty()) blocks.pop_back();
  });
  const Ledger ledger = std::move(context).take_ledger();
  const auto begin = std::chrono::steady_clock::now();
  Page page{.title = "huge"};
  page.sections.emplace_back(memory_timeline(ledger, Phase::step));
  LineChart chart{.title = "Loss", .x = {.label = "step"}, .y = {.label = "nats"}};
  chart.series.push_back({.name = "loss"});
  for (int i = 0; i < 1'000'000; ++i) chart.series[0].points.push_back({1.0 * i, 1.0 / (i + 1)});
  page.sections.emplace_back(std::move(chart));
  const std::string text = html(page);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(text.size(), kMostBytes);
  EXPECT_LT(seconds, 5.0);  // a tenth of that, without sanitizers

  const auto& timeline = std::get<MemoryTimeline>(page.sections[0]);
  EXPECT_EQ(timeline.moment_count, 2 * kBlocks + 1);
  EXPECT_LT(timeline.moments.size(), 2100U);
  EXPECT_EQ(total(timeline.moments[timeline.peak].live), ledger.usage(Space::device).peak_bytes);
  EXPECT_EQ(timeline.moments[timeline.peak].live, ledger.usage(Space::device).at_peak);
  std::int64_t listed = timeline.other_bytes;
  for (const LiveBlock& block : timeline.blocks) listed += block.bytes;
  EXPECT_EQ(listed, ledger.usage(Space::device).peak_bytes);
  EXPECT_EQ(timeline.other_blocks + std::ssize(timeline.blocks), kBlocks);
}

TEST(Page, IsWrittenWhole) {
  const TemporaryFolder folder;
  const Page page{.title = "t"};
  write_html(folder / "page.html", page);
  EXPECT_EQ(content(folder / "page.html"), html(page));
  EXPECT_EQ(names(folder.path()), std::set<std::string>{"page.html"});
}

}  // namespace
}  // namespace headroom
