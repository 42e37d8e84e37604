// The two packages over ranks side by side: objects of one behind handles of the other, and the determinism alert.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cake/core/determinism.h"
#include "tests/kda/kcp_refused.h"
#include "tests/support/mode_words.h"

namespace cake::test {
namespace {

using kcp::Context;
using kcp::Partition;

KdaProblem pack() { return make_problem(kcp_spec({2 * kSegment + 70, 0, 65}, true)); }
Partition cut(const KdaProblem& p) {
  return Partition::from_cut_points(offsets_of(p), std::vector<std::int64_t>{kSegment + 70});
}

/// One package's objects and calls behind handles, on one rank.
template <class P>
struct Erased {
  Erased(const KdaProblem& p, const Context& context) : call(p, context) {
    auto saved_object = std::make_shared<typename P::Saved>();
    auto workspace_object = std::make_shared<typename P::Workspace>();
    call.workspace = workspace_object.get();
    call.saved = saved_object.get();
    call.forward();
    saved = make_handle(saved_object);
    workspace = make_handle(workspace_object);
    recompute = kcp::make_handle(std::make_shared<kcp::RecomputeHandle>());
    call.fill(kUnwritten);
  }
  void run_forward(const Handle& w, const Handle& s, const Handle& r = {}) {
    const ScopedNumThreads one(1);
    forward(call.inputs, call.context, call.outputs, call.options, w, s, r);
  }
  void run_backward(const Handle& w, const Handle& s) {
    const ScopedNumThreads one(1);
    backward(call.inputs, call.context, call.dout, call.d_final_state, call.gradients, call.options, w, s);
  }

