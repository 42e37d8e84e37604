// Small helpers of the trainer's tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "examples/train_lm/data.h"
#include "examples/train_lm/trainer.h"

namespace cake::test {

/// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  /// Path of an entry.
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void write_text(const std::string& path, const std::string& content);
std::string read_text(const std::string& path);

/// Numbers in [-scale, scale), from a seed.
std::vector<float> random_floats(std::size_t count, std::uint64_t seed, float scale = 1.0f);
std::vector<double> widen(const std::vector<float>& values);

/// ||a - b|| / ||b||.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

/// Gradient of `f` at `x` by central differences in float64, each element in turn.
std::vector<double> numeric_gradient(const std::function<double(const std::vector<double>&)>& f, std::vector<double> x,
                                     double step = 1e-5);

/// A corpus of two files with repeating but not constant text, enough for several documents.
train_lm::Corpus sample_corpus();
/// A configuration that runs in milliseconds.
train_lm::TrainConfig small_config();

/// Message of the exception that `fn` throws; a test failure and "" when it throws none.
std::string message_of(const std::function<void()>& fn);

}  // namespace cake::test
