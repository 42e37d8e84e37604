// Contexts: agreement when they are made, and the halo of a causal convolution against a plain reading of its rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cake/kcp.h"
#include "tests/support/random.h"

namespace cake::kcp {
namespace {

using namespace std::chrono_literals;
using test::Random;
using Offsets = std::vector<std::int32_t>;

Offsets offsets_of(const std::vector<std::int64_t>& lengths) {
  Offsets offsets = {0};
  for (const std::int64_t n : lengths) offsets.push_back(offsets.back() + static_cast<std::int32_t>(n));
  return offsets;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error_kind_name(error.kind())) + " | " + error.what();
  }
  return "none";
}

TEST(KcpContext, WhatItHolds) {
  const Partition partition = Partition::make(offsets_of({100, 0, 20}), 3);
  ThreadGroup(3).run([&](Communicator& comm) {
    const Context context(partition, comm);
    EXPECT_EQ(context.rank(), comm.rank());
    EXPECT_EQ(&context.communicator(), &comm);
    EXPECT_EQ(context.conv_kernel_size(), 4);
    EXPECT_EQ(context.rows(), 40);
    EXPECT_EQ(context.partition().fragments(comm.rank()), partition.fragments(comm.rank()));
    const Context copy = context;
    EXPECT_EQ(&copy.state(), &context.state()) << "copies share it";
    EXPECT_EQ(comm.counters().bytes_sent, 0u) << "agreements do not count";
  });
  EXPECT_EQ(Context::tag().text(), "cake/kcp/context/v1");
}

TEST(KcpContext, RanksThatDisagreeAllLearnWhere) {
  const Offsets offsets = offsets_of({100, 20});
  const auto check = [&](const std::string& field, const std::function<Context(Communicator&, bool other)>& make) {
    ThreadGroup(3, 20s).run([&](Communicator& comm) {
      const std::string error = error_of([&] { make(comm, comm.rank() == 1); });
      EXPECT_EQ(error.find("InvalidArgument | context: " + field + " differs between ranks: rank 0 "), 0u) << error;
      EXPECT_NE(error.find(", rank 2 "), std::string::npos) << error;
      // The group goes on.
      const Context good(Partition::make(offsets, 3), comm);
      EXPECT_EQ(good.rows(), 40);
    });
  };
  check("conv_kernel_size",
        [&](Communicator& comm, bool other) { return Context(Partition::make(offsets, 3), comm, other ? 3 : 4); });
  check("layout", [&](Communicator& comm, bool other) {
    return Context(Partition::make(offsets, 3, other ? Layout::kZigzag : Layout::kContiguous), comm);
  });
  check("cu_seqlens", [&](Communicator& comm, bool other) {
    return Context(Partition::make(other ? offsets_of({90, 30}) : offsets, 3), comm);
  });
  check("fragments", [&](Communicator& comm, bool other) {
    return Context(Partition::from_cut_points(offsets, std::vector<std::int64_t>{40, other ? 81 : 80}), comm);
  });
}

TEST(KcpContext, TheWrongNumberOfRanks) {
  const Offsets offsets = offsets_of({100});
  ThreadGroup(2, 20s).run([&](Communicator& comm) {
    const std::string error = error_of([&] { Context(Partition::make(offsets, 3), comm); });
    EXPECT_EQ(error.find("InvalidArgument | partition: got one for 3 ranks, expected 2"), 0u) << error;
    // On one rank only: the others are told.
    const std::string mixed = error_of([&] { Context(Partition::make(offsets, comm.rank() == 0 ? 3 : 2), comm); });
    EXPECT_EQ(mixed.find(comm.rank() == 0 ? "InvalidArgument | partition: got" : "CommError | rank 0: "), 0u) << mixed;
    for (const int taps : {0, -4}) {
      const std::string bad = error_of([&] { Context(Partition::make(offsets, 2), comm, taps); });
      EXPECT_EQ(bad.find("InvalidArgument | conv_kernel_size: got " + std::to_string(taps)), 0u) << bad;
    }
    const Context good(Partition::make(offsets, 2), comm, 1);
    EXPECT_EQ(good.halo_rows(Halo::kBefore) + good.halo_rows(Halo::kAfter), 0);
  });
}

