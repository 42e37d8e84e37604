// Sharding a pack of documents over ranks (context parallel): which rank holds which rows, and what follows from it for
// the packages over ranks. Neutral objects: they hold no mode and serve every family and both modes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cake/comm.h"
#include "cake/core/error.h"
#include "cake/core/export.h"
#include "cake/core/handle.h"

namespace cake::kcp {

/// Consecutive rows of one document.
struct Fragment {
  std::int64_t document = 0;  ///< number in the pack
  std::int64_t offset = 0;    ///< first row, counted from the document's first row
  std::int64_t length = 0;    ///< rows, may be 0
  /// Equal in every field.
  friend bool operator==(const Fragment&, const Fragment&) = default;
};

/// How a pack is cut.
enum class Layout {
  kContiguous,         ///< world_size equal parts of the packed rows, in rank order
  kZigzag,             ///< 2 world_size equal parts; rank r holds part r and part 2 world_size - 1 - r
  kZigzagPerDocument,  ///< the same for every document on its own
};
/// "contiguous", "zigzag" or "zigzag_per_document".
CAKE_API const char* layout_name(Layout layout);
/// Inverse of layout_name. Throws InvalidArgument naming the known ones.
CAKE_API Layout parse_layout(const std::string& name);

/// Which rank holds which rows of a pack: every row of every document on exactly one rank. Cuts may lie anywhere.
class CAKE_API Partition {
 public:
  /// `cu_seqlens` are the pack's offsets (first 0, non-decreasing). Parts whose rows do not divide evenly differ by one
  /// row. Throws InvalidArgument.
  static Partition make(std::span<const std::int32_t> cu_seqlens, int world_size, Layout layout = Layout::kContiguous);
  /// Contiguous with given cuts: rank r holds the packed rows from cut r - 1 to cut r. world_size is cut_points.size()
  /// + 1; cuts are from 0 to the last offset and do not decrease.
  static Partition from_cut_points(std::span<const std::int32_t> cu_seqlens, std::span<const std::int64_t> cut_points);
  /// Any distribution: fragments[rank] in the order of the rank's rows. Throws InvalidArgument naming a fragment that
  /// lies outside its document, a row on two ranks, or a row on none.
  static Partition from_fragments(std::span<const std::int32_t> cu_seqlens,
                                  std::vector<std::vector<Fragment>> fragments);

  /// Ranks.
  int world_size() const { return static_cast<int>(fragments_.size()); }
  /// The pack's offsets.
  const std::vector<std::int32_t>& cu_seqlens() const { return cu_seqlens_; }
  /// Documents of the pack.
  std::int64_t documents() const { return static_cast<std::int64_t>(cu_seqlens_.size()) - 1; }
  /// Rows of a document.
  std::int64_t length(std::int64_t document) const;
  /// A rank's rows, in the order in which they lie in its tensors.
  const std::vector<Fragment>& fragments(int rank) const;
  /// Rows of a rank.
  std::int64_t rows(int rank) const;
  /// Packed row of every local row of a rank: what scatters a whole tensor into shards and gathers it back.
  std::vector<std::int64_t> global_rows(int rank) const;
  /// The fields that all ranks must agree on, for require_agreement.
  std::vector<std::pair<std::string, std::string>> fields() const;
  /// "cake/kcp/partition/v1" holds no mode.
  static Tag tag();

 private:
  Partition(std::vector<std::int32_t> cu_seqlens, std::vector<std::vector<Fragment>> fragments, std::string layout);

  std::vector<std::int32_t> cu_seqlens_;
  std::vector<std::vector<Fragment>> fragments_;
  std::string layout_;
};

/// One piece of a document on one rank.
struct Piece {
  int rank = 0;                  ///< where it lies
  std::int64_t offset = 0;       ///< first row, counted from the document's first row
  std::int64_t length = 0;       ///< rows, at least 1
  std::int64_t local_row = 0;    ///< of its first row, in the rank's tensors
  std::int64_t first_chunk = 0;  ///< chunks [first_chunk, end_chunk) have their last row here: this piece computes them
  std::int64_t end_chunk = 0;    ///< equal to first_chunk when it computes none
  /// Equal in every field.
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// Rows of a chunk that lie on another rank than the one that computes it.
struct HaloRows {
  std::int64_t document = 0;    ///< number in the pack
  std::int64_t chunk = 0;       ///< of 64 rows, counted from the document's first row
  std::int64_t offset = 0;      ///< first row, counted from the document's first row
  std::int64_t length = 0;      ///< 1 to 63 rows
  int holder = 0;               ///< rank that has the rows
  int computer = 0;             ///< rank that has the chunk's last row
  std::int64_t holder_row = 0;  ///< of the first row, in the holder's tensors
  /// Equal in every field.
  friend bool operator==(const HaloRows&, const HaloRows&) = default;
};

/// What follows from a partition, the same on every rank: pieces of documents in the order of their rows, and which
/// rows have to travel so that every chunk is computed by the rank that holds its last row.
class CAKE_API RowPlan {
 public:
  /// Linear in the number of fragments.
  explicit RowPlan(const Partition& partition);
  /// A document's pieces, by offset.
  const std::vector<Piece>& pieces(std::int64_t document) const;
  /// Rows that travel between different ranks, by document, chunk and offset. Rows of a cut chunk that lie in another
  /// piece of the computing rank itself are not listed: they need no message.
  const std::vector<HaloRows>& halo() const { return halo_; }
  /// Halo rows that a rank sends before a forward, and receives.
  std::int64_t rows_sent(int rank) const;
  /// The same, received.
  std::int64_t rows_received(int rank) const;

