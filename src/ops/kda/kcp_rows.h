// Rows of cut chunks: from strided tensors into dense buffers, over the communicator, and back.
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <vector>

#include "cake/comm.h"
#include "cake/kcp.h"
#include "ops/kda/kcp.h"

namespace cake::kda {

/// Bytes of one row (batch row 0) of a [1, S, heads(, width)] view.
template <class View>
std::size_t row_bytes(const View& x) {
  return static_cast<std::size_t>(x.shape[2] * (x.ndim > 3 ? x.shape[3] : 1) * dtype_size(x.dtype));
}

/// Calls fn(element of the view, element of the dense buffer) for every element of `rows` rows from `row` on.
template <class View, class Fn>
void each_element(const View& x, std::int64_t row, std::int64_t rows, std::byte* dense, Fn fn) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(x.data)>>, const std::byte, std::byte>;
  const std::int64_t size = dtype_size(x.dtype), width = x.ndim > 3 ? x.shape[3] : 1;
  const std::int64_t lane = x.ndim > 3 ? x.strides[3] : 1;
  for (std::int64_t t = row; t < row + rows; ++t) {
    for (std::int64_t h = 0; h < x.shape[2]; ++h) {
      for (std::int64_t c = 0; c < width; ++c, dense += size) {
        fn(static_cast<Byte*>(x.data) + (t * x.strides[1] + h * x.strides[2] + c * lane) * size, dense, size);
      }
    }
  }
}

inline void read_rows(const ConstTensorView& x, std::int64_t row, std::int64_t rows, std::byte* dense) {
  each_element(x, row, rows, dense, [](const std::byte* from, std::byte* to, std::int64_t size) {
    std::memcpy(to, from, static_cast<std::size_t>(size));
  });
}

inline void write_rows(const TensorView& x, std::int64_t row, std::int64_t rows, const std::byte* dense) {
  each_element(x, row, rows, const_cast<std::byte*>(dense),
               [](std::byte* to, const std::byte* from, std::int64_t size) {
                 std::memcpy(to, from, static_cast<std::size_t>(size));
               });
}

/// A staged part: whose rows lie where.
struct Staged {
  std::int64_t document = 0, first_row = 0, rows = 0;
  struct Own {
    std::int64_t row, rows, local_row;  ///< row counted from the part's first row
  };
  std::vector<Own> own;                ///< rows of this rank
  std::vector<kcp::HaloRows> foreign;  ///< rows of others
};

/// The cut chunks that this rank computes and the rows that it sends to others.
class Stage {
 public:
  Stage(const std::vector<Chain>& chains, const kcp::RowPlan& plan, int rank);
  /// Staged part `number` (of Part), or nullptr.
  const Staged* find(std::int64_t number) const {
    const auto found = parts_.find(number);
    return found == parts_.end() ? nullptr : &found->second;
  }

  /// Dense rows of every staged part of several tensors; index by part number, then by tensor.
  using Buffers = std::map<std::int64_t, std::vector<std::vector<std::byte>>>;
  /// Brings the rows of `tensors` (each [1, rows, ...]) to the ranks that compute them.
  Buffers collect(Communicator& communicator, const std::vector<ConstTensorView>& tensors) const;
  /// Zeroed room for results with the row sizes of `tensors`.
  Buffers room(const std::vector<TensorView>& tensors) const;
  /// Brings results of staged parts back to the ranks that hold their rows, and writes them into `tensors`.
  void deliver(Communicator& communicator, const Buffers& buffers, const std::vector<TensorView>& tensors) const;

 private:
  std::map<std::int64_t, Staged> parts_;
  std::map<int, std::vector<kcp::HaloRows>> outgoing_;                           // by computer
  std::map<int, std::vector<std::pair<std::int64_t, kcp::HaloRows>>> incoming_;  // by holder, with the part's number
};

}  // namespace cake::kda