TEST(KcpContext, NamesOfExchanges) {
  for (const Exchange x : {Exchange::kAuto, Exchange::kRelay, Exchange::kGather}) {
    EXPECT_EQ(parse_exchange(exchange_name(x)), x);
  }
  EXPECT_EQ(error_of([] { parse_exchange("pigeon"); }).find("InvalidArgument | exchange: got \"pigeon\""), 0u);
}

/// Rows a fragment's convolution reads beside it, by the definition.
std::vector<std::int64_t> rows_beside(const Partition& p, const Fragment& f, Halo halo, int taps) {
  std::vector<std::int64_t> rows;
  if (f.length == 0) return rows;
  const std::int64_t start = p.cu_seqlens()[static_cast<std::size_t>(f.document)];
  for (std::int64_t i = 1; i < taps; ++i) {
    const std::int64_t row = halo == Halo::kBefore ? f.offset - taps + i : f.offset + f.length + i - 1;
    if (row >= 0 && row < p.length(f.document)) rows.push_back(start + row);
  }
  return rows;
}

/// Which rank holds each packed row.
std::vector<int> ranks_of_rows(const Partition& p) {
  std::vector<int> ranks(static_cast<std::size_t>(p.cu_seqlens().back()), -1);
  for (int r = 0; r < p.world_size(); ++r) {
    for (const std::int64_t row : p.global_rows(r)) ranks[static_cast<std::size_t>(row)] = r;
  }
  return ranks;
}

/// Bytes by which a packed row is known.
std::vector<unsigned char> content(std::int64_t row, std::size_t bytes) {
  std::vector<unsigned char> c(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    c[i] = static_cast<unsigned char>(row * 131 + static_cast<std::int64_t>(i) * 7);
  return c;
}

/// exchange_halo, halo_rows and halo_bytes of every rank against the definition; the rank's rows lie `gap` bytes apart.
void check_halo(const Partition& p, int taps, std::size_t row_bytes, std::size_t gap) {
  const std::vector<int> owner = ranks_of_rows(p);
  ThreadGroup(p.world_size(), 20s).run([&](Communicator& comm) {
    const Context context(p, comm, taps);
    const std::vector<std::int64_t> rows = p.global_rows(comm.rank());
    const std::size_t stride = row_bytes + gap;
    std::vector<unsigned char> local(rows.size() * stride, 0xee);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto c = content(rows[i], row_bytes);
      std::copy(c.begin(), c.end(), local.begin() + static_cast<std::ptrdiff_t>(i * stride));
    }
    for (const Halo halo : {Halo::kBefore, Halo::kAfter}) {
      std::vector<std::int64_t> expected;
      std::uint64_t sent = 0, received = 0;
      for (int r = 0; r < p.world_size(); ++r) {
        std::int64_t fragment = 0;
        for (const Fragment& f : p.fragments(r)) {
          const auto beside = rows_beside(p, f, halo, taps);
          for (const std::int64_t row : beside) {
            const int from = owner[static_cast<std::size_t>(row)];
            if (from != r && r == comm.rank()) received += row_bytes;
            if (from != r && from == comm.rank()) sent += row_bytes;
          }
          if (r == comm.rank()) {
            EXPECT_EQ(context.halo_rows(halo, fragment), static_cast<std::int64_t>(beside.size()));
            expected.insert(expected.end(), beside.begin(), beside.end());
          }
          ++fragment;
        }
      }
      ASSERT_EQ(context.halo_rows(halo), static_cast<std::int64_t>(expected.size()));
      EXPECT_EQ(context.halo_bytes(halo, row_bytes), (std::pair{sent, received}));
      std::vector<unsigned char> got(expected.size() * row_bytes + 8, 0xcc);
      const CommCounters before = comm.counters();
      context.exchange_halo(halo, local.data(), stride, row_bytes, got.data());
      EXPECT_EQ(comm.counters().bytes_sent - before.bytes_sent, sent);
      EXPECT_EQ(comm.counters().bytes_received - before.bytes_received, received);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto c = content(expected[i], row_bytes);
        EXPECT_EQ(std::memcmp(c.data(), got.data() + i * row_bytes, row_bytes), 0)
            << "halo row " << i << " of rank " << comm.rank();
      }
      for (std::size_t i = expected.size() * row_bytes; i < got.size(); ++i) EXPECT_EQ(got[i], 0xcc);
    }
    EXPECT_EQ(error_of([&] { context.halo_rows(Halo::kBefore, -1); }).find("InvalidArgument | fragment: got -1"), 0u);
    const auto count = static_cast<std::int64_t>(p.fragments(comm.rank()).size());
    EXPECT_NE(error_of([&] { context.halo_rows(Halo::kAfter, count); }), "none");
  });
}

