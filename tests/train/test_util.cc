#include "tests/train/test_util.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <iterator>

#include "examples/train_lm/random.h"

namespace cake::test {

TemporaryFolder::TemporaryFolder() {
  static std::atomic<int> count{0};
  path_ = std::filesystem::temp_directory_path() /
          ("cake_train_test_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
  std::filesystem::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

void write_text(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out << content;
  ASSERT_TRUE(out.good()) << path;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<float> random_floats(std::size_t count, std::uint64_t seed, float scale) {
  train_lm::Random random(seed, train_lm::RandomStream::kInit, 12345);
  std::vector<float> values(count);
  for (float& v : values) v = scale * (2.0f * random.uniform() - 1.0f);
  return values;
}

std::vector<double> widen(const std::vector<float>& values) { return {values.begin(), values.end()}; }

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

std::vector<double> numeric_gradient(const std::function<double(const std::vector<double>&)>& f, std::vector<double> x,
                                     double step) {
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double before = x[i];
    x[i] = before + step;
    const double above = f(x);
    x[i] = before - step;
    gradient[i] = (above - f(x)) / (2.0 * step);
    x[i] = before;
  }
  return gradient;
}

train_lm::Corpus sample_corpus() {
  std::string text;
  for (int i = 0; i < 120; ++i) text += "line " + std::to_string(i * i % 97) + " of a text with some order in it;\n";
  train_lm::Corpus corpus;
  corpus.bytes.assign(text.begin(), text.end());
  corpus.borders = {0, 1000, static_cast<std::int64_t>(text.size())};
  return corpus;
}

train_lm::TrainConfig small_config() {
  train_lm::TrainConfig config;
  config.model.layers = 2;
  config.model.width = 32;
  config.model.heads = 2;
  config.batch_tokens = 500;
  config.document_tokens = 150;
  config.shards = 5;
  config.optimizer.warmup_steps = 2;
  config.optimizer.schedule_steps = 8;
  return config;
}

std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const std::exception& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace cake::test
