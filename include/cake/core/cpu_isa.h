// Instruction-set levels of the CPU implementation. All give the same bits.
#pragma once

#include <string>
#include <vector>

#include "cake/core/export.h"

namespace cake {

/// x86-64 micro-architecture level a kernel was built for.
enum class CpuIsa {
  kBase,  ///< x86-64: fused multiply-add emulated exactly, slow
  kV3,    ///< x86-64-v3: AVX2, FMA, F16C
  kV4,    ///< x86-64-v4: AVX-512 F, BW, CD, DQ, VL
};

/// "base", "v3" or "v4".
CAKE_API const char* cpu_isa_name(CpuIsa isa);
/// Inverse of cpu_isa_name. Throws InvalidArgument naming the accepted levels.
CAKE_API CpuIsa parse_cpu_isa(const std::string& name);
/// True when this processor and operating system can run the level.
CAKE_API bool cpu_isa_supported(CpuIsa isa);
/// Levels this machine runs, lowest first.
CAKE_API std::vector<CpuIsa> supported_cpu_isas();
/// The level in use: the scope's, else CAKE_CPU_ISA, else the highest supported. Throws NotSupported when CAKE_CPU_ISA
/// names a level this machine lacks, InvalidArgument when it names none.
CAKE_API CpuIsa current_cpu_isa();

/// Uses one level for calls made from this thread, for a scope. Throws NotSupported if this machine lacks it.
class CAKE_API ScopedCpuIsa {
 public:
  /// Throws NotSupported if this machine lacks the level.
  explicit ScopedCpuIsa(CpuIsa isa);
  ~ScopedCpuIsa();
  ScopedCpuIsa(const ScopedCpuIsa&) = delete;
  ScopedCpuIsa& operator=(const ScopedCpuIsa&) = delete;

 private:
  int before_;
};

}  // namespace cake
