// The same problem gives the same bits for every number of threads, instruction-set level, task order, content and
// address of memory, saved set or recompute, and the caller's floating-point environment.
#include <gtest/gtest.h>
#include <immintrin.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {
namespace {

/// Documents of several segments, all activations, grouped heads, odd head sizes.
KdaProblem rich_problem(DType dtype = DType::kFloat32) {
  KdaSpec spec;
  spec.lengths = {3 * kSegment + 1, 0, 65, 2 * kSegment, 1, 130};
  spec.rows_past_end = 9;
  spec.H = 2;
  spec.HV = 4;
  spec.beta_max = kShortSegments ? 1.0 : 0.01;
  spec.K = kShortSegments ? 60 : 7;
  spec.V = kShortSegments ? 40 : 16;
  spec.dtype = spec.raw_gate_dtype = dtype;
  spec.initial_state = true;
  use_every_activation(spec);
  spec.options.lower_bound = kFaintBound;
  spec.seed = 1;
  return make_problem(spec);
}

/// A problem the emulated fused multiply-add of the base level can afford.
KdaProblem tiny_problem(DType dtype) {
  KdaSpec spec;
  spec.lengths = {70, 1, kShortSegments ? 2 * kSegment + 5 : 129};
  spec.H = 1;
  spec.HV = 2;
  spec.K = 17;
  spec.V = 9;
  spec.dtype = spec.raw_gate_dtype = dtype;
  spec.initial_state = true;
  use_every_activation(spec);
  spec.seed = 2;
  return make_problem(spec);
}

TEST(KdaBits, ThreadsAndTaskOrder) {
  const KdaProblem problem = rich_problem();
  const KdaResults expected = run(problem, {.threads = 1});
  for (const int threads : {1, 2, 3, 7}) {
    EXPECT_TRUE(same_bits(expected, run(problem, {.threads = threads}))) << threads << " threads";
    for (const std::uint64_t seed : {1, 2, 3}) {
      EXPECT_TRUE(same_bits(expected, run(problem, {.threads = threads, .shuffle = seed})))
          << threads << " threads, shuffle " << seed;
    }
  }
}

TEST(KdaBits, SavedSetOrRecompute) {
  for (const DType dtype : float_dtypes()) {
    const KdaProblem problem = rich_problem(dtype);
    const KdaResults expected = run(problem);
    for (const int threads : {1, 3}) {
      EXPECT_TRUE(same_bits(expected, run(problem, {.threads = threads, .recompute = true}))) << dtype_name(dtype);
    }
  }
}

TEST(KdaBits, ContentAndAddressOfMemory) {
  const KdaProblem problem = rich_problem(DType::kBFloat16);
  const KdaResults expected = run(problem);
  for (const std::uint32_t fill : {0u, kNanPattern, kHugePattern, 0xffffffffu}) {
    for (const std::size_t misalignment : {0, 1, 63}) {
      for (const bool recompute : {false, true}) {
        poison_heap(fill);
        EXPECT_TRUE(same_bits(expected, run(problem, {.threads = 2,
                                                      .recompute = recompute,
                                                      .memory = Memory::kCaller,
                                                      .fill = fill,
                                                      .misalignment = misalignment})))
            << "fill " << fill << ", misalignment " << misalignment << ", recompute " << recompute;
      }
    }
  }
  EXPECT_TRUE(same_bits(expected, run(problem, {.memory = Memory::kNone})));
}

TEST(KdaBits, InstructionSetLevels) {
  for (const CpuIsa isa : {CpuIsa::kBase, CpuIsa::kV3, CpuIsa::kV4}) {
    if (!cpu_isa_supported(isa)) std::printf("%s: not on this CPU\n", cpu_isa_name(isa));
  }
  for (const DType dtype : float_dtypes()) {
    for (const bool wide : {false, true}) {
      const KdaProblem problem = wide ? rich_problem(dtype) : tiny_problem(dtype);
      const KdaResults expected = run(problem);
      for (const CpuIsa isa : supported_cpu_isas()) {
        if (wide && isa == CpuIsa::kBase) continue;
        EXPECT_TRUE(same_bits(expected, run(problem, {.threads = 2, .isa = isa, .shuffle = 5, .recompute = true})))
            << cpu_isa_name(isa) << ' ' << dtype_name(dtype);
        EXPECT_TRUE(same_bits(expected, run(problem, {.threads = 1, .isa = isa})))
            << cpu_isa_name(isa) << ' ' << dtype_name(dtype);
      }
    }
  }
}

TEST(KdaBits, EveryGateRegimeOnEveryLevel) {
  for (const GateRegime gate : all_gate_regimes()) {
    KdaSpec spec;
    spec.lengths = {81, 20};
    spec.K = 12;
    spec.V = 20;
    spec.gate = gate;
    spec.seed = 3;
    const KdaProblem problem = make_problem(spec);
    const KdaResults expected = run(problem);
    EXPECT_TRUE(matches_reference(problem, expected));
    for (const CpuIsa isa : supported_cpu_isas()) {
      EXPECT_TRUE(same_bits(expected, run(problem, {.isa = isa})))
          << cpu_isa_name(isa) << ' ' << gate_regime_name(gate);
    }
  }
}

/// A process that keeps one core busy until the object dies.
class BusyProcess {
 public:
  BusyProcess() : pid_(fork()) {
    if (pid_ == 0) {
      for (std::atomic<unsigned> n{0};;) n.fetch_add(1);
    }
  }
  ~BusyProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  BusyProcess(const BusyProcess&) = delete;
  BusyProcess& operator=(const BusyProcess&) = delete;
  bool running() const { return pid_ > 0; }

