// Which shards and rows a rank holds, the sums of shards over ranks, and the convolution across their borders.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "cake/comm.h"
#include "cake/core/error.h"
#include "cake/core/parallel.h"
#include "examples/train_lm/rank_batch.h"
#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the shards under test
using kcp::Layout;
using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kZigzag};

TEST(RankShards, LayoutsHoldWhatTheyPromise) {
  const ShardPlan plan(24 * 64, 24);
  const RankShards contiguous(plan, 3, Layout::kContiguous);
  EXPECT_EQ(contiguous.row_ranges(0), (Ranges{{0, 512}}));
  EXPECT_EQ(contiguous.row_ranges(2), (Ranges{{1024, 1536}}));
  const RankShards zigzag(plan, 3, Layout::kZigzag);
  EXPECT_EQ(zigzag.row_ranges(0), (Ranges{{0, 256}, {1280, 1536}}));
  EXPECT_EQ(zigzag.row_ranges(1), (Ranges{{256, 512}, {1024, 1280}}));
  EXPECT_EQ(zigzag.row_ranges(2), (Ranges{{512, 1024}})) << "the middle is one run";
}

TEST(RankShards, EveryShardOnceAndEveryRowOnce) {
  for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{1}, std::int64_t{100}, std::int64_t{1000}}) {
    for (const int shards : {1, 2, 5, 24}) {
      const ShardPlan plan(rows, shards);
      for (const Layout layout : kLayouts) {
        for (int count = 1; count <= std::min(shards, 7); ++count) {
          const RankShards ranks(plan, count, layout);
          std::vector<int> seen(static_cast<std::size_t>(shards), 0);
          std::vector<int> rows_seen(static_cast<std::size_t>(rows), 0);
          for (int r = 0; r < count; ++r) {
            int held = 0;
            for (const ShardRun& run : ranks.runs(r)) {
              EXPECT_GT(run.count(), 0);
              for (int s = run.first; s < run.end; ++s, ++held) ++seen[static_cast<std::size_t>(s)];
            }
            EXPECT_EQ(held, ranks.count(r));
            std::int64_t mine = 0, last = -1;
            for (const auto& [begin, end] : ranks.row_ranges(r)) {
              EXPECT_LT(begin, end);
              EXPECT_GT(begin, last) << "ranges that touch are one";
              for (std::int64_t t = begin; t < end; ++t, ++mine) ++rows_seen[static_cast<std::size_t>(t)];
              last = end;
            }
            EXPECT_EQ(mine, ranks.rows(r));
          }
          EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
          EXPECT_EQ(rows_seen, std::vector<int>(rows_seen.size(), 1));
        }
      }
    }
  }
}

TEST(RankShards, Refusals) {
  const ShardPlan plan(1000, 5), many(1000, 100);
  const auto message = [](const ShardPlan& p, int ranks, Layout layout) {
    return message_of([&] { RankShards(p, ranks, layout); });
  };
  EXPECT_EQ(message(plan, 0, Layout::kContiguous), "ranks: got 0, expected 1 to 64");
  EXPECT_EQ(message(many, 65, Layout::kContiguous), "ranks: got 65, expected 1 to 64");
  EXPECT_NE(message(plan, 6, Layout::kZigzag).find("ranks: got 6, expected at most 5, the number of shards"),
            std::string::npos);
  EXPECT_NE(message(plan, 1, Layout::kZigzagPerDocument).find("layout: got zigzag_per_document"), std::string::npos);
}

TEST(ShardReducerOverRanks, SumsHaveTheBitsOfOneRank) {
  constexpr std::int64_t kRows = 700;
  const ShardPlan plan(kRows, 7);
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{16}, std::int64_t{17}, std::int64_t{300}}) {
    const auto values = random_floats(static_cast<std::size_t>(kRows * n), 3, 10.0f);
    const auto sum_of = [&](const float* rows) {
      return [rows, n](std::int64_t begin, std::int64_t count, float* dst) {
        std::fill(dst, dst + n, 0.0f);
        for (std::int64_t t = begin; t < begin + count; ++t) {
          for (std::int64_t i = 0; i < n; ++i) dst[i] += rows[t * n + i];
        }
      };
    };
    ShardReducer whole(plan);
    std::vector<float> expected(static_cast<std::size_t>(n));
    whole.reduce(n, expected.data(), sum_of(values.data()));
    const double total = whole.sum_rows(values.data());
    for (const Layout layout : kLayouts) {
      for (const int count : {1, 2, 3, 7}) {
        ThreadGroup group(count);
        std::mutex mutex;
        group.run([&](Communicator& communicator) {
          ShardReducer reducer(plan, {&communicator, layout});
          std::vector<float> mine, sum(static_cast<std::size_t>(n), -1.0f);
          for (const auto& [begin, end] : reducer.ranks().row_ranges(communicator.rank())) {
            mine.insert(mine.end(), values.begin() + begin * n, values.begin() + end * n);
          }
          EXPECT_EQ(static_cast<std::int64_t>(mine.size()), reducer.rows() * n);
          reducer.reduce(n, sum.data(), sum_of(mine.data()));
          std::vector<float> column;
          for (const auto& [begin, end] : reducer.ranks().row_ranges(communicator.rank())) {
            column.insert(column.end(), values.begin() + begin, values.begin() + end);
          }
          const double sum_over_rows = reducer.sum_rows(column.data());
          const std::lock_guard lock(mutex);
          EXPECT_EQ(sum, expected) << n << " floats on " << count << " ranks";
          EXPECT_EQ(sum_over_rows, total) << count << " ranks";
        });
      }
    }
  }
}

