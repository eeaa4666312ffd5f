#include "headroom/plan/played_phase.h"

#include <optional>
#include <vector>

namespace headroom {
namespace {

class Clocks {
 public:
  explicit Clocks(const std::function<void(std::uint32_t, double)>& main_moved) : main_moved_(main_moved) {}

  void work(const WorkRecord& record, double seconds) {
    if (record.stream == StreamId::copy) {
      played_.copy_seconds += seconds;
      return;
    }
    if (record.stream == StreamId::communication) {
      messages_ += seconds;
      return;
    }
    // Messages leave a rank one after another, so those of a sum on main follow those under way.
    const bool sends = record.work.kind == WorkKind::communication && seconds > 0;
    move_main(record.stage,
              (sends ? std::max(played_.main_seconds, messages_) : played_.main_seconds) + seconds);
    if (sends) messages_ = played_.main_seconds;
  }
  void see(const Event& event) {
    const auto recorded = [&] { return records_[event.id]; };
    if (event.kind == EventKind::record) {
      records_.push_back(event.stream == StreamId::communication ? messages_
                         : event.stream == StreamId::main        ? played_.main_seconds
                                                                 : 0);
    } else if (event.kind == EventKind::wait && event.stream == StreamId::communication) {
      messages_ = std::max(messages_, recorded());
    } else if (event.kind == EventKind::wait_on_host ||
               (event.kind == EventKind::wait && event.stream == StreamId::main)) {
      move_main(event.stage, recorded());  // what the host gives to main comes after what it waited for
    }
  }
  [[nodiscard]] const PlayedPhase& played() const { return played_; }

 private:
  void move_main(std::uint32_t stage, double to) {
    const double seconds = to - played_.main_seconds;
    if (seconds <= 0) return;
    played_.main_seconds = to;
    if (main_moved_) main_moved_(stage, seconds);
  }

  const std::function<void(std::uint32_t, double)>& main_moved_;
  PlayedPhase played_;
  double messages_ = 0;  // when the messages that were started so far are there
  std::vector<double> records_;
};

}  // namespace

PlayedPhase play_phase(const Ledger& ledger, Phase phase, std::span<const WorkRecord> records,
                       const std::function<double(const WorkRecord&)>& seconds_of,
                       const std::function<void(std::uint32_t, double)>& main_moved) {
  const std::optional<std::size_t> index = ledger.find_phase(phase);
  if (!index) return {};
  Clocks clocks(main_moved);
  auto record = records.begin();
  const auto work_before = [&](std::size_t event) {
    for (; record != records.end() && record->events_before <= event; ++record) {
      clocks.work(*record, seconds_of(*record));
    }
  };
  const std::vector<Event>& events = ledger.phases()[*index].events;
  for (std::size_t i = 0; i < events.size(); ++i) {
    work_before(i);
    clocks.see(events[i]);
  }
  work_before(events.size());
  return clocks.played();
}

}  // namespace headroom