 private:
  pid_t pid_;
};

TEST(KdaBits, RepeatsOnAnIdleAndOnABusyMachine) {
  KdaSpec spec;
  spec.lengths = {kShortSegments ? 3 * kSegment + 1 : 700, 65};
  spec.HV = 4;
  use_every_activation(spec);
  spec.seed = 4;
  const KdaProblem problem = make_problem(spec);
  const KdaResults expected = run(problem);
  const auto repeat = [&](int times) {
    for (int i = 0; i < times && !HasFailure(); ++i) {
      ASSERT_TRUE(same_bits(expected, run(problem, {.threads = 1 + i % 4, .recompute = i % 2 == 1}))) << "repeat " << i;
    }
  };
  repeat(25);
  const BusyProcess one, two;
  ASSERT_TRUE(one.running() && two.running());
  repeat(25);
}

TEST(KdaBits, TheCallersFloatingPointEnvironmentIsIgnoredAndComesBack) {
  constexpr unsigned kControl = 0xffc0u;  // all but the sticky flags
  const KdaProblem problem = rich_problem();
  const KdaResults expected = run(problem);
  const unsigned before = _mm_getcsr();
  for (const unsigned csr : {0x1f80u, 0x1f80u | 0x2000u, 0x1f80u | 0x4000u, 0x1f80u | 0x6000u, 0x1f80u | 0x8040u,
                             0x1f80u | 0x0040u | 0x6000u}) {
    KdaResults results;
    unsigned after = 0;
    for (const bool recompute : {false, true}) {
      for (const int threads : {1, 2}) {
        _mm_setcsr(csr);
        results = run(problem, {.threads = threads, .recompute = recompute});
        after = _mm_getcsr();
        _mm_setcsr(before);
        EXPECT_TRUE(same_bits(expected, results)) << "MXCSR " << csr;
        EXPECT_EQ(after & kControl, csr & kControl);
      }
    }
    _mm_setcsr(csr);
    EXPECT_THROW(kda_det_train::forward({}, {}), InvalidArgument);
    after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & kControl, csr & kControl);
  }
}

TEST(KdaBits, CallsFromSeveralThreadsAtOnce) {
  const KdaProblem problem = tiny_problem(DType::kFloat32);
  const KdaResults expected = run(problem);
  std::vector<KdaResults> results(4);
  {
    std::vector<std::jthread> callers;
    for (std::size_t i = 0; i < results.size(); ++i) {
      callers.emplace_back([&, i] {
        for (int repeat = 0; repeat < 5; ++repeat) results[i] = run(problem, {.threads = 1 + static_cast<int>(i)});
      });
    }
  }
  for (const KdaResults& result : results) EXPECT_TRUE(same_bits(expected, result));
}

TEST(KdaBits, AppendedTokensLeaveEarlierOutputsAlone) {
  // Chunks and segments are counted from a document's first row, never from its length. (A document's last segment is
  // not summarised, but its outputs start at the same border.)
  KdaSpec spec;
  spec.lengths = {3 * kSegment + 1};
  set_long_document_heads(spec);
  spec.gate = kFaintGate;
  spec.initial_state = true;
  spec.seed = 5;
  const KdaProblem problem = make_problem(spec);
  const KdaResults whole = run(problem, {.forward_only = true});
  const std::int64_t width = spec.HV * spec.V;
  for (const std::int64_t length : {std::int64_t{1}, std::int64_t{64}, std::int64_t{100}, kSegment, kSegment + 1,
                                    2 * kSegment, 2 * kSegment + 70, 3 * kSegment}) {
    KdaProblem part = problem;
    part.spec.lengths = {length};
    part.offsets = {0, length};
    part.cu_seqlens->set(1, static_cast<double>(length));
    const KdaResults results = run(part, {.forward_only = true});
    EXPECT_TRUE(same_bits(results.at("out").reshaped({problem.S, width}).rows(0, length),
                          whole.at("out").reshaped({problem.S, width}).rows(0, length), "out"))
        << length << " tokens";
  }
}

}  // namespace
}  // namespace cake::test
