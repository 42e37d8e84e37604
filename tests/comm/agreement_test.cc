// Agreements whose fields come from a check: a rank that refuses its arguments takes all others with it, and the group
// goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cake/comm.h"

namespace cake {
namespace {

using namespace std::chrono_literals;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error_kind_name(error.kind())) + " | " + error.what();
  }
  return "none";
}

/// Every rank's error of an agreement with `check`; a second, correct agreement and an all_gather follow.
std::vector<std::string> errors_of(int ranks, const std::function<AgreementFields(int rank)>& check) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  ThreadGroup(ranks, 20s).run([&](Communicator& c) {
    errors[static_cast<std::size_t>(c.rank())] =
        error_of([&] { require_agreement(c, "kda", [&] { return check(c.rank()); }); });
    EXPECT_EQ(c.counters().bytes_sent, 0u) << "agreements do not count";
    EXPECT_EQ(c.counters().all_gathers, 0u);
    EXPECT_NO_THROW(require_agreement(c, "kda", AgreementFields{{"K", "4"}}));
    std::vector<int> all(static_cast<std::size_t>(ranks), -1);
    const int mine = c.rank();
    c.all_gather(&mine, sizeof mine, all.data());
    for (int r = 0; r < ranks; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r);
  });
  return errors;
}

TEST(CommAgreementCheck, EqualFieldsAgreeAndTheCheckRunsOnce) {
  std::atomic<int> calls{0};
  for (const int ranks : {1, 2, 5}) {
    calls = 0;
    const auto errors = errors_of(ranks, [&](int) {
      ++calls;
      return AgreementFields{{"K", "64"}, {"V", ""}};
    });
    EXPECT_EQ(calls, ranks);
    for (const std::string& error : errors) EXPECT_EQ(error, "none");
  }
}

TEST(CommAgreementCheck, OneRanksErrorReachesAll) {
  const auto errors = errors_of(4, [](int rank) {
    if (rank == 2) throw OutOfMemory("workspace: got 3 bytes, expected 4");
    return AgreementFields{{"K", "64"}};
  });
  EXPECT_EQ(errors[2], "OutOfMemory | workspace: got 3 bytes, expected 4") << "its own error, as it was thrown";
  for (const std::size_t r : {0u, 1u, 3u}) {
    EXPECT_EQ(errors[r], "CommError | rank 2: kda: workspace: got 3 bytes, expected 4");
  }
}

TEST(CommAgreementCheck, ErrorsOnSeveralRanks) {
  const auto errors = errors_of(4, [](int rank) -> AgreementFields {
    if (rank == 1) throw InvalidArgument("q: got nothing, expected a tensor");
    if (rank == 3) throw WrongMode("saved: a longer text than the first one's, which must not be cut");
    return {{"K", "64"}};
  });
  EXPECT_EQ(errors[1], "InvalidArgument | q: got nothing, expected a tensor");
  EXPECT_EQ(errors[3], "WrongMode | saved: a longer text than the first one's, which must not be cut");
  for (const std::size_t r : {0u, 2u}) {
    EXPECT_EQ(errors[r], "CommError | rank 1: kda: q: got nothing, expected a tensor") << "the first rank's";
  }
}

TEST(CommAgreementCheck, EveryRankFailsWithItsOwnError) {
  const auto errors =
      errors_of(3, [](int rank) -> AgreementFields { throw NotSupported("option " + std::to_string(rank)); });
  for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(errors[r], "NotSupported | option " + std::to_string(r));
  // Also where all say the same.
  for (const std::string& error :
       errors_of(3, [](int) -> AgreementFields { throw NotSupported("one and the same"); })) {
    EXPECT_EQ(error, "NotSupported | one and the same");
  }
  EXPECT_EQ(errors_of(1, [](int) -> AgreementFields { throw InvalidArgument("alone"); })[0], "InvalidArgument | alone");
}

TEST(CommAgreementCheck, AnErrorComesBeforeADifference) {
  const auto errors = errors_of(3, [](int rank) -> AgreementFields {
    if (rank == 0) throw InvalidArgument("q: bad");
    return {{"K", std::to_string(rank)}};
  });
  EXPECT_EQ(errors[0], "InvalidArgument | q: bad");
  for (const std::size_t r : {1u, 2u}) EXPECT_EQ(errors[r], "CommError | rank 0: kda: q: bad");
}

TEST(CommAgreementCheck, AnErrorWithoutText) {
  const auto errors = errors_of(2, [](int rank) -> AgreementFields {
    if (rank == 1) throw InvalidArgument("");
    return {};
  });
  EXPECT_EQ(errors[1], "InvalidArgument | ");
  EXPECT_EQ(errors[0], "CommError | rank 1: kda: ");
}

TEST(CommAgreementCheck, AnExceptionThatIsNotOurs) {
  std::atomic<int> own{0}, told{0};
  ThreadGroup(3, 20s).run([&](Communicator& c) {
    try {
      require_agreement(c, "kda", [&]() -> AgreementFields {
        if (c.rank() == 0) throw std::length_error("vector");
        return {};
      });
      ADD_FAILURE() << "accepted";
    } catch (const std::length_error&) {
      ++own;
    } catch (const CommError& error) {
      EXPECT_EQ(std::string(error.what()), "rank 0: kda: vector");
      ++told;
    }
    c.barrier();
  });
  EXPECT_EQ(own, 1);
  EXPECT_EQ(told, 2);
}

TEST(CommAgreementCheck, DifferencesAreNamedWithEveryRanksValue) {
  const auto errors = errors_of(3, [](int rank) {
    return AgreementFields{{"K", "64"}, {"scale", rank == 1 ? "0.5" : "none"}, {"V", std::to_string(rank)}};
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "InvalidArgument | kda: scale differs between ranks: rank 0 none, rank 1 0.5, rank 2 none");
  }
  // Equal fields in another order are named too: the ranks must do the same thing.
  for (const std::string& error : errors_of(2, [](int rank) {
         return rank == 0 ? AgreementFields{{"a", "1"}, {"b", "2"}} : AgreementFields{{"b", "2"}, {"a", "1"}};
       })) {
    EXPECT_EQ(error, "InvalidArgument | kda: the order of fields differs between ranks");
  }
}

TEST(CommAgreementCheck, TheEarliestOfManyRounds) {
  // Refusals and agreements one after another: nothing of one round reaches the next.
  ThreadGroup(3, 20s).run([](Communicator& c) {
    for (int round = 0; round < 100; ++round) {
      const int bad = round % 4;  // 3: nobody
      const std::string error = error_of([&] {
        require_agreement(c, "round", [&]() -> AgreementFields {
          if (c.rank() == bad) throw InvalidArgument("round " + std::to_string(round));
          return {{"round", std::to_string(round)}};
        });
      });
      const std::string text = "round " + std::to_string(round);
      ASSERT_EQ(error, bad == 3          ? "none"
                       : c.rank() == bad ? "InvalidArgument | " + text
                                         : "CommError | rank " + std::to_string(bad) + ": round: " + text);
    }
  });
}

}  // namespace
}  // namespace cake
