#include "benchmarks/token_kda.h"

#include <algorithm>
#include <string>

#include "cake/core/error.h"
#include "core/parallel.h"

namespace cake {

namespace isa_base {
extern const benchmarks::TokenKernels kSimdTokenKernels, kPlainTokenKernels;
}
namespace isa_v3 {
extern const benchmarks::TokenKernels kSimdTokenKernels, kPlainTokenKernels;
}
namespace isa_v4 {
extern const benchmarks::TokenKernels kSimdTokenKernels, kPlainTokenKernels;
}

namespace benchmarks {
namespace {

constexpr std::int64_t kLineFloats = 16;  // a 64-byte line

void require_isa(CpuIsa isa) {
  if (cpu_isa_supported(isa)) return;
  throw NotSupported(std::string("instruction-set level ") + cpu_isa_name(isa) + ": not on this CPU");
}

void require_extent(const char* name, std::int64_t extent) {
  if (extent >= 16 && extent <= 256 && extent % 16 == 0) return;
  throw InvalidArgument(std::string(name) + ": got " + std::to_string(extent) +
                        ", expected a multiple of 16 from 16 to 256 (token-by-token versions)");
}

std::int64_t checkpoints(std::int64_t tokens) { return (tokens + kCheckpointTokens - 1) / kCheckpointTokens; }

}  // namespace

const TokenKernels& simd_token_kernels(CpuIsa isa) {
  require_isa(isa);
  switch (isa) {
    case CpuIsa::kV4: return isa_v4::kSimdTokenKernels;
    case CpuIsa::kV3: return isa_v3::kSimdTokenKernels;
    case CpuIsa::kBase: break;
  }
  return isa_base::kSimdTokenKernels;
}

const TokenKernels& plain_token_kernels(CpuIsa isa) {
  require_isa(isa);
  switch (isa) {
    case CpuIsa::kV4: return isa_v4::kPlainTokenKernels;
    case CpuIsa::kV3: return isa_v3::kPlainTokenKernels;
    case CpuIsa::kBase: break;
  }
  return isa_base::kPlainTokenKernels;
}

TokenRun::TokenRun(const TokenKernels& kernels, const TokenProblem& problem) : kernels_(kernels), problem_(problem) {
  if (problem.T < 0 || problem.H < 1) {
    throw InvalidArgument("T, H: got " + std::to_string(problem.T) + ", " + std::to_string(problem.H) +
                          ", expected T >= 0 and H >= 1");
  }
  require_extent("K", problem.K);
  require_extent("V", problem.V);
  const std::int64_t state = problem.K * problem.V;
  worker_floats_ = problem.T * (problem.K + problem.V) + (checkpoints(problem.T) + kCheckpointTokens + 2) * state;
  workers_ = static_cast<int>(std::min<std::int64_t>(num_threads(), problem.H));
  memory_.resize(static_cast<std::size_t>(worker_floats_ * workers_ + kLineFloats));
}

TokenHeadMemory TokenRun::memory_of(int worker) {
  // Extents are multiples of 16 floats, so that with an aligned start every row is aligned to a line.
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  const std::uintptr_t skip = (64 - address % 64) % 64 / sizeof(float);
  TokenHeadMemory m{};
  m.decay = memory_.data() + skip + worker * worker_floats_;
  m.residual = m.decay + problem_.T * problem_.K;
  m.checkpoints = m.residual + problem_.T * problem_.V;
  m.states = m.checkpoints + checkpoints(problem_.T) * problem_.K * problem_.V;
  m.gradient = m.states + (kCheckpointTokens + 1) * problem_.K * problem_.V;
  return m;
}

void TokenRun::forward(const TokenResults& results) {
  parallel_for(problem_.H, workers_, [&](std::int64_t head, int worker) {
    kernels_.forward(problem_, head, false, memory_of(worker), results);
  });
}

void TokenRun::forward_backward(const TokenResults& results) {
  parallel_for(problem_.H, workers_, [&](std::int64_t head, int worker) {
    const TokenHeadMemory memory = memory_of(worker);
    kernels_.forward(problem_, head, true, memory, results);
    kernels_.backward(problem_, head, memory, results);
  });
}

}  // namespace benchmarks
}  // namespace cake
