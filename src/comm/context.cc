#include <algorithm>
#include <cstring>

#include "comm/context_state.h"
#include "core/checks.h"

namespace cake::kcp {
namespace detail {
namespace {

/// FNV-1a and a second hash over the partition's fields, in hexadecimal digits.
std::string digest_of(const AgreementFields& fields) {
  std::uint64_t first = 14695981039346656037ull, second = 0x9e3779b97f4a7c15ull;
  for (const auto& [name, value] : fields) {
    for (const char c : name + '=' + value + '\n') {
      const auto byte = static_cast<unsigned char>(c);
      first = (first ^ byte) * 1099511628211ull;
      second = (second + byte) * 0xbf58476d1ce4e5b9ull;
      second ^= second >> 31;
    }
  }
  std::string text;
  for (const std::uint64_t half : {first, second}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[half >> shift & 15];
  }
  return text;
}

const Partition& checked(const Partition& partition, Communicator& communicator, int conv_kernel_size) {
  require_agreement(communicator, "context", [&] {
    if (partition.world_size() != communicator.size()) {
      checks::fail("partition", "one for " + std::to_string(partition.world_size()) + " ranks",
                   std::to_string(communicator.size()) + ", the ranks of the communicator");
    }
    if (conv_kernel_size < 1) checks::fail("conv_kernel_size", std::to_string(conv_kernel_size), "1 or more");
    AgreementFields fields = partition.fields();
    fields.emplace_back("conv_kernel_size", std::to_string(conv_kernel_size));
    return fields;
  });
  return partition;
}

void add_rows(std::vector<StagePeer>& peers, int rank, std::int64_t row) {
  auto peer = std::find_if(peers.begin(), peers.end(), [&](const StagePeer& p) { return p.rank == rank; });
  if (peer == peers.end()) peer = peers.insert(peers.end(), StagePeer{rank, 0, {}});
  peer->rows += 1;
  if (!peer->list.empty() && peer->list.back().row + peer->list.back().rows == row) {
    peer->list.back().rows += 1;
  } else {
    peer->list.push_back({row, 1});
  }
}

}  // namespace

HaloPlan::HaloPlan(const Partition& partition, const RowPlan& plan, int rank, Halo halo, int taps) {
  // Every rank walks all fragments of all ranks in one order, so the rows of a message have one order on both sides.
  for (int r = 0; r < partition.world_size(); ++r) {
    std::int64_t at = 0;  // row in rank r's halo
    for (const Fragment& f : partition.fragments(r)) {
      const std::int64_t length = partition.length(f.document), reach = taps - 1;
      std::int64_t from = std::max<std::int64_t>(0, f.offset - reach), to = f.offset;
      if (halo == Halo::kAfter) {
        from = f.offset + f.length;
        to = std::min(length, from + reach);
      }
      if (f.length == 0) to = from;
      if (r == rank) {
        fragment_rows.push_back(to - from);
        rows += to - from;
      }
      const std::vector<Piece>& pieces = plan.pieces(f.document);
      auto piece = std::lower_bound(pieces.begin(), pieces.end(), from,
                                    [](const Piece& p, std::int64_t row) { return p.offset + p.length <= row; });
      for (std::int64_t row = from; row < to; ++row, ++at) {
        while (piece->offset + piece->length <= row) ++piece;
        const std::int64_t local = piece->local_row + row - piece->offset;
        if (piece->rank == r) {
          if (r == rank) own.push_back({at, 1, local});
          continue;
        }
        if (r == rank) add_rows(incoming, piece->rank, at);
        if (piece->rank == rank) add_rows(outgoing, r, local);
      }
    }
  }
}

ContextState::ContextState(const Partition& given, Communicator& comm, int taps)
    : partition(checked(given, comm, taps)),
      communicator(&comm),
      conv_kernel_size(taps),
      digest(digest_of(given.fields())),
      rows(partition),
      canonical(partition, rows, comm.rank(), canonical_segments),
      by_rank(partition, rows, comm.rank(), rank_segments),
      halos{HaloPlan(partition, rows, comm.rank(), Halo::kBefore, taps),
            HaloPlan(partition, rows, comm.rank(), Halo::kAfter, taps)} {}

}  // namespace detail

namespace {

const detail::HaloPlan& plan_of(const detail::ContextState& s, Halo halo) {
  return s.halos[halo == Halo::kBefore ? 0 : 1];
}

}  // namespace

Context::Context(const Partition& partition, Communicator& communicator, int conv_kernel_size)
    : state_(std::make_shared<const detail::ContextState>(partition, communicator, conv_kernel_size)) {}

const Partition& Context::partition() const { return state_->partition; }
Communicator& Context::communicator() const { return *state_->communicator; }
int Context::rank() const { return state_->canonical.rank; }
int Context::conv_kernel_size() const { return state_->conv_kernel_size; }
std::int64_t Context::rows() const { return state_->partition.rows(rank()); }
std::int64_t Context::halo_rows(Halo halo) const { return plan_of(*state_, halo).rows; }
Tag Context::tag() { return {"kcp", "", false, "context", 1}; }

std::int64_t Context::halo_rows(Halo halo, std::int64_t fragment) const {
  const auto& list = plan_of(*state_, halo).fragment_rows;
  if (fragment < 0 || fragment >= static_cast<std::int64_t>(list.size())) {
    checks::fail("fragment", std::to_string(fragment), "0 to " + std::to_string(list.size()) + " (exclusive)");
  }
  return list[static_cast<std::size_t>(fragment)];
}

void Context::exchange_halo(Halo halo, const void* local, std::size_t stride_bytes, std::size_t row_bytes,
                            void* rows_out) const {
  const detail::HaloPlan& plan = plan_of(*state_, halo);
  const auto* from = static_cast<const std::byte*>(local);
  auto* to = static_cast<std::byte*>(rows_out);
  const auto row_of = [](std::int64_t row, std::size_t bytes) { return static_cast<std::size_t>(row) * bytes; };
  std::vector<std::vector<std::byte>> out(plan.outgoing.size()), in(plan.incoming.size());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  sends.reserve(out.size());
  receives.reserve(in.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].resize(row_of(plan.outgoing[i].rows, row_bytes));
    std::byte* at = out[i].data();
    for (const StageRows& rows : plan.outgoing[i].list) {
      for (std::int64_t n = 0; n < rows.rows; ++n, at += row_bytes) {
        std::memcpy(at, from + row_of(rows.row + n, stride_bytes), row_bytes);
      }
    }
    sends.push_back({plan.outgoing[i].rank, out[i].data(), out[i].size()});
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i].resize(row_of(plan.incoming[i].rows, row_bytes));
    receives.push_back({plan.incoming[i].rank, in[i].data(), in[i].size()});
  }
  state_->communicator->exchange(sends, receives);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::byte* at = in[i].data();
    for (const StageRows& rows : plan.incoming[i].list) {
      const std::size_t bytes = row_of(rows.rows, row_bytes);
      std::memcpy(to + row_of(rows.row, row_bytes), at, bytes);
      at += bytes;
    }
  }
  for (const OwnStageRows& own : plan.own) {
    std::memcpy(to + row_of(own.row, row_bytes), from + row_of(own.local_row, stride_bytes), row_bytes);
  }
}

