#include "headroom/attention/mask.h"

#include <gtest/gtest.h>

#include <vector>

#include "headroom/core/error.h"

namespace headroom {
namespace {

std::vector<MaskView> views() {
  static const std::vector<std::int32_t> starts = {0, 7, 7, 8, 30};  // lengths 7, 0, 1, 22
  static const std::vector<std::int32_t> blocks = {0, 2, -1, 1, -1, -1, -1, 0,
                                                   0, 0, 1,  3, 1,  2,  -1};  // 5 rows of 3
  std::vector<MaskView> all;
  for (const bool causal : {false, true}) {
    for (const std::int64_t left : {std::int64_t{0}, std::int64_t{4}, Mask::kUnlimited}) {
      for (const std::int64_t right : {std::int64_t{2}, Mask::kUnlimited}) {
        MaskView view{.seq_q = 30,
                      .seq_k = 30,
                      .causal = causal,
                      .window_left = left,
                      .window_right = right,
                      .dilation = {}};
        all.push_back(view);
        view.document_starts = starts.data();
        view.documents = 4;
        all.push_back(view);
        view.dilation = {10, 3};
        view.dilation_offset = 1;
        all.push_back(view);
        view.document_starts = nullptr;
        all.push_back(view);
        view.dilation = {};
        view.blocks = blocks.data();
        view.block_stride = 3;
        view.block_rows = 6;
        view.block_columns = 8;
        view.max_blocks_per_row = 3;
        all.push_back(view);
        view.blocks = nullptr;
        view.seq_q = 12;  // the last twelve positions
        view.query_start = 18;
        all.push_back(view);
        view.seq_q = 40;  // ten rows stand before the first key
        view.query_start = -10;
        all.push_back(view);
        // Chunks: behind the keys, among them, before them; then with documents, with dilation, with blocks.
        for (const auto& [query_start, key_start] : {std::pair{20, 0}, std::pair{5, 9}, std::pair{0, 17}}) {
          view.seq_q = 11;
          view.seq_k = 13;
          view.query_start = query_start;
          view.key_start = key_start;
          view.document_starts = nullptr;
          view.dilation = {};
          all.push_back(view);
          view.document_starts = starts.data();
          all.push_back(view);
          view.dilation = {10, 3};
          all.push_back(view);
          view.document_starts = nullptr;
          all.push_back(view);
          view.dilation = {};
          view.blocks = blocks.data() + 3;
          view.block_stride = 6;  // every other list
          all.push_back(view);
          view.blocks = nullptr;
        }
      }
    }
  }
  return all;
}

// The definition, word by word, without intervals.
bool sees(const MaskView& m, std::int64_t q, std::int64_t k) {
  const std::int64_t p = m.query_start + q;
  const std::int64_t key = m.key_start + k;
  if (m.causal && key > p) return false;
  if (key < p && p - key > m.window_left) return false;
  if (key > p && key - p > m.window_right) return false;
  std::int64_t start = 0;
  if (m.document_starts != nullptr) {
    std::int64_t document_of_p = -1;
    std::int64_t document_of_k = -1;
    for (std::int64_t d = 0; d < m.documents; ++d) {
      if (m.document_starts[d] <= p && p < m.document_starts[d + 1]) document_of_p = d;
      if (m.document_starts[d] <= key && key < m.document_starts[d + 1]) document_of_k = d;
    }
    if (document_of_p != document_of_k) return false;
    start = m.document_starts[document_of_p < 0 ? m.documents : document_of_p];
  }
  if (m.dilation.segment > 0) {
    if ((p - start) / m.dilation.segment != (key - start) / m.dilation.segment) return false;
    if ((p - start) % m.dilation.segment % m.dilation.rate != m.dilation_offset) return false;
    if ((key - start) % m.dilation.segment % m.dilation.rate != m.dilation_offset) return false;
  }
  if (m.blocks == nullptr) return true;
  const std::int32_t* row = m.blocks + q / m.block_rows * m.block_stride;
  for (std::int64_t i = 0; i < m.max_blocks_per_row && row[i] >= 0; ++i) {
    if (row[i] == k / m.block_columns) return true;
  }
  return false;
}

TEST(Mask, ParsesWhatPeopleWrite) {
  EXPECT_EQ(parse_mask("full"), Mask{});
  EXPECT_EQ(parse_mask("causal"), Mask{.causal = true});
  EXPECT_EQ(parse_mask("window:64"), (Mask{.causal = true, .window_left = 63}));
  Mask dilated{.causal = true};
  dilated.dilations[0] = {8192, 4};
  dilated.dilation_count = 1;
  EXPECT_EQ(parse_mask("causal+dilated:8192/4"), dilated);
  for (const char* bad : {"",
                          "casual",
                          "window",
                          "window:",
                          "window:0",
                          "window:-3",
                          "window:3x",
                          "window:010",
                          "window:0x10",
                          "window:9223372036854775808",
                          "dilated:8",
                          "dilated:/2",
                          "dilated:8/0",
                          "dilated:8/2/2",
                          "dilated:08/2",
                          "causal++full",
                          "causal+",
                          "+causal",
                          "causal+causal",
                          "window:3+window:4",
                          "full+causal",
                          "causal:1",
                          "documents:x"}) {
    EXPECT_THROW(static_cast<void>(parse_mask(bad)), Error) << bad;
  }
}

TEST(Mask, AnElementIsWhatTheDefinitionSays) {
  for (std::size_t v = 0; v < views().size(); ++v) {
    const MaskView view = views()[v];
    for (std::int64_t q = 0; q < view.seq_q; ++q) {
      for (std::int64_t k = 0; k < view.seq_k; ++k) {
        ASSERT_EQ(view.attends(q, k), sees(view, q, k)) << "view " << v << ", query " << q << ", key " << k;
      }
    }
  }
}

TEST(Mask, IntervalsRiseAndCountsAgreeWithElements) {
  for (std::size_t v = 0; v < views().size(); ++v) {
    const MaskView view = views()[v];
    KeyRange before;
    for (std::int64_t q = 0; q < view.seq_q; ++q) {
      const KeyRange range = view.interval(q);
      EXPECT_TRUE(before.begin <= range.begin && before.end <= range.end) << v;
      EXPECT_TRUE(range.begin <= range.end && range.end <= view.seq_k) << v;
      before = range;
    }
    for (std::int64_t q = 0; q < view.seq_q; q += 5) {
      for (std::int64_t k = 0; k < view.seq_k; k += 7) {
        const std::int64_t q_end = std::min(q + 5, view.seq_q);
        const std::int64_t k_end = std::min(k + 7, view.seq_k);
        std::int64_t count = 0;
        for (std::int64_t i = q; i < q_end; ++i) {
          for (std::int64_t j = k; j < k_end; ++j) count += view.attends(i, j);
        }
        EXPECT_EQ(view.pairs(q, q_end, {k, k_end}), count) << v;
      }
    }
  }
}

}  // namespace
}  // namespace headroom
