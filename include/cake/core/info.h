// Facts about this build, for bug reports and for `cake info`.
#pragma once

#include <string>
#include <vector>

#include "cake/core/export.h"

namespace cake {

/// How the library was built.
struct CAKE_API BuildInfo {
  std::string version;         ///< "0.1.0"
  std::string compiler;        ///< "GNU 12.2.0"
  std::string build_type;      ///< "Release"
  std::string threads;         ///< "oneTBB 2021.8" or "plain thread pool"
  bool cuda = false;           ///< a CUDA compiler was found and used
  long long segment = 0;       ///< kSegment of this build
  bool planted_fault = false;  ///< built with CAKE_PLANT_ORDER_FAULT (for testing the audit)
};

/// Facts about the libcake_core in use.
CAKE_API BuildInfo build_info();

/// One implementation of a package: its name, and why it was refused ("" when it can run here).
struct CAKE_API Implementation {
  std::string name;     ///< for example "cpu"
  std::string refused;  ///< why it cannot run here, or ""
};

}  // namespace cake
