#include "ops/kda/documents.h"

#include <algorithm>

#include "cake/core/canonical.h"
#include "ops/kda/cpu/kernels.h"

namespace cake::kda {
namespace {

template <class Visit>
void each_document(const Problem& problem, const ConstTensorView& cu_seqlens, Visit visit) {
  const auto* offsets = static_cast<const std::int32_t*>(cu_seqlens.data);
  for (std::int64_t n = 0; n < problem.N; ++n) {
    Document d{};
    if (problem.packed) {
      d.start = offsets[n * cu_seqlens.strides[0]];
      d.length = offsets[(n + 1) * cu_seqlens.strides[0]] - d.start;
    } else {
      d.batch = n;
      d.length = problem.S;
    }
    visit(n, d);
  }
}

}  // namespace

void append_document(Document& d, Totals& totals) {
  d.segments = (d.length + kSegment - 1) / kSegment;
  d.first_segment = totals.segments;
  d.first_border = totals.borders;
  d.first_transition = totals.transitions;
  d.first_pair = totals.pair_floats;
  d.pair_floats = d.length / kChunk * pair_floats(kChunk) + pair_floats(d.length % kChunk);
  totals.documents += 1;
  totals.segments += d.segments;
  totals.borders += d.borders();
  totals.transitions += d.transitions();
  totals.pair_floats += d.pair_floats;
  totals.longest_segment = std::max(totals.longest_segment, std::min<std::int64_t>(d.length, kSegment));
}

Totals count_documents(std::int64_t B, std::int64_t S, std::int64_t num_docs, std::span<const std::int32_t> offsets) {
  Totals totals;
  const auto append = [&](std::int64_t length) {
    Document d{};
    d.length = length;
    append_document(d, totals);
  };
  if (!offsets.empty()) {
    for (std::size_t i = 1; i < offsets.size(); ++i) append(std::int64_t{offsets[i]} - offsets[i - 1]);
  } else if (num_docs == B) {
    for (std::int64_t n = 0; n < B; ++n) append(S);
  } else {
    // A document of L rows has at most floor(L / kSegment) + 1 segments, floor(L / kSegment) borders, and products of
    // floor(L / kChunk) whole chunks and one ragged one; sums of floors are at most the floor of the sum.
    totals.documents = num_docs;
    totals.segments = std::min(S, num_docs + S / kSegment);
    totals.borders = S / kSegment;
    totals.transitions = S / kSegment;
    totals.pair_floats = (S / kChunk + std::min(S, num_docs)) * pair_floats(kChunk);
    totals.longest_segment = std::min<std::int64_t>(S, kSegment);
  }
  return totals;
}

Totals count_documents(const Problem& problem, const ConstTensorView& cu_seqlens) {
  Totals totals;
  each_document(problem, cu_seqlens, [&](std::int64_t, Document d) { append_document(d, totals); });
  return totals;
}

void list_documents(const Problem& problem, const ConstTensorView& cu_seqlens, Document* documents,
                    SegmentId* segments) {
  Totals totals;
  each_document(problem, cu_seqlens, [&](std::int64_t n, Document d) {
    append_document(d, totals);
    documents[n] = d;
    for (std::int64_t j = 0; j < d.segments; ++j) segments[d.first_segment + j] = {n, j};
  });
}

}  // namespace cake::kda
