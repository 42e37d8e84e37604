// Problems drawn from a seed: shapes, documents, dtypes, data, gates, options, layouts, schedule, memory and mode. Each
// is compared with the reference, and two ways of running det bit by bit. CAKE_TEST_SEED repeats the seed a failure
// prints, CAKE_TEST_CASES sets the number of drawn problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {
namespace {

std::int64_t draw_length(Random& random) {
  if (random.chance(0.15)) return 0;
  if (random.chance(0.3)) return random.pick<std::int64_t>({1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129});
  if (random.chance(0.25)) {
    return std::max<std::int64_t>(1, random.integer(1, 4) * kSegment + random.pick<std::int64_t>({-64, -1, 0, 1, 63}));
  }
  return random.integer(1, 200);
}

std::int64_t draw_head_size(Random& random) {
  if (random.chance(0.2)) return random.pick<std::int64_t>({64, 100, 128, 256});
  return random.chance(0.3) ? random.pick<std::int64_t>({1, 15, 16, 17, 32}) : random.integer(1, 70);
}

/// Work of the reference: the problem is made smaller until it fits.
double work_of(const KdaSpec& spec) {
  double tokens = 0;
  for (const std::int64_t length : spec.lengths) tokens += static_cast<double>(length);
  return tokens * static_cast<double>(spec.HV * spec.K * spec.V);
}

KdaSpec draw_spec(std::uint64_t seed) {
  Random random(seed);
  KdaSpec spec;
  spec.seed = seed;
  spec.packed = !random.chance(0.2);
  spec.lengths.assign(static_cast<std::size_t>(random.integer(random.chance(0.1) ? 0 : 1, 6)), 0);
  for (std::int64_t& length : spec.lengths) length = draw_length(random);
  if (!spec.packed && !spec.lengths.empty()) {
    std::fill(spec.lengths.begin(), spec.lengths.end(), random.integer(0, 150));
  }
  if (spec.packed && random.chance(0.5)) spec.rows_past_end = random.integer(1, 80);
  spec.H = random.integer(1, 3);
  spec.HV = spec.H * random.integer(1, 3);
  // With few channels keys are nearly parallel, and the chunk form's sums cancel by any amount: HeadSizes and
  // OneChannelWithBetaAboveOne have those.
  spec.K = std::max<std::int64_t>(4, draw_head_size(random));
  spec.V = draw_head_size(random);
  while (work_of(spec) > 6e6) {
    if (spec.HV > spec.H) {
      spec.HV = spec.H;
    } else if (spec.H > 1) {
      spec.H = spec.HV = 1;
    } else if (spec.K * spec.V > 64) {
      (spec.K >= spec.V ? spec.K : spec.V) /= 2;
    } else {
      spec.lengths.pop_back();
    }
  }
  spec.dtype = random.pick(float_dtypes());
  spec.beta_fp32 = random.chance(0.3);
  spec.gate = random.pick(all_gate_regimes());
  spec.data = random.pick<DataKind>(
      {DataKind::kGaussian, DataKind::kGaussian, DataKind::kScaled, DataKind::kCorrelated, DataKind::kRepeated});
  if (random.chance(0.3)) spec.beta_max = std::pow(10.0, random.uniform(-3.0, 0.0));
  if (spec.dtype == DType::kFloat16 && spec.data == DataKind::kScaled) spec.data = DataKind::kGaussian;  // overflows
  spec.initial_state = random.chance(0.5);
  spec.final_state = random.chance(0.7);
  spec.d_final_state = random.chance(0.6);
  spec.options.use_qk_l2norm_in_kernel = random.chance(0.5);
  spec.options.use_beta_sigmoid_in_kernel = random.chance(0.5);
  spec.options.allow_neg_eigval = spec.options.use_beta_sigmoid_in_kernel && random.chance(0.5);
  if (random.chance(0.3)) spec.options.scale = static_cast<float>(random.uniform(-2.0, 2.0));
  spec.options.use_gate_in_kernel = random.chance(0.5);
  if (spec.options.use_gate_in_kernel) {
    spec.raw_gate_dtype = random.pick(float_dtypes());
    if (random.chance(0.5))
      spec.options.lower_bound = static_cast<float>(-6.0 * std::pow(10.0, random.uniform(-5.0, 0.0)));
    spec.A_log = !spec.options.lower_bound || random.chance(0.5);
    spec.dt_bias = random.chance(0.6);
    spec.flat_dt_bias = random.chance(0.5);
  }
  return spec;
}

KdaRun draw_run(Random& random, const KdaSpec& spec) {
  KdaRun how;
  how.threads = random.pick<int>({1, 2, 3, 7});
  if (random.chance(0.5)) how.shuffle = random.bits();
  how.recompute = random.chance(0.5);
  how.memory = random.pick<Memory>({Memory::kNone, Memory::kLibrary, Memory::kCaller});
  how.fill = random.pick<std::uint32_t>({kNanPattern, kHugePattern, 0u});
  how.misalignment = static_cast<std::size_t>(random.integer(0, 63));
  how.inputs = random.pick(all_layouts());
  how.outputs = random.pick(all_layouts());
  how.poison = random.chance(0.5) ? __builtin_nan("") : 1e30;
  how.tape = random.chance(0.3);
  how.lean = !how.recompute && random.chance(0.2);
  if (random.chance(0.3)) how.tail_passes = random.integer(1, 6);
  if (random.chance(0.2)) how.batch_tokens = random.integer(1, 2 * kSegment);
  if (random.chance(0.2)) how.max_docs_per_batch = random.integer(1, 4);
  how.plan = !how.recompute && random.chance(0.2);
  std::vector<CpuIsa> isas = supported_cpu_isas();
  if (work_of(spec) > 2e5) std::erase(isas, CpuIsa::kBase);
  if (!isas.empty() && random.chance(0.7)) how.isa = random.pick(isas);
  return how;
}

void check_seed(std::uint64_t seed) {
  const KdaSpec spec = draw_spec(seed);
  SCOPED_TRACE("CAKE_TEST_SEED=" + std::to_string(seed) + ": " + spec.text());
  const KdaProblem problem = make_problem(spec);
  Random random(seed ^ 0xc0ffee);
  const KdaResults one = run(problem, draw_run(random, spec)), two = run(problem, draw_run(random, spec));
  EXPECT_TRUE(same_bits(one, two));
  const ReferenceResults reference = run_reference(problem);
  EXPECT_TRUE(matches_reference(problem, one, reference));
  KdaRun other = draw_run(random, spec);
  other.nondet = true;
  EXPECT_TRUE(matches_reference(problem, run(problem, other), reference));
}

/// A number from the environment, or `otherwise`.
std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(KdaProperty, FixedSeeds) {
  if (std::getenv("CAKE_TEST_SEED") != nullptr) {
    check_seed(number_from("CAKE_TEST_SEED", 0));
    return;
  }
  const std::uint64_t cases = number_from("CAKE_TEST_CASES", 150);
  for (std::uint64_t seed = 1; seed <= cases && !HasFailure(); ++seed) check_seed(seed);
}

TEST(KdaProperty, FreshSeeds) {
  if (std::getenv("CAKE_TEST_SEED") != nullptr) GTEST_SKIP() << "CAKE_TEST_SEED is set";
  const std::uint64_t first = std::random_device{}();
  std::printf("fresh seeds from %llu on\n", static_cast<unsigned long long>(first));
  for (std::uint64_t seed = first; seed < first + 25 && !HasFailure(); ++seed) check_seed(seed);
}

}  // namespace
}  // namespace cake::test