  RankCall<P> call;
  Handle saved, workspace, recompute;
};

TEST(KdaKcpModes, ForeignObjectsAreRefusedWordForWord) {
  const KdaProblem p = pack();
  const Partition partition = cut(p);
  const KdaResults expected = run(p);
  ThreadGroup(2, kRefusalTimeout).run([&](Communicator& comm) {
    const Context context(partition, comm);
    Erased<DetKcp> mine(p, context);
    Erased<NondetKcp> other(p, context);
    const auto single_saved = kda_det_train::make_handle(std::make_shared<Det::Saved>());
    const auto single_saved_other = kda_nondet_train::make_handle(std::make_shared<Nondet::Saved>());
    const auto single_workspace = kda_det_train::make_handle(std::make_shared<Det::Workspace>());
    const auto single_workspace_other = kda_nondet_train::make_handle(std::make_shared<Nondet::Workspace>());
    const Handle a_context = kcp::make_handle(std::make_shared<Context>(context));
    const Handle a_partition = kcp::make_handle(std::make_shared<Partition>(partition));
    const Handle newer({"kda", "det", true, "saved", 2}, std::make_shared<int>(1));
    const Handle newer_other({"kda", "nondet", true, "saved", 2}, std::make_shared<int>(1));
    const Handle newer_recompute({"kcp", "", false, "recompute", 2}, std::make_shared<int>(1));
    const HostTensor rows = pick_rows(expected.at("dk"), partition.global_rows(comm.rank()));
    const auto both = [&](const std::string& kind, const std::string& word, const std::function<void()>& call,
                          const std::function<void()>& mirrored) {
      const std::string first = error_of(call), second = error_of(mirrored);
      EXPECT_EQ(first.find(kind + " | "), 0u) << first;
      EXPECT_NE(first.find(word), std::string::npos) << first;
      EXPECT_EQ(swapped(first), second);
      EXPECT_TRUE(mine.call.untouched() && other.call.untouched()) << first;
      // After a refusal the next correct call gives the bits it would have given.
      mine.run_backward(mine.workspace, mine.saved);
      EXPECT_TRUE(same_bits(mine.call.result("dk"), rows)) << first;
      mine.call.fill(kUnwritten);
    };
    const std::string package = "this saved set belongs to the backward of cake_kda_nondet_train_kcp";
    both(
        "WrongMode", package, [&] { mine.run_backward(mine.workspace, other.saved); },
        [&] { other.run_backward(other.workspace, mine.saved); });
    both(
        "WrongMode", package, [&] { mine.run_forward({}, other.saved); }, [&] { other.run_forward({}, mine.saved); });
    both(
        "WrongMode", "a workspace of the nondet mode", [&] { mine.run_backward(other.workspace, mine.saved); },
        [&] { other.run_backward(mine.workspace, other.saved); });
    both(
        "WrongMode", "a workspace of the nondet mode", [&] { mine.run_forward(other.workspace, {}); },
        [&] { other.run_forward(mine.workspace, {}); });
    // The saved set is judged first.
    both(
        "WrongMode", package, [&] { mine.run_backward(other.workspace, other.saved); },
        [&] { other.run_backward(mine.workspace, mine.saved); });
    // Objects of the package for one rank.
    both(
        "InvalidArgument", "saved: got a CakeKDADetSaved, expected a CakeKDADetKcpSaved",
        [&] { mine.run_backward({}, single_saved); }, [&] { other.run_backward({}, single_saved_other); });
    both(
        "InvalidArgument", "saved: got a CakeKDANondetSaved, expected a CakeKDADetKcpSaved",
        [&] { mine.run_forward({}, single_saved_other); }, [&] { other.run_forward({}, single_saved); });
    both(
        "WrongType", "workspace must be a CakeKDADetKcpWorkspace",
        [&] { mine.run_backward(single_workspace, mine.saved); },
        [&] { other.run_backward(single_workspace_other, other.saved); });
    both(
        "WrongType", "workspace must be a CakeKDADetKcpWorkspace", [&] { mine.run_forward(a_context, {}); },
        [&] { other.run_forward(a_context, {}); });
    both(
        "WrongType", "saved must be a CakeKDADetKcpSaved", [&] { mine.run_backward({}, mine.workspace); },
        [&] { other.run_backward({}, other.workspace); });
    both(
        "WrongType", "saved must be a CakeKDADetKcpSaved", [&] { mine.run_forward({}, mine.recompute); },
        [&] { other.run_forward({}, other.recompute); });
    both(
        "WrongType", "recompute must be a ", [&] { mine.run_forward({}, {}, a_partition); },
        [&] { other.run_forward({}, {}, a_partition); });
    both(
        "WrongType", "recompute must be a ", [&] { mine.run_forward({}, {}, mine.saved); },
        [&] { other.run_forward({}, {}, other.saved); });
    // Other versions.
    both(
        "InvalidArgument", "version 2, expected version 1", [&] { mine.run_backward({}, newer); },
        [&] { other.run_backward({}, newer_other); });
    both(
        "InvalidArgument", "version 2, expected version 1", [&] { mine.run_forward({}, {}, newer_recompute); },
        [&] { other.run_forward({}, {}, newer_recompute); });
    // And the right objects, a recompute handle among them.
    mine.run_forward(mine.workspace, mine.saved, mine.recompute);
    mine.run_forward(mine.workspace, mine.saved, mine.recompute);
    mine.run_backward({}, {});
    EXPECT_TRUE(same_bits(mine.call.result("dk"), rows));
  });
}

TEST(KdaKcpModes, AForeignObjectOnOneRankIsToldToTheOthers) {
  const KdaProblem p = pack();
  const Partition partition = cut(p);
  ThreadGroup(2, kRefusalTimeout).run([&](Communicator& comm) {
    const Context context(partition, comm);
    Erased<DetKcp> mine(p, context);
    Erased<NondetKcp> other(p, context);
    const auto check = [&](const std::string& kind, const std::function<void(bool wrong)>& call) {
      const std::string error = error_of([&] { call(comm.rank() == 1); });
      EXPECT_EQ(error.find(comm.rank() == 1 ? kind + " | " : std::string("CommError | rank 1: ")), 0u) << error;
      EXPECT_TRUE(mine.call.untouched()) << error;
    };
    check("WrongMode", [&](bool wrong) { mine.run_backward({}, wrong ? other.saved : mine.saved); });
    check("WrongMode", [&](bool wrong) { mine.run_backward(wrong ? other.workspace : Handle{}, mine.saved); });
    check("WrongMode", [&](bool wrong) { mine.run_forward({}, wrong ? other.saved : mine.saved); });
    check("WrongType", [&](bool wrong) { mine.run_forward({}, {}, wrong ? mine.saved : mine.recompute); });
  });
}

TEST(KdaKcpModes, Tags) {
  EXPECT_EQ(DetKcp::Saved::tag().text(), "cake/kda/det/kcp/saved/v1");
  EXPECT_EQ(NondetKcp::Saved::tag().text(), "cake/kda/nondet/kcp/saved/v1");
  EXPECT_EQ(DetKcp::Workspace::tag().text(), "cake/kda/det/kcp/workspace/v1");
  EXPECT_EQ(NondetKcp::Workspace::tag().text(), "cake/kda/nondet/kcp/workspace/v1");
  EXPECT_EQ(DetKcp::GateParamPartials::tag().text(), "cake/kda/det/kcp/partials/v1");
  EXPECT_EQ(NondetKcp::GateParamPartials::tag().text(), "cake/kda/nondet/kcp/partials/v1");
  EXPECT_EQ(kcp::RecomputeHandle::tag().text(), "cake/kcp/recompute/v1");
  EXPECT_TRUE(kda_det_train_kcp::is_supported() && kda_nondet_train_kcp::is_supported());
  EXPECT_FALSE(kda_det_train_kcp::is_supported({DeviceType::kCuda, 0}));
  for (const auto& list : {kda_det_train_kcp::implementations(), kda_nondet_train_kcp::implementations()}) {
    EXPECT_EQ(std::count_if(list.begin(), list.end(), [](const auto& x) { return x.refused.empty(); }), 1);
  }
}

std::mutex g_mutex;
std::vector<std::string> g_warnings;

class KdaKcpAlert : public testing::Test {
 protected:
  KdaKcpAlert() {
    g_warnings.clear();
    before_ = set_warning_handler([](const std::string& text) {
      const std::lock_guard lock(g_mutex);
      g_warnings.push_back(text);
    });
  }
  ~KdaKcpAlert() override { set_warning_handler(before_); }

