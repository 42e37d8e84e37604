// One rank of a KDA problem over ranks, for any communicator.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cake/core/parallel.h"
#include "ops/kda/kcp.h"
#include "tests/kda/cases.h"

namespace cake::test {

/// Rows of a [1, S, heads, ...] tensor, in the order given.
inline HostTensor pick_rows(const HostTensor& x, const std::vector<std::int64_t>& rows) {
  Shape shape = x.shape;
  shape[1] = static_cast<std::int64_t>(rows.size());
  HostTensor y(x.dtype, shape);
  const std::int64_t width = x.shape[1] == 0 ? 0 : x.numel() / x.shape[1];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::int64_t c = 0; c < width; ++c) y.set(static_cast<std::int64_t>(i) * width + c, x.at(rows[i] * width + c));
  }
  return y;
}

inline std::vector<std::int32_t> offsets_of(const KdaProblem& p) { return {p.offsets.begin(), p.offsets.end()}; }

/// Results of one rank.
using RankResults = std::map<std::string, HostTensor>;

inline RankResults run_rank(const KdaProblem& p, const kcp::Partition& partition, Communicator& comm, int threads) {
  const ScopedNumThreads scope(threads);
  const std::vector<std::int64_t> rows = partition.global_rows(comm.rank());
  const HostTensor q = pick_rows(p.q, rows), k = pick_rows(p.k, rows), v = pick_rows(p.v, rows),
                   g = pick_rows(p.g, rows), beta = pick_rows(p.beta, rows), dout = pick_rows(p.dout, rows);
  kda::Operands x;
  x.q = q.view();
  x.k = k.view();
  x.v = v.view();
  x.g = g.view();
  x.beta = beta.view();
  if (p.initial_state) x.initial_state = p.initial_state->view();
  if (p.A_log) x.A_log = p.A_log->view();
  if (p.dt_bias) x.dt_bias = p.dt_bias->view();
  const auto& o = p.spec.options;
  const kda::Settings settings{
      o.scale,           o.use_gate_in_kernel, o.lower_bound, o.use_qk_l2norm_in_kernel, o.use_beta_sigmoid_in_kernel,
      o.allow_neg_eigval};
  std::map<std::string, std::unique_ptr<LaidOutTensor>> made;
  const auto make = [&](const std::string& name, DType dtype, const Shape& shape) {
    auto tensor = std::make_unique<LaidOutTensor>(dtype, shape);
    tensor->fill(__builtin_nan(""));
    return made.emplace(name, std::move(tensor)).first->second->view();
  };
  kda::KcpKda op(partition, comm, x, settings);
  const Shape states = {p.N, p.spec.HV, p.spec.K, p.spec.V};
  op.forward({make("out", v.dtype, v.shape), make("final_state", DType::kFloat32, states)});
  kda::BackwardArguments a;
  a.dout = dout.view();
  if (p.d_final_state) a.d_final_state = p.d_final_state->view();
  a.results.dq = make("dq", q.dtype, q.shape);
  a.results.dk = make("dk", k.dtype, k.shape);
  a.results.dv = make("dv", v.dtype, v.shape);
  a.results.dg = make("dg", g.dtype, g.shape);
  a.results.dbeta = make("dbeta", beta.dtype, beta.shape);
  if (p.A_log) a.results.dA_log = make("dA_log", DType::kFloat32, p.A_log->shape);
  if (p.dt_bias) a.results.ddt_bias = make("ddt_bias", DType::kFloat32, p.dt_bias->shape);
  if (p.initial_state) a.results.dinitial_state = make("dinitial_state", DType::kFloat32, states);
  op.backward(a);
  RankResults results;
  for (const auto& [name, tensor] : made) {
    EXPECT_TRUE(tensor->guards_intact()) << name;
    results.emplace(name, tensor->gather());
  }
  return results;
}

}  // namespace cake::test
