// Sharding a pack of documents over ranks (context parallel): which rank holds which rows. Neutral objects: they hold
// no mode and serve every family and both modes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace cake::kcp
