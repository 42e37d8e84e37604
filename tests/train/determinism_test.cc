// The digest of a run: the same for every number of threads, task order and instruction set, and for a resumed run.
#include <gtest/gtest.h>

#include <optional>

#include "cake/core/cpu_isa.h"
#include "cake/core/parallel.h"
#include "examples/train_lm/checkpoint.h"
#include "examples/train_lm/trainer.h"
#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the trainer under test

std::string digest_after(const TrainConfig& config, int steps) {
  Trainer trainer(config, sample_corpus());
  for (int i = 0; i < steps; ++i) trainer.step();
  return trainer.digest();
}

TEST(Determinism, ThreadsAndTaskOrderDoNotChangeTheDigest) {
  const TrainConfig config = small_config();
  std::optional<std::string> first;
  for (const int threads : {1, 2, 3, 7}) {
    const ScopedNumThreads scope(threads);
    const std::string digest = digest_after(config, 3);
    if (!first) first = digest;
    EXPECT_EQ(digest, *first) << threads << " threads";
    const ScopedTaskShuffle shuffle(static_cast<std::uint64_t>(threads) * 17);
    EXPECT_EQ(digest_after(config, 3), *first) << threads << " threads, shuffled";
  }
}

TEST(Determinism, InstructionSetsDoNotChangeTheDigest) {
  TrainConfig config = small_config();
  config.batch_tokens = 300;
  std::optional<std::string> first;
  for (const CpuIsa isa : supported_cpu_isas()) {
    const ScopedCpuIsa scope(isa);
    const std::string digest = digest_after(config, 2);
    if (!first) first = digest;
    EXPECT_EQ(digest, *first) << cpu_isa_name(isa);
  }
}

TEST(Determinism, WhatIsPartOfTheBitsChangesThem) {
  const std::string digest = digest_after(small_config(), 2);
  TrainConfig config = small_config();
  config.seed = 2;
  EXPECT_NE(digest_after(config, 2), digest);
  config = small_config();
  config.shards = 3;
  EXPECT_NE(digest_after(config, 2), digest);
  config = small_config();
  config.model.ablate_kda = true;
  EXPECT_NE(digest_after(config, 2), digest);
  EXPECT_NE(digest_after(small_config(), 1), digest);
}

TEST(Determinism, ResumedRunEqualsUninterruptedOne) {
  const TemporaryFolder folder;
  const std::string file = folder / "run.ckpt";
  constexpr int kSteps = 11;  // over the end of the first epoch
  Trainer whole(small_config(), sample_corpus());
  for (int i = 0; i < kSteps; ++i) whole.step();
  EXPECT_GT(whole.state().position.epoch, 0);
  for (const int cut : {1, 3, 10}) {
    {
      const ScopedNumThreads scope(1);
      Trainer first(small_config(), sample_corpus());
      for (int i = 0; i < cut; ++i) first.step();
      save_checkpoint(file, first.state());
    }
    const ScopedNumThreads scope(2);
    Trainer second(load_checkpoint(file), sample_corpus());
    EXPECT_EQ(second.steps_done(), cut);
    for (int i = cut; i < kSteps; ++i) second.step();
    EXPECT_EQ(second.digest(), whole.digest()) << "cut after " << cut;
    const TrainState a = second.state(), b = whole.state();
    EXPECT_EQ(a.first, b.first);
    EXPECT_EQ(a.second, b.second);
    EXPECT_EQ(a.position, b.position);
    ASSERT_EQ(a.history.size(), b.history.size());
    for (std::size_t i = 0; i < a.history.size(); ++i) {
      EXPECT_EQ(a.history[i].loss, b.history[i].loss);
      EXPECT_EQ(a.history[i].learning_rate, b.history[i].learning_rate);
      EXPECT_EQ(a.history[i].gradient_norm, b.history[i].gradient_norm);
    }
  }
}

TEST(Determinism, TrainingLowersTheLoss) {
  TrainConfig config = small_config();
  config.optimizer.schedule_steps = 40;
  Trainer trainer(config, sample_corpus());
  for (int i = 0; i < 40; ++i) trainer.step();
  EXPECT_NEAR(trainer.history().front().loss, 5.6, 0.4);
  EXPECT_LT(final_loss(trainer.history()), 2.5);
}

TEST(Trainer, RefusesAnotherText) {
  Trainer trainer(small_config(), sample_corpus());
  trainer.step();
  Corpus other = sample_corpus();
  other.bytes[10] ^= 1;
  const TrainState state = trainer.state();
  const std::string message = message_of([&] { Trainer(state, other); });
  EXPECT_NE(message.find("text: the checkpoint was made from another text"), std::string::npos) << message;
  Corpus cut = sample_corpus();
  cut.borders[1] -= 1;
  EXPECT_NE(message_of([&] { Trainer(state, cut); }).find("another text"), std::string::npos);
}

TEST(Trainer, NonFiniteLossStopsWithoutAStep) {
  Trainer trainer(small_config(), sample_corpus());
  trainer.step();
  TrainState state = trainer.state();
  for (float& p : state.parameters) p *= 1e30f;
  Trainer broken(state, sample_corpus());
  const std::string digest = broken.digest();
  EXPECT_NE(message_of([&] { broken.step(); }).find("step 2 is not finite"), std::string::npos);
  EXPECT_EQ(broken.digest(), digest);
  EXPECT_EQ(broken.steps_done(), 1);
  EXPECT_EQ(broken.state().position, state.position);
}

}  // namespace
}  // namespace cake::test
