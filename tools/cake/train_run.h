// A run of `cake train`: on this process alone, on ranks that are its threads, or on the processes of mpirun.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "commands.h"
#include "examples/train_lm/trainer.h"

namespace cake::tool {

/// The command line of `cake train`.
struct TrainOptions {
  std::string text = "/usr/share/common-licenses";
  train_lm::TrainConfig config;
  std::int64_t steps = 250;
  int ranks = 1;
  std::string layout = "contiguous";
  bool mpi = false;
  int threads = 0;  ///< per rank; 0: not given
  std::string ablate;
  std::string checkpoint, resume, report;
  std::int64_t checkpoint_every = 100, report_every = 0;
  bool json = false;

  const CLI::Option* steps_given = nullptr;
  const CLI::Option* schedule_given = nullptr;
  const CLI::Option* threads_given = nullptr;
  const CLI::Option* ranks_given = nullptr;
  /// Takes from a checkpoint each option that the command line does not give.
  std::vector<std::function<void(train_lm::TrainConfig& given, const train_lm::TrainConfig& saved)>> inherit;
};

/// Trains; returns the exit code. Fills in what a checkpoint decides. Throws Error, FileError and std::runtime_error;
/// under --mpi rank 0 prints the error instead, its own or that of the rank that failed.
int run_training(TrainOptions& options);

}  // namespace cake::tool