  static void backward(RankCall<NondetKcp>& c, std::optional<DeterminismPolicy> policy = {}) {
    const ScopedNumThreads one(1);
    kda_nondet_train_kcp::backward(c.inputs, c.context, c.dout, c.d_final_state, c.gradients, c.options, c.workspace,
                                   c.saved, policy);
  }
  /// Every rank's error of `call`, on three ranks of which the last has no rows; sentinels in every result.
  std::vector<std::string> on_ranks(const std::function<void(int, RankCall<NondetKcp>&)>& call) const {
    std::vector<std::string> errors(3);
    ThreadGroup(3, kRefusalTimeout).run([&](Communicator& comm) {
      const Context context(partition, comm);
      RankCall<NondetKcp> c(p, context);
      c.fill(kUnwritten);
      std::string& error = errors[static_cast<std::size_t>(comm.rank())];
      error = error_of([&] { call(comm.rank(), c); });
      if (error != "none") {
        EXPECT_TRUE(c.untouched()) << error;
        EXPECT_TRUE(c.partials.empty()) << error;
      }
    });
    return errors;
  }

  KdaProblem p = make_problem(kcp_spec({100, 0, 65}, true));
  Partition partition = Partition::from_cut_points(offsets_of(p), std::vector<std::int64_t>{70, 165});

