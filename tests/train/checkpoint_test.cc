// Checkpoints: whole or refused, and never lost to a full disk.
#include "examples/train_lm/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <iterator>

#include "examples/train_lm/config_json.h"
#include "examples/train_lm/files.h"
#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the checkpoints under test

TrainState sample_state() {
  TrainConfig config = small_config();
  config.model.layers = 1;
  config.seed = 0xfedcba9876543210u;  // beyond what a double holds
  config.optimizer.learning_rate = 1.0 / 3.0 * 0.01;
  Trainer trainer(config, sample_corpus());
  trainer.step();
  trainer.step();
  return trainer.state();
}

std::size_t entries(const TemporaryFolder& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

TEST(Checkpoint, RoundTripKeepsEverything) {
  const TemporaryFolder folder;
  const TrainState a = sample_state();
  save_checkpoint(folder / "c", a);
  const TrainState b = load_checkpoint(folder / "c");
  EXPECT_EQ(config_to_json(a.config), config_to_json(b.config));
  EXPECT_EQ(a.config.seed, b.config.seed);
  EXPECT_EQ(a.config.optimizer.learning_rate, b.config.optimizer.learning_rate);
  EXPECT_EQ(a.text_digest, b.text_digest);
  EXPECT_EQ(a.text_bytes, b.text_bytes);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.power1, b.power1);
  EXPECT_EQ(a.power2, b.power2);
  EXPECT_EQ(a.parameters, b.parameters);
  EXPECT_EQ(a.first, b.first);
  EXPECT_EQ(a.second, b.second);
  ASSERT_EQ(b.history.size(), 2u);
  EXPECT_EQ(a.history[1].loss, b.history[1].loss);
  EXPECT_EQ(entries(folder), 1u) << "no temporary file stays behind";
}

TEST(Checkpoint, RefusesEveryTruncation) {
  const TemporaryFolder folder;
  save_checkpoint(folder / "whole", sample_state());
  const std::string whole = read_text(folder / "whole"), file = folder / "cut";
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{4}, std::size_t{8}, std::size_t{31}, std::size_t{32}, std::size_t{63},
        std::size_t{64}, std::size_t{500}, whole.size() / 2, whole.size() - 32, whole.size() - 1}) {
    write_text(file, whole.substr(0, size));
    const std::string message = message_of([&] { load_checkpoint(file); });
    EXPECT_EQ(message.find("checkpoint \"" + file + "\" is truncated: " + std::to_string(size) + " bytes"), 0u)
        << message;
  }
  write_text(file, whole + "x");
  EXPECT_NE(message_of([&] { load_checkpoint(file); }).find("is corrupt"), std::string::npos);
}

TEST(Checkpoint, RefusesEveryFlippedByte) {
  const TemporaryFolder folder;
  save_checkpoint(folder / "whole", sample_state());
  const std::string whole = read_text(folder / "whole"), file = folder / "flipped";
  for (std::size_t at = 0; at < whole.size(); at += at < 700 ? 7 : 9973) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write_text(file, flipped);
    const std::string message = message_of([&] { load_checkpoint(file); });
    EXPECT_EQ(message.find("checkpoint \"" + file + "\" "), 0u) << "byte " << at << ": " << message;
  }
}

TEST(Checkpoint, RefusesForeignFilesOtherVersionsAndMissingOnes) {
  const TemporaryFolder folder;
  const std::string file = folder / "c";
  const auto message = [&] { return message_of([&] { load_checkpoint(file); }); };
  EXPECT_NE(message().find("cannot be read: No such file or directory"), std::string::npos);
  write_text(file, "PK\x03\x04 something else altogether, long enough to hold a header and a hash, and then some");
  EXPECT_NE(message().find("is not a checkpoint of cake train"), std::string::npos);
  save_checkpoint(file, sample_state());
  std::string bytes = read_text(file);
  bytes[8] = 2;
  write_text(file, bytes);
  EXPECT_NE(message().find("has version 2, this build reads version 1"), std::string::npos);
}

TEST(Checkpoint, MismatchNamesTheOption) {
  const TrainConfig saved = small_config();
  const auto message = [&](auto change) {
    TrainConfig given = saved;
    change(given);
    return message_of([&] { require_same_config(saved, given, "f"); });
  };
  EXPECT_EQ(message([](auto& c) { c.model.width = 64; }),
            "width: got 64, expected 32, with which the checkpoint \"f\" was made");
  EXPECT_EQ(message([](auto& c) { c.batch_tokens = 1; }).find("batch-tokens: got 1"), 0u);
  EXPECT_EQ(message([](auto& c) { c.seed = 9; }).find("seed: got 9"), 0u);
  EXPECT_EQ(message([](auto& c) { c.model.ablate_kda = true; }).find("ablate: got \"kda\""), 0u);
  EXPECT_EQ(message([](auto& c) { c.optimizer.schedule_steps = 99; }).find("schedule-steps: got 99"), 0u);
  require_same_config(saved, saved, "f");
}

/// A limit on the size of files: what write() answers is then what a full disk answers, in kind.
class ScopedFileLimit {
 public:
  explicit ScopedFileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~ScopedFileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  ScopedFileLimit(const ScopedFileLimit&) = delete;
  ScopedFileLimit& operator=(const ScopedFileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(Checkpoint, FullDiskLosesNothing) {
  const TemporaryFolder folder;
  const std::string file = folder / "c";
  const TrainState state = sample_state();
  save_checkpoint(file, state);
  const std::string before = read_text(file);
  for (const rlim_t room : {rlim_t{0}, rlim_t{10}, rlim_t{5000}, static_cast<rlim_t>(before.size() - 1)}) {
    std::string message;
    {
      const ScopedFileLimit limit(room);
      message = message_of([&] { save_checkpoint(file, state); });
    }
    EXPECT_NE(message.find("checkpoint \"" + file + "\" could not be written: File too large"), std::string::npos)
        << message;
    EXPECT_EQ(read_text(file), before) << "the old checkpoint must stay";
    EXPECT_EQ(entries(folder), 1u) << "the temporary file must go";
  }
  load_checkpoint(file);
}

TEST(Files, FailuresNameFileAndReason) {
  const TemporaryFolder folder;
  const std::string missing = folder / "no/such/folder/c";
  EXPECT_NE(message_of([&] {
              write_file_atomically(missing, {"x"}, "thing");
            }).find("thing \"" + missing + "\" could not be written: No such file or directory"),
            std::string::npos);
  std::filesystem::create_directory(folder / "taken");
  EXPECT_NE(message_of([&] { write_file_atomically(folder / "taken", {"x"}, "thing"); }).find("Is a directory"),
            std::string::npos);
  EXPECT_EQ(entries(folder), 1u);
  write_file_atomically(folder / "good", {"a", "", "bc"}, "thing");
  EXPECT_EQ(read_text(folder / "good"), "abc");
}

}  // namespace
}  // namespace cake::test
