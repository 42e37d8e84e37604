// What a run leaves for its reader: a loss curve (SVG), a log (JSON) and the progress line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer.h"

namespace cake::train_lm {

/// Digest of the parameters after a number of steps.
struct DigestRecord {
  std::int64_t step = 0;
  std::string digest;
};

/// Result of a run: the last line of `cake train --json`.
struct RunResult {
  std::int64_t steps = 0;
  double loss_first = 0.0;  ///< of the first step
  double loss_last = 0.0;   ///< final_loss()
  double tokens_per_s = 0.0;
  std::string digest;
};

/// {"steps":..,"loss_first":..,"loss_last":..,"tokens_per_s":..,"digest":".."} on one line.
std::string result_line(const RunResult& result);

/// Loss curve with labelled axes: every step as a thin line, a running mean over a twentieth of the run, and the
/// entropy of uniform bytes (5.55 nats) as a reference. `history` may be empty.
std::string loss_curve_svg(const std::vector<StepRecord>& history, const std::string& title);

/// The log: options, text, one record per step, digests, result.
std::string log_json(const Trainer& trainer, const std::vector<DigestRecord>& digests, const RunResult& result);

/// Creates `folder` where missing; throws FileError when that fails.
void create_report_folder(const std::string& folder);
/// Writes loss.svg and log.json into `folder`, each atomically. Throws FileError.
void write_report(const std::string& folder, const Trainer& trainer, const std::vector<DigestRecord>& digests,
                  const RunResult& result);

/// Progress on standard error: a bar that redraws itself on a terminal, otherwise a line about every twentieth of the
/// run.
class Progress {
 public:
  /// Steps [first, last) will be reported.
  Progress(std::int64_t first, std::int64_t last, std::int64_t tokens_per_step, bool terminal);
  /// After a step: `done` steps in all.
  void report(std::int64_t done, double loss);
  /// Ends the bar's line.
  void finish();
  /// Tokens per second so far.
  double rate() const;

 private:
  double seconds() const;

  std::int64_t first_, last_, tokens_per_step_, done_;
  bool terminal_, drawn_ = false;
  double last_drawn_ = -1e9;
  double smooth_ = 0.0;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace cake::train_lm
