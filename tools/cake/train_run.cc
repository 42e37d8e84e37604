#include "train_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>

#include "cake/comm.h"
#include "cake/core/error.h"
#include "cake/core/parallel.h"
#include "examples/train_lm/checkpoint.h"
#include "examples/train_lm/config_json.h"
#include "examples/train_lm/files.h"
#include "examples/train_lm/report.h"
#ifdef CAKE_HAVE_MPI
#include "cake/mpi.h"
#endif

namespace cake::tool {
namespace {

namespace lm = train_lm;

constexpr int kFailed = 2;
constexpr int kInterrupted = 130;  // as a shell reports SIGINT
/// How long a rank waits for another: for its share of a layer, or for rank 0 to write a checkpoint to a slow disk.
constexpr std::chrono::milliseconds kPatience = std::chrono::hours(1);

std::atomic<bool> g_stop{false};

void ask_to_stop(int) { g_stop.store(true); }

/// Lets the first SIGINT or SIGTERM end the run after the step under way; a second one kills as usual. A file size
/// limit becomes an error of write() instead of a signal.
class ScopedSignals {
 public:
  ScopedSignals() {
    g_stop.store(false);
    struct sigaction action {};
    action.sa_handler = ask_to_stop;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &int_);
    sigaction(SIGTERM, &action, &term_);
    action.sa_handler = SIG_IGN;
    action.sa_flags = 0;
    sigaction(SIGXFSZ, &action, &size_);
  }
  ~ScopedSignals() {
    sigaction(SIGINT, &int_, nullptr);
    sigaction(SIGTERM, &term_, nullptr);
    sigaction(SIGXFSZ, &size_, nullptr);
  }
  ScopedSignals(const ScopedSignals&) = delete;
  ScopedSignals& operator=(const ScopedSignals&) = delete;

 private:
  struct sigaction int_ {
  }, term_{}, size_{};
};

/// What all ranks of a process share.
struct Job {
  std::shared_ptr<const lm::Corpus> corpus;
  std::optional<lm::TrainState> state;  ///< to go on from
};

void require_at_least(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least) throw InvalidArgument(fmt::format("{}: got {}, expected {} or more", name, value, least));
}

/// A run should not learn after an hour that its checkpoint has nowhere to go.
void require_writable_folder(const std::string& file) {
  const std::filesystem::path path(file);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw InvalidArgument(fmt::format("checkpoint: got \"{}\", which is a folder; expected a file name", file));
  }
  if (!std::filesystem::is_directory(folder, error) || ::access(folder.c_str(), W_OK) != 0) {
    throw InvalidArgument(fmt::format("checkpoint: got \"{}\", whose folder \"{}\" does not exist or cannot be written",
                                      file, folder.string()));
  }
}

/// Checks the options, completes them from the checkpoint, and reads the text. `writes`: this process writes the files.
Job prepare(TrainOptions& o, int ranks, bool writes) {
  require_at_least("steps", o.steps, 1);
  require_at_least("checkpoint-every", o.checkpoint_every, 1);
  if (o.threads_given->count() > 0) require_at_least("threads", o.threads, 1);
  require_at_least("report-every", o.report_every, 0);
  if (writes && !o.checkpoint.empty()) require_writable_folder(o.checkpoint);
  Job job;
  o.config.model.ablate_kda = o.ablate == "kda";
  if (o.resume.empty()) {
    if (o.schedule_given->count() == 0) o.config.optimizer.schedule_steps = o.steps;
  } else {
    job.state = lm::load_checkpoint(o.resume);
    for (const auto& inherit : o.inherit) inherit(o.config, job.state->config);
    if (o.ablate.empty()) o.config.model.ablate_kda = job.state->config.model.ablate_kda;
    lm::require_same_config(job.state->config, o.config, o.resume);
    job.state->config.package = o.config.package;  // the checkpoint does not say whether it ran over ranks
    if (o.steps_given->count() == 0) o.steps = o.config.optimizer.schedule_steps;
    const auto done = static_cast<std::int64_t>(job.state->history.size());
    if (done >= o.steps) {
      throw InvalidArgument(fmt::format("steps: got {}, expected more than {}, which the checkpoint \"{}\" has done",
                                        o.steps, done, o.resume));
    }
  }
  o.config.validate();
  // Refuses ranks and layout before the text is read.
  [[maybe_unused]] const lm::RankShards check(lm::ShardPlan(0, o.config.shards), ranks, kcp::parse_layout(o.layout));
  job.corpus = std::make_shared<const lm::Corpus>(lm::load_corpus(o.text));
  return job;
}

