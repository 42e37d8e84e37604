#include "ops/kda/documents.h"

#include <algorithm>
#include <limits>

#include "cake/core/canonical.h"
#include "ops/kda/cpu/kernels.h"

namespace cake::kda {
namespace {

std::int64_t limit(std::int64_t x) { return x > 0 ? x : std::numeric_limits<std::int64_t>::max(); }

/// Field by field: the sum of both, or the larger one. The longest segment is never a sum.
template <class Combine>
void merge(Totals& a, const Totals& b, Combine combine) {
  a.documents = combine(a.documents, b.documents);
  a.segments = combine(a.segments, b.segments);
  a.borders = combine(a.borders, b.borders);
  a.transitions = combine(a.transitions, b.transitions);
  a.pair_floats = combine(a.pair_floats, b.pair_floats);
  a.chunks = combine(a.chunks, b.chunks);
  a.rows = combine(a.rows, b.rows);
  a.longest_segment = std::max(a.longest_segment, b.longest_segment);
}

}  // namespace

void append_document(Document& d, Totals& totals) {
  d.segments = (d.length + kSegment - 1) / kSegment;
  d.chunks = (d.length + kChunk - 1) / kChunk;
  d.pair_floats = d.length / kChunk * pair_floats(kChunk) + pair_floats(d.length % kChunk);
  d.first_segment = totals.segments;
  d.first_border = totals.borders;
  d.first_transition = totals.transitions;
  d.first_pair = totals.pair_floats;
  d.first_chunk = totals.chunks;
  d.first_row = totals.rows;
  const Totals own{1,
                   d.segments,
                   d.borders(),
                   d.transitions(),
                   d.pair_floats,
                   d.chunks,
                   d.length,
                   std::min<std::int64_t>(d.length, kSegment)};
  add_totals(totals, own);
}

void add_totals(Totals& sum, const Totals& x) {
  merge(sum, x, [](std::int64_t a, std::int64_t b) { return a + b; });
}

Lengths Lengths::of(const Problem& problem, const ConstTensorView& cu_seqlens) {
  if (!problem.packed) return {problem.B, problem.S};
  return {static_cast<const std::int32_t*>(cu_seqlens.data), cu_seqlens.strides[0], problem.N};
}

Group next_group(const Lengths& lengths, const Grouping& grouping, std::int64_t first) {
  Group group;
  group.first = first;
  for (std::int64_t n = first; n < lengths.count(); ++n) {
    Document d{};
    d.length = lengths.length(n);
    const bool fits =
        group.totals.rows + d.length <= limit(grouping.tokens) && group.totals.documents < limit(grouping.documents);
    if (n > first && !fits) break;
    append_document(d, group.totals);
  }
  return group;
}

GroupedTotals count_documents(const Lengths& lengths, const Grouping& grouping) {
  GroupedTotals all;
  for (std::int64_t n = 0; n < lengths.count();) {
    const Group group = next_group(lengths, grouping, n);
    add_totals(all.sum, group.totals);
    merge(all.largest, group.totals, [](std::int64_t x, std::int64_t y) { return std::max(x, y); });
    n += group.totals.documents;
  }
  return all;
}

GroupedTotals bound_documents(std::int64_t S, std::int64_t num_docs, const Grouping& grouping) {
  // A document of L rows has at most floor(L / kSegment) + 1 segments, floor(L / kSegment) borders, and products of
  // floor(L / kChunk) whole chunks and one ragged one; sums of floors are at most the floor of the sum.
  const auto bound = [S](std::int64_t documents) {
    Totals t;
    t.documents = documents;
    t.segments = std::min(S, documents + S / kSegment);
    t.borders = S / kSegment;
    t.transitions = S / kSegment;
    t.chunks = S / kChunk + std::min(S, documents);
    t.pair_floats = t.chunks * pair_floats(kChunk);
    t.rows = S;
    t.longest_segment = std::min<std::int64_t>(S, kSegment);
    return t;
  };
  // One document may have all the rows, so a limit on tokens bounds nothing; one on documents does.
  return {bound(num_docs), bound(std::min(num_docs, limit(grouping.documents)))};
}

void list_documents(const Lengths& lengths, const Group& group, Document* documents, SegmentId* segments) {
  Totals totals;
  for (std::int64_t i = 0; i < group.totals.documents; ++i) {
    const std::int64_t n = group.first + i;
    Document d{};
    d.number = n;
    d.batch = lengths.packed() ? 0 : n;
    d.start = lengths.start(n);
    d.length = lengths.length(n);
    append_document(d, totals);
    documents[i] = d;
    for (std::int64_t j = 0; j < d.segments; ++j) segments[d.first_segment + j] = {i, j};
  }
}

}  // namespace cake::kda
