// Which keys the queries of a piece read. Follows from MaskView::interval, of which both ends rise with the
// query and which contains the query's own position: so consecutive queries read one interval.
#pragma once

#include <vector>

#include "headroom/parallel/ring_schedule.h"

namespace headroom {

// The intervals of `keys` that `queries` read in some sequence, of some head, rising and apart from each
// other: one, except with block lists, where each is a run of whole blocks.
[[nodiscard]] std::vector<Piece> intervals_read(const AttentionProblem& whole, const AttentionForward& lists,
                                                Piece queries, Piece keys);

// With dilation: the rows of `keys` that the query heads of one K/V head read in one sequence, no row twice.
// The two pieces have no position in common.
[[nodiscard]] std::vector<RowRun> dilated_rows_read(const AttentionProblem& whole,
                                                    const AttentionForward& lists, std::int64_t batch,
                                                    std::int64_t head_kv, std::span<const Piece> queries,
                                                    Piece keys);

// Sorts pieces, joins those that touch and leaves out empty ones.
void join(std::vector<Piece>& pieces);
[[nodiscard]] std::vector<Piece> joined(std::vector<Piece> pieces);

}  // namespace headroom
