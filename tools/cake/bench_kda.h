// The benchmark of the KDA packages.
#pragma once

#include "bench.h"

namespace cake::tool {

/// cake_kda_det_train: one document of T tokens, plain gate, H heads.
BenchReport bench_kda(const BenchOptions& options);

}  // namespace cake::tool
