// What stands behind kcp::Context and kcp::RecomputeHandle.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/fold_plan.h"

namespace cake::kcp::detail {

/// Rows next to this rank's fragments, for one direction.
struct HaloPlan {
  HaloPlan(const Partition& partition, const RowPlan& rows, int rank, Halo halo, int taps);

  std::vector<std::int64_t> fragment_rows;  ///< by fragment of this rank
  std::int64_t rows = 0;                    ///< of all of them
  std::vector<OwnStageRows> own;            ///< rows this rank has itself: `row` counts in the halo
  std::vector<StagePeer> outgoing;          ///< `row` counts in the rank's tensors
  std::vector<StagePeer> incoming;          ///< `row` counts in the halo
};

struct ContextState {
  ContextState(const Partition& partition, Communicator& communicator, int conv_kernel_size);

  Partition partition;
  Communicator* communicator;
  int conv_kernel_size;
  std::string digest;  ///< of the partition: equal digests, equal partitions
  RowPlan rows;
  FoldPlan canonical, by_rank;
  std::array<HaloPlan, 2> halos;  ///< before, after
};

/// What one op stored: a record of the forward it came from and the bytes.
struct RecomputeEntry {
  AgreementFields record;
  std::vector<std::byte> data;
};

struct RecomputeState {
  std::map<std::string, RecomputeEntry> entries;
};

}  // namespace cake::kcp::detail
