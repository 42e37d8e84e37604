// Gradients of the gate parameters over ranks: partial sums brought together and folded in one order.
#include <algorithm>

#include "comm/context_state.h"
#include "core/checks.h"
#include "core/fpenv.h"
#include "ops/kda/kcp.h"

namespace cake::kda {
namespace {

void check_gate_grads(const KcpPartials& partials, const TensorView& dA_log, const TensorView& ddt_bias) {
  if (!partials.filled) checks::fail("partials", "an empty object", "one filled by a backward");
  const Problem& p = partials.problem;
  const auto output = [&](const TensorView& x, const char* name) {
    checks::require_given(x, name);
    checks::require_dtype(x, name, {DType::kFloat32});
    checks::require_data(x, name);
    checks::require_not_expanded(x, name);
  };
  if (dA_log.given) {
    output(dA_log, "dA_log");
    checks::require_shape(dA_log, "dA_log", "[HV]", {p.HV});
  }
  if (ddt_bias.given) {
    output(ddt_bias, "ddt_bias");
    if (ddt_bias.ndim == 1) {
      checks::require_shape(ddt_bias, "ddt_bias", "[HV * K]", {p.HV * p.K});
    } else {
      checks::require_shape(ddt_bias, "ddt_bias", "[HV, K]", {p.HV, p.K});
    }
  }
}

/// Adds blocks to `totals` in the order that next() gives, nullptr at the end, and writes the gradients.
template <class Next>
void fold_blocks(const KcpPartials& partials, const TensorView& dA_log, const TensorView& ddt_bias, Next next) {
  const Problem& p = partials.problem;
  std::vector<float> memory(static_cast<std::size_t>(partials.block_floats()) + 16);
  Arena arena(memory.data(), memory.size() * sizeof(float), "sums");
  auto* totals = arena.take<float>(partials.block_floats());
  {
    const ScopedFpEnv env;
    const Kernels& table = kernels(current_cpu_isa());
    std::fill(totals, totals + partials.block_floats(), 0.0f);
    while (const float* block = next()) table.add(totals, block, partials.block_floats());
  }
  Call call{};
  call.problem = &p;
  call.extents = {p.H, p.HV, p.Kp(), p.Vp(), {}};
  BackwardResults results;
  results.dA_log = dA_log;
  results.ddt_bias = ddt_bias;
  write_params(call, results, totals);
}

}  // namespace

void local_kcp_grads(const KcpPartials& partials, const TensorView& dA_log, const TensorView& ddt_bias) {
  check_gate_grads(partials, dA_log, ddt_bias);
  std::int64_t n = 0;
  fold_blocks(partials, dA_log, ddt_bias, [&] { return n < partials.count ? partials.block(n++) : nullptr; });
}

void reduce_kcp_partials(const KcpPackage& package, const kcp::Context& context, const KcpPartials& partials,
                         const TensorView& dA_log, const TensorView& ddt_bias) {
  require_agreement(context.communicator(), package.module, [&]() -> AgreementFields {
    check_gate_grads(partials, dA_log, ddt_bias);
    if (partials.partition != context.state().digest) {
      checks::fail("partials", "those of a backward on another partition", "those of this context's");
    }
    return {{"module", package.module},
            {"call", "reduce_gate_param_grads"},
            {"partition", context.state().digest},
            {"HV", std::to_string(partials.problem.HV)},
            {"K", std::to_string(partials.problem.K)}};
  });
  const kcp::FoldPlan& plan = package.plan(context);
  // Which rank has the next block, in the order of the fold: of segments in pack order, or of ranks.
  std::vector<std::size_t> order;
  std::vector<std::int64_t> held(static_cast<std::size_t>(plan.world_size), 0);
  if (partials.by_rank) {
    for (std::size_t r = 0; r < held.size(); ++r) order.push_back(r);
  } else {
    for (const kcp::Chain& chain : plan.chains) order.push_back(static_cast<std::size_t>(chain.last_rank()));
  }
  for (const std::size_t r : order) ++held[r];
  const std::int64_t longest = *std::max_element(held.begin(), held.end()), block = partials.block_floats();
  if (longest == 0) return fold_blocks(partials, dA_log, ddt_bias, []() -> const float* { return nullptr; });
  std::vector<float> own(static_cast<std::size_t>(longest * block)), all(own.size() * held.size());
  if (partials.count > 0) std::copy_n(partials.block(0), partials.count * block, own.data());
  context.communicator().all_gather(own.data(), own.size() * sizeof(float), all.data());
  std::vector<std::int64_t> used(held.size(), 0);
  std::size_t at = 0;
  fold_blocks(partials, dA_log, ddt_bias, [&]() -> const float* {
    if (at == order.size()) return nullptr;
    const std::size_t r = order[at++];
    return all.data() + (static_cast<std::int64_t>(r) * longest + used[r]++) * block;
  });
}

}  // namespace cake::kda
