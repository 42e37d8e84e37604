// One process of KDA over MPI ranks: each makes the whole problem, runs it alone, runs its share with the others, and
// compares its rows bit by bit. Run by mpiexec; any number of processes.
#include "cake/mpi.h"
#include "tests/kda/kcp_run.h"

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

TEST(KdaKcpMpi, TheBitsOfOneProcess) {
  KdaSpec spec;
  spec.lengths = {2 * kSegment + 100, 0, 65, 700};
  spec.H = 1;
  spec.HV = 2;
  spec.K = kShortSegments ? 20 : 8;
  spec.V = kShortSegments ? 12 : 7;
  spec.initial_state = true;
  spec.beta_max = kShortSegments ? 1.0 : 0.01;
  use_every_activation(spec);
  spec.options.lower_bound = kFaintBound;
  spec.seed = 51;
  const KdaProblem p = make_problem(spec);
  const KdaResults one = run(p);
  for (const kcp::Layout layout : {kcp::Layout::kContiguous, kcp::Layout::kZigzag, kcp::Layout::kZigzagPerDocument}) {
    const kcp::Partition partition = kcp::Partition::make(offsets_of(p), ranks().size(), layout);
    const RankResults mine = run_rank(p, partition, ranks(), 1);
    for (const auto& [name, tensor] : mine) {
      if (is_state(name)) continue;
      const HostTensor& whole = one.at(name);
      EXPECT_TRUE(same_bits(
          tensor, is_parameter_gradient(name) ? whole : pick_rows(whole, partition.global_rows(ranks().rank())), name))
          << kcp::layout_name(layout) << ", rank " << ranks().rank();
    }
  }
}

}  // namespace
}  // namespace cake::test
