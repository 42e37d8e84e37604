// The trainer on processes of MPI: every rank compares its run with that of one rank, for both layouts, and goes on
// from a state that one rank made.
#include <cstdio>
#include <exception>

#include "cake/core/parallel.h"
#include "cake/mpi.h"
#include "examples/train_lm/trainer.h"
#include "tests/train/test_util.h"

namespace {

using namespace cake::train_lm;  // NOLINT(google-build-using-namespace): the trainer under test

constexpr int kSteps = 3;

bool equal(const Trainer& a, const Trainer& b) {
  if (a.digest() != b.digest() || a.history().size() != b.history().size()) return false;
  for (std::size_t i = 0; i < a.history().size(); ++i) {
    if (a.history()[i].loss != b.history()[i].loss) return false;
  }
  return true;
}

int run(cake::Communicator& communicator) {
  const cake::ScopedNumThreads threads(1);
  const TrainConfig config = cake::test::small_config();
  Trainer one(config, cake::test::sample_corpus());
  one.step();
  const TrainState early = one.state();
  for (int i = 1; i < kSteps; ++i) one.step();

  int failures = 0;
  for (const auto layout : {cake::kcp::Layout::kContiguous, cake::kcp::Layout::kZigzag}) {
    Trainer mine(config, cake::test::sample_corpus(), {&communicator, layout});
    Trainer resumed(early, cake::test::sample_corpus(), {&communicator, layout});
    for (int i = 0; i < kSteps; ++i) mine.step();
    for (int i = 1; i < kSteps; ++i) resumed.step();
    for (const Trainer* trainer : {&mine, &resumed}) {
      if (equal(*trainer, one)) continue;
      ++failures;
      std::fprintf(stderr, "rank %d of %d, %s: %s, expected %s\n", communicator.rank(), communicator.size(),
                   cake::kcp::layout_name(layout), trainer->digest().c_str(), one.digest().c_str());
    }
  }
  return failures;
}

}  // namespace

int main() {
  try {
    const auto communicator = cake::make_mpi_communicator();
    return run(*communicator) == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