TEST(KcpHalo, AnExampleByHand) {
  // Document 0 has rows 0 to 9, document 1 rows 10 to 12.
  const Partition p =
      Partition::from_fragments(offsets_of({10, 3}), {{{0, 0, 5}}, {{0, 5, 1}, {1, 0, 3}}, {{0, 6, 4}}});
  ThreadGroup(3).run([&](Communicator& comm) {
    const Context context(p, comm);
    const std::vector<std::int64_t> rows = p.global_rows(comm.rank());
    std::vector<std::int64_t> before(static_cast<std::size_t>(context.halo_rows(Halo::kBefore)));
    std::vector<std::int64_t> after(static_cast<std::size_t>(context.halo_rows(Halo::kAfter)));
    context.exchange_halo(Halo::kBefore, rows.data(), 8, 8, before.data());
    context.exchange_halo(Halo::kAfter, rows.data(), 8, 8, after.data());
    using Rows = std::vector<std::int64_t>;
    const std::vector<Rows> expected_before = {{}, {2, 3, 4}, {3, 4, 5}}, expected_after = {{5, 6, 7}, {6, 7, 8}, {}};
    EXPECT_EQ(before, expected_before[static_cast<std::size_t>(comm.rank())]);
    EXPECT_EQ(after, expected_after[static_cast<std::size_t>(comm.rank())]);
  });
}

TEST(KcpHalo, RandomFragments) {
  Random random(23);
  for (int repeat = 0; repeat < 150; ++repeat) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(random.integer(0, 5)));
    for (std::int64_t& n : lengths) n = random.pick<std::int64_t>({0, 1, 2, 3, 4, random.integer(5, 80)});
    const Offsets offsets = offsets_of(lengths);
    const int W = static_cast<int>(random.integer(1, 5));
    std::vector<std::vector<Fragment>> fragments(static_cast<std::size_t>(W));
    const auto rank = [&]() -> std::vector<Fragment>& {
      return fragments[static_cast<std::size_t>(random.integer(0, W - 1))];
    };
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      const auto document = static_cast<std::int64_t>(d);
      for (std::int64_t at = 0; at < lengths[d];) {
        const std::int64_t n = std::min(lengths[d] - at, random.integer(1, random.pick<std::int64_t>({1, 2, 30})));
        if (random.chance(0.1)) rank().push_back({document, at, 0});
        rank().push_back({document, at, n});
        at += n;
      }
    }
    for (auto& list : fragments) {
      for (std::size_t i = list.size(); i > 1; --i) {
        std::swap(list[i - 1], list[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
      }
    }
    SCOPED_TRACE("repeat " + std::to_string(repeat));
    check_halo(Partition::from_fragments(offsets, fragments), static_cast<int>(random.integer(1, 9)),
               static_cast<std::size_t>(random.integer(1, 40)), static_cast<std::size_t>(random.integer(0, 9)));
    if (HasFailure()) return;
  }
}

TEST(KcpHalo, EveryLayout) {
  for (const auto& lengths :
       std::vector<std::vector<std::int64_t>>{{}, {0}, {1}, {40}, {0, 5, 0, 60, 1, 2, 3}, {7, 7}}) {
    for (const int W : {1, 2, 3, 8}) {
      for (const Layout layout : {Layout::kContiguous, Layout::kZigzag, Layout::kZigzagPerDocument}) {
        SCOPED_TRACE(std::string(layout_name(layout)) + " over " + std::to_string(W));
        check_halo(Partition::make(offsets_of(lengths), W, layout), 4, 6, 0);
      }
    }
  }
}

TEST(KcpHalo, MoreTapsThanRows) {
  check_halo(Partition::from_cut_points(offsets_of({5, 3}), std::vector<std::int64_t>{1, 2, 2, 6}), 100, 3, 1);
}

}  // namespace
}  // namespace cake::kcp