 private:
  WarningHandler before_;
};

TEST_F(KdaKcpAlert, ForbidsOnEveryRankBeforeAnythingIsWritten) {
  for (const std::string& error : on_ranks([](int, auto& c) { backward(c, DeterminismPolicy::kForbid); })) {
    EXPECT_EQ(error.find("NondeterminismAlert | "), 0u) << error;
    EXPECT_NE(error.find("cake::kda_nondet_train_kcp::backward does not have a deterministic implementation"),
              std::string::npos)
        << error;
    EXPECT_EQ(error.find("cake_kda_det"), std::string::npos) << "names another package: " << error;
  }
  EXPECT_TRUE(g_warnings.empty());
}

TEST_F(KdaKcpAlert, WarnsExactlyOncePerBackwardAndRank) {
  for (const std::size_t calls : {1u, 2u}) {
    for (const std::string& error : on_ranks([](int, auto& c) { backward(c, DeterminismPolicy::kWarn); })) {
      EXPECT_EQ(error, "none");
    }
    EXPECT_EQ(g_warnings.size(), 3 * calls);
  }
}

TEST_F(KdaKcpAlert, TheThreadsDefaultAndTheArgument) {
  const auto errors = on_ranks([](int, auto& c) {
    const ScopedDeterminismPolicy scope(DeterminismPolicy::kForbid);
    EXPECT_THROW(backward(c), NondeterminismAlert);
    EXPECT_TRUE(c.untouched());
    EXPECT_NO_THROW(backward(c, DeterminismPolicy::kAllow)) << "the argument beats the default";
    EXPECT_NO_THROW(c.forward()) << "forwards never alert";
    EXPECT_NO_THROW(c.reduce());
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "none");
  EXPECT_TRUE(g_warnings.empty());
}

TEST_F(KdaKcpAlert, ArgumentErrorsComeFirst) {
  const auto errors = on_ranks([](int rank, auto& c) {
    if (rank == 0) c.inputs.k.shape[3] -= 1;
    backward(c, DeterminismPolicy::kForbid);
  });
  EXPECT_EQ(errors[0].find("InvalidArgument | k: got"), 0u) << errors[0];
  EXPECT_EQ(errors[1].find("NondeterminismAlert | "), 0u) << errors[1] << ": a rank's own error comes first";
  for (const std::string& error : on_ranks([](int, auto& c) {
         NondetKcp::Workspace small(nullptr, 0);
         c.workspace = &small;
         backward(c, DeterminismPolicy::kForbid);
       })) {
    EXPECT_EQ(error.find("OutOfMemory | workspace"), 0u) << error;
  }
  EXPECT_TRUE(g_warnings.empty());
}

TEST_F(KdaKcpAlert, ARankThatForbidsAloneIsToldToTheOthers) {
  const auto errors = on_ranks(
      [](int rank, auto& c) { backward(c, rank == 1 ? DeterminismPolicy::kForbid : DeterminismPolicy::kAllow); });
  EXPECT_EQ(errors[1].find("NondeterminismAlert | "), 0u) << errors[1];
  for (const std::size_t r : {0u, 2u}) EXPECT_EQ(errors[r].find("CommError | rank 1: "), 0u) << errors[r];
}

TEST_F(KdaKcpAlert, APackWithoutRowsIsSilent) {
  p = make_problem(kcp_spec({0, 0}, true));
  partition = Partition::make(offsets_of(p), 3);
  for (const auto policy : {DeterminismPolicy::kForbid, DeterminismPolicy::kWarn}) {
    for (const std::string& error : on_ranks([&](int, auto& c) { backward(c, policy); })) EXPECT_EQ(error, "none");
  }
  EXPECT_TRUE(g_warnings.empty());
}

TEST_F(KdaKcpAlert, DetNeverAlerts) {
  ThreadGroup(3, kRefusalTimeout).run([&](Communicator& comm) {
    const Context context(partition, comm);
    for (const auto policy : {DeterminismPolicy::kForbid, DeterminismPolicy::kWarn}) {
      const ScopedDeterminismPolicy scope(policy);
      EXPECT_NO_THROW(run_rank<DetKcp>(p, context));
    }
  });
  EXPECT_TRUE(g_warnings.empty());
}

}  // namespace
}  // namespace cake::test
