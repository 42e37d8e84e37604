// One rank of an MPI run: `mpirun -np N mpi_program CASE`. Prints what failed and ends with 1, or ends with 0.
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cake/mpi.h"

namespace {

using namespace cake;
using namespace std::chrono_literals;

int failures = 0;

void expect(bool good, const char* what, int rank) {
  if (good) return;
  ++failures;
  std::fprintf(stderr, "rank %d: %s\n", rank, what);
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error_kind_name(error.kind())) + " | " + error.what();
  }
  return "none";
}

/// Everything that works.
void contract() {
  const auto c = make_mpi_communicator();
  const int n = c->size(), me = c->rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  std::vector<int> all(static_cast<std::size_t>(n), -1);
  const int mine = 7 * me;
  c->all_gather(&mine, sizeof mine, all.data());
  for (int r = 0; r < n; ++r) expect(all[static_cast<std::size_t>(r)] == 7 * r, "all_gather", me);
  // A ring with a message to itself, an empty one and a large one, in the order given.
  std::vector<unsigned char> large(3 << 20, static_cast<unsigned char>(me)), large_in(large.size());
  int own = -1, small = -1;
  const std::vector<Send> sends = {
      {next, large.data(), large.size()}, {me, &mine, 4}, {next, nullptr, 0}, {next, &mine, 4}};
  const std::vector<Receive> receives = {
      {before, large_in.data(), large_in.size()}, {before, nullptr, 0}, {before, &small, 4}, {me, &own, 4}};
  c->exchange(sends, receives);
  expect(large_in == std::vector<unsigned char>(large.size(), static_cast<unsigned char>(before)), "large message", me);
  expect(small == 7 * before && own == mine, "order of messages", me);
  expect(c->counters().bytes_sent == large.size() + 8 + 4 * static_cast<unsigned>(n - 1), "counters", me);
  for (int i = 0; i < 50; ++i) c->barrier();
  const std::string layout = me == n - 1 ? "zigzag" : "contiguous";
  const std::string error = error_of([&] { require_agreement(*c, "partition", {{"layout", layout}}); });
  expect(n == 1 || error.find("InvalidArgument | partition: layout differs between ranks: rank 0") == 0, "agreement",
         me);
  require_agreement(*c, "partition", {{"tokens", "5"}});
  // A second communicator beside the first.
  const auto other = make_mpi_communicator();
  other->barrier();
  c->barrier();
}

/// A rank that fails tells the others.
void aborted() {
  const auto c = make_mpi_communicator(20s);
  if (c->rank() == 1) {
    c->abort("out of ideas");
  } else {
    const std::string error = error_of([&] {
      for (;;) c->barrier();
    });
    expect(error == "CommError | rank 1 failed: out of ideas", error.c_str(), c->rank());
    expect(error_of([&] { c->barrier(); }).find("CommError") == 0, "a failed group stays failed", c->rank());
  }
  std::this_thread::sleep_for(300ms);
}

/// A rank that does not come is a time limit, not a hang.
void silent() {
  const auto c = make_mpi_communicator(300ms);
  if (c->rank() == 0) {
    int number = 0;
    const std::string error = error_of([&] { c->exchange({}, std::vector<Receive>{{1, &number, 4}}); });
    expect(error == "CommError | rank 0 waited 300 ms for rank 1", error.c_str(), 0);
  }
  std::this_thread::sleep_for(1s);
}

/// Sizes are compared, not trusted.
void sizes() {
  const auto c = make_mpi_communicator(20s);
  long number = 0;
  if (c->rank() == 0) c->exchange(std::vector<Send>{{1, &number, 4}, {2, &number, 8}}, {});
  if (c->rank() == 1) {
    const std::string error = error_of([&] { c->exchange({}, std::vector<Receive>{{0, &number, 8}}); });
    expect(error == "CommError | rank 1 expected 8 bytes from rank 0, got 4", error.c_str(), 1);
  }
  if (c->rank() == 2) {
    const std::string error = error_of([&] { c->exchange({}, std::vector<Receive>{{0, &number, 4}}); });
    expect(error == "CommError | rank 2 expected 4 bytes from rank 0, got more", error.c_str(), 2);
  }
  std::this_thread::sleep_for(300ms);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "contract") {
    contract();
  } else if (name == "aborted") {
    aborted();
  } else if (name == "silent") {
    silent();
  } else if (name == "sizes") {
    sizes();
  } else {
    std::fprintf(stderr, "unknown case \"%s\"\n", name.c_str());
    return 2;
  }
  return failures == 0 ? 0 : 1;
}
