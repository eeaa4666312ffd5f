// metrics.jsonl of a training run: a line of JSON per step, appended as the step ends.
#pragma once

#include <cstdint>
#include <filesystem>

#include "headroom/core/files.h"
#include "headroom/jobs/train.h"

namespace headroom {

[[nodiscard]] std::filesystem::path metrics_path(const std::filesystem::path& out);

class Metrics {
 public:
  // Goes on with the file in `out`, or begins it. Lines after that of step `steps_done` are cut off, because
  // the run will make those steps again, and so is a last line that a killed writer left unfinished. What is
  // kept is then a new file, so that a hard link to the old one keeps all of it. Takes a fixed amount of
  // memory, however long the file is.
  Metrics(const std::filesystem::path& out, std::int64_t steps_done);

  // A number that is not finite is null.
  void add(const StepReport& report);

  // A runtime error where the folder is gone.
  void check_folder() const { file_.check_folder(); }

  // Before a checkpoint is saved: what was added is on the disk, and the folder is still there.
  void before_checkpoint() const;

 private:
  AppendedFile file_;
};

}  // namespace headroom