std::pair<std::uint64_t, std::uint64_t> Context::halo_bytes(Halo halo, std::size_t row_bytes) const {
  const detail::HaloPlan& plan = plan_of(*state_, halo);
  std::uint64_t sent = 0, received = 0;
  for (const StagePeer& peer : plan.outgoing) sent += static_cast<std::uint64_t>(peer.rows) * row_bytes;
  for (const StagePeer& peer : plan.incoming) received += static_cast<std::uint64_t>(peer.rows) * row_bytes;
  return {sent, received};
}

const char* exchange_name(Exchange exchange) {
  switch (exchange) {
    case Exchange::kAuto: return "auto";
    case Exchange::kRelay: return "relay";
    case Exchange::kGather: return "gather";
  }
  return "unknown";
}

Exchange parse_exchange(const std::string& name) {
  for (const Exchange x : {Exchange::kAuto, Exchange::kRelay, Exchange::kGather}) {
    if (name == exchange_name(x)) return x;
  }
  checks::fail("exchange", "\"" + name + "\"", "auto, relay or gather");
}

CommPhase CommBytes::forward() const {
  CommPhase sum = halo_fwd;
  return sum += c1, sum += c2;
}

CommPhase CommBytes::backward() const {
  CommPhase sum = halo_bwd;
  return sum += b1, sum += b2;
}

RecomputeHandle::RecomputeHandle() : state_(std::make_shared<detail::RecomputeState>()) {}

std::vector<std::string> RecomputeHandle::entries() const {
  std::vector<std::string> names;
  names.reserve(state_->entries.size());
  for (const auto& [name, entry] : state_->entries) names.push_back(name);
  return names;
}

void RecomputeHandle::clear() { state_->entries.clear(); }

std::size_t RecomputeHandle::nbytes() const {
  std::size_t bytes = 0;
  for (const auto& [name, entry] : state_->entries) bytes += entry.data.size();
  return bytes;
}

Tag RecomputeHandle::tag() { return {"kcp", "", false, "recompute", 1}; }

Handle make_handle(std::shared_ptr<Context> context) { return {Context::tag(), std::move(context)}; }
Handle make_handle(std::shared_ptr<RecomputeHandle> recompute) {
  return {RecomputeHandle::tag(), std::move(recompute)};
}
Handle make_handle(std::shared_ptr<Partition> partition) { return {Partition::tag(), std::move(partition)}; }

}  // namespace cake::kcp
