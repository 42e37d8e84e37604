// `cake train`: trains the byte-level language model of examples/train_lm on any text. docs/train.md is its page.
#include <memory>
#include <string>

#include "commands.h"
#include "train_run.h"

namespace cake::tool {
namespace {

namespace lm = train_lm;

/// Adds an option for a field of the configuration; `get` returns the field of a configuration.
template <class Get>
CLI::Option* add_field(CLI::App& command, TrainOptions& o, const char* name, const char* help, Get get) {
  CLI::Option* option = command.add_option(name, get(o.config), help)->capture_default_str();
  o.inherit.push_back([option, get](lm::TrainConfig& given, const lm::TrainConfig& saved) {
    if (option->count() == 0) get(given) = get(const_cast<lm::TrainConfig&>(saved));
  });
  return option;
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", "Train a byte-level language model with KDA on any text");
  const auto o = std::make_shared<TrainOptions>();
  using Config = lm::TrainConfig;
  command->add_option("--text", o->text, "A text file, or a folder of them")->capture_default_str();
  add_field(
      *command, *o, "--package",
      "Package that computes KDA: cake_kda_det_train, or cake_kda_nondet_train, whose bits are not promised; with _kcp "
      "the one over ranks, which several ranks use in any case",
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
  o->ranks_given =
      command
          ->add_option("--ranks", o->ranks,
                       "Ranks that share the rows of a batch, as threads of this process; no effect on the "
                       "bits of a det package")
          ->capture_default_str();
  command
      ->add_option(
          "--layout", o->layout,
          "How ranks share the rows: contiguous, or zigzag (two runs each, from both ends); no effect on the bits "
          "of a det package")
      ->capture_default_str();
  command->add_flag("--mpi", o->mpi, "The ranks are the processes of mpirun");
  o->threads_given =
      command->add_option("--threads", o->threads,
                          "CPU threads, of every rank where there are several; no effect on the bits of a "
                          "det package (default: all cores, shared out among the ranks)");
  command->add_option("--checkpoint", o->checkpoint, "File for the state of the run");
  command->add_option("--checkpoint-every", o->checkpoint_every, "Steps between checkpoints")->capture_default_str();
  command->add_option("--resume", o->resume,
                      "Go on from this checkpoint, with a det package bit for bit; its options apply");
  command->add_option("--report", o->report, "Folder for loss.svg and log.json");
  command->add_option("--report-every", o->report_every,
                      "Steps between digests in the log (default: a twentieth of the run)");
  command->add_option("--ablate", o->ablate, "Zero the output of a part: kda")->check(CLI::IsMember({"kda"}));
  command->add_flag("--json", o->json, "Print the result as one JSON line, the last of standard output");
  command->callback([o, &exit_code] { exit_code = run_training(*o); });
}

}  // namespace cake::tool
