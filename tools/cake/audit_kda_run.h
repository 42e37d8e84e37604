// A run of one of the audit's KDA problems: its packs one after another, and the digests of what they leave.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "audit.h"
#include "audit_kda_pack.h"
#include "cake/core/canonical.h"
#include "core/fpenv.h"
#include "digest.h"

namespace cake::tool::audit_kda {

/// Adds one document's gradient of dt_bias to the fold over documents.
inline void fold(KdaArray& total, const KdaArray& part, bool first) {
  const ScopedFpEnv env;
  for (std::int64_t i = 0; i < total.width(); ++i) {
    float a = 0.0f, b = 0.0f;
    std::memcpy(&a, total.bytes.data() + 4 * i, 4);
    std::memcpy(&b, part.bytes.data() + 4 * i, 4);
    const float sum = first ? b : a + b;
    std::memcpy(total.bytes.data() + 4 * i, &sum, 4);
  }
}

/// The calls of a packing.
inline std::vector<Pack> packs_of(const KdaCase& c, Packing packing) {
  std::vector<std::size_t> order(c.lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (packing == Packing::kReversed) std::reverse(order.begin(), order.end());
  if (packing == Packing::kRotated) {
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2), order.end());
  }
  if (packing != Packing::kAlone) return {{order, c.padding}};
  std::vector<Pack> packs;
  packs.reserve(order.size());
  for (const std::size_t d : order) packs.push_back({{d}, 0});
  return packs;
}

/// A case with its operands and a line about it.
inline Problem make_problem(const char* name, const char* description, const KdaCase& c) {
  std::string lengths;
  for (const std::int64_t length : c.lengths) lengths += (lengths.empty() ? "" : ", ") + std::to_string(length);
  return {{name, std::string(description) + "; documents of " + lengths + " tokens"}, c, draw_kda_operands(c)};
}

/// Runs each pack by a CallType(problem, pack, variation); after_each(call, pack) sees it before it goes.
template <class CallType, class AfterEach>
AuditRun run_packs(const Problem& problem, const Variation& variation, AfterEach after_each) {
  AuditRun outcome;
  KdaArrays results = empty_kda_results(problem.kda);
  KdaArray folded;
  const std::vector<Pack> packs = packs_of(problem.kda, variation.packing);
  for (std::size_t i = 0; i < packs.size(); ++i) {
    CallType call(problem, packs[i], variation);
    outcome.mxcsr_kept = call.run() && outcome.mxcsr_kept;
    call.scatter(results);
    after_each(call, packs[i]);
    const auto part = results.find("ddt_bias");
    if (part == results.end()) continue;
    if (i == 0) folded = part->second;
    fold(folded, part->second, i == 0);
  }
  const bool one_segment = *std::max_element(problem.kda.lengths.begin(), problem.kda.lengths.end()) <= kSegment;
  for (auto& [name, array] : results) {
    TensorDigest entry{name, {}};
    if (array.axis != KdaAxis::kNone || variation.packing == Packing::kTogether) {
      entry.digest = sha256(array.bytes.data(), array.bytes.size());
    } else if (name == "ddt_bias" && variation.packing == Packing::kAlone && one_segment) {
      // A document of one segment alone gives its partial; their fold in pack order is the whole gradient.
      entry.digest = sha256(folded.bytes.data(), folded.bytes.size());
    }
    outcome.digests.push_back(entry);
  }
  return outcome;
}

}  // namespace cake::tool::audit_kda
