// Documents, chunks and segments of a problem, and where each one's values lie in the memory of a call. Everything is
// counted from a document's first row, so none of it depends on the other documents (design: the canonical order).
//
// A call runs over groups of whole documents, one group after another in one arena; without batch_tokens and
// max_docs_per_batch there is one group. A document's numbers below count from the first document of its group.
#pragma once

#include <cstdint>

#include "ops/kda/problem.h"

namespace cake::kda {

/// One document.
struct Document {
  std::int64_t number;                ///< in the whole pack: index of its states
  std::int64_t batch, start, length;  ///< rows start .. start + length - 1 of batch row `batch`
  std::int64_t segments;              ///< 0 for an empty document
  std::int64_t first_segment;         ///< number of its segment 0 among all segments
  std::int64_t first_border;          ///< number of its first inner segment border
  std::int64_t first_transition;      ///< number of its first summarised segment's transition
  std::int64_t pair_floats;           ///< floats of its chunk products, per head
  std::int64_t first_pair;            ///< those of the documents before it, per head
  std::int64_t chunks;                ///< of 64 rows, the last one ragged
  std::int64_t first_chunk;           ///< number of its chunk 0
  std::int64_t first_row;             ///< rows of the documents before it

  std::int64_t borders() const { return segments > 1 ? segments - 1 : 0; }
  std::int64_t transitions() const { return segments > 2 ? segments - 2 : 0; }
};

/// Sums over the documents, or upper bounds of them.
struct Totals {
  std::int64_t documents = 0, segments = 0, borders = 0, transitions = 0, pair_floats = 0, chunks = 0, rows = 0;
  std::int64_t longest_segment = 0;  ///< rows
};

/// One segment of one document.
struct SegmentId {
  std::int64_t document, segment;
};

/// Fills the length-dependent fields of a document after `totals`, and adds it to them.
void append_document(Document& document, Totals& totals);

/// How a call groups documents; 0: no limit. A document longer than `tokens` is a group of its own.
struct Grouping {
  std::int64_t tokens = 0, documents = 0;
  friend bool operator==(const Grouping&, const Grouping&) = default;
};

/// Consecutive documents first .. first + totals.documents - 1.
struct Group {
  std::int64_t first = 0;
  Totals totals;
};

/// Lengths of documents, whatever they come from: cu_seqlens of a call, offsets or a count of a byte query.
class Lengths {
 public:
  Lengths() = default;
  /// B documents of S rows.
  Lengths(std::int64_t B, std::int64_t S) : count_(B), each_(S) {}
  /// From offsets.
  Lengths(const std::int32_t* offsets, std::int64_t stride, std::int64_t count)
      : offsets_(offsets), stride_(stride), count_(count) {}
  /// Of a checked problem.
  static Lengths of(const Problem& problem, const ConstTensorView& cu_seqlens);

  std::int64_t count() const { return count_; }
  std::int64_t start(std::int64_t n) const { return offsets_ == nullptr ? 0 : offsets_[n * stride_]; }
  std::int64_t length(std::int64_t n) const {
    return offsets_ == nullptr ? each_ : std::int64_t{offsets_[(n + 1) * stride_]} - offsets_[n * stride_];
  }
  bool packed() const { return offsets_ != nullptr; }
  /// Row after the last document (packed).
  std::int64_t end() const { return offsets_ == nullptr ? each_ : offsets_[count_ * stride_]; }

 private:
  const std::int32_t* offsets_ = nullptr;
  std::int64_t stride_ = 1, count_ = 0, each_ = 0;
};

/// sum += x, field by field.
void add_totals(Totals& sum, const Totals& x);
/// The group that starts at document `first`; empty when there is none.
Group next_group(const Lengths& lengths, const Grouping& grouping, std::int64_t first);
/// Sizes over all groups: sums (for what is saved) and the largest of each (for what is reused).
struct GroupedTotals {
  Totals sum, largest;
};
GroupedTotals count_documents(const Lengths& lengths, const Grouping& grouping);
/// Upper bounds over every packing of num_docs documents into S rows.
GroupedTotals bound_documents(std::int64_t S, std::int64_t num_docs, const Grouping& grouping);
/// Fills `documents` and `segments` of a group; SegmentId::document is a number within the group.
void list_documents(const Lengths& lengths, const Group& group, Document* documents, SegmentId* segments);

}  // namespace cake::kda
