// The trainer over ranks: losses, digests and checkpoints of one rank, for every number of ranks and both layouts, with
// documents that cross the borders between ranks in every awkward way.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "cake/comm.h"
#include "cake/core/error.h"
#include "cake/core/parallel.h"
#include "examples/train_lm/checkpoint.h"
#include "examples/train_lm/trainer.h"
#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the trainer under test
using kcp::Layout;

constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kZigzag};

/// Calls fn(ranks) on every rank of a group.
void on_ranks(int count, Layout layout, const std::function<void(const Ranks&)>& fn) {
  ThreadGroup group(count);
  group.run([&](Communicator& communicator) {
    const ScopedNumThreads threads(1);
    fn({&communicator, layout});
  });
}

std::string name_of(int ranks, Layout layout) { return std::to_string(ranks) + " ranks, " + kcp::layout_name(layout); }

/// What a rank holds after some steps.
struct Trained {
  std::string digest;
  TrainState state;
};

Trained train(const TrainConfig& config, int steps, const Ranks& ranks = {}) {
  Trainer trainer(config, sample_corpus(), ranks);
  for (int i = 0; i < steps; ++i) trainer.step();
  return {trainer.digest(), trainer.state()};
}

void expect_equal(const Trained& a, const Trained& b, const std::string& what) {
  EXPECT_EQ(a.digest, b.digest) << what;
  EXPECT_EQ(a.state.first, b.state.first) << what;
  EXPECT_EQ(a.state.second, b.state.second) << what;
  ASSERT_EQ(a.state.history.size(), b.state.history.size()) << what;
  for (std::size_t i = 0; i < a.state.history.size(); ++i) {
    EXPECT_EQ(a.state.history[i].loss, b.state.history[i].loss) << what << ", step " << i;
    EXPECT_EQ(a.state.history[i].gradient_norm, b.state.history[i].gradient_norm) << what << ", step " << i;
  }
}

/// Every rank's run of every group is the run of one rank.
void expect_ranks_do_not_matter(const TrainConfig& config, int steps) {
  const Trained one = train(config, steps);
  for (const Layout layout : kLayouts) {
    for (const int count : {1, 2, 3, 4}) {
      if (count > config.shards) continue;
      std::mutex mutex;
      on_ranks(count, layout, [&](const Ranks& ranks) {
        const Trained mine = train(config, steps, ranks);
        const std::lock_guard lock(mutex);
        expect_equal(mine, one, name_of(count, layout) + ", rank " + std::to_string(ranks.communicator->rank()));
      });
    }
  }
}

TEST(TrainRanks, BitsOfOneRank) { expect_ranks_do_not_matter(small_config(), 3); }

TEST(TrainRanks, ManyShortDocuments) {
  TrainConfig config = small_config();
  config.document_tokens = 5;
  config.batch_tokens = 450;
  expect_ranks_do_not_matter(config, 2);
}

TEST(TrainRanks, OneDocumentOverAllRanks) {
  TrainConfig config = small_config();
  config.document_tokens = 1 << 20;
  config.batch_tokens = 900;
  config.shards = 8;
  expect_ranks_do_not_matter(config, 2);
}

TEST(TrainRanks, MoreShardsThanBlocksAndRanksWithoutRows) {
  TrainConfig config = small_config();
  config.batch_tokens = 100;  // two blocks of 64 rows for 24 shards
  config.shards = kDefaultShards;
  expect_ranks_do_not_matter(config, 2);
  config.batch_tokens = 3;
  expect_ranks_do_not_matter(config, 2);
}

TEST(TrainRanks, AblationNeedsNoOtherRows) {
  TrainConfig config = small_config();
  config.model.ablate_kda = true;
  expect_ranks_do_not_matter(config, 2);
}

