// Rows of cut chunks: from strided tensors into dense staging buffers, over the communicator, and back.
//
// A staging buffer of several tensors holds tensor after tensor, each [staged rows][row bytes]; a message holds its
// rows in plan order, the tensors of a row run one after another.
#pragma once

#include <cstddef>
#include <span>

#include "cake/comm.h"
#include "ops/kda/kcp_memory.h"

namespace cake::kda {

/// A tensor [1, S, heads(, width)] whose rows travel; not given: its rows have no bytes to move.
template <class View>
struct RowTensor {
  View view;
  std::size_t bytes = 0;  ///< of a row
};

/// The staging rows of a tensor as a dense view of its kind.
template <class View>
View staged_view(const View& like, std::byte* memory, std::int64_t rows) {
  View x = like;
  if (!like.given) return x;
  x.data = memory;
  x.shape[1] = rows;
  std::int64_t stride = 1;
  for (int i = like.ndim; i-- > 0;) {
    x.strides[static_cast<std::size_t>(i)] = stride;
    stride *= x.shape[static_cast<std::size_t>(i)];
  }
  return x;
}

/// Brings rows of `tensors` to the ranks that compute them, into `staged`.
void collect_rows(Communicator& communicator, const kcp::FoldPlan& plan,
                  std::span<const RowTensor<ConstTensorView>> tensors, std::byte* staged, const MessageMemory& memory);
/// Brings results of staged rows to the ranks that hold them and writes them into `tensors`. `received`: where the rows
/// that came from other ranks are kept as well, or nullptr.
void deliver_rows(Communicator& communicator, const kcp::FoldPlan& plan, std::span<const RowTensor<TensorView>> tensors,
                  const std::byte* staged, const MessageMemory& memory, std::byte* received);
/// Without communication: rows that `received` kept, and this rank's own.
void replay_rows(const kcp::FoldPlan& plan, std::span<const RowTensor<TensorView>> tensors, const std::byte* staged,
                 const std::byte* received);
/// FNV-1a over the first and the last row of each of this rank's fragments of a tensor, continuing `digest`.
std::uint64_t digest_rows(std::uint64_t digest, const ConstTensorView& x, const std::vector<kcp::Fragment>& fragments);
/// The same over the first row of a document's state in every head.
std::uint64_t digest_state(std::uint64_t digest, const ConstTensorView& states, std::int64_t document);

}  // namespace cake::kda
