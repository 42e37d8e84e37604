// A correct call over three ranks that a test spoils on some of them: what each rank throws, that nothing was written,
// and that the next correct call gives its bits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/kda/kcp_cases.h"

namespace cake::test {

inline constexpr int kRefusalRanks = 3;
inline constexpr double kUnwritten = 1234.5;
/// A rank that waits alone fails after this time; no refusal may come that way.
inline constexpr std::chrono::milliseconds kRefusalTimeout{20'000};

/// Two documents over three ranks, a chunk cut by the first border.
template <class P>
class Refusals {
 public:
  using Call = RankCall<P>;
  explicit Refusals(bool raw_gate = true, bool with_states = true)
      : p(make_problem(spec(raw_gate, with_states))),
        partition(kcp::Partition::from_cut_points(offsets_of(p), std::vector<std::int64_t>{30, 72})),
        expected(run_ranks<P>(p, partition)) {}

  static KdaSpec spec(bool raw_gate, bool with_states = true) {
    KdaSpec s;
    s.lengths = {70, 0, 9};
    s.H = 2;
    s.HV = 4;
    s.K = 6;
    s.V = 5;
    s.dtype = DType::kBFloat16;
    s.initial_state = s.d_final_state = with_states;
    s.options.use_gate_in_kernel = raw_gate;
    return s;
  }

  /// Calls forward or backward after `spoil(rank, call)`. Returns each rank's error, "kind | text" or "none".
  std::vector<std::string> errors(bool backward, const std::function<void(int, Call&)>& spoil,
                                  const KcpRun& how = {}) const {
    std::vector<std::string> errors(kRefusalRanks);
    std::vector<RankResults> after(kRefusalRanks);
    ThreadGroup(kRefusalRanks, kRefusalTimeout).run([&](Communicator& comm) {
      const int r = comm.rank();
      const kcp::Context context(partition, comm);
      typename P::Workspace workspace;
      typename P::Saved saved;
      Call good(p, context, how), call(p, context, how);
      good.workspace = call.workspace = &workspace;
      good.saved = call.saved = &saved;
      good.forward();
      call.fill(kUnwritten);
      spoil(r, call);
      errors[static_cast<std::size_t>(r)] = error_of([&] { backward ? call.backward() : call.forward(); });
      EXPECT_TRUE(call.untouched()) << "a result was written: " << errors[static_cast<std::size_t>(r)];
      EXPECT_TRUE(call.partials.empty());
      if (!backward) good.forward();
      good.backward();
      good.reduce();
      after[static_cast<std::size_t>(r)] = good.results();
    });
    for (std::size_t r = 0; r < after.size(); ++r) {
      for (const auto& [name, tensor] : expected[r].tensors) {
        if (P::kNondet && is_parameter_gradient(name)) continue;
        EXPECT_TRUE(same_bits(after[r].tensors.at(name), tensor, name)) << "after " << errors[r];
      }
    }
    return errors;
  }

  /// Every rank throws InvalidArgument saying that `field` differs between ranks.
  void expect_mismatch(const std::string& field, bool backward, const std::function<void(int, Call&)>& spoil,
                       const KcpRun& how = {}) const {
    SCOPED_TRACE(std::string(P::kModule) + (backward ? ", backward: " : ", forward: ") + field);
    for (const std::string& error : errors(backward, spoil, how)) {
      EXPECT_EQ(error.find("InvalidArgument | "), 0u) << error;
      EXPECT_NE(error.find(": " + field + " differs between ranks: rank 0 "), std::string::npos) << error;
      EXPECT_NE(error.find(", rank 2 "), std::string::npos) << error;
    }
  }

  /// Rank 1 throws its own error, which holds `word`; the others say which rank failed and why.
  void expect_own_error(const std::string& kind, const std::string& word, bool backward,
                        const std::function<void(Call&)>& spoil) const {
    SCOPED_TRACE(std::string(P::kModule) + (backward ? ", backward: " : ", forward: ") + word);
    const auto list = errors(backward, [&](int rank, Call& call) {
      if (rank == 1) spoil(call);
    });
    const std::string& own = list.at(1);
    EXPECT_EQ(own.find(kind + " | "), 0u) << own;
    EXPECT_NE(own.find(word), std::string::npos) << own;
    const std::string text = own.substr(own.find('|') + 2);
    for (const std::size_t r : {0u, 2u}) {
      EXPECT_EQ(list[r].find("CommError | rank 1: "), 0u) << list[r];
      EXPECT_NE(list[r].find(text), std::string::npos) << list[r];
    }
  }

  KdaProblem p;
  kcp::Partition partition;
  std::vector<RankResults> expected;
};

}  // namespace cake::test
