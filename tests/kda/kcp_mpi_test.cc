// One process of KDA over MPI ranks: each makes the whole problem, runs it alone, runs its share with the others, and
// compares its rows bit by bit. Run by mpiexec; any number of processes.
#include "cake/mpi.h"
#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

Communicator& ranks() {
  static const auto communicator = make_mpi_communicator();
  return *communicator;
}

/// MPI ends before the statics do.
class EndOfMpi : public testing::Environment {
 public:
  void SetUp() override { ranks().barrier(); }
};
const testing::Environment* const kEnvironment = testing::AddGlobalTestEnvironment(new EndOfMpi);

KdaProblem pack() { return make_problem(kcp_spec({2 * kSegment + 100, 0, 65, 700}, true)); }

/// This process's rows of the row tensors and the parameter gradients against those of one rank.
void expect_own_rows(const KdaProblem& p, const KdaResults& one, const kcp::Partition& partition,
                     const RankResults& mine) {
  const int rank = ranks().rank();
  for (const auto& [name, tensor] : mine.tensors) {
    const HostTensor& whole = one.at(name);
    if (is_state(name)) {
      for (std::int64_t d = 0; d < p.N; ++d) {
        const bool own = rank_of_row(partition, d, name == "final_state") == rank;
        const HostTensor state = tensor.rows(d, 1);
        EXPECT_TRUE(own ? bool(same_bits(state, whole.rows(d, 1), name)) : all_positive_zero(state))
            << name << " of document " << d << ", rank " << rank;
      }
      continue;
    }
    EXPECT_TRUE(
        same_bits(tensor, is_parameter_gradient(name) ? whole : pick_rows(whole, partition.global_rows(rank)), name))
        << "rank " << rank;
  }
}

TEST(KdaKcpMpi, TheBitsOfOneProcess) {
  const KdaProblem p = pack();
  const KdaResults one = run(p);
  for (const kcp::Layout layout : all_kcp_layouts()) {
    for (const kcp::Exchange exchange : {kcp::Exchange::kRelay, kcp::Exchange::kGather}) {
      SCOPED_TRACE(std::string(kcp::layout_name(layout)) + ", " + kcp::exchange_name(exchange));
      const kcp::Partition partition = kcp::Partition::make(offsets_of(p), ranks().size(), layout);
      const kcp::Context context(partition, ranks());
      KcpRun how;
      how.exchange = exchange;
      expect_own_rows(p, one, partition, run_rank<DetKcp>(p, context, how));
      how.recompute = true;
      expect_own_rows(p, one, partition, run_rank<DetKcp>(p, context, how));
    }
  }
}

TEST(KdaKcpMpi, RandomCuts) {
  Random random(17);
  const KdaProblem p = pack();
  const KdaResults one = run(p);
  for (int repeat = 0; repeat < 5; ++repeat) {
    const kcp::Partition partition = random_cuts(random, offsets_of(p), ranks().size());
    SCOPED_TRACE(partition_text(partition));
    const kcp::Context context(partition, ranks());
    expect_own_rows(p, one, partition, run_rank<DetKcp>(p, context));
  }
}

TEST(KdaKcpMpi, ARefusalOnOneProcessReachesAllAndTheGroupGoesOn) {
  const KdaProblem p = pack();
  const kcp::Partition partition = kcp::Partition::make(offsets_of(p), ranks().size());
  const kcp::Context context(partition, ranks());
  RankCall<DetKcp> call(p, context);
  call.fill(3.0);
  const int last = ranks().size() - 1;
  if (ranks().rank() == last) call.inputs.k.dtype = DType::kFloat16;
  const std::string error = error_of([&] { call.forward(); });
  const std::string expected =
      ranks().rank() == last ? "InvalidArgument | k: got" : "CommError | rank " + std::to_string(last) + ": ";
  EXPECT_EQ(error.find(expected), 0u) << error;
  EXPECT_TRUE(call.untouched());
  expect_own_rows(p, run(p), partition, run_rank<DetKcp>(p, context));
}

TEST(KdaKcpMpi, NondetRunsToo) {
  const KdaProblem p = pack();
  const kcp::Partition partition = kcp::Partition::make(offsets_of(p), ranks().size());
  const kcp::Context context(partition, ranks());
  const RankResults mine = run_rank<NondetKcp>(p, context);
  const KdaResults one = run(p);
  const auto rows = partition.global_rows(ranks().rank());
  for (const auto& [name, tensor] : mine.tensors) {
    if (is_state(name)) continue;
    const HostTensor expected = is_parameter_gradient(name) ? one.at(name) : pick_rows(one.at(name), rows);
    EXPECT_LT(relative_l2(tensor.doubles(), expected.doubles()), 1e-4) << name << ", rank " << ranks().rank();
  }
}

}  // namespace
}  // namespace cake::test