/// A checkpoint in the middle that cannot be written (a full disk) is no reason to lose the run: it goes on.
void save_on_the_way(const TrainOptions& o, const lm::Trainer& trainer, lm::Progress& progress) {
  try {
    lm::save_checkpoint(o.checkpoint, trainer.state());
  } catch (const lm::FileError& e) {
    progress.finish();
    fmt::print(stderr, "cake: warning: {}; the run goes on\n", e.what());
  }
}

/// True on every rank as soon as one was asked to stop, so that all end after the same step.
bool asked_to_stop(Communicator* communicator) {
  const char mine = g_stop.load() ? 1 : 0;
  if (communicator == nullptr) return mine != 0;
  std::vector<char> all(static_cast<std::size_t>(communicator->size()));
  communicator->all_gather(&mine, sizeof mine, all.data());
  return std::any_of(all.begin(), all.end(), [](char asked) { return asked != 0; });
}

bool goes_on(const TrainOptions& o, const lm::Trainer& trainer, Communicator* communicator) {
  return trainer.steps_done() < o.steps && !asked_to_stop(communicator);
}

void print_start(const TrainOptions& o, const lm::Trainer& trainer, int ranks) {
  const lm::Corpus& corpus = trainer.corpus();
  for (const std::string& note : corpus.notes) fmt::print(stderr, "text: {}\n", note);
  const std::string where = ranks == 1 ? "" : fmt::format("{} ranks ({}) of ", ranks, o.layout);
  fmt::print(stderr, "text: {} files, {} bytes; model: {} parameters; {} steps of {} tokens on {}{} threads\n",
             corpus.files(), corpus.bytes.size(), trainer.table().count(), o.steps, o.config.batch_tokens, where,
             num_threads());
}

/// The run as rank 0, or the only one, sees it: it trains, reports and writes.
int lead(const TrainOptions& o, lm::Trainer& trainer, Communicator* communicator) {
  if (!o.report.empty()) lm::create_report_folder(o.report);
  print_start(o, trainer, communicator == nullptr ? 1 : communicator->size());
  const std::int64_t first = trainer.steps_done();
  const std::int64_t digest_every = o.report_every > 0 ? o.report_every : std::max<std::int64_t>(1, o.steps / 20);
  std::vector<lm::DigestRecord> digests;
  if (!o.report.empty()) digests.push_back({first, trainer.digest()});

  lm::Progress progress(first, o.steps, o.config.batch_tokens, ::isatty(STDERR_FILENO) != 0);
  while (goes_on(o, trainer, communicator)) {
    const lm::StepRecord record = trainer.step();
    const std::int64_t done = trainer.steps_done();
    progress.report(done, record.loss);
    if (!o.report.empty() && (done % digest_every == 0 || done == o.steps)) digests.push_back({done, trainer.digest()});
    if (!o.checkpoint.empty() && done % o.checkpoint_every == 0 && done < o.steps) {
      save_on_the_way(o, trainer, progress);
    }
  }
  lm::RunResult result;
  result.tokens_per_s = progress.rate();
  progress.finish();
  result.steps = trainer.steps_done();
  result.digest = trainer.digest();
  if (!trainer.history().empty()) result.loss_first = trainer.history().front().loss;
  result.loss_last = lm::final_loss(trainer.history());

  // The result is printed before the last files are written, so that a full disk does not swallow it.
  if (o.json) {
    fmt::print("{}\n", lm::result_line(result));
  } else {
    fmt::print("steps {}, loss {:.4f} -> {:.4f} nats per byte, {:.0f} tokens/s\nparameters {}\n", result.steps,
               result.loss_first, result.loss_last, result.tokens_per_s, result.digest);
  }
  std::fflush(stdout);
  if (!o.checkpoint.empty()) lm::save_checkpoint(o.checkpoint, trainer.state());
  if (!o.report.empty()) lm::write_report(o.report, trainer, digests, result);
  if (result.steps == o.steps) return 0;
  fmt::print(stderr, "interrupted after {} of {} steps{}\n", result.steps, o.steps,
             o.checkpoint.empty() ? "" : fmt::format("; go on with --resume {}", o.checkpoint));
  return kInterrupted;
}

