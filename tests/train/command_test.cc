// `cake train` as users run it: exit codes, the last line of --json, digests over threads and interruptions, reports,
// and what a bad command line says.
#include <poll.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/train/train_command.h"

namespace cake::test {
namespace {

TEST_F(TrainCommand, LastLineIsTheResultAndThreadsDoNotMatter) {
  const Result one = train({"--steps", "3", "--threads", "1"});
  ASSERT_EQ(one.code, 0) << one.err;
  const Json a = one.json();
  EXPECT_EQ(a.size(), 5u);
  EXPECT_EQ(a.at("steps"), 3);
  EXPECT_NEAR(a.at("loss_first").get<double>(), 5.6, 0.4);
  EXPECT_LT(a.at("loss_last").get<double>(), a.at("loss_first").get<double>());
  EXPECT_GT(a.at("tokens_per_s").get<double>(), 0.0);
  EXPECT_EQ(a.at("digest").get<std::string>().size(), 7u + 64u);
  EXPECT_EQ(a.at("digest").get<std::string>().substr(0, 7), "sha256:");
  EXPECT_NE(one.err.find("step 3/3"), std::string::npos) << "plain progress lines where there is no terminal";
  EXPECT_EQ(one.err.find('\r'), std::string::npos);
  const Json b = train({"--steps", "3", "--threads", "2"}).json();
  EXPECT_EQ(a.at("digest"), b.at("digest"));
  EXPECT_EQ(a.at("loss_last"), b.at("loss_last"));
  EXPECT_NE(train({"--steps", "3", "--seed", "2"}).json().at("digest"), a.at("digest"));
  EXPECT_NE(train({"--steps", "3", "--ablate", "kda"}).json().at("digest"), a.at("digest"));
}

TEST_F(TrainCommand, ResumeEqualsUninterrupted) {
  const Json whole = train({"--steps", "6"}).json();
  const Result first = train({"--steps", "2", "--schedule-steps", "6", "--checkpoint", folder_ / "ckpt"});
  ASSERT_EQ(first.code, 0) << first.err;
  const Result second = run(resume({}));  // without --steps: to the end of the schedule
  ASSERT_EQ(second.code, 0) << second.err;
  const Json result = second.json();
  for (const char* field : {"steps", "loss_first", "loss_last", "digest"})
    EXPECT_EQ(result.at(field), whole.at(field)) << field;
  EXPECT_EQ(run(resume({"--steps", "4", "--checkpoint", folder_ / "ckpt"})).json().at("steps"), 4);
  EXPECT_EQ(run(resume({"--steps", "6"})).json().at("digest"), whole.at("digest"));
}

TEST_F(TrainCommand, CheckpointsOnTheWayDoNotChangeTheRun) {
  const Json plain = train({"--steps", "5"}).json();
  const Result saved = train({"--steps", "5", "--checkpoint", folder_ / "ckpt", "--checkpoint-every", "2"});
  EXPECT_EQ(saved.json().at("digest"), plain.at("digest"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "ckpt"));
}

TEST_F(TrainCommand, ResumeRefusals) {
  ASSERT_EQ(train({"--steps", "2", "--schedule-steps", "4", "--checkpoint", folder_ / "ckpt"}).code, 0);
  const auto refused = [&](const Arguments& more, const std::string& part) {
    const Result r = run(resume(more));
    EXPECT_EQ(r.code, 2);
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  refused({"--width", "64"}, "width: got 64, expected 32");
  refused({"--batch-tokens", "301"}, "batch-tokens: got 301, expected 300");
  refused({"--document-tokens", "99"}, "document-tokens: got 99, expected 100");
  refused({"--seed", "5"}, "seed: got 5, expected 1");
  refused({"--schedule-steps", "5"}, "schedule-steps: got 5, expected 4");
  refused({"--ablate", "kda"}, "ablate: got \"kda\"");
  refused({"--steps", "2"}, "steps: got 2, expected more than 2");
  write_text(folder_ / "text.txt", "another text altogether");
  refused({}, "text: the checkpoint was made from another text");
  write_text(folder_ / "ckpt", read_text(folder_ / "ckpt").substr(0, 1000));
  refused({}, "is truncated: 1000 bytes");
  write_text(folder_ / "ckpt", "not a checkpoint");
  refused({}, "is not a checkpoint of cake train");
  std::filesystem::remove(folder_ / "ckpt");
  refused({}, "cannot be read: No such file or directory");
}

TEST_F(TrainCommand, BadCommandLinesExitWithTwoAndSayWhy) {
  const auto refused = [&](const Arguments& more, const std::string& part) {
    const Result r = train(more);
    EXPECT_EQ(r.code, 2) << part;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  refused({"--steps", "0"}, "steps: got 0, expected 1 or more");
  refused({"--steps", "many"}, "many");
  refused({"--threads", "0"}, "threads: got 0, expected 1 or more");
  refused({"--threads", "-1"}, "threads: got -1");
  refused({"--seed", "-1"}, "-1");
  refused({"--learning-rate", "0"}, "learning-rate: got 0");
  refused({"--shards", "0"}, "shards: got 0");
  refused({"--package", "cake_kda_forward"},
          "expected cake_kda_det_train or cake_kda_nondet_train, or one of them with _kcp");
  refused({"--ablate", "mlp"}, "--ablate");
  refused({"--no-such-option"}, "--no-such-option");
  refused({"--checkpoint", folder_ / "no/such/folder/c"}, "checkpoint: got");
  refused({"--checkpoint", folder_.path().string()}, "which is a folder");
  refused({"--report", folder_ / "text.txt"}, "report folder");
  const Result tokens = run({"train", "--text", folder_ / "text.txt", "--batch-tokens", "0"});
  EXPECT_EQ(tokens.code, 2);
  EXPECT_NE(tokens.err.find("batch-tokens: got 0"), std::string::npos) << tokens.err;
  const Result heads = run({"train", "--text", folder_ / "text.txt", "--width", "40", "--heads", "3"});
  EXPECT_EQ(heads.code, 2);
  EXPECT_NE(heads.err.find("width: got 40"), std::string::npos) << heads.err;
  const Result missing = run({"train", "--text", folder_ / "missing"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.err.find("no such file or folder"), std::string::npos) << missing.err;
  EXPECT_EQ(run({"train", "--help"}).code, 0);
}

TEST_F(TrainCommand, ReportHoldsCurveAndDigests) {
  const Result r = train({"--steps", "6", "--report", folder_ / "report", "--report-every", "2"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json log = Json::parse(read_text(folder_ / "report/log.json"));
  std::vector<int> steps;
  for (const Json& d : log.at("digests")) steps.push_back(d.at("step"));
  EXPECT_EQ(steps, (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(log.at("digests").back().at("digest"), r.json().at("digest"));
  EXPECT_EQ(log.at("steps").size(), 6u);
  EXPECT_NE(read_text(folder_ / "report/loss.svg").find("</svg>"), std::string::npos);
}

TEST_F(TrainCommand, InterruptWritesACheckpointToGoOnFrom) {
  const Arguments arguments{"--steps", "5000", "--checkpoint", folder_ / "ckpt", "--checkpoint-every", "100000"};
  Command command(folder_, with_defaults(arguments));
  for (int i = 0; i < 1000 && command.error().find("step 1/") == std::string::npos; ++i) poll(nullptr, 0, 10);
  kill(command.pid(), SIGINT);
  EXPECT_EQ(command.wait(), 130);
  EXPECT_NE(command.error().find("go on with --resume"), std::string::npos) << command.error();
  const Result half{130, command.output(), ""};
  const int done = half.json().at("steps");
  ASSERT_GT(done, 0);
  ASSERT_LT(done, 5000);
  const Result next = run(resume({"--steps", std::to_string(done + 1)}));
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_EQ(next.json().at("steps"), done + 1);
}

TEST_F(TrainCommand, FullDiskLosesNothing) {
  ASSERT_EQ(train({"--steps", "2", "--schedule-steps", "6", "--checkpoint", folder_ / "ckpt"}).code, 0);
  const std::string before = read_text(folder_ / "ckpt");
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{20000, limit.rlim_max};  // enough for the two output files, not for a checkpoint
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Command command(folder_, resume({"--steps", "6", "--checkpoint", folder_ / "ckpt", "--checkpoint-every", "1"}));
  const int code = command.wait();
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_EQ(code, 2);
  EXPECT_NE(command.error().find("warning: checkpoint"), std::string::npos) << command.error();
  EXPECT_NE(command.error().find("the run goes on"), std::string::npos);
  EXPECT_NE(command.error().find("could not be written: File too large"), std::string::npos);
  const Result r{code, command.output(), ""};
  EXPECT_EQ(r.json().at("steps"), 6) << "the result is printed all the same";
  EXPECT_EQ(read_text(folder_ / "ckpt"), before) << "the old checkpoint must stay";
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    ++files;
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }
  EXPECT_EQ(files, 4u);  // text, checkpoint, output, error
}

}  // namespace
}  // namespace cake::test