TEST(TrainRanks, ThreadsAndTaskOrderOfARankDoNotMatter) {
  const Trained one = train(small_config(), 2);
  ThreadGroup group(2);
  std::mutex mutex;
  group.run([&](Communicator& communicator) {
    const ScopedNumThreads threads(2 + communicator.rank());
    const ScopedTaskShuffle shuffle(static_cast<std::uint64_t>(communicator.rank()) + 5);
    const Trained mine = train(small_config(), 2, {&communicator, Layout::kZigzag});
    const std::lock_guard lock(mutex);
    expect_equal(mine, one, "rank " + std::to_string(communicator.rank()));
  });
}

TEST(TrainRanks, PackageOverRanksOnOneRank) {
  TrainConfig config = small_config();
  const Trained one = train(config, 2);
  config.package = "cake_kda_det_train_kcp";
  on_ranks(1, Layout::kContiguous, [&](const Ranks& ranks) { expect_equal(train(config, 2, ranks), one, "one rank"); });
  const std::string message = message_of([&] { train(config, 1); });
  EXPECT_NE(message.find("package: got \"cake_kda_det_train_kcp\" and no communicator"), std::string::npos) << message;
}

TEST(TrainRanks, NondeterministicPackageTrains) {
  TrainConfig config = small_config();
  const Trained one = train(config, 2);
  config.package = kNondetPackage;
  on_ranks(3, Layout::kZigzag, [&](const Ranks& ranks) {
    const Trained mine = train(config, 2, ranks);
    EXPECT_NEAR(mine.state.history[0].loss, one.state.history[0].loss, 1e-5);
    EXPECT_NEAR(mine.state.history[1].loss, one.state.history[1].loss, 1e-4);
  });
}

TEST(TrainRanks, ResumeWithAnotherNumberOfRanks) {
  const TemporaryFolder folder;
  constexpr int kSteps = 5;
  const TrainConfig config = small_config();
  Trainer whole(config, sample_corpus());
  for (int i = 0; i < kSteps; ++i) whole.step();
  save_checkpoint(folder / "whole", whole.state());

  const auto part = [&](int count, Layout layout, const std::string& from, int steps, const std::string& to) {
    on_ranks(count, layout, [&](const Ranks& ranks) {
      const auto corpus = std::make_shared<const Corpus>(sample_corpus());
      const auto trainer = from.empty() ? std::make_unique<Trainer>(config, corpus, ranks)
                                        : std::make_unique<Trainer>(load_checkpoint(folder / from), corpus, ranks);
      for (int i = 0; i < steps; ++i) trainer->step();
      if (ranks.communicator->rank() == 0) save_checkpoint(folder / to, trainer->state());
    });
  };
  part(3, Layout::kZigzag, "", 2, "a");
  part(1, Layout::kContiguous, "a", 1, "b");
  part(2, Layout::kContiguous, "b", 2, "c");
  EXPECT_EQ(read_text(folder / "c"), read_text(folder / "whole")) << "every byte of the checkpoint";
}

TEST(TrainRanks, RanksThatDisagreeAreRefusedOnAll) {
  ThreadGroup group(2);
  std::atomic<int> refused{0};
  group.run([&](Communicator& communicator) {
    TrainConfig config = small_config();
    config.seed = static_cast<std::uint64_t>(communicator.rank()) + 1;
    const std::string message = message_of([&] { train(config, 1, {&communicator, Layout::kContiguous}); });
    if (message.find("seed") != std::string::npos) refused += 1;
  });
  EXPECT_EQ(refused, 2);
}

TEST(TrainRanks, NonFiniteLossStopsAllRanks) {
  Trainer trainer(small_config(), sample_corpus());
  trainer.step();
  TrainState state = trainer.state();
  for (float& p : state.parameters) p *= 1e30f;
  std::atomic<int> stopped{0};
  on_ranks(3, Layout::kContiguous, [&](const Ranks& ranks) {
    Trainer broken(state, sample_corpus(), ranks);
    const std::string message = message_of([&] { broken.step(); });
    if (message.find("step 2 is not finite") != std::string::npos) stopped += 1;
  });
  EXPECT_EQ(stopped, 3);
}

}  // namespace
}  // namespace cake::test
