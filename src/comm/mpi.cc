#include "cake/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace cake {
namespace {

constexpr int kDataTag = 1, kAbortTag = 2;
constexpr std::size_t kPiece = std::size_t{1} << 30;  // MPI counts are int: longer messages travel in pieces

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(std::string(what) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

/// MPI lives as long as any communicator, unless the program started it.
class Environment {
 public:
  Environment() {
    const std::lock_guard lock(mutex());
    int running = 0;
    MPI_Initialized(&running);
    if (running == 0) {
      int provided = 0;
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
      ours() = true;
    }
    ++users();
  }
  ~Environment() {
    const std::lock_guard lock(mutex());
    if (--users() == 0 && ours()) {
      ours() = false;
      MPI_Finalize();
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex object;
    return object;
  }
  static int& users() {
    static int count = 0;
    return count;
  }
  static bool& ours() {
    static bool started = false;
    return started;
  }
};

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(std::chrono::milliseconds timeout) : timeout_(timeout) {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &alarm_), "MPI_Comm_dup");
    for (MPI_Comm comm : {comm_, alarm_}) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  ~MpiCommunicator() override {
    if (broken_) return;  // freeing is collective, and the others may be gone
    MPI_Comm_free(&alarm_);
    MPI_Comm_free(&comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  struct Pending {
    MPI_Request request;
    int from;           // -1 for a send
    std::size_t bytes;  // expected
  };

  [[noreturn]] void fail(const std::string& text) {
    broken_ = true;
    throw CommError(text);
  }

  void check_alarm() {
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, alarm_, &there, &status) != MPI_SUCCESS || there == 0) return;
    int length = 0;
    MPI_Get_count(&status, MPI_CHAR, &length);
    std::string reason(static_cast<std::size_t>(length), '\0');
    MPI_Recv(reason.data(), length, MPI_CHAR, status.MPI_SOURCE, kAbortTag, alarm_, MPI_STATUS_IGNORE);
    fail("rank " + std::to_string(status.MPI_SOURCE) + " failed: " + reason);
  }

  /// Calls done() until it says true, looking for alarms and at the clock in between.
  template <class Done>
  void poll(Done done, const std::string& whom) {
    if (broken_) fail("rank " + std::to_string(rank_) + " used its group after it had failed");
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (long spins = 0; !done(); ++spins) {
      check_alarm();
      if (std::chrono::steady_clock::now() > deadline) {
        fail("rank " + std::to_string(rank_) + " waited " + std::to_string(timeout_.count()) + " ms for " + whom);
      }
      if (spins > 1000) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  void post(std::vector<Pending>& pending, const Send& s) {
    const auto* data = static_cast<const std::byte*>(s.data);
    for (std::size_t at = 0; at == 0 || at < s.bytes; at += kPiece) {
      const std::size_t piece = std::min(kPiece, s.bytes - at);
      Pending p{MPI_REQUEST_NULL, -1, piece};
      check(MPI_Isend(data + at, static_cast<int>(piece), MPI_BYTE, s.to, kDataTag, comm_, &p.request), "MPI_Isend");
      pending.push_back(p);
    }
  }
  void post(std::vector<Pending>& pending, const Receive& r) {
    auto* data = static_cast<std::byte*>(r.data);
    for (std::size_t at = 0; at == 0 || at < r.bytes; at += kPiece) {
      const std::size_t piece = std::min(kPiece, r.bytes - at);
      Pending p{MPI_REQUEST_NULL, r.from, piece};
      check(MPI_Irecv(data + at, static_cast<int>(piece), MPI_BYTE, r.from, kDataTag, comm_, &p.request), "MPI_Irecv");
      pending.push_back(p);
    }
  }

  void finish(const Pending& p, int code, const MPI_Status& status) {
    int got = 0;
    if (p.from >= 0 && code == MPI_SUCCESS) MPI_Get_count(&status, MPI_BYTE, &got);
    int error_class = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &error_class);
    if (p.from >= 0 &&
        (error_class == MPI_ERR_TRUNCATE || (code == MPI_SUCCESS && static_cast<std::size_t>(got) != p.bytes))) {
      fail("rank " + std::to_string(rank_) + " expected " + std::to_string(p.bytes) + " bytes from rank " +
           std::to_string(p.from) + ", got " + (code == MPI_SUCCESS ? std::to_string(got) : std::string("more")));
    }
    if (code != MPI_SUCCESS) {
      broken_ = true;
      check(code, "MPI");
    }
  }

  void do_exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
    std::vector<Pending> pending;
    for (const Receive& r : receives) post(pending, r);
    for (const Send& s : sends) post(pending, s);
    for (Pending& p : pending) {
      MPI_Status status{};
      int code = MPI_SUCCESS;
      const std::string whom =
          p.from >= 0 ? "rank " + std::to_string(p.from) : std::string("a rank that does not receive");
      poll(
          [&] {
            int flag = 0;
            code = MPI_Test(&p.request, &flag, &status);
            return flag != 0 || code != MPI_SUCCESS;
          },
          whom);
      finish(p, code, status);
    }
  }

  void do_all_gather(const void* data, std::size_t bytes, void* all) override { gather_by_exchange(data, bytes, all); }
  void do_barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
    poll(
        [&] {
          int flag = 0;
          check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
          return flag != 0;
        },
        "a barrier");
  }

  void do_abort(const std::string& reason) noexcept override {
    broken_ = true;
    try {
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        reasons_.push_back(reason);  // it must live as long as the message may be under way
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Isend(reasons_.back().data(), static_cast<int>(reason.size()), MPI_CHAR, r, kAbortTag, alarm_, &request);
        MPI_Request_free(&request);
      }
    } catch (...) {  // NOLINT(bugprone-empty-catch): the others will notice by the time limit
    }
  }

  Environment environment_;
  std::chrono::milliseconds timeout_;
  MPI_Comm comm_ = MPI_COMM_NULL, alarm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  bool broken_ = false;
  std::list<std::string> reasons_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) {
    throw InvalidArgument("timeout: got " + std::to_string(timeout.count()) + " ms, expected more than 0");
  }
  return std::make_unique<MpiCommunicator>(timeout);
}

}  // namespace cake
