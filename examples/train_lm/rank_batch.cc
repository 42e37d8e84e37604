#include "rank_batch.h"

#include <algorithm>
#include <utility>

namespace cake::train_lm {
namespace {

using Range = std::pair<std::int64_t, std::int64_t>;

/// The pieces of documents that lie in rows [range.first, range.second) of a pack.
std::vector<kcp::Fragment> fragments_of(const std::vector<std::int32_t>& cu, const Range& range) {
  std::vector<kcp::Fragment> fragments;
  std::size_t document = static_cast<std::size_t>(std::upper_bound(cu.begin(), cu.end(), range.first) - cu.begin()) - 1;
  for (std::int64_t row = range.first; row < range.second; ++document) {
    const std::int64_t begin = cu[document], end = std::min<std::int64_t>(cu[document + 1], range.second);
    if (end == row) continue;  // an empty document
    fragments.push_back({static_cast<std::int64_t>(document), row - begin, end - row});
    row = end;
  }
  return fragments;
}

}  // namespace

RankBatch::RankBatch(const RankShards& shards, int rank, Communicator* communicator)
    : shards_(shards), rank_(rank), communicator_(communicator), rows_(shards.rows(rank)) {
  before_.resize(static_cast<std::size_t>(rows_));
  after_.resize(static_cast<std::size_t>(rows_));
}

void RankBatch::load(const Batch& batch) {
  cu_seqlens_ = batch.cu_seqlens;
  inputs_.clear();
  targets_.clear();
  runs_.clear();
  std::size_t local = 0;
  for (const auto& [begin, end] : shards_.row_ranges(rank_)) {
    runs_.push_back({static_cast<std::int64_t>(local), end - begin, 0, 0});
    inputs_.insert(inputs_.end(), batch.inputs.begin() + begin, batch.inputs.begin() + end);
    targets_.insert(targets_.end(), batch.targets.begin() + begin, batch.targets.begin() + end);
    for (const kcp::Fragment& f : fragments_of(cu_seqlens_, {begin, end})) {
      const std::int64_t length = std::int64_t{cu_seqlens_[static_cast<std::size_t>(f.document) + 1]} -
                                  cu_seqlens_[static_cast<std::size_t>(f.document)];
      for (std::int64_t t = f.offset; t < f.offset + f.length; ++t, ++local) {
        before_[local] = static_cast<std::int32_t>(std::min<std::int64_t>(t, kConvTaps - 1));
        after_[local] = static_cast<std::int32_t>(std::min<std::int64_t>(length - 1 - t, kConvTaps - 1));
      }
    }
  }
  if (communicator_ == nullptr) return;

  std::vector<std::vector<kcp::Fragment>> fragments(static_cast<std::size_t>(shards_.ranks()));
  std::vector<std::int64_t> ends;  // fragments up to the end of each run of this rank
  for (int r = 0; r < shards_.ranks(); ++r) {
    std::vector<kcp::Fragment>& list = fragments[static_cast<std::size_t>(r)];
    for (const Range& range : shards_.row_ranges(r)) {
      const std::vector<kcp::Fragment> more = fragments_of(cu_seqlens_, range);
      list.insert(list.end(), more.begin(), more.end());
      if (r == rank_) ends.push_back(static_cast<std::int64_t>(list.size()));
    }
  }
  context_.emplace(kcp::Partition::from_fragments(cu_seqlens_, std::move(fragments)), *communicator_, kConvTaps);
  // Inside a run documents begin and end on this rank: only its first and its last fragment can have halo rows.
  std::int64_t first = 0;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    runs_[i].before = context_->halo_rows(kcp::Halo::kBefore, first);
    runs_[i].after = context_->halo_rows(kcp::Halo::kAfter, ends[i] - 1);
    first = ends[i];
  }
}

}  // namespace cake::train_lm
