#include "headroom/comm/launched_rank.h"

#include <cstdlib>
#include <string_view>

#include "headroom/core/error.h"
#include "headroom/core/parse.h"

namespace headroom {
namespace {

constexpr int kMostRanks = 65'536;
constexpr int kLastPort = 65'535;
constexpr const char* kDefaultPort = "29500";

bool is_set(const char* variable) {
  return std::getenv(variable) != nullptr;
}

std::string_view text_of(const char* variable) {
  const char* text = std::getenv(variable);
  check(text != nullptr && *text != '\0',
        "{} is not set in the environment; torchrun sets it, or set RANK, WORLD_SIZE, LOCAL_RANK, "
        "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every rank",
        variable);
  return text;
}

int number_of(const char* variable, int least, int most) {
  return static_cast<int>(parse_whole(variable, text_of(variable), least, most));
}

}  // namespace

bool rank_is_launched() {
  return is_set("RANK") || is_set("OMPI_COMM_WORLD_RANK");
}

int launched_count() {
  if (is_set("RANK") && is_set("WORLD_SIZE")) return number_of("WORLD_SIZE", 1, kMostRanks);
  return is_set("OMPI_COMM_WORLD_SIZE") ? number_of("OMPI_COMM_WORLD_SIZE", 1, kMostRanks) : 1;
}

LaunchedRank launched_rank() {
  const bool by_mpirun = !is_set("RANK") && is_set("OMPI_COMM_WORLD_RANK");
  const char* rank = by_mpirun ? "OMPI_COMM_WORLD_RANK" : "RANK";
  const char* count = by_mpirun ? "OMPI_COMM_WORLD_SIZE" : "WORLD_SIZE";
  LaunchedRank self;
  self.ranks.rank = number_of(rank, 0, kMostRanks - 1);
  self.ranks.count = number_of(count, 1, kMostRanks);
  check(self.ranks.rank < self.ranks.count, "{} is {} and {} is {}; ranks are 0 to {}", rank, self.ranks.rank,
        count, self.ranks.count, self.ranks.count - 1);
  self.local_rank = number_of(by_mpirun ? "OMPI_COMM_WORLD_LOCAL_RANK" : "LOCAL_RANK", 0, kMostRanks - 1);
  const char* local_count = by_mpirun ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "LOCAL_WORLD_SIZE";
  self.local_count = number_of(local_count, 1, kMostRanks);
  check(self.local_rank < self.local_count, "the rank has number {} on its host, and {} is {}",
        self.local_rank, local_count, self.local_count);
  const bool one_host = by_mpirun && self.local_count == self.ranks.count;
  self.address = one_host && !is_set("MASTER_ADDR") ? "127.0.0.1" : text_of("MASTER_ADDR");
  const std::string_view port = by_mpirun && !is_set("MASTER_PORT") ? kDefaultPort : text_of("MASTER_PORT");
  self.port = static_cast<int>(parse_whole("MASTER_PORT", port, 1, kLastPort - 1));
  const char* agent_store = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool port_is_torchruns = agent_store != nullptr && std::string_view(agent_store) == "True";
  if (port_is_torchruns) ++self.port;
  return self;
}

}  // namespace headroom
