// `cake train` over ranks: threads of one process, and processes of mpirun where this build has MPI.
#include <poll.h>

#include <algorithm>
#include <csignal>

#include "tests/train/train_command.h"

namespace cake::test {
namespace {

class TrainRanksCommand : public TrainCommand {
 protected:
  void expect_refused(const Arguments& more, const std::string& part) {
    const Result r = train(more);
    EXPECT_EQ(r.code, 2) << part;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }
};

TEST_F(TrainRanksCommand, ResultAndCheckpointOfOneRank) {
  const Result one = train({"--steps", "3", "--checkpoint", folder_ / "one"});
  ASSERT_EQ(one.code, 0) << one.err;
  for (const char* layout : {"contiguous", "zigzag"}) {
    for (const char* ranks : {"1", "2", "3", "4"}) {
      const Result r = train({"--steps", "3", "--ranks", ranks, "--layout", layout, "--checkpoint", folder_ / "many"});
      ASSERT_EQ(r.code, 0) << r.err;
      for (const char* field : {"steps", "loss_first", "loss_last", "digest"}) {
        EXPECT_EQ(r.json().at(field), one.json().at(field)) << ranks << " ranks, " << layout;
      }
      EXPECT_EQ(read_text(folder_ / "many"), read_text(folder_ / "one")) << ranks << " ranks, " << layout;
    }
  }
  const Result r = train({"--steps", "3", "--ranks", "2", "--threads", "3"});
  EXPECT_NE(r.err.find("on 2 ranks (contiguous) of 3 threads"), std::string::npos) << r.err;
  EXPECT_EQ(r.json().at("digest"), one.json().at("digest"));
}

TEST_F(TrainRanksCommand, PackageOverRanksByName) {
  const Result one = train({"--steps", "2", "--checkpoint", folder_ / "one"});
  for (const char* ranks : {"1", "2"}) {
    const Result r = train(
        {"--steps", "2", "--ranks", ranks, "--package", "cake_kda_det_train_kcp", "--checkpoint", folder_ / "many"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.json().at("digest"), one.json().at("digest"));
    EXPECT_EQ(read_text(folder_ / "many"), read_text(folder_ / "one"));
  }
  EXPECT_EQ(train({"--steps", "2", "--ranks", "2", "--package", "cake_kda_nondet_train"}).code, 0);
  EXPECT_EQ(train({"--steps", "2", "--package", "cake_kda_nondet_train_kcp"}).code, 0);
}

TEST_F(TrainRanksCommand, ResumeWithAnotherNumberOfRanks) {
  const Json whole = train({"--steps", "6"}).json();
  const Arguments ranks{"--steps", "2", "--schedule-steps", "6", "--checkpoint", folder_ / "ckpt", "--ranks", "3"};
  ASSERT_EQ(train(ranks).code, 0);
  const Result second = run(resume({"--ranks", "2", "--layout", "zigzag", "--steps", "4", "--checkpoint",
                                    folder_ / "ckpt", "--package", "cake_kda_det_train_kcp"}));
  ASSERT_EQ(second.code, 0) << second.err;
  const Result third = run(resume({}));
  ASSERT_EQ(third.code, 0) << third.err;
  EXPECT_EQ(third.json().at("digest"), whole.at("digest"));
}

TEST_F(TrainRanksCommand, Refusals) {
  expect_refused({"--ranks", "0"}, "ranks: got 0, expected 1 to 64");
  expect_refused({"--ranks", "-1"}, "ranks: got -1, expected 1 to 64");
  expect_refused({"--ranks", "65"}, "ranks: got 65, expected 1 to 64");
  expect_refused({"--ranks", "25"}, "ranks: got 25, expected at most 24, the number of shards");
  expect_refused({"--ranks", "3", "--shards", "2"}, "ranks: got 3, expected at most 2, the number of shards");
  expect_refused({"--ranks", "2", "--layout", "zigzag_per_document"}, "layout: got zigzag_per_document, expected");
  expect_refused({"--layout", "spiral"}, "layout: got \"spiral\"");
  expect_refused({"--ranks", "2", "--shards", "0"}, "shards: got 0");
  expect_refused({"--ranks", "2", "--learning-rate", "0"}, "learning-rate: got 0");
  expect_refused({"--ranks", "2", "--report", folder_ / "text.txt"}, "report folder");
#ifdef CAKE_MPIEXEC
  expect_refused({"--mpi", "--ranks", "2"}, "mpi: got --mpi together with --ranks 2");
#else
  expect_refused({"--mpi"}, "mpi: got --mpi, which this build does not have");
#endif
}

TEST_F(TrainRanksCommand, InterruptStopsAllRanksAfterTheSameStep) {
  const Arguments arguments{"--steps", "5000", "--checkpoint", folder_ / "ckpt", "--ranks", "3"};
  Command command(folder_, with_defaults(arguments));
  for (int i = 0; i < 1000 && command.error().find("step 1/") == std::string::npos; ++i) poll(nullptr, 0, 10);
  kill(command.pid(), SIGINT);
  EXPECT_EQ(command.wait(), 130);
  EXPECT_NE(command.error().find("go on with --resume"), std::string::npos) << command.error();
  const int done = Result{130, command.output(), ""}.json().at("steps");
  ASSERT_GT(done, 0);
  ASSERT_LT(done, 5000);
  EXPECT_EQ(run(resume({"--steps", std::to_string(done + 1)})).code, 0);
}

#ifdef CAKE_MPIEXEC
TEST_F(TrainRanksCommand, ProcessesOfMpi) {
  const auto with_mpi = [&](const char* ranks, const Arguments& more) {
    // As cake_add_mpi_test: containers run as root and have few slots; shared memory alone joins the ranks.
    const Arguments launcher{CAKE_MPIEXEC,
                             "--allow-run-as-root",
                             "--oversubscribe",
                             "--mca",
                             "btl",
                             "self,vader",
                             "--mca",
                             "btl_vader_single_copy_mechanism",
                             "none",
                             "-np",
                             ranks};
    Command command(folder_, with_defaults(more), launcher);
    const int code = command.wait();
    return Result{code, command.output(), command.error()};
  };
  const Result one = train({"--steps", "3", "--checkpoint", folder_ / "one"});
  for (const char* layout : {"contiguous", "zigzag"}) {
    const Result r = with_mpi(
        "4", {"--steps", "3", "--mpi", "--layout", layout, "--threads", "1", "--checkpoint", folder_ / "many"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.json().at("digest"), one.json().at("digest"));
    EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1) << "rank 0 alone prints: " << r.out;
    EXPECT_EQ(read_text(folder_ / "many"), read_text(folder_ / "one"));
  }
  const Result both = with_mpi("2", {"--mpi", "--ranks", "2"});
  EXPECT_EQ(both.code, 2);
  EXPECT_EQ(both.out, "");
  const std::size_t first = both.err.find("mpi: got --mpi together with --ranks 2");
  ASSERT_NE(first, std::string::npos) << both.err;
  EXPECT_EQ(both.err.find("mpi: got", first + 1), std::string::npos) << "one rank tells: " << both.err;
  const Result many = with_mpi("3", {"--mpi", "--shards", "2"});
  EXPECT_EQ(many.code, 2);
  EXPECT_NE(many.err.find("ranks: got 3, expected at most 2"), std::string::npos) << many.err;
}
#endif

}  // namespace
}  // namespace cake::test