/// Rows [begin, end) of a [T, n] array for each range, one after another.
std::vector<float> rows_of(const std::vector<float>& x, std::int64_t n, const Ranges& ranges) {
  std::vector<float> rows;
  for (const auto& [begin, end] : ranges) rows.insert(rows.end(), x.begin() + begin * n, x.begin() + end * n);
  return rows;
}

/// Forward and backward of the convolution.
struct Conv {
  std::vector<float> c, y, dc, dx, dw;
};

Conv convolve(ShardReducer& reducer, const RankBatch& batch, std::vector<float> x, const std::vector<float>& dy,
              std::int64_t n, const std::vector<float>& w) {
  Conv r;
  for (auto* v : {&r.c, &r.y, &r.dx}) v->resize(x.size());
  r.dc = dy;
  r.dw.resize(static_cast<std::size_t>(kConvTaps * n));
  BorderRows border;
  conv_silu_forward(n, {x.data(), n}, batch.documents(), w.data(), r.c.data(), r.y.data(), border);
  conv_silu_backward(reducer, n, r.dc.data(), {x.data(), n}, batch.documents(), w.data(), r.c.data(), border,
                     {r.dx.data(), n}, r.dw.data());
  return r;
}

TEST(ConvOverRanks, DocumentsOfEveryLengthAtEveryBorder) {
  constexpr std::int64_t kN = 16, kRows = 64 * 6 + 2;  // the last shard ends with two rows
  const auto x = random_floats(kRows * kN, 1), dy = random_floats(kRows * kN, 2), w = random_floats(kConvTaps * kN, 3);
  const ShardPlan plan(kRows, 7);
  // A document of 1 to 5 rows that begins 0 to 5 rows before a border, alone between long ones or among short ones.
  for (std::int32_t length = 1; length <= 5; ++length) {
    for (std::int32_t lead = 0; lead <= 5; ++lead) {
      Batch batch;
      batch.inputs.resize(kRows);
      batch.targets.resize(kRows);
      batch.cu_seqlens = {0};
      for (std::int32_t border = 64; border < kRows; border += 64) {
        for (const std::int32_t at : {border - lead, border - lead + length}) {
          if (at > batch.cu_seqlens.back() && at < kRows) batch.cu_seqlens.push_back(at);
        }
      }
      batch.cu_seqlens.push_back(kRows);
      ShardReducer whole(plan);
      RankBatch all(whole.ranks(), 0, nullptr);
      all.load(batch);
      const Conv expected = convolve(whole, all, x, dy, kN, w);
      for (const Layout layout : kLayouts) {
        for (const int count : {2, 3, 4, 7}) {
          ThreadGroup group(count);
          std::mutex mutex;
          group.run([&](Communicator& communicator) {
            const ScopedNumThreads threads(1);
            ShardReducer reducer(plan, {&communicator, layout});
            RankBatch mine(reducer.ranks(), communicator.rank(), &communicator);
            mine.load(batch);
            const Ranges ranges = reducer.ranks().row_ranges(communicator.rank());
            const Conv got = convolve(reducer, mine, rows_of(x, kN, ranges), rows_of(dy, kN, ranges), kN, w);
            const std::lock_guard lock(mutex);
            const std::string what = "document of " + std::to_string(length) + " rows, " + std::to_string(lead) +
                                     " before the border, " + std::to_string(count) + " ranks, " +
                                     kcp::layout_name(layout);
            EXPECT_EQ(got.y, rows_of(expected.y, kN, ranges)) << what;
            EXPECT_EQ(got.dx, rows_of(expected.dx, kN, ranges)) << what;
            EXPECT_EQ(got.dw, expected.dw) << what;
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace cake::test
