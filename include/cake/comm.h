// Ranks that exchange bytes: what the packages over ranks (`_kcp`) run on. A communicator moves bytes and never adds
// numbers, so the transport cannot change a bit of a result.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cake/core/error.h"
#include "cake/core/export.h"

namespace cake {

/// One message out.
struct Send {
  int to = 0;                  ///< rank
  const void* data = nullptr;  ///< `bytes` bytes
  std::size_t bytes = 0;       ///< may be 0: the message is sent all the same
};

/// One message in. The sender's size must be the same.
struct Receive {
  int from = 0;           ///< rank
  void* data = nullptr;   ///< room for `bytes` bytes
  std::size_t bytes = 0;  ///< may be 0
};

/// (name, value) pairs on which ranks must agree.
using AgreementFields = std::vector<std::pair<std::string, std::string>>;

/// What one rank has moved since its communicator was made. Barriers, agreements and what a transport adds do not
/// count.
struct CommCounters {
  std::uint64_t messages_sent = 0;   ///< by exchange
  std::uint64_t bytes_sent = 0;      ///< by exchange, and by all_gather to the other ranks
  std::uint64_t bytes_received = 0;  ///< the same, from the other ranks
  std::uint64_t all_gathers = 0;     ///< calls
};

/// One rank of a group. Every rank makes the same collective calls in the same order. Not for concurrent calls of one
/// rank. Errors are CommError: a rank that failed, a message of another size, an answer that did not come in time.
class CAKE_API Communicator {
 public:
  virtual ~Communicator();
  /// This rank, from 0.
  virtual int rank() const = 0;
  /// Ranks of the group.
  virtual int size() const = 0;

  /// Collective: every rank's `bytes` bytes (the same number everywhere) to `all`, in rank order.
  void all_gather(const void* data, std::size_t bytes, void* all);
  /// Sends and receives; returns when all are done. Messages between two ranks arrive in the order they are given. A
  /// rank may send to itself.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives);
  /// Collective: returns when every rank has come.
  void barrier();
  /// Ends the group: pending and later calls of all ranks throw CommError with this rank's number and the reason.
  void abort(const std::string& reason) noexcept;
  /// What this rank has moved.
  const CommCounters& counters() const { return counters_; }

 protected:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// An all_gather made of one exchange, for transports without a better one.
  void gather_by_exchange(const void* data, std::size_t bytes, void* all);

 private:
  friend CAKE_API void require_agreement(Communicator& communicator, const char* what,
                                         const std::function<AgreementFields()>& check);
  virtual void do_all_gather(const void* data, std::size_t bytes, void* all) = 0;
  virtual void do_exchange(std::span<const Send> sends, std::span<const Receive> receives) = 0;
  virtual void do_barrier() = 0;
  virtual void do_abort(const std::string& reason) noexcept = 0;

  CommCounters counters_;
};

/// Collective: throws nothing when all ranks give the same fields. Else every rank throws InvalidArgument naming
/// `what`, the first field that differs, and every rank's value.
CAKE_API void require_agreement(Communicator& communicator, const char* what, const AgreementFields& fields);
/// The same with fields that `check` returns after it has checked this rank's arguments. Where it throws an Error, that
/// rank rethrows it and the others throw CommError with the rank's number and message, so that none goes on alone. The
/// group stays usable.
CAKE_API void require_agreement(Communicator& communicator, const char* what,
                                const std::function<AgreementFields()>& check);

/// How long a rank waits for another before it gives up.
inline constexpr std::chrono::milliseconds kDefaultCommTimeout{60'000};

/// Ranks as threads of this process.
class CAKE_API ThreadGroup {
 public:
  /// 1 to 1024 ranks.
  explicit ThreadGroup(int ranks, std::chrono::milliseconds timeout = kDefaultCommTimeout);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;
  /// Ranks.
  int size() const;
  /// The communicator of a rank, for one thread at a time.
  Communicator& communicator(int rank);
  /// Calls fn(communicator of the rank) on one thread per rank and waits for all. When a rank throws, the group is
  /// aborted, so that the others fail instead of waiting; the error that came first is rethrown.
  void run(const std::function<void(Communicator&)>& fn);

 private:
  struct Shared;
  class Rank;
  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// A caller's own transport, the way frameworks with process groups plug in. The functions keep the contract of
/// Communicator; what they throw reaches the caller as CommError (an Error of this library as it is).
struct CommCallbacks {
  int rank = 0;                                                                    ///< this rank
  int size = 1;                                                                    ///< ranks
  std::function<void(const void* data, std::size_t bytes, void* all)> all_gather;  ///< required
  std::function<void(std::span<const Send>, std::span<const Receive>)> exchange;   ///< required
  std::function<void()> barrier;                  ///< optional: an all_gather of one byte
  std::function<void(const std::string&)> abort;  ///< optional
};
/// A communicator over callbacks. Throws InvalidArgument naming a missing one, or rank or size out of range.
CAKE_API std::unique_ptr<Communicator> make_callback_communicator(CommCallbacks callbacks);

}  // namespace cake
