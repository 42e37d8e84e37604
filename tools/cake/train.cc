// `cake train`: trains the byte-level language model of examples/train_lm on any text. docs/train.md is its page.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "cake/core/error.h"
#include "cake/core/parallel.h"
#include "commands.h"
#include "examples/train_lm/checkpoint.h"
#include "examples/train_lm/config_json.h"
#include "examples/train_lm/files.h"
#include "examples/train_lm/report.h"
#include "examples/train_lm/trainer.h"

namespace cake::tool {
namespace {

namespace lm = train_lm;

constexpr const char* kDefaultText = "/usr/share/common-licenses";
constexpr std::int64_t kDefaultSteps = 250;
constexpr int kInterrupted = 130;  // as a shell reports SIGINT

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

struct TrainOptions {
  std::string text = kDefaultText;
  lm::TrainConfig config;
  std::int64_t steps = kDefaultSteps;
  int threads = 0;
  std::string ablate;
  std::string checkpoint, resume, report;
  std::int64_t checkpoint_every = 100, report_every = 0;
  bool json = false;

  const CLI::Option* steps_given = nullptr;
  const CLI::Option* schedule_given = nullptr;
  const CLI::Option* threads_given = nullptr;
  /// Takes from a checkpoint each option that the command line does not give.
  std::vector<std::function<void(lm::TrainConfig& given, const lm::TrainConfig& saved)>> inherit;
};

/// Adds an option for a field of the configuration; `get` returns the field of a configuration.
template <class Get>
CLI::Option* add_field(CLI::App& command, TrainOptions& o, const char* name, const char* help, Get get) {
  CLI::Option* option = command.add_option(name, get(o.config), help)->capture_default_str();
  o.inherit.push_back([option, get](lm::TrainConfig& given, const lm::TrainConfig& saved) {
    if (option->count() == 0) get(given) = get(const_cast<lm::TrainConfig&>(saved));
  });
  return option;
}

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

std::unique_ptr<lm::Trainer> make_trainer(TrainOptions& o) {
  o.config.model.ablate_kda = o.ablate == "kda";
  if (o.resume.empty()) {
    if (o.schedule_given->count() == 0) o.config.optimizer.schedule_steps = o.steps;
    return std::make_unique<lm::Trainer>(o.config, lm::load_corpus(o.text));
  }
  const lm::TrainState state = lm::load_checkpoint(o.resume);
  for (const auto& inherit : o.inherit) inherit(o.config, state.config);
  if (o.ablate.empty()) o.config.model.ablate_kda = state.config.model.ablate_kda;
  lm::require_same_config(state.config, o.config, o.resume);
  if (o.steps_given->count() == 0) o.steps = o.config.optimizer.schedule_steps;
  const auto done = static_cast<std::int64_t>(state.history.size());
  if (done >= o.steps) {
    throw InvalidArgument(fmt::format("steps: got {}, expected more than {}, which the checkpoint \"{}\" has done",
                                      o.steps, done, o.resume));
  }
  return std::make_unique<lm::Trainer>(state, lm::load_corpus(o.text));
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

int run(TrainOptions& o) {
  require_at_least("steps", o.steps, 1);
  require_at_least("checkpoint-every", o.checkpoint_every, 1);
  if (o.threads_given->count() > 0) require_at_least("threads", o.threads, 1);
  require_at_least("report-every", o.report_every, 0);
  if (!o.checkpoint.empty()) require_writable_folder(o.checkpoint);
  const std::optional<ScopedNumThreads> threads =
      o.threads > 0 ? std::make_optional<ScopedNumThreads>(o.threads) : std::nullopt;
  const std::unique_ptr<lm::Trainer> trainer = make_trainer(o);
  if (!o.report.empty()) lm::create_report_folder(o.report);

  const lm::Corpus& corpus = trainer->corpus();
  for (const std::string& note : corpus.notes) fmt::print(stderr, "text: {}\n", note);
  fmt::print(stderr, "text: {} files, {} bytes; model: {} parameters; {} steps of {} tokens on {} threads\n",
             corpus.files(), corpus.bytes.size(), trainer->table().count(), o.steps, o.config.batch_tokens,
             num_threads());
  const std::int64_t first = trainer->steps_done();
  const std::int64_t digest_every = o.report_every > 0 ? o.report_every : std::max<std::int64_t>(1, o.steps / 20);
  std::vector<lm::DigestRecord> digests;
  if (!o.report.empty()) digests.push_back({first, trainer->digest()});

  const ScopedSignals signals;
  lm::Progress progress(first, o.steps, o.config.batch_tokens, ::isatty(STDERR_FILENO) != 0);
  while (trainer->steps_done() < o.steps && !g_stop.load()) {
    const lm::StepRecord record = trainer->step();
    const std::int64_t done = trainer->steps_done();
    progress.report(done, record.loss);
    if (!o.report.empty() && (done % digest_every == 0 || done == o.steps))
      digests.push_back({done, trainer->digest()});
    if (!o.checkpoint.empty() && done % o.checkpoint_every == 0 && done < o.steps) {
      save_on_the_way(o, *trainer, progress);
    }
  }
  lm::RunResult result;
  result.tokens_per_s = progress.rate();
  progress.finish();
  result.steps = trainer->steps_done();
  result.digest = trainer->digest();
  if (!trainer->history().empty()) result.loss_first = trainer->history().front().loss;
  result.loss_last = lm::final_loss(trainer->history());

  // The result is printed before the last files are written, so that a full disk does not swallow it.
  if (o.json) {
    fmt::print("{}\n", lm::result_line(result));
  } else {
    fmt::print("steps {}, loss {:.4f} -> {:.4f} nats per byte, {:.0f} tokens/s\nparameters {}\n", result.steps,
               result.loss_first, result.loss_last, result.tokens_per_s, result.digest);
  }
  std::fflush(stdout);
  if (!o.checkpoint.empty()) lm::save_checkpoint(o.checkpoint, trainer->state());
  if (!o.report.empty()) lm::write_report(o.report, *trainer, digests, result);
  if (result.steps == o.steps) return 0;
  fmt::print(stderr, "interrupted after {} of {} steps{}\n", result.steps, o.steps,
             o.checkpoint.empty() ? "" : fmt::format("; go on with --resume {}", o.checkpoint));
  return kInterrupted;
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", "Train a byte-level language model with KDA on any text");
  const auto o = std::make_shared<TrainOptions>();
  using Config = lm::TrainConfig;
  command->add_option("--text", o->text, "A text file, or a folder of them")->capture_default_str();
  add_field(
      *command, *o, "--package",
      "Package that computes KDA: cake_kda_det_train, or cake_kda_nondet_train, whose bits are not promised",
      [](Config & c) -> auto& { return c.package; });
  o->steps_given = command->add_option("--steps", o->steps, "Steps in all")->capture_default_str();
  add_field(
      *command, *o, "--batch-tokens", "Tokens of a step", [](Config & c) -> auto& { return c.batch_tokens; });
  add_field(
      *command, *o, "--document-tokens", "Longest piece of a file that is one document",
      [](Config & c) -> auto& { return c.document_tokens; });
  add_field(
      *command, *o, "--layers", "Blocks of the model", [](Config & c) -> auto& { return c.model.layers; });
  add_field(
      *command, *o, "--width", "Width of the model", [](Config & c) -> auto& { return c.model.width; });
  add_field(
      *command, *o, "--heads", "KDA heads; width / heads is a multiple of 16, at most 256",
      [](Config & c) -> auto& { return c.model.heads; });
  add_field(
      *command, *o, "--seed", "Of the initial values and the order of the text",
      [](Config & c) -> auto& { return c.seed; })
      ->check(CLI::NonNegativeNumber);
  add_field(
      *command, *o, "--learning-rate", "At the top of the schedule",
      [](Config & c) -> auto& { return c.optimizer.learning_rate; });
  add_field(
      *command, *o, "--warmup-steps", "Steps of the linear warm-up",
      [](Config & c) -> auto& { return c.optimizer.warmup_steps; });
  CLI::Option* schedule = add_field(
      *command, *o, "--schedule-steps", "Where the cosine ends (default: at --steps)",
      [](Config & c) -> auto& { return c.optimizer.schedule_steps; });
  o->schedule_given = schedule->default_str(std::string());  // the value it starts with is no default
  add_field(
      *command, *o, "--weight-decay", "Decoupled; not on norms, biases and A_log",
      [](Config & c) -> auto& { return c.optimizer.weight_decay; });
  add_field(
      *command, *o, "--clip-norm", "Largest global gradient norm; 0: no clipping",
      [](Config & c) -> auto& { return c.optimizer.clip_norm; });
  add_field(
      *command, *o, "--shards", "Logical shards of a batch: part of the bits, unlike --threads",
      [](Config & c) -> auto& { return c.shards; });
  o->threads_given = command->add_option("--threads", o->threads,
                                         "CPU threads; no effect on the bits of a det package (default: all cores)");
  command->add_option("--checkpoint", o->checkpoint, "File for the state of the run");
  command->add_option("--checkpoint-every", o->checkpoint_every, "Steps between checkpoints")->capture_default_str();
  command->add_option("--resume", o->resume,
                      "Go on from this checkpoint, with a det package bit for bit; its options apply");
  command->add_option("--report", o->report, "Folder for loss.svg and log.json");
  command->add_option("--report-every", o->report_every,
                      "Steps between digests in the log (default: a twentieth of the run)");
  command->add_option("--ablate", o->ablate, "Zero the output of a part: kda")->check(CLI::IsMember({"kda"}));
  command->add_flag("--json", o->json, "Print the result as one JSON line, the last of standard output");
  command->callback([o, &exit_code] {
    try {
      exit_code = run(*o);
    } catch (const std::bad_alloc&) {
      throw OutOfMemory("not enough memory for this model and --batch-tokens " +
                        std::to_string(o->config.batch_tokens));
    }
  });
}

}  // namespace cake::tool
