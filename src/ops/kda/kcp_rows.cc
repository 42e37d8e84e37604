#include "ops/kda/kcp_rows.h"

#include <cstring>

namespace cake::kda {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Calls fn(element of the view, size) for every element of `rows` rows from `row` on.
template <class View, class Fn>
void each_element(const View& x, std::int64_t row, std::int64_t rows, Fn fn) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(x.data)>>, const std::byte, std::byte>;
  const std::int64_t size = dtype_size(x.dtype), width = x.ndim > 3 ? x.shape[3] : 1;
  const std::int64_t lane = x.ndim > 3 ? x.strides[3] : 1;
  for (std::int64_t t = row; t < row + rows; ++t) {
    for (std::int64_t h = 0; h < x.shape[2]; ++h) {
      for (std::int64_t c = 0; c < width; ++c) {
        fn(static_cast<Byte*>(x.data) + (t * x.strides[1] + h * x.strides[2] + c * lane) * size, to_size(size));
      }
    }
  }
}

void read_rows(const ConstTensorView& x, std::int64_t row, std::int64_t rows, std::byte* dense) {
  each_element(x, row, rows, [&](const std::byte* from, std::size_t size) {
    std::memcpy(dense, from, size);
    dense += size;
  });
}

void write_rows(const TensorView& x, std::int64_t row, std::int64_t rows, const std::byte* dense) {
  each_element(x, row, rows, [&](std::byte* to, std::size_t size) {
    std::memcpy(to, dense, size);
    dense += size;
  });
}

template <class Tensors>
std::size_t row_bytes(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const auto& x : tensors) bytes += x.view.given ? x.bytes : 0;
  return bytes;
}

/// Calls fn(tensor, start of its staging rows) for the given tensors.
template <class Tensors, class Byte, class Fn>
void each_staged(const Tensors& tensors, Byte* staged, std::int64_t staged_rows, Fn fn) {
  for (const auto& x : tensors) {
    if (x.view.given) fn(x, staged);
    staged += to_size(staged_rows) * x.bytes;
  }
}

/// Messages of one side: memory cut by peer.
template <class Message, class Pointer>
std::vector<Message> messages(const std::vector<kcp::StagePeer>& peers, std::size_t bytes, Pointer* memory) {
  std::vector<Message> list;
  list.reserve(peers.size());
  for (const kcp::StagePeer& peer : peers) {
    const std::size_t size = to_size(peer.rows) * bytes;
    list.push_back({peer.rank, memory, size});
    memory += size;
  }
  return list;
}

/// Rows of results from a message (or what was kept of one) into the tensors.
void write_received(const kcp::FoldPlan& plan, std::span<const RowTensor<TensorView>> tensors, const std::byte* at) {
  for (const kcp::StagePeer& peer : plan.outgoing) {
    for (const kcp::StageRows& rows : peer.list) {
      for (const RowTensor<TensorView>& x : tensors) {
        if (!x.view.given) continue;
        write_rows(x.view, rows.row, rows.rows, at);
        at += to_size(rows.rows) * x.bytes;
      }
    }
  }
}

void write_own(const kcp::FoldPlan& plan, std::span<const RowTensor<TensorView>> tensors, const std::byte* staged) {
  each_staged(tensors, staged, plan.staged_rows, [&](const RowTensor<TensorView>& x, const std::byte* from) {
    for (const kcp::OwnStageRows& own : plan.own_rows) {
      write_rows(x.view, own.local_row, own.rows, from + to_size(own.row) * x.bytes);
    }
  });
}

}  // namespace

