// A document in pieces: chained through final_state and initial_state, backward through the chain, against one call and
// against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {
namespace {

/// Rows [first, first + rows) of a one-document problem, with the given states.
KdaProblem piece_of(const KdaProblem& whole, std::int64_t first, std::int64_t rows, const HostTensor& initial,
                    const HostTensor& d_final) {
  KdaProblem piece = whole;
  piece.spec.lengths = {rows};
  piece.S = rows;
  piece.offsets = {0, rows};
  piece.cu_seqlens->set(1, static_cast<double>(rows));
  for (auto [to, from] : {std::pair{&piece.q, &whole.q},
                          {&piece.k, &whole.k},
                          {&piece.v, &whole.v},
                          {&piece.g, &whole.g},
                          {&piece.beta, &whole.beta},
                          {&piece.dout, &whole.dout}}) {
    Shape shape = from->shape;
    Shape flat(shape.begin() + 1, shape.end());
    shape[1] = rows;
    *to = from->reshaped(flat).rows(first, rows).reshaped(shape);
  }
  piece.initial_state = initial;
  piece.d_final_state = d_final;
  return piece;
}

void append(HostTensor& to, const HostTensor& more) {
  to.shape[1] += more.shape[1];
  to.bytes.insert(to.bytes.end(), more.bytes.begin(), more.bytes.end());
}

/// Forward through the pieces left to right, backward right to left; the results as of one call.
KdaResults run_chain(const KdaProblem& whole, const std::vector<std::int64_t>& pieces) {
  std::vector<HostTensor> states = {*whole.initial_state};
  std::int64_t first = 0;
  for (const std::int64_t rows : pieces) {
    states.push_back(run(piece_of(whole, first, rows, states.back(), *whole.d_final_state), {.forward_only = true})
                         .at("final_state"));
    first += rows;
  }
  std::vector<KdaResults> parts(pieces.size());
  HostTensor dstate = *whole.d_final_state;
  for (std::size_t i = pieces.size(); i > 0; --i) {
    first -= pieces[i - 1];
    parts[i - 1] = run(piece_of(whole, first, pieces[i - 1], states[i - 1], dstate));
    dstate = parts[i - 1].at("dinitial_state");
  }
  KdaResults results = parts[0];
  results["final_state"] = parts.back().at("final_state");
  for (std::size_t i = 1; i < parts.size(); ++i) {
    for (auto& [name, tensor] : results) {
      if (is_state(name)) continue;
      if (is_parameter_gradient(name)) {
        for (std::int64_t j = 0; j < tensor.numel(); ++j) tensor.set(j, tensor.at(j) + parts[i].at(name).at(j));
      } else {
        append(tensor, parts[i].at(name));
      }
    }
  }
  return results;
}

void expect_chains_as_accurate(const KdaProblem& whole, const std::vector<std::vector<std::int64_t>>& cuts) {
  const ReferenceResults reference = run_reference(whole);
  const KdaResults single = run(whole);
  EXPECT_TRUE(matches_reference(whole, single, reference));
  for (const std::vector<std::int64_t>& pieces : cuts) {
    const KdaResults chain = run_chain(whole, pieces);
    SCOPED_TRACE("first piece of " + std::to_string(pieces[0]) + ", " + std::to_string(pieces.size()) + " pieces");
    EXPECT_TRUE(matches_reference(whole, chain, reference));
    for (const auto& [name, tensor] : chain) {
      if (is_parameter_gradient(name)) continue;
      const std::vector<double>& expected = reference.tensors.at(name);
      const double error = relative_l2(tensor.doubles(), expected);
      EXPECT_LE(error, std::max(1.5 * relative_l2(single.at(name).doubles(), expected), 1e-6)) << name;
    }
  }
}

TEST(KdaChain, PiecesThroughStatesAreAsAccurateAsOneCall) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const GateRegime gate : {GateRegime::kWeak, GateRegime::kModerate}) {
      KdaSpec spec;
      spec.lengths = {200};
      spec.H = spec.HV = 2;
      spec.K = spec.V = 128;
      spec.dtype = dtype;
      spec.gate = gate;
      spec.initial_state = true;
      spec.seed = 1;
      expect_chains_as_accurate(make_problem(spec), {{1, 199}, {63, 137}, {64, 136}, {65, 135}, {1, 1, 198}});
    }
  }
}

TEST(KdaChain, PiecesOfADocumentOfSeveralSegments) {
  KdaSpec spec;
  spec.lengths = {3 * kSegment + 70};
  spec.HV = 2;
  set_long_document_heads(spec);
  use_every_activation(spec);
  spec.options.lower_bound = kFaintBound;
  spec.initial_state = true;
  spec.seed = 2;
  const KdaProblem whole = make_problem(spec);
  expect_chains_as_accurate(whole, {{kSegment, 2 * kSegment + 70},
                                    {kSegment + 1, kSegment, kSegment + 69},
                                    {1, 3 * kSegment + 69},
                                    {2 * kSegment - 1, kSegment + 71}});
}

}  // namespace
}  // namespace cake::test
