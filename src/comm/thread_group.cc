#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "cake/comm.h"

namespace cake {
namespace {

constexpr int kMaxRanks = 1024;

/// Messages wait in a queue of the receiver, so a sender never waits.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::deque<std::vector<std::byte>>> from;
};

}  // namespace

struct ThreadGroup::Shared {
  Shared(int ranks, std::chrono::milliseconds limit) : timeout(limit), boxes(static_cast<std::size_t>(ranks)) {
    for (Mailbox& box : boxes) box.from.resize(static_cast<std::size_t>(ranks));
  }

  void abort(int rank, const std::string& reason) noexcept {
    {
      const std::lock_guard lock(failure_mutex);
      if (failure) return;
      try {
        failure = "rank " + std::to_string(rank) + " failed: " + reason;
      } catch (...) {
        failure.emplace();
      }
    }
    for (Mailbox& box : boxes) {
      const std::lock_guard lock(box.mutex);  // a waiter must not miss it between its test and its sleep
      box.arrived.notify_all();
    }
  }
  std::optional<std::string> failed() {
    const std::lock_guard lock(failure_mutex);
    return failure;
  }

  std::chrono::milliseconds timeout;
  std::vector<Mailbox> boxes;
  std::mutex failure_mutex;
  std::optional<std::string> failure;
};

class ThreadGroup::Rank final : public Communicator {
 public:
  Rank(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->boxes.size()); }

 private:
  void post(int to, const void* data, std::size_t bytes) {
    std::vector<std::byte> message(bytes);
    if (bytes > 0) std::memcpy(message.data(), data, bytes);
    Mailbox& box = shared_->boxes[static_cast<std::size_t>(to)];
    const std::lock_guard lock(box.mutex);
    box.from[static_cast<std::size_t>(rank_)].push_back(std::move(message));
    box.arrived.notify_all();
  }

  void take(int from, void* data, std::size_t bytes) {
    Mailbox& box = shared_->boxes[static_cast<std::size_t>(rank_)];
    auto& queue = box.from[static_cast<std::size_t>(from)];
    std::vector<std::byte> message;
    {
      std::unique_lock lock(box.mutex);
      const auto deadline = std::chrono::steady_clock::now() + shared_->timeout;
      while (queue.empty()) {
        if (const auto failure = shared_->failed()) throw CommError(*failure);
        if (box.arrived.wait_until(lock, deadline) == std::cv_status::timeout && queue.empty()) {
          throw CommError("rank " + std::to_string(rank_) + " waited " + std::to_string(shared_->timeout.count()) +
                          " ms for rank " + std::to_string(from));
        }
      }
      message = std::move(queue.front());
      queue.pop_front();
    }
    if (message.size() != bytes) {
      throw CommError("rank " + std::to_string(rank_) + " expected " + std::to_string(bytes) + " bytes from rank " +
                      std::to_string(from) + ", got " + std::to_string(message.size()));
    }
    if (bytes > 0) std::memcpy(data, message.data(), bytes);
  }

  void do_exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
    if (const auto failure = shared_->failed()) throw CommError(*failure);
    for (const Send& s : sends) post(s.to, s.data, s.bytes);
    for (const Receive& r : receives) take(r.from, r.data, r.bytes);
  }
  void do_all_gather(const void* data, std::size_t bytes, void* all) override { gather_by_exchange(data, bytes, all); }
  void do_barrier() override { do_all_gather(nullptr, 0, nullptr); }
  void do_abort(const std::string& reason) noexcept override { shared_->abort(rank_, reason); }

  std::shared_ptr<Shared> shared_;
  int rank_;
};

ThreadGroup::ThreadGroup(int ranks, std::chrono::milliseconds timeout) {
  if (ranks < 1 || ranks > kMaxRanks) {
    throw InvalidArgument("ranks: got " + std::to_string(ranks) + ", expected 1 to " + std::to_string(kMaxRanks));
  }
  if (timeout.count() <= 0) {
    throw InvalidArgument("timeout: got " + std::to_string(timeout.count()) + " ms, expected more than 0");
  }
  shared_ = std::make_shared<Shared>(ranks, timeout);
  for (int r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<Rank>(shared_, r));
}

ThreadGroup::~ThreadGroup() = default;

int ThreadGroup::size() const { return static_cast<int>(ranks_.size()); }

Communicator& ThreadGroup::communicator(int rank) {
  if (rank < 0 || rank >= size()) {
    throw InvalidArgument("rank: got " + std::to_string(rank) + ", expected 0 to " + std::to_string(size() - 1));
  }
  return *ranks_[static_cast<std::size_t>(rank)];
}

void ThreadGroup::run(const std::function<void(Communicator&)>& fn) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (const auto& rank : ranks_) {
    threads.emplace_back([&, communicator = rank.get()] {
      const auto failed = [&](const std::string& reason) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        communicator->abort(reason);
      };
      try {
        fn(*communicator);
      } catch (const std::exception& error) {
        failed(error.what());
      } catch (...) {
        failed("an unknown exception");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace cake
