// The benchmark of the KDA packages over ranks.
#pragma once

#include "bench.h"
#include "kda_packages.h"

namespace cake::tool {

/// Tokens of the problem where the user gives none: several segments for each of a few ranks.
inline constexpr std::int64_t kKcpBenchTokens = 32768;
/// The same for the bytes of `cake bench --comm`.
inline constexpr std::int64_t kCommTokens = 131072;
/// Most documents of those.
inline constexpr std::int64_t kCommDocuments = 1000;

/// KdaDetKcp or KdaNondetKcp: one document of T tokens over ranks as threads, beside the package on one rank.
template <class Package>
BenchReport bench_kcp(const BenchOptions& options);

/// Bytes moved, by the package's own count, on 2 and 4 ranks: documents of 8192 to 131072 tokens cut on borders of
/// segments, and 1 to 1000 documents in options.T tokens cut into even shares.
template <class Package>
CommReport comm_kcp(const BenchOptions& options);

}  // namespace cake::tool
