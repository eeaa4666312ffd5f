// A report as one page of HTML that needs nothing else: no network, no library. A Page says what is to be
// seen; page.js and page.css in src/report say how. The data stands in the page as JSON with every byte count
// exact; long series are thinned for drawing, and what was highest stays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headroom/memory/ledger.h"
#include "headroom/memory/usage.h"
#include "headroom/report/table.h"

namespace headroom {

// Headline numbers, side by side.
struct Figures {
  struct Figure {
    std::string label;
    Cell value;
    std::string note{};
  };
  std::vector<Figure> figures;
};

struct TableSection {
  std::string title;
  Table table;
  std::string note{};
};

// A line across a chart, such as the budget.
struct Level {
  std::string name;
  double value = 0;
};

// Live bytes by category from allocation to allocation of one phase. Made by memory_timeline.
struct MemoryTimeline {
  // Number 0 is before the phase, n after its n-th allocation or free.
  struct Moment {
    std::int64_t number = 0;
    CategoryBytes live{};
    std::string name{};  // of the block that came or went; empty for number 0
    std::string stage{};
    Category category = Category::workspace;
    std::int64_t change_bytes = 0;  // below zero: freed
  };
  struct Stage {
    std::string path;
    std::int64_t depth = 1;
    std::int64_t begin = 0;  // its first moment
    std::int64_t end = 0;    // the first one after it
  };
  std::string title;
  std::vector<Level> levels{};
  std::int64_t moment_count = 0;    // of the phase
  std::vector<Moment> moments{};    // all of them, or of each short span the highest and the lowest
  std::size_t peak = 0;             // index of the highest moment
  std::vector<Stage> stages{};      // the outermost two depths
  std::vector<LiveBlock> blocks{};  // alive at the peak, largest first
  std::int64_t other_blocks = 0;    // those that are not listed
  std::int64_t other_bytes = 0;
};
[[nodiscard]] MemoryTimeline memory_timeline(const Ledger& ledger, Phase phase, Space space = Space::device);

enum class Unit : std::uint8_t { plain, bytes, milliseconds, seconds, tokens };

struct Axis {
  std::string label;
  Unit unit = Unit::plain;
  bool logarithmic = false;
};

struct LineChart {
  struct Point {
    double x = 0;
    double y = 0;
  };
  struct Series {
    std::string name;
    std::vector<Point> points{};  // x rises
  };
  std::string title;
  Axis x;
  Axis y;
  std::vector<Series> series{};
  std::vector<Level> levels{};
  std::string note{};
};

// Who does what when: boxes in lanes over one axis, and arrows from lane to lane.
struct LaneChart {
  struct Box {
    std::int64_t lane = 0;
    double begin = 0;
    double end = 0;
    std::int64_t color = 0;  // one of eight
    std::string title{};     // shown under the cursor
  };
  struct Arrow {
    std::int64_t from = 0;  // lanes
    std::int64_t to = 0;
    double begin = 0;
    double end = 0;
    std::string title{};
  };
  std::string title;
  std::vector<std::string> lanes{};
  std::vector<Box> boxes{};
  std::vector<Arrow> arrows{};
  std::string note{};
};

using Section = std::variant<Figures, TableSection, MemoryTimeline, LineChart, LaneChart>;

struct Page {
  std::string title;
  std::string subtitle{};
  std::vector<std::string> notes{};  // what the reader should know first
  std::vector<Section> sections{};
};

[[nodiscard]] std::string html(const Page& page);
// Appears whole or not at all.
void write_html(const std::filesystem::path& path, const Page& page);

}  // namespace headroom
