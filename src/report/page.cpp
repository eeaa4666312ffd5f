// A page: its data as JSON between the style sheet and the script that draws it.
#include "headroom/report/page.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "report/page_text.h"
#include "report/thin.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

std::string_view name(Unit unit) {
  switch (unit) {
    case Unit::plain: return "plain";
    case Unit::bytes: return "bytes";
    case Unit::milliseconds: return "milliseconds";
    case Unit::seconds: return "seconds";
    case Unit::tokens: return "tokens";
  }
  return {};
}

Json to_json(const Cell& cell) {
  Json json = {{"text", cell.text}};
  if (cell.bytes) json["bytes"] = *cell.bytes;
  return json;
}

Json to_json(const std::vector<Level>& levels) {
  Json json = Json::array();
  for (const Level& level : levels) json.push_back({{"name", level.name}, {"value", level.value}});
  return json;
}

Json to_json(const Axis& axis) {
  return {{"label", axis.label}, {"unit", name(axis.unit)}, {"logarithmic", axis.logarithmic}};
}

Json section(const Figures& figures) {
  Json json = {{"kind", "figures"}, {"figures", Json::array()}};
  for (const Figures::Figure& figure : figures.figures) {
    json["figures"].push_back(
        {{"label", figure.label}, {"value", to_json(figure.value)}, {"note", figure.note}});
  }
  return json;
}

Json section(const TableSection& section) {
  Json json = {{"kind", "table"}, {"title", section.title}, {"rows", Json::array()}, {"note", section.note}};
  for (const std::vector<Cell>& row : section.table.rows()) {
    Json cells = Json::array();
    for (const Cell& cell : row) cells.push_back(to_json(cell));
    json["rows"].push_back(std::move(cells));
  }
  return json;
}

// Names repeat from layer to layer; each is written once.
class Texts {
 public:
  std::size_t add(const std::string& text) {
    const auto [found, added] = ids_.emplace(text, ids_.size());
    if (added) list_.push_back(text);
    return found->second;
  }
  [[nodiscard]] const Json& list() const { return list_; }

 private:
  std::map<std::string, std::size_t> ids_;
  Json list_ = Json::array();
};

// Columns: `live` holds one for each category that is ever there.
Json section(const MemoryTimeline& timeline) {
  Texts texts;
  Json json = {{"kind", "timeline"},
               {"title", timeline.title},
               {"levels", to_json(timeline.levels)},
               {"moment_count", timeline.moment_count},
               {"peak", timeline.peak},
               {"categories", Json::array()},
               {"live", Json::array()}};
  for (int category = 0; category < kCategoryCount; ++category) {
    const auto index = static_cast<std::size_t>(category);
    Json column = Json::array();
    bool there = false;
    for (const MemoryTimeline::Moment& moment : timeline.moments) {
      column.push_back(moment.live[index]);
      there = there || moment.live[index] != 0;
    }
    if (!there) continue;
    json["categories"].push_back(headroom::name(static_cast<Category>(category)));
    json["live"].push_back(std::move(column));
  }
  for (const char* column : {"number", "name", "stage", "change", "stages", "blocks"}) {
    json[column] = Json::array();
  }
  for (const MemoryTimeline::Moment& moment : timeline.moments) {
    json["number"].push_back(moment.number);
    json["name"].push_back(texts.add(moment.name));
    json["stage"].push_back(texts.add(moment.stage));
    json["change"].push_back(moment.change_bytes);
  }
  for (const MemoryTimeline::Stage& stage : timeline.stages) {
    json["stages"].push_back({texts.add(stage.path), stage.depth, stage.begin, stage.end});
  }
  for (const LiveBlock& block : timeline.blocks) {
    json["blocks"].push_back({texts.add(block.name), texts.add(std::string(headroom::name(block.category))),
                              texts.add(block.allocated_in), block.bytes});
  }
  json["other_blocks"] = timeline.other_blocks;
  json["other_bytes"] = timeline.other_bytes;
  json["texts"] = texts.list();
  return json;
}

Json section(const LineChart& chart) {
  Json json = {{"kind", "lines"},
               {"title", chart.title},
               {"x", to_json(chart.x)},
               {"y", to_json(chart.y)},
               {"levels", to_json(chart.levels)},
               {"note", chart.note},
               {"series", Json::array()}};
  for (const LineChart::Series& series : chart.series) {
    std::vector<double> heights;
    for (const LineChart::Point& point : series.points) heights.push_back(point.y);
    Json points = Json::array();
    for (const std::size_t i : visible(std::span<const double>(heights))) {
      points.push_back({series.points[i].x, series.points[i].y});
    }
    json["series"].push_back({{"name", series.name}, {"points", std::move(points)}});
  }
  return json;
}

Json section(const LaneChart& chart) {
  Json json = {{"kind", "lanes"},        {"title", chart.title},    {"lanes", chart.lanes},
               {"boxes", Json::array()}, {"arrows", Json::array()}, {"note", chart.note}};
  for (const LaneChart::Box& box : chart.boxes) {
    json["boxes"].push_back({{"lane", box.lane},
                             {"begin", box.begin},
                             {"end", box.end},
                             {"color", box.color},
                             {"title", box.title}});
  }
  for (const LaneChart::Arrow& arrow : chart.arrows) {
    json["arrows"].push_back({{"from", arrow.from},
                              {"to", arrow.to},
                              {"begin", arrow.begin},
                              {"end", arrow.end},
                              {"title", arrow.title}});
  }
  return json;
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '&': safe += "&amp;"; break;
      default: safe += c;
    }
  }
  return safe;
}

// Names come from users' files: whatever bytes they hold, no tag begins or ends inside the script element.
std::string script_json(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace

std::string html(const Page& page) {
  Json json = {
      {"title", page.title}, {"subtitle", page.subtitle}, {"notes", page.notes}, {"sections", Json::array()}};
  for (const Section& part : page.sections) {
    json["sections"].push_back(std::visit([](const auto& held) { return section(held); }, part));
  }
  // The policy holds the page to its word: nothing is fetched.
  return fmt::format(
      "<!doctype html>\n"
      "<html lang=\"en\">\n"
      "<head>\n"
      "<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{}</title>\n"
      "<style>\n{}</style>\n"
      "</head>\n"
      "<body>\n"
      "<noscript>This report is drawn by a script of its own; allow it to run, or read the JSON in the "
      "page's "
      "source.</noscript>\n"
      "<main id=\"page\"></main>\n"
      "<script type=\"application/json\" id=\"data\">{}</script>\n"
      "<script>\n{}</script>\n"
      "</body>\n"
      "</html>\n",
      escaped(page.title), kPageStyle, script_json(json), kPageScript);
}

}  // namespace headroom
