#include "ring_report.h"

#include <fmt/ostream.h>

#include <algorithm>

#include "headroom/core/text.h"
#include "headroom/plan/links.h"
#include "ring_page.h"

namespace headroom {

nlohmann::ordered_json to_json(const RingRow& row, std::string_view transport) {
  const AttentionProblem& p = row.c.problem;
  nlohmann::ordered_json json = {{"transport", transport}, {"impl", name(row.c.way, row.c.group)},
                                 {"ranks", row.c.ranks},   {"partition", name(row.c.partition)},
                                 {"mask", row.c.mask},     {"seq", p.seq_k},
                                 {"heads_q", p.heads_q},   {"heads_kv", p.heads_kv},
                                 {"head_dim", p.head_dim}, {"dtype", name(p.dtype)}};
  if (!row.reason.empty()) {
    json["reason"] = row.reason;
    return json;
  }
  json.update({{"forward_ms", row.forward_ms},
               {"backward_ms", row.backward_ms},
               {"single_forward_ms", row.single_forward_ms},
               {"single_backward_ms", row.single_backward_ms},
               {"sent_bytes_per_rank", row.sent_bytes},
               {"peak_bytes_per_rank", row.peak_bytes},
               {"single_bytes", row.single_bytes},
               {"overlap", row.overlap},
               {"error", row.error},
               {"rest_seconds", row.rest_seconds}});
  if (!row.linked) return json;
  const LinkedPasses& linked = *row.linked;
  json.update({{"alone_forward_ms", linked.alone_forward_ms},
               {"alone_backward_ms", linked.alone_backward_ms},
               {"forward_of_alone", row.forward_ms / linked.alone_forward_ms},
               {"backward_of_alone", row.backward_ms / linked.alone_backward_ms},
               {"forward_link_bytes_per_second", linked.forward_link.bytes_per_second},
               {"backward_link_bytes_per_second", linked.backward_link.bytes_per_second},
               {"backward_hop_ms", linked.backward_hop_ms}});
  if (linked.predicted) {
    json["predicted_forward_ms"] = linked.predicted->forward.seconds * 1e3;
    json["predicted_backward_ms"] = linked.predicted->backward.seconds * 1e3;
  }
  return json;
}

Table ring_table(const std::vector<RingRow>& rows) {
  Table table({"way", "ranks", "partition", "mask", "seq", "forward", "backward", "single forward",
               "single backward", "sent per rank", "peak per rank", "single", "overlap", "error"});
  for (const RingRow& row : rows) {
    const std::vector<Cell> first = {name(row.c.way, row.c.group), std::to_string(row.c.ranks),
                                     std::string(name(row.c.partition)), row.c.mask,
                                     format_count(row.c.problem.seq_k)};
    std::vector<Cell> cells = first;
    if (!row.reason.empty()) {
      cells.insert(cells.end(), {row.reason, "", "", "", "", "", "", "", ""});
    } else {
      cells.insert(
          cells.end(),
          {fmt::format("{:.2f} ms", row.forward_ms), fmt::format("{:.2f} ms", row.backward_ms),
           fmt::format("{:.2f} ms", row.single_forward_ms), fmt::format("{:.2f} ms", row.single_backward_ms),
           bytes_cell(row.sent_bytes), bytes_cell(row.peak_bytes), bytes_cell(row.single_bytes),
           fmt::format("{:.3f}", row.overlap), fmt::format("{:.1e}", row.error)});
    }
    table.add(cells);
  }
  return table;
}

Table link_table(const std::vector<RingRow>& rows) {
  Table table({"way", "ranks", "mask", "seq", "pass", "link", "measured", "without link", "ratio",
               "predicted", "difference", "waits", "bubbles"});
  for (const RingRow& row : rows) {
    if (!row.linked) continue;
    const auto add = [&](std::string_view pass, double measured_ms, double alone_ms, const LinkModel& link,
                         const PassTime* predicted) {
      std::vector<Cell> cells = {name(row.c.way, row.c.group),
                                 std::to_string(row.c.ranks),
                                 row.c.mask,
                                 format_count(row.c.problem.seq_k),
                                 std::string(pass),
                                 describe(link),
                                 fmt::format("{:.2f} ms", measured_ms),
                                 fmt::format("{:.2f} ms", alone_ms),
                                 fmt::format("{:.3f}", measured_ms / alone_ms)};
      if (predicted == nullptr) {
        cells.insert(cells.end(), {"", "", "", ""});
      } else {
        const double predicted_ms = predicted->seconds * 1e3;
        cells.insert(cells.end(), {fmt::format("{:.2f} ms", predicted_ms),
                                   fmt::format("{:+.1f} %", 100 * (predicted_ms / measured_ms - 1)),
                                   fmt::format("{:.2f} ms", predicted->waited_seconds * 1e3),
                                   fmt::format("{:.1f} %", 100 * predicted->bubbles())});
      }
      table.add(cells);
    };
    const LinkedPasses& linked = *row.linked;
    add("forward", row.forward_ms, linked.alone_forward_ms, linked.forward_link,
        linked.predicted ? &linked.predicted->forward : nullptr);
    add("backward", row.backward_ms, linked.alone_backward_ms, linked.backward_link,
        linked.predicted ? &linked.predicted->backward : nullptr);
  }
  return table;
}

Page ring_page(const std::vector<RingRow>& rows, std::string_view transport) {
  Page page{.title = "Attention over ranks", .subtitle = fmt::format("ranks over {}", transport)};
  page.sections.emplace_back(TableSection{.title = "Measured", .table = ring_table(rows)});
  if (std::ranges::any_of(rows, [](const RingRow& row) { return row.linked.has_value(); })) {
    page.sections.emplace_back(TableSection{.title = "Over the link", .table = link_table(rows)});
  }
  for (const RingRow& row : rows) {
    if (row.c.way != AttentionWay::ring || !row.reason.empty()) continue;
    const AttentionForward lists = lists_of(row.c);
    const RingSchedule schedule(row.c.problem, lists,
                                make_partition(row.c.partition, row.c.ranks, row.c.problem, lists));
    page.sections.emplace_back(
        schedule_chart(schedule, fmt::format("{} over {} ranks, {}, {} tokens", row.c.mask, row.c.ranks,
                                             name(row.c.partition), format_count(row.c.problem.seq_k))));
    page.sections.emplace_back(schedule_table(schedule));
  }
  return page;
}

void print_choices(const std::vector<RingRow>& rows, std::ostream& out) {
  for (const RingRow& row : rows) {
    if (row.c.way != AttentionWay::ring || !row.linked) continue;
    const AttentionForward lists = lists_of(row.c);
    const Partition partition = make_partition(row.c.partition, row.c.ranks, row.c.problem, lists);
    std::vector<LinkModel> links = {row.linked->forward_link};
    if (row.linked->backward_link != links.front()) links.push_back(row.linked->backward_link);
    for (const LinkModel& link : links) {
      const WayChoice choice = choose_way(row.c.problem, lists, partition, rank_rates(row, link));
      fmt::print(out, "{} over {} ranks ({}): {} is best; {}\n", row.c.mask, row.c.ranks, describe(link),
                 name(choice.way, choice.group), choice.reason);
    }
  }
}

}  // namespace headroom
