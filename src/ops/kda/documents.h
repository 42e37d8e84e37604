// Documents, chunks and segments of a problem, and where each one's saved values lie. Everything is counted from a
// document's first row, so none of it depends on the other documents (design: the canonical order).
#pragma once

#include <cstdint>
#include <span>

#include "ops/kda/problem.h"

namespace cake::kda {

/// One document.
struct Document {
  std::int64_t batch, start, length;  ///< rows start .. start + length - 1 of batch row `batch`
  std::int64_t segments;              ///< 0 for an empty document
  std::int64_t first_segment;         ///< number of its segment 0 among all segments
  std::int64_t first_border;          ///< number of its first inner segment border
  std::int64_t first_transition;      ///< number of its first summarised segment's transition
  std::int64_t pair_floats;           ///< floats of its chunk products, per head
  std::int64_t first_pair;            ///< those of the documents before it, per head

  std::int64_t borders() const { return segments > 1 ? segments - 1 : 0; }
  std::int64_t transitions() const { return segments > 2 ? segments - 2 : 0; }
};

/// Sums over the documents, or upper bounds of them.
struct Totals {
  std::int64_t documents = 0, segments = 0, borders = 0, transitions = 0, pair_floats = 0;
  std::int64_t longest_segment = 0;  ///< rows
};

/// One segment of one document.
struct SegmentId {
  std::int64_t document, segment;
};

/// Fills the length-dependent fields of a document after `totals`, and adds it to them.
void append_document(Document& document, Totals& totals);

/// Exact totals from offsets (cu_seqlens), or of B documents of S rows when `offsets` is empty and num_docs == B, else
/// upper bounds over every packing of num_docs documents into S rows.
Totals count_documents(std::int64_t B, std::int64_t S, std::int64_t num_docs, std::span<const std::int32_t> offsets);
/// Exact totals of a checked problem; reads cu_seqlens.
Totals count_documents(const Problem& problem, const ConstTensorView& cu_seqlens);
/// Fills `documents` [N] and `segments` [totals.segments] of a checked problem.
void list_documents(const Problem& problem, const ConstTensorView& cu_seqlens, Document* documents,
                    SegmentId* segments);

}  // namespace cake::kda
