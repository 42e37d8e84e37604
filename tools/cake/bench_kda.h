// The benchmark of the KDA packages.
#pragma once

#include "bench.h"
#include "kda_packages.h"

namespace cake::tool {

/// KdaDet or KdaNondet: one document of T tokens, plain gate, H heads; the other mode's package beside it.
template <class Package>
BenchReport bench_kda(const BenchOptions& options);

}  // namespace cake::tool
