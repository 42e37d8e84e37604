// Problems and partitions for the tests over ranks, and the comparison with one rank bit by bit.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/kda/kcp_run.h"

namespace cake::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Where a case is slow: long documents, or every instruction checked.
inline constexpr bool kSlow = !kShortSegments || kSanitized;

/// Documents of small heads in which what a segment hands on matters to the next.
inline KdaSpec kcp_spec(std::vector<std::int64_t> lengths, bool every_activation = false) {
  KdaSpec spec;
  spec.lengths = std::move(lengths);
  spec.H = 1;
  spec.HV = 2;
  spec.K = kShortSegments ? 20 : 6;
  spec.V = kShortSegments ? 12 : 5;
  spec.initial_state = true;
  spec.beta_max = kShortSegments ? 1.0 : 0.01;
  spec.gate = kFaintGate;
  spec.seed = 41;
  if (every_activation) {
    use_every_activation(spec);
    spec.options.lower_bound = kFaintBound;
  }
  return spec;
}

/// Fragments at random, many of one row, some empty, dealt to random ranks in a random order.
inline kcp::Partition random_fragments(Random& random, const std::vector<std::int32_t>& offsets, int W) {
  std::vector<std::vector<kcp::Fragment>> fragments(static_cast<std::size_t>(W));
  const auto rank = [&]() -> std::vector<kcp::Fragment>& {
    return fragments[static_cast<std::size_t>(random.integer(0, W - 1))];
  };
  for (std::int64_t d = 0; d + 1 < static_cast<std::int64_t>(offsets.size()); ++d) {
    const std::int64_t rows = offsets[static_cast<std::size_t>(d) + 1] - offsets[static_cast<std::size_t>(d)];
    if (random.chance(0.2)) rank().push_back({d, random.integer(0, rows), 0});
    for (std::int64_t at = 0; at < rows;) {
      const std::int64_t n =
          std::min(rows - at, random.integer(1, random.pick<std::int64_t>({1, 5, 100, 3 * kSegment / 2})));
      rank().push_back({d, at, n});
      at += n;
    }
  }
  if (random.chance(0.5)) {
    for (auto& list : fragments) {
      for (std::size_t i = list.size(); i > 1; --i) {
        std::swap(list[i - 1], list[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
      }
    }
  }
  return kcp::Partition::from_fragments(offsets, fragments);
}

/// Cuts at random; equal ones (a rank without rows) and ones on a document's border are common.
inline kcp::Partition random_cuts(Random& random, const std::vector<std::int32_t>& offsets, int W) {
  std::vector<std::int64_t> cuts;
  for (int i = 1; i < W; ++i) {
    if (random.chance(0.2)) {
      cuts.push_back(random.pick(offsets));
    } else if (!cuts.empty() && random.chance(0.3)) {
      cuts.push_back(std::clamp<std::int64_t>(random.pick(cuts) + random.integer(-1, 1), 0, offsets.back()));
    } else {
      cuts.push_back(random.integer(0, offsets.back()));
    }
  }
  std::sort(cuts.begin(), cuts.end());
  return kcp::Partition::from_cut_points(offsets, cuts);
}

/// Where a partition cuts, for failure messages.
inline std::string partition_text(const kcp::Partition& partition) {
  std::ostringstream text;
  for (int r = 0; r < partition.world_size() && text.tellp() < 2000; ++r) {
    text << (r == 0 ? "rank " : "; rank ") << r << ':';
    for (const kcp::Fragment& f : partition.fragments(r)) {
      text << ' ' << f.document << '[' << f.offset << '+' << f.length << ']';
    }
  }
  return text.str();
}

/// What one rank alone gives: tensors of the single-rank package, partial sums of the package over ranks.
struct OneRank {
  KdaResults tensors;
  Partials partials;
};

inline OneRank one_rank(const KdaProblem& p) {
  OneRank one;
  one.tensors = run(p);
  one.partials = run_ranks<DetKcp>(p, kcp::Partition::make(offsets_of(p), 1)).at(0).partials;
  return one;
}

inline bool all_positive_zero(const HostTensor& x) {
  return std::all_of(x.bytes.begin(), x.bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

/// Every rank's states: those of its documents, exact 0 for the others, so that a sum over ranks is the whole.
inline void expect_states(const KdaProblem& p, const std::string& name, const HostTensor& whole,
                          const kcp::Partition& partition, const std::vector<RankResults>& ranks) {
  for (std::int64_t d = 0; d < p.N; ++d) {
    const int owner = rank_of_row(partition, d, name == "final_state");
    for (int r = 0; r < partition.world_size(); ++r) {
      const HostTensor state = ranks[static_cast<std::size_t>(r)].tensors.at(name).rows(d, 1);
      if (r == owner) {
        EXPECT_TRUE(same_bits(state, whole.rows(d, 1), name)) << "document " << d << " on rank " << r;
      } else {
        EXPECT_TRUE(all_positive_zero(state)) << name << " of document " << d << " on rank " << r << " is not 0";
      }
    }
  }
}

/// Compares all ranks' results with those of one rank, bit by bit.
inline void expect_bits(const KdaProblem& p, const OneRank& one, const kcp::Partition& partition,
                        const std::vector<RankResults>& ranks) {
  Partials partials;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto rows = partition.global_rows(static_cast<int>(r));
    for (const auto& [name, whole] : one.tensors) {
      const auto found = ranks[r].tensors.find(name);
      if (found == ranks[r].tensors.end()) {
        ADD_FAILURE() << name << " is missing on rank " << r;
      } else if (!is_state(name)) {
        EXPECT_TRUE(same_bits(found->second, is_parameter_gradient(name) ? whole : pick_rows(whole, rows), name))
            << "rank " << r << " of " << ranks.size();
      }
    }
    for (const auto& [key, sums] : ranks[r].partials) {
      EXPECT_TRUE(partials.emplace(key, sums).second)
          << "document " << key.first << ", segment " << key.second << " on two ranks";
    }
  }
  for (const auto& [name, whole] : one.tensors) {
    if (is_state(name)) expect_states(p, name, whole, partition, ranks);
  }
  EXPECT_EQ(partials.size(), one.partials.size());
  for (const auto& [key, sums] : one.partials) {
    const auto found = partials.find(key);
    const bool same = found != partials.end() && sums.size() == found->second.size() &&
                      std::memcmp(sums.data(), found->second.data(), sums.size() * sizeof(float)) == 0;
    EXPECT_TRUE(same) << "partial sum of document " << key.first << ", segment " << key.second;
  }
}

/// Runs the det package over the partition and compares with one rank.
inline void expect_one_rank_bits(const KdaProblem& p, const OneRank& one, const kcp::Partition& partition,
                                 const KcpRun& how = {}) {
  expect_bits(p, one, partition, run_ranks<DetKcp>(p, partition, how));
}

/// Results of all ranks brought together as one rank would hold them; states added up.
inline KdaResults gathered(const KdaProblem& p, const kcp::Partition& partition,
                           const std::vector<RankResults>& ranks) {
  KdaResults whole;
  for (const auto& [name, first] : ranks.at(0).tensors) {
    if (is_parameter_gradient(name)) {
      whole.emplace(name, first);
      continue;
    }
    Shape shape = first.shape;
    if (!is_state(name)) shape[1] = p.S;
    HostTensor& tensor = whole.emplace(name, HostTensor(first.dtype, shape)).first->second;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const HostTensor& part = ranks[r].tensors.at(name);
      if (is_state(name)) {
        for (std::int64_t i = 0; i < part.numel(); ++i) tensor.set(i, tensor.at(i) + part.at(i));
        continue;
      }
      const auto rows = partition.global_rows(static_cast<int>(r));
      const std::size_t width = p.S == 0 ? 0 : tensor.bytes.size() / static_cast<std::size_t>(p.S);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(tensor.bytes.data() + static_cast<std::size_t>(rows[i]) * width, part.bytes.data() + i * width,
                    width);
      }
    }
  }
  return whole;
}

/// All exchange forms.
inline const std::vector<kcp::Exchange>& all_exchanges() {
  static const std::vector<kcp::Exchange> list = {kcp::Exchange::kRelay, kcp::Exchange::kGather, kcp::Exchange::kAuto};
  return list;
}
inline const std::vector<kcp::Layout>& all_kcp_layouts() {
  static const std::vector<kcp::Layout> list = {kcp::Layout::kContiguous, kcp::Layout::kZigzag,
                                                kcp::Layout::kZigzagPerDocument};
  return list;
}

/// A way to run, drawn at random: none may change a bit.
inline KcpRun random_run(Random& random) {
  KcpRun how;
  how.exchange = random.pick(all_exchanges());
  how.tape = random.chance(0.3);
  if (random.chance(0.4)) how.save_transfer = random.chance(0.5);
  how.recompute = random.chance(0.25);
  how.threads = static_cast<int>(random.integer(1, 3));
  if (random.chance(0.3)) how.shuffle = random.bits();
  how.memory = random.pick<Memory>({Memory::kNone, Memory::kLibrary, Memory::kCaller});
  how.fill = random.pick<std::uint32_t>({kNanPattern, kHugePattern, 0u});
  how.misalignment = static_cast<std::size_t>(random.integer(0, 63));
  how.inputs = random.pick(all_layouts());
  how.outputs = random.pick(all_layouts());
  how.poison = random.chance(0.5) ? __builtin_nan("") : 1e30;
  return how;
}

/// The kind and text of the error of a call, "kind | text"; "none" when it has none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error_kind_name(error.kind())) + " | " + error.what();
  }
  return "none";
}

}  // namespace cake::test