/// One rank's run; `communicator` is null for a process alone.
int train_on_rank(const TrainOptions& o, const Job& job, Communicator* communicator) {
  const int ranks = communicator == nullptr ? 1 : communicator->size();
  const int threads = o.threads > 0 ? o.threads : ranks > 1 ? std::max(1, num_threads() / ranks) : num_threads();
  const ScopedNumThreads scope(threads);
  const lm::Ranks group{communicator, kcp::parse_layout(o.layout)};
  const auto trainer = job.state ? std::make_unique<lm::Trainer>(*job.state, job.corpus, group)
                                 : std::make_unique<lm::Trainer>(o.config, job.corpus, group);
  if (communicator == nullptr || communicator->rank() == 0) return lead(o, *trainer, communicator);
  while (goes_on(o, *trainer, communicator)) trainer->step();
  return trainer->steps_done() == o.steps ? 0 : kInterrupted;
}

int run_on_threads(TrainOptions& o) {
  const Job job = prepare(o, o.ranks, true);
  const ScopedSignals signals;
  if (o.ranks == 1 && !lm::is_package_over_ranks(o.config.package)) return train_on_rank(o, job, nullptr);
  ThreadGroup group(o.ranks, kPatience);
  int exit_code = kFailed;
  group.run([&](Communicator& communicator) {
    const int code = train_on_rank(o, job, &communicator);
    if (communicator.rank() == 0) exit_code = code;
  });
  return exit_code;
}

#ifdef CAKE_HAVE_MPI
/// An error, told as main.cc does. It has to be out before MPI ends: mpirun kills all as soon as one process ends with
/// an error.
void tell(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    fmt::print(stderr, "cake: {}: {}\n", error_kind_name(known->kind()), known->what());
  } else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    fmt::print(stderr, "cake: not enough memory for this model and --batch-tokens on rank 0\n");
  } else {
    fmt::print(stderr, "cake: {}\n", error.what());
  }
  std::fflush(stderr);
}

/// Errors of a process abort the group: rank 0 learns of each and is the one to tell.
int run_on_mpi(TrainOptions& o) {
  const std::unique_ptr<Communicator> communicator = make_mpi_communicator(kPatience);
  try {
    if (o.ranks_given->count() > 0) {
      throw InvalidArgument(fmt::format(
          "mpi: got --mpi together with --ranks {}, expected one of them: under --mpi the ranks are mpirun's processes",
          o.ranks));
    }
    const Job job = prepare(o, communicator->size(), communicator->rank() == 0);
    const ScopedSignals signals;
    const int exit_code = train_on_rank(o, job, communicator.get());
    communicator->barrier();  // an interrupted process would end the one that still writes the checkpoint
    return exit_code;
  } catch (const std::exception& error) {
    communicator->abort(error.what());
    if (communicator->rank() == 0) tell(error);
    return kFailed;
  }
}
#else
int run_on_mpi(const TrainOptions&) {
  throw NotSupported("mpi: got --mpi, which this build does not have (CMake found no MPI); expected --ranks");
}
#endif

}  // namespace

int run_training(TrainOptions& o) {
  try {
    return o.mpi ? run_on_mpi(o) : run_on_threads(o);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("not enough memory for this model and --batch-tokens " + std::to_string(o.config.batch_tokens));
  }
}

}  // namespace cake::tool
