#include "cake/core/cpu_isa.h"

#include <algorithm>
#include <thread>

#include "core/simd/simd_kernels.h"
#include "test_util.h"

namespace cake {
namespace {

using test::child_status;
using test::expect_error;
using test::run_in_child;

constexpr CpuIsa kLevels[] = {CpuIsa::kBase, CpuIsa::kV3, CpuIsa::kV4};

TEST(CpuIsa, NamesRoundTrip) {
  for (const CpuIsa isa : kLevels) EXPECT_EQ(parse_cpu_isa(cpu_isa_name(isa)), isa);
  EXPECT_STREQ(cpu_isa_name(CpuIsa::kBase), "base");
  EXPECT_STREQ(cpu_isa_name(CpuIsa::kV3), "v3");
  EXPECT_STREQ(cpu_isa_name(CpuIsa::kV4), "v4");
  for (const char* name : {"", "V3", "v3 ", "v2", "v5", "avx2", "x86-64-v3"}) {
    expect_error<InvalidArgument>([&] { parse_cpu_isa(name); }, {"base, v3 or v4", name});
  }
}

TEST(CpuIsa, SupportedLevelsAreThoseTheMachineHas) {
  const std::vector<CpuIsa> isas = supported_cpu_isas();
  EXPECT_EQ(isas.front(), CpuIsa::kBase);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  for (const CpuIsa isa : kLevels) {
    EXPECT_EQ(std::count(isas.begin(), isas.end(), isa), cpu_isa_supported(isa) ? 1 : 0);
  }
  // Independent of the level query: the instructions v3 and v4 stand for.
  __builtin_cpu_init();
  EXPECT_EQ(cpu_isa_supported(CpuIsa::kV3), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                                __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c"));
  EXPECT_EQ(cpu_isa_supported(CpuIsa::kV4), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                                __builtin_cpu_supports("avx512cd") &&
                                                __builtin_cpu_supports("avx512dq") &&
                                                __builtin_cpu_supports("avx512vl"));
}

TEST(CpuIsa, HighestSupportedIsTheDefault) {
  const auto in_child = run_in_child("CAKE_CPU_ISA", nullptr, [] { return cpu_isa_name(current_cpu_isa()); });
  EXPECT_EQ(in_child.status, 0);
  EXPECT_EQ(in_child.text, cpu_isa_name(supported_cpu_isas().back()));
  const auto empty = run_in_child("CAKE_CPU_ISA", "", [] { return cpu_isa_name(current_cpu_isa()); });
  EXPECT_EQ(empty.text, in_child.text);
}

TEST(CpuIsa, EnvironmentChoosesTheLevel) {
  for (const CpuIsa isa : kLevels) {
    const auto child = run_in_child("CAKE_CPU_ISA", cpu_isa_name(isa), [] { return cpu_isa_name(current_cpu_isa()); });
    if (cpu_isa_supported(isa)) {
      EXPECT_EQ(child.status, 0);
      EXPECT_EQ(child.text, cpu_isa_name(isa));
    } else {
      EXPECT_EQ(child.status, child_status(ErrorKind::kNotSupported));
      EXPECT_NE(child.text.find("CAKE_CPU_ISA"), std::string::npos);
      EXPECT_NE(child.text.find("not on this CPU"), std::string::npos);
    }
  }
}

TEST(CpuIsa, MalformedEnvironmentIsAnError) {
  for (const char* value : {"v9", "base,v3", "AVX2", " v3", "0"}) {
    const auto child = run_in_child("CAKE_CPU_ISA", value, [] { return cpu_isa_name(current_cpu_isa()); });
    EXPECT_EQ(child.status, child_status(ErrorKind::kInvalidArgument)) << value;
    EXPECT_NE(child.text.find("CAKE_CPU_ISA"), std::string::npos) << child.text;
    EXPECT_NE(child.text.find(value), std::string::npos) << child.text;
  }
}

TEST(CpuIsa, ScopeBeatsTheEnvironmentAndNests) {
  const auto child = run_in_child("CAKE_CPU_ISA", "base", [] {
    std::string seen = cpu_isa_name(current_cpu_isa());
    const CpuIsa highest = supported_cpu_isas().back();
    {
      const ScopedCpuIsa outer(highest);
      seen += current_cpu_isa() == highest ? " highest" : " wrong";
      {
        const ScopedCpuIsa inner(CpuIsa::kBase);
        seen += std::string(" ") + cpu_isa_name(current_cpu_isa());
      }
      seen += current_cpu_isa() == highest ? " highest" : " wrong";
    }
    return seen + " " + cpu_isa_name(current_cpu_isa());
  });
  EXPECT_EQ(child.text, "base highest base highest base");
}

TEST(CpuIsa, ScopeBelongsToItsThread) {
  const ScopedCpuIsa scope(CpuIsa::kBase);
  CpuIsa other{};
  std::thread([&] { other = current_cpu_isa(); }).join();
  EXPECT_EQ(current_cpu_isa(), CpuIsa::kBase);
  if (std::getenv("CAKE_CPU_ISA") == nullptr) {
    EXPECT_EQ(other, supported_cpu_isas().back());
  }
}

TEST(CpuIsa, UnsupportedLevelIsRefusedEverywhere) {
  for (const CpuIsa isa : kLevels) {
    if (cpu_isa_supported(isa)) {
      EXPECT_NO_THROW(simd_kernels(isa));
      continue;
    }
    expect_error<NotSupported>([&] { const ScopedCpuIsa scope(isa); }, {cpu_isa_name(isa), "not on this CPU"});
    expect_error<NotSupported>([&] { simd_kernels(isa); }, {cpu_isa_name(isa), "not on this CPU"});
  }
}

TEST(CpuIsa, EachLevelHasItsOwnKernels) {
  const std::vector<CpuIsa> isas = supported_cpu_isas();
  for (std::size_t i = 1; i < isas.size(); ++i) {
    EXPECT_NE(simd_kernels(isas[i]).exp, simd_kernels(isas[i - 1]).exp);
    EXPECT_NE(simd_kernels(isas[i]).dense_block, simd_kernels(isas[i - 1]).dense_block);
  }
  for (const CpuIsa isa : isas) {
    const ScopedCpuIsa scope(isa);
    EXPECT_EQ(&simd_kernels(), &simd_kernels(isa));
  }
}

}  // namespace
}  // namespace cake
