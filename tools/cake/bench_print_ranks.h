// What `cake bench` prints about ranks.
#pragma once

#include "bench.h"
#include "machine.h"

namespace cake::tool {

/// How the rows are cut, and the bytes by rank and phase.
void print_rank_bytes(const BenchReport& report);
/// The same for programs.
void add_ranks_json(const BenchReport& report, Json& out);

}  // namespace cake::tool
