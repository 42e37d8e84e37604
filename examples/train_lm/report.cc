#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>

#include "config_json.h"
#include "files.h"

namespace cake::train_lm {
namespace {

nlohmann::ordered_json result_json(const RunResult& r) {
  nlohmann::ordered_json j;
  j["steps"] = r.steps;
  j["loss_first"] = r.loss_first;
  j["loss_last"] = r.loss_last;
  j["tokens_per_s"] = r.tokens_per_s;
  j["digest"] = r.digest;
  return j;
}

/// Hours, minutes and seconds as people read them.
std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

std::string result_line(const RunResult& result) { return result_json(result).dump(); }

std::string log_json(const Trainer& trainer, const std::vector<DigestRecord>& digests, const RunResult& result) {
  nlohmann::ordered_json j;
  j["version"] = 1;
  j["options"] = config_to_json(trainer.config());
  j["text"] = {{"files", trainer.corpus().files()},
               {"bytes", trainer.corpus().bytes.size()},
               {"digest", corpus_digest(trainer.corpus())}};
  j["parameters"] = trainer.table().count();
  j["steps"] = nlohmann::ordered_json::array();
  std::int64_t step = 0;
  for (const StepRecord& r : trainer.history()) {
    j["steps"].push_back(
        {{"step", ++step}, {"loss", r.loss}, {"learning_rate", r.learning_rate}, {"gradient_norm", r.gradient_norm}});
  }
  j["digests"] = nlohmann::ordered_json::array();
  for (const DigestRecord& d : digests) j["digests"].push_back({{"step", d.step}, {"digest", d.digest}});
  j["result"] = result_json(result);
  return j.dump(1) + "\n";
}

void create_report_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError("report folder \"" + folder + "\" could not be made: " + error.message());
}

void write_report(const std::string& folder, const Trainer& trainer, const std::vector<DigestRecord>& digests,
                  const RunResult& result) {
  create_report_folder(folder);
  const std::filesystem::path base(folder);
  const std::string title = fmt::format("cake train: {} parameters, {} bytes of text", trainer.table().count(),
                                        trainer.corpus().bytes.size());
  const std::string svg = loss_curve_svg(trainer.history(), title), log = log_json(trainer, digests, result);
  write_file_atomically((base / "loss.svg").string(), {svg}, "report");
  write_file_atomically((base / "log.json").string(), {log}, "report");
}

Progress::Progress(std::int64_t first, std::int64_t last, std::int64_t tokens_per_step, bool terminal)
    : first_(first),
      last_(last),
      tokens_per_step_(tokens_per_step),
      done_(first),
      terminal_(terminal),
      start_(std::chrono::steady_clock::now()) {}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

double Progress::rate() const {
  const double s = seconds();
  return s > 0.0 ? static_cast<double>((done_ - first_) * tokens_per_step_) / s : 0.0;
}

void Progress::report(std::int64_t done, double loss) {
  done_ = done;
  smooth_ = done == first_ + 1 ? loss : 0.7 * smooth_ + 0.3 * loss;
  const double now = seconds();
  const double eta = now / static_cast<double>(done - first_) * static_cast<double>(last_ - done);
  if (terminal_) {
    if (now - last_drawn_ < 0.1 && done != last_) return;
    last_drawn_ = now;
    drawn_ = true;
    constexpr std::int64_t kBar = 24;
    const std::int64_t full = kBar * done / last_;
    std::string bar;
    for (std::int64_t i = 0; i < kBar; ++i) bar += i < full ? "█" : "░";
    fmt::print(stderr, "\r{} {}/{}  loss {:.3f}  {:.0f} tokens/s  ETA {}\x1b[K", bar, done, last_, smooth_, rate(),
               duration(eta));
    std::fflush(stderr);
    return;
  }
  const std::int64_t every = std::max<std::int64_t>(1, (last_ - first_ + 19) / 20);
  if (done != first_ + 1 && done != last_ && (done - first_) % every != 0) return;
  fmt::print(stderr, "step {}/{}  loss {:.3f}  {:.0f} tokens/s  ETA {}\n", done, last_, smooth_, rate(), duration(eta));
}

void Progress::finish() {
  if (drawn_) fmt::print(stderr, "\n");
  drawn_ = false;
}

}  // namespace cake::train_lm
