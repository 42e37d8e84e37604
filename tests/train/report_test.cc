// Loss curve, log and result line.
#include "examples/train_lm/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the reports under test

std::vector<StepRecord> falling(std::size_t steps) {
  std::vector<StepRecord> history(steps);
  for (std::size_t i = 0; i < steps; ++i) history[i].loss = 1.0 + 4.5 / static_cast<double>(i + 1);
  return history;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(FinalLoss, IsTheMeanOfTheLastTwentieth) {
  std::vector<StepRecord> history(41);
  for (std::size_t i = 0; i < history.size(); ++i) history[i].loss = static_cast<double>(i);
  EXPECT_DOUBLE_EQ(final_loss(history), 39.0);  // 41 / 20, rounded up: 3 steps
  history.resize(1);
  EXPECT_DOUBLE_EQ(final_loss(history), 0.0);
  EXPECT_DOUBLE_EQ(final_loss(falling(20)), 1.0 + 4.5 / 20.0);
}

TEST(ResultLine, HasTheFieldsInOneLine) {
  const std::string line = result_line({7, 5.5, 1.25, 1000.0, "sha256:ab"});
  EXPECT_EQ(count(line, "\n"), 0u);
  EXPECT_EQ(line, R"({"steps":7,"loss_first":5.5,"loss_last":1.25,"tokens_per_s":1000.0,"digest":"sha256:ab"})");
}

TEST(LossCurve, IsALabelledDrawingThatStaysInItsFrame) {
  for (const std::size_t steps : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{400}}) {
    const std::string svg = loss_curve_svg(falling(steps), "a <title> & more");
    EXPECT_EQ(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\""), 0u);
    EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
    EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
    EXPECT_NE(svg.find("a &lt;title&gt; &amp; more"), std::string::npos);
    EXPECT_NE(svg.find(">step<"), std::string::npos);
    EXPECT_NE(svg.find("cross-entropy (nats per byte)"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_EQ(count(svg, "<polyline"), steps == 0 ? 0u : 2u);
  }
  const std::string svg = loss_curve_svg(falling(400), "t");
  const std::size_t begin = svg.find("points=\"") + 8;
  const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
  EXPECT_EQ(count(points, ","), 400u);
  EXPECT_NE(svg.find(">400<"), std::string::npos) << "the last tick of the steps";
  EXPECT_NE(svg.find(">5<"), std::string::npos) << "a tick of the loss";
}

TEST(Log, HoldsOptionsStepsDigestsAndResult) {
  const TemporaryFolder folder;
  Trainer trainer(small_config(), sample_corpus());
  trainer.step();
  trainer.step();
  const RunResult result{2, trainer.history()[0].loss, trainer.history()[1].loss, 10.0, trainer.digest()};
  const std::string report = folder / "deep/report";
  write_report(report, trainer, {{1, "sha256:one"}, {2, trainer.digest()}}, result);
  const auto log = nlohmann::json::parse(read_text(report + "/log.json"));
  EXPECT_EQ(log.at("version"), 1);
  EXPECT_EQ(log.at("options").at("width"), 32);
  EXPECT_EQ(log.at("text").at("files"), 2);
  ASSERT_EQ(log.at("steps").size(), 2u);
  EXPECT_EQ(log.at("steps").at(1).at("step"), 2);
  EXPECT_EQ(log.at("steps").at(1).at("loss").get<double>(), trainer.history()[1].loss);
  EXPECT_EQ(log.at("digests").at(1).at("digest"), trainer.digest());
  EXPECT_EQ(log.at("result").at("digest"), trainer.digest());
  EXPECT_NE(read_text(report + "/loss.svg").find("<svg"), std::string::npos);
}

}  // namespace
}  // namespace cake::test
