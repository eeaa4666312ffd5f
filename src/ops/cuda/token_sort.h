// The workspace in which tokens are sorted by their ids.
#pragma once

#include <cstdint>

#include "core/pieces.h"

namespace headroom::cuda {

struct TokenSort {
  static constexpr int kDigits = 256;          // ids are sorted eight bits at a time
  static constexpr std::int64_t kTile = 1024;  // tokens that one warp takes

  std::int32_t* ids[2] = {};       // [tokens], sorted back and forth
  std::int32_t* places[2] = {};    // where they stood
  std::int32_t* counts = nullptr;  // [digits, tiles]: so many tokens before those of a digit in a tile

  static std::int64_t tiles(std::int64_t tokens) { return divide_up(tokens, kTile); }
  static TokenSort take(Pieces& pieces, std::int64_t tokens) {
    TokenSort sort;
    for (std::int32_t*& ids : sort.ids) ids = pieces.take<std::int32_t>(tokens);
    for (std::int32_t*& places : sort.places) places = pieces.take<std::int32_t>(tokens);
    sort.counts = pieces.take<std::int32_t>(kDigits * tiles(tokens));
    return sort;
  }
  static std::int64_t bytes(std::int64_t tokens) {
    Pieces pieces(nullptr);
    static_cast<void>(take(pieces, tokens));
    return pieces.bytes();
  }
};

}  // namespace headroom::cuda
