#include "ops/kda/kcp_rows.h"

#include <algorithm>

#include "cake/core/canonical.h"

namespace cake::kda {
namespace {

std::vector<std::size_t> row_sizes(const auto& tensors) {
  std::vector<std::size_t> sizes;
  sizes.reserve(tensors.size());
  for (const auto& x : tensors) sizes.push_back(x.given ? row_bytes(x) : 0);
  return sizes;
}

std::size_t message_bytes(const auto& list, const std::vector<std::size_t>& sizes, auto rows_of) {
  std::size_t bytes = 0;
  for (const auto& entry : list) {
    for (const std::size_t size : sizes) bytes += size * static_cast<std::size_t>(rows_of(entry));
  }
  return bytes;
}

std::int64_t rows_of_halo(const kcp::HaloRows& h) { return h.length; }
std::int64_t rows_of_numbered(const std::pair<std::int64_t, kcp::HaloRows>& entry) { return entry.second.length; }

}  // namespace

Stage::Stage(const std::vector<Chain>& chains, const kcp::RowPlan& plan, int rank) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> number_of;  // (document, chunk)
  for (const Chain& chain : chains) {
    for (const Part& part : chain.parts) {
      if (!part.staged || part.rank != rank) continue;
      Staged staged;
      staged.document = chain.document;
      staged.first_row = part.first_row;
      staged.rows = part.rows;
      for (const kcp::Piece& piece : plan.pieces(chain.document)) {
        const std::int64_t from = std::max(piece.offset, part.first_row);
        const std::int64_t to = std::min(piece.offset + piece.length, part.first_row + part.rows);
        if (piece.rank == rank && from < to) {
          staged.own.push_back({from - part.first_row, to - from, piece.local_row + from - piece.offset});
        }
      }
      number_of[{chain.document, part.first_row / kChunk}] = part.number;
      parts_[part.number] = std::move(staged);
    }
  }
  for (const kcp::HaloRows& h : plan.halo()) {
    if (h.holder == rank) outgoing_[h.computer].push_back(h);
    if (h.computer == rank) {
      const std::int64_t number = number_of.at({h.document, h.chunk});
      incoming_[h.holder].emplace_back(number, h);
      parts_[number].foreign.push_back(h);
    }
  }
}

Stage::Buffers Stage::collect(Communicator& communicator, const std::vector<ConstTensorView>& tensors) const {
  const std::vector<std::size_t> sizes = row_sizes(tensors);
  Buffers buffers;
  for (const auto& [number, staged] : parts_) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      std::vector<std::byte> dense(sizes[i] * static_cast<std::size_t>(staged.rows));
      for (const Staged::Own& own : staged.own) {
        read_rows(tensors[i], own.local_row, own.rows, dense.data() + sizes[i] * static_cast<std::size_t>(own.row));
      }
      buffers[number].push_back(std::move(dense));
    }
  }
  std::map<int, std::vector<std::byte>> out, in;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const auto& [to, list] : outgoing_) {
    std::vector<std::byte>& message = out[to];
    message.resize(message_bytes(list, sizes, rows_of_halo));
    std::byte* at = message.data();
    for (const kcp::HaloRows& h : list) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        read_rows(tensors[i], h.holder_row, h.length, at);
        at += sizes[i] * static_cast<std::size_t>(h.length);
      }
    }
    sends.push_back({to, message.data(), message.size()});
  }
  for (const auto& [from, list] : incoming_) {
    std::vector<std::byte>& message = in[from];
    message.resize(message_bytes(list, sizes, rows_of_numbered));
    receives.push_back({from, message.data(), message.size()});
  }
  communicator.exchange(sends, receives);
  for (const auto& [from, list] : incoming_) {
    const std::byte* at = in[from].data();
    for (const auto& [number, h] : list) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t bytes = sizes[i] * static_cast<std::size_t>(h.length);
        const auto row = static_cast<std::size_t>(h.offset - parts_.at(number).first_row);
        std::memcpy(buffers[number][i].data() + sizes[i] * row, at, bytes);
        at += bytes;
      }
    }
  }
  return buffers;
}

Stage::Buffers Stage::room(const std::vector<TensorView>& tensors) const {
  const std::vector<std::size_t> sizes = row_sizes(tensors);
  Buffers buffers;
  for (const auto& [number, staged] : parts_) {
    for (const std::size_t size : sizes) buffers[number].emplace_back(size * static_cast<std::size_t>(staged.rows));
  }
  return buffers;
}

void Stage::deliver(Communicator& communicator, const Buffers& buffers, const std::vector<TensorView>& tensors) const {
  const std::vector<std::size_t> sizes = row_sizes(tensors);
  for (const auto& [number, staged] : parts_) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].given) continue;
      for (const Staged::Own& own : staged.own) {
        write_rows(tensors[i], own.local_row, own.rows,
                   buffers.at(number)[i].data() + sizes[i] * static_cast<std::size_t>(own.row));
      }
    }
  }
  std::map<int, std::vector<std::byte>> out, in;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const auto& [to, list] : incoming_) {
    std::vector<std::byte>& message = out[to];
    message.resize(message_bytes(list, sizes, rows_of_numbered));
    std::byte* at = message.data();
    for (const auto& [number, h] : list) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t bytes = sizes[i] * static_cast<std::size_t>(h.length);
        const auto row = static_cast<std::size_t>(h.offset - parts_.at(number).first_row);
        std::memcpy(at, buffers.at(number)[i].data() + sizes[i] * row, bytes);
        at += bytes;
      }
    }
    sends.push_back({to, message.data(), message.size()});
  }
  for (const auto& [from, list] : outgoing_) {
    std::vector<std::byte>& message = in[from];
    message.resize(message_bytes(list, sizes, rows_of_halo));
    receives.push_back({from, message.data(), message.size()});
  }
  communicator.exchange(sends, receives);
  for (const auto& [from, list] : outgoing_) {
    const std::byte* at = in[from].data();
    for (const kcp::HaloRows& h : list) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].given) write_rows(tensors[i], h.holder_row, h.length, at);
        at += sizes[i] * static_cast<std::size_t>(h.length);
      }
    }
  }
}

}  // namespace cake::kda