void collect_rows(Communicator& communicator, const kcp::FoldPlan& plan,
                  std::span<const RowTensor<ConstTensorView>> tensors, std::byte* staged, const MessageMemory& memory) {
  const std::size_t bytes = row_bytes(tensors);
  std::byte* at = memory.out;
  for (const kcp::StagePeer& peer : plan.outgoing) {
    for (const kcp::StageRows& rows : peer.list) {
      for (const RowTensor<ConstTensorView>& x : tensors) {
        if (!x.view.given) continue;
        read_rows(x.view, rows.row, rows.rows, at);
        at += to_size(rows.rows) * x.bytes;
      }
    }
  }
  const auto sends = messages<Send>(plan.outgoing, bytes, memory.out);
  const auto receives = messages<Receive>(plan.incoming, bytes, memory.in);
  if (!sends.empty() || !receives.empty()) communicator.exchange(sends, receives);
  const std::byte* in = memory.in;
  for (const kcp::StagePeer& peer : plan.incoming) {
    for (const kcp::StageRows& rows : peer.list) {
      each_staged(tensors, staged, plan.staged_rows, [&](const RowTensor<ConstTensorView>& x, std::byte* to) {
        const std::size_t size = to_size(rows.rows) * x.bytes;
        std::memcpy(to + to_size(rows.row) * x.bytes, in, size);
        in += size;
      });
    }
  }
  each_staged(tensors, staged, plan.staged_rows, [&](const RowTensor<ConstTensorView>& x, std::byte* to) {
    for (const kcp::OwnStageRows& own : plan.own_rows) {
      read_rows(x.view, own.local_row, own.rows, to + to_size(own.row) * x.bytes);
    }
  });
}

void deliver_rows(Communicator& communicator, const kcp::FoldPlan& plan, std::span<const RowTensor<TensorView>> tensors,
                  const std::byte* staged, const MessageMemory& memory, std::byte* received) {
  const std::size_t bytes = row_bytes(tensors);
  std::byte* at = memory.out;
  for (const kcp::StagePeer& peer : plan.incoming) {
    for (const kcp::StageRows& rows : peer.list) {
      each_staged(tensors, staged, plan.staged_rows, [&](const RowTensor<TensorView>& x, const std::byte* from) {
        const std::size_t size = to_size(rows.rows) * x.bytes;
        std::memcpy(at, from + to_size(rows.row) * x.bytes, size);
        at += size;
      });
    }
  }
  const auto sends = messages<Send>(plan.incoming, bytes, memory.out);
  const auto receives = messages<Receive>(plan.outgoing, bytes, memory.in);
  if (!sends.empty() || !receives.empty()) communicator.exchange(sends, receives);
  if (received != nullptr) std::memcpy(received, memory.in, to_size(plan.outgoing_rows) * bytes);
  write_received(plan, tensors, memory.in);
  write_own(plan, tensors, staged);
}

void replay_rows(const kcp::FoldPlan& plan, std::span<const RowTensor<TensorView>> tensors, const std::byte* staged,
                 const std::byte* received) {
  write_received(plan, tensors, received);
  write_own(plan, tensors, staged);
}

namespace {

std::uint64_t digest_bytes(std::uint64_t digest, const std::byte* bytes, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i)
    digest = (digest ^ std::to_integer<std::uint64_t>(bytes[i])) * 1099511628211ull;
  return digest;
}

}  // namespace

std::uint64_t digest_rows(std::uint64_t digest, const ConstTensorView& x, const std::vector<kcp::Fragment>& fragments) {
  const auto add = [&](std::int64_t row) {
    each_element(x, row, 1,
                 [&](const std::byte* element, std::size_t size) { digest = digest_bytes(digest, element, size); });
  };
  std::int64_t row = 0;
  for (const kcp::Fragment& f : fragments) {
    if (f.length > 0) {
      add(row);
      add(row + f.length - 1);
    }
    row += f.length;
  }
  return digest;
}

std::uint64_t digest_state(std::uint64_t digest, const ConstTensorView& x, std::int64_t document) {
  const auto* data = static_cast<const float*>(x.data) + document * x.strides[0];
  for (std::int64_t hv = 0; hv < x.shape[1]; ++hv) {
    for (std::int64_t v = 0; v < x.shape[3]; ++v) {
      const float* element = data + hv * x.strides[1] + v * x.strides[3];
      digest = digest_bytes(digest, reinterpret_cast<const std::byte*>(element), sizeof *element);
    }
  }
  return digest;
}

}  // namespace cake::kda
