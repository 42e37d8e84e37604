// Partitions against a plain reading of their rules, row by row, and the plan of rows that travel.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cake/comm.h"
#include "cake/core/canonical.h"
#include "cake/kcp.h"
#include "tests/support/random.h"

namespace cake::kcp {
namespace {

using Offsets = std::vector<std::int32_t>;
using test::Random;

Offsets offsets_of(const std::vector<std::int64_t>& lengths) {
  Offsets offsets = {0};
  for (const std::int64_t n : lengths) offsets.push_back(offsets.back() + static_cast<std::int32_t>(n));
  return offsets;
}

/// Rank of every packed row; fails the test unless every row lies on exactly one rank.
std::vector<int> ranks_of_rows(const Partition& p) {
  std::vector<int> rank(static_cast<std::size_t>(p.cu_seqlens().back()), -1);
  for (int r = 0; r < p.world_size(); ++r) {
    const std::vector<std::int64_t> rows = p.global_rows(r);
    EXPECT_EQ(static_cast<std::int64_t>(rows.size()), p.rows(r));
    for (const std::int64_t row : rows) {
      EXPECT_EQ(rank.at(static_cast<std::size_t>(row)), -1) << "row " << row << " twice";
      rank.at(static_cast<std::size_t>(row)) = r;
    }
  }
  EXPECT_EQ(std::count(rank.begin(), rank.end(), -1), 0) << "rows on no rank";
  return rank;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(KcpPartition, EveryRowOnceForEveryLayoutAndWorld) {
  for (const auto& lengths : std::vector<std::vector<std::int64_t>>{
           {100}, {1}, {0, 0}, {}, {63, 64, 65}, {0, 5, 0, 200, 1, 0}, {7, 7, 7}, {1000, 1}}) {
    const Offsets offsets = offsets_of(lengths);
    for (const int W : {1, 2, 3, 4, 5, 8}) {
      for (const Layout layout : {Layout::kContiguous, Layout::kZigzag, Layout::kZigzagPerDocument}) {
        const Partition p = Partition::make(offsets, W, layout);
        EXPECT_EQ(p.world_size(), W);
        const std::vector<int> rank = ranks_of_rows(p);
        const auto T = static_cast<std::int64_t>(rank.size());
        for (int r = 0; r < W && layout != Layout::kZigzagPerDocument; ++r) {
          EXPECT_LE(std::abs(p.rows(r) - T / W), layout == Layout::kZigzag ? 2 : 1) << "shares are equal";
        }
        for (std::int64_t row = 1; row < T && layout == Layout::kContiguous; ++row) {
          EXPECT_LE(rank[static_cast<std::size_t>(row - 1)], rank[static_cast<std::size_t>(row)]);
        }
      }
    }
  }
}

TEST(KcpPartition, ZigzagPairsTheFirstPartWithTheLast) {
  const Partition p = Partition::make(offsets_of({80}), 2, Layout::kZigzag);
  EXPECT_EQ(p.fragments(0), (std::vector<Fragment>{{0, 0, 20}, {0, 60, 20}}));
  EXPECT_EQ(p.fragments(1), (std::vector<Fragment>{{0, 20, 40}})) << "neighbours are joined";
  const Partition per = Partition::make(offsets_of({8, 16}), 2, Layout::kZigzagPerDocument);
  EXPECT_EQ(per.fragments(0), (std::vector<Fragment>{{0, 0, 2}, {0, 6, 2}, {1, 0, 4}, {1, 12, 4}}));
}

TEST(KcpPartition, CutPoints) {
  const Offsets offsets = offsets_of({10, 0, 20});
  const std::vector<std::int64_t> cuts = {0, 3, 10, 10, 29};
  const Partition p = Partition::from_cut_points(offsets, cuts);
  EXPECT_EQ(p.world_size(), 6);
  EXPECT_TRUE(p.fragments(0).empty());
  EXPECT_EQ(p.fragments(1), (std::vector<Fragment>{{0, 0, 3}}));
  EXPECT_EQ(p.fragments(2), (std::vector<Fragment>{{0, 3, 7}}));
  EXPECT_TRUE(p.fragments(3).empty());
  EXPECT_EQ(p.fragments(4), (std::vector<Fragment>{{2, 0, 19}}));
  EXPECT_EQ(p.fragments(5), (std::vector<Fragment>{{2, 19, 1}}));
  const auto refused = [&](std::vector<std::int64_t> bad) {
    EXPECT_EQ(refusal([&] { Partition::from_cut_points(offsets, bad); }).find("cut_points: got"), 0u);
  };
  refused({-1});
  refused({5, 4});
  refused({31});
}

TEST(KcpPartition, ExplicitFragments) {
  const Offsets offsets = offsets_of({10, 4});
  using List = std::vector<std::vector<Fragment>>;
  const Partition p = Partition::from_fragments(offsets, List{{{1, 0, 4}, {0, 7, 3}}, {}, {{0, 0, 7}, {0, 7, 0}}});
  EXPECT_EQ(p.global_rows(0), (std::vector<std::int64_t>{10, 11, 12, 13, 7, 8, 9}));
  ranks_of_rows(p);
  const auto refused = [&](const List& list, const std::string& words) {
    const std::string error = refusal([&] { Partition::from_fragments(offsets, list); });
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  refused({}, "fragments: got no rank");
  refused({{{0, 0, 10}}}, "row 0 of document 1 is in none");
  refused({{{0, 0, 4}, {0, 5, 5}, {1, 0, 4}}}, "row 4 of document 0 is in none");
  refused({{{0, 0, 9}, {1, 0, 4}}}, "row 9 of document 0 is in none");
  refused({{{0, 0, 10}, {1, 0, 4}}, {{0, 9, 1}}}, "fragments[1][0]: got rows 9 to 10 of document 0");
  refused({{{2, 0, 1}}}, "fragments[0][0]: got rows 0 to 1 of document 2, expected a document from 0 to 1");
  refused({{{0, 8, 3}}}, "expected rows within its 10");
  refused({{{0, -1, 3}}}, "expected rows within its 10");
  refused({{{0, 1, INT64_MAX}}}, "expected rows within its 10");
}

TEST(KcpPartition, BadArguments) {
  EXPECT_EQ(refusal([] { Partition::make(Offsets{0, 5}, 0); }).find("world_size: got 0"), 0u);
  EXPECT_EQ(refusal([] { Partition::make(Offsets{}, 1); }).find("cu_seqlens: "), 0u);
  EXPECT_EQ(refusal([] { Partition::make(Offsets{1, 5}, 1); }).find("cu_seqlens: got 1 at entry 0"), 0u);
  EXPECT_EQ(refusal([] { Partition::make(Offsets{0, 5, 4}, 1); }).find("cu_seqlens: got 4 at entry 2"), 0u);
  EXPECT_EQ(refusal([] { parse_layout("spiral"); }).find("layout: got \"spiral\""), 0u);
  for (const Layout layout : {Layout::kContiguous, Layout::kZigzag, Layout::kZigzagPerDocument}) {
    EXPECT_EQ(parse_layout(layout_name(layout)), layout);
  }
  const Partition p = Partition::make(Offsets{0, 5}, 2);
  EXPECT_EQ(refusal([&] { p.rows(2); }).find("rank: got 2"), 0u);
  EXPECT_EQ(Partition::tag().text(), "cake/kcp/partition/v1");
}

TEST(KcpPartition, RanksNoticeAnotherPartition) {
  ThreadGroup(3).run([](Communicator& c) {
    const Offsets offsets = offsets_of({100, 20});
    require_agreement(c, "partition", Partition::make(offsets, 3).fields());
    const Layout layout = c.rank() == 2 ? Layout::kZigzag : Layout::kContiguous;
    const std::string error =
        refusal([&] { require_agreement(c, "partition", Partition::make(offsets, 3, layout).fields()); });
    EXPECT_EQ(error.find("partition: layout differs between ranks: rank 0 contiguous"), 0u) << error;
  });
}

/// Fragments at random: cuts anywhere, many of one row, dealt to random ranks.
Partition random_partition(Random& random, const Offsets& offsets, int W) {
  std::vector<std::vector<Fragment>> fragments(static_cast<std::size_t>(W));
  for (std::int64_t d = 0; d + 1 < static_cast<std::int64_t>(offsets.size()); ++d) {
    const std::int64_t rows = offsets[static_cast<std::size_t>(d) + 1] - offsets[static_cast<std::size_t>(d)];
    for (std::int64_t at = 0; at < rows;) {
      const std::int64_t longest = random.pick<std::int64_t>({1, 3, 70, 200});
      const std::int64_t n = std::min(rows - at, random.integer(1, longest));
      fragments[static_cast<std::size_t>(random.integer(0, W - 1))].push_back({d, at, n});
      at += n;
    }
  }
  for (auto& list : fragments) {
    for (std::size_t i = list.size(); i > 1; --i) {
      std::swap(list[i - 1], list[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
    }
  }
  return Partition::from_fragments(offsets, fragments);
}

/// The plan against its definition: a chunk is computed where its last row lies, and gets the rows it lacks.
void check_plan(const Partition& p) {
  const RowPlan plan(p);
  const std::vector<int> rank = ranks_of_rows(p);
  std::map<std::pair<int, std::int64_t>, std::int64_t> local;  // (rank, packed row) to local row
  for (int r = 0; r < p.world_size(); ++r) {
    const auto rows = p.global_rows(r);
    for (std::size_t i = 0; i < rows.size(); ++i) local[{r, rows[i]}] = static_cast<std::int64_t>(i);
  }
  std::map<std::int64_t, int> sent_to;  // packed row to the rank that gets it
  for (const HaloRows& h : plan.halo()) {
    EXPECT_NE(h.holder, h.computer);
    EXPECT_GE(h.length, 1);
    EXPECT_LE(h.length, kChunk - 1);
    const std::int64_t start = p.cu_seqlens()[static_cast<std::size_t>(h.document)];
    for (std::int64_t i = 0; i < h.length; ++i) {
      const std::int64_t row = start + h.offset + i;
      EXPECT_EQ((h.offset + i) / kChunk, h.chunk);
      EXPECT_EQ(rank[static_cast<std::size_t>(row)], h.holder);
      EXPECT_EQ((local[{h.holder, row}]), h.holder_row + i);
      EXPECT_TRUE(sent_to.emplace(row, h.computer).second) << "row " << row << " travels twice";
    }
  }
  for (std::int64_t d = 0; d < p.documents(); ++d) {
    const std::int64_t start = p.cu_seqlens()[static_cast<std::size_t>(d)], rows = p.length(d);
    std::int64_t covered = 0, chunk = 0;
    for (const Piece& piece : plan.pieces(d)) {
      EXPECT_EQ(piece.offset, covered);
      covered += piece.length;
      for (std::int64_t i = 0; i < piece.length; ++i) {
        EXPECT_EQ((local[{piece.rank, start + piece.offset + i}]), piece.local_row + i);
      }
      EXPECT_EQ(piece.first_chunk, chunk);
      for (chunk = piece.first_chunk; chunk < piece.end_chunk; ++chunk) {
        const std::int64_t end = std::min(rows, (chunk + 1) * kChunk);
        EXPECT_EQ(rank[static_cast<std::size_t>(start + end - 1)], piece.rank) << "computed where its last row lies";
        for (std::int64_t row = start + chunk * kChunk; row < start + end; ++row) {
          const bool here = rank[static_cast<std::size_t>(row)] == piece.rank;
          EXPECT_EQ(sent_to.count(row), here ? 0u : 1u);
          if (!here) {
            EXPECT_EQ(sent_to[row], piece.rank);
          }
        }
      }
    }
    EXPECT_EQ(covered, rows);
    EXPECT_EQ(chunk, (rows + kChunk - 1) / kChunk) << "every chunk is computed once";
  }
  std::int64_t sent = 0, received = 0;
  for (int r = 0; r < p.world_size(); ++r) {
    sent += plan.rows_sent(r);
    received += plan.rows_received(r);
  }
  EXPECT_EQ(sent, static_cast<std::int64_t>(sent_to.size()));
  EXPECT_EQ(received, sent);
}

TEST(KcpRowPlan, AgainstItsDefinition) {
  Random random(7);
  for (int repeat = 0; repeat < 250; ++repeat) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(random.integer(0, 5)));
    for (std::int64_t& n : lengths)
      n = random.chance(0.3) ? random.pick<std::int64_t>({0, 1, 63, 64, 65, 128}) : random.integer(0, 400);
    const Offsets offsets = offsets_of(lengths);
    const int W = static_cast<int>(random.pick<std::int64_t>({1, 2, 3, 4, 5, 8}));
    SCOPED_TRACE("repeat " + std::to_string(repeat));
    check_plan(random_partition(random, offsets, W));
    check_plan(Partition::make(
        offsets, W, random.pick<Layout>({Layout::kContiguous, Layout::kZigzag, Layout::kZigzagPerDocument})));
    std::vector<std::int64_t> cuts(static_cast<std::size_t>(W - 1));
    for (std::int64_t& cut : cuts) cut = random.integer(0, offsets.back());
    std::sort(cuts.begin(), cuts.end());
    check_plan(Partition::from_cut_points(offsets, cuts));
    if (HasFailure()) return;
  }
}

TEST(KcpRowPlan, CutsBetweenChunksMoveNoRows) {
  const RowPlan plan(Partition::from_cut_points(offsets_of({256, 100}), std::vector<std::int64_t>{64, 192, 256}));
  EXPECT_TRUE(plan.halo().empty());
  EXPECT_EQ(plan.pieces(0)[1], (Piece{1, 64, 128, 0, 1, 3}));
}

}  // namespace
}  // namespace cake::kcp