 private:
  std::vector<std::vector<Piece>> pieces_;
  std::vector<HaloRows> halo_;
};

/// Rows of a document next to a fragment that a causal convolution reads.
enum class Halo {
  kBefore,  ///< up to conv_kernel_size - 1 earlier rows: its forward
  kAfter,   ///< up to conv_kernel_size - 1 later rows: its backward
};

namespace detail {
struct ContextState;
struct RecomputeState;
}  // namespace detail

/// A partition as one rank of a group sees it: tables, orders of folds, halos. Made once and used by every layer,
/// family and mode; copies share it. The communicator must outlive it and is used by one call at a time.
class CAKE_API Context {
 public:
  /// Collective: every rank gives the same partition and conv_kernel_size (taps of a causal convolution, 1 or more).
  /// Throws InvalidArgument, on every rank naming the field that differs, or when the partition is not for as many
  /// ranks as the communicator has; CommError.
  Context(const Partition& partition, Communicator& communicator, int conv_kernel_size = 4);
  /// The partition.
  const Partition& partition() const;
  /// The communicator.
  Communicator& communicator() const;
  /// This rank.
  int rank() const;
  /// Taps of the convolution whose halo the context plans.
  int conv_kernel_size() const;
  /// Rows of this rank.
  std::int64_t rows() const;
  /// Halo rows of all fragments of this rank.
  std::int64_t halo_rows(Halo halo) const;
  /// Halo rows of a fragment of this rank (its number in the partition): fewer than conv_kernel_size - 1 at the border
  /// of its document, 0 for an empty fragment.
  std::int64_t halo_rows(Halo halo, std::int64_t fragment) const;
  /// Collective: fills `rows_out` [halo_rows(halo)][row_bytes], fragment after fragment and rows ascending, with the
  /// rows that lie next to this rank's fragments, wherever they are. `local` is this rank's first row, `stride_bytes`
  /// the distance between rows.
  void exchange_halo(Halo halo, const void* local, std::size_t stride_bytes, std::size_t row_bytes,
                     void* rows_out) const;
  /// Bytes that exchange_halo sends and receives.
  std::pair<std::uint64_t, std::uint64_t> halo_bytes(Halo halo, std::size_t row_bytes) const;
  /// "cake/kcp/context/v1" holds no mode.
  static Tag tag();
  /// The object behind the class, for the packages' own functions.
  const detail::ContextState& state() const { return *state_; }

 private:
  std::shared_ptr<const detail::ContextState> state_;
};

/// How boundary states reach the ranks that need them; all give equal bits.
enum class Exchange {
  kAuto,    ///< kGather while a rank receives at most 1 MiB by it, else kRelay
  kRelay,   ///< every rank receives, folds its own segments and passes on: bytes per border are constant
  kGather,  ///< all ranks get all segments' summaries at once and fold alike: fewer steps, more bytes
};
/// "auto", "relay" or "gather".
CAKE_API const char* exchange_name(Exchange exchange);
/// Inverse of exchange_name. Throws InvalidArgument naming the known ones.
CAKE_API Exchange parse_exchange(const std::string& name);

/// What a recompute handle keeps of a forward.
enum class CheckpointKeep {
  kStates,    ///< the boundary tensors alone: the backward makes transitions again
  kTransfer,  ///< transitions too
};

/// Bytes one rank moves in a phase.
struct CommPhase {
  std::uint64_t sent = 0;      ///< to other ranks
  std::uint64_t received = 0;  ///< from other ranks
  /// Field by field.
  CommPhase& operator+=(const CommPhase& x) {
    sent += x.sent;
    received += x.received;
    return *this;
  }
  /// Equal in every field.
  friend bool operator==(const CommPhase&, const CommPhase&) = default;
};

/// Bytes one rank moves in a forward and its backward, by phase. Agreements (a few bytes a call) do not count, as in
/// CommCounters.
struct CAKE_API CommBytes {
  CommPhase halo_fwd;     ///< rows of cut chunks to the rank that computes them, and outputs back
  CommPhase c1;           ///< forward, inside cut segments: states and summaries
  CommPhase c2;           ///< forward, between segments: states (relay) or summaries (gather)
  CommPhase halo_bwd;     ///< rows and gradients of cut chunks
  CommPhase b1;           ///< backward, inside cut segments: adjoint states, summaries, parameter sums
  CommPhase b2;           ///< backward, between segments
  CommPhase gate_params;  ///< reduction of the gate parameters' gradients
  /// The forward's.
  CommPhase forward() const;
  /// The backward's, without gate_params.
  CommPhase backward() const;
};

/// What lets a checkpointed region run its forward again without communication: under a name per op it keeps everything
/// that the first forward received. Made outside the region and passed to its forwards: the first stores, the next ones
/// replay. All ranks pass one, or none. Copies share the entries.
class CAKE_API RecomputeHandle {
 public:
  /// Empty.
  RecomputeHandle();
  /// Names of the entries, in alphabetical order.
  std::vector<std::string> entries() const;
  /// Drops all entries: the next forward stores again.
  void clear();
  /// Bytes that the entries hold.
  std::size_t nbytes() const;
  /// "cake/kcp/recompute/v1" holds no mode.
  static Tag tag();
  /// The object behind the class, for the packages' own functions.
  detail::RecomputeState& state() const { return *state_; }

 private:
  std::shared_ptr<detail::RecomputeState> state_;
};

/// Handles share their object and carry its tag, for borders where C++ types are lost.
CAKE_API Handle make_handle(std::shared_ptr<Context> context);
/// The same for a recompute handle.
CAKE_API Handle make_handle(std::shared_ptr<RecomputeHandle> recompute);
/// The same for a partition.
CAKE_API Handle make_handle(std::shared_ptr<Partition> partition);

}  // namespace cake::kcp
