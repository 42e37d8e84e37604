#include <vector>

#include "cake/comm.h"

namespace cake {
namespace {

class CallbackCommunicator final : public Communicator {
 public:
  explicit CallbackCommunicator(CommCallbacks callbacks) : calls_(std::move(callbacks)) {}
  int rank() const override { return calls_.rank; }
  int size() const override { return calls_.size; }

 private:
  template <class Call>
  void guarded(const char* name, Call call) {
    try {
      call();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw CommError(std::string(name) + " of rank " + std::to_string(calls_.rank) + " failed: " + error.what());
    } catch (...) {
      throw CommError(std::string(name) + " of rank " + std::to_string(calls_.rank) + " failed");
    }
  }
  void do_all_gather(const void* data, std::size_t bytes, void* all) override {
    guarded("all_gather", [&] { calls_.all_gather(data, bytes, all); });
  }
  void do_exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
    guarded("exchange", [&] { calls_.exchange(sends, receives); });
  }
  void do_barrier() override {
    guarded("barrier", [&] {
      if (calls_.barrier) return calls_.barrier();
      const char here = 1;
      std::vector<char> all(static_cast<std::size_t>(calls_.size));
      calls_.all_gather(&here, 1, all.data());
    });
  }
  void do_abort(const std::string& reason) noexcept override {
    try {
      if (calls_.abort) calls_.abort(reason);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the group is ending anyway
    }
  }

  CommCallbacks calls_;
};

}  // namespace

std::unique_ptr<Communicator> make_callback_communicator(CommCallbacks callbacks) {
  const auto fail = [](const std::string& text) { throw InvalidArgument(text); };
  if (callbacks.size < 1) fail("size: got " + std::to_string(callbacks.size) + ", expected 1 or more");
  if (callbacks.rank < 0 || callbacks.rank >= callbacks.size) {
    fail("rank: got " + std::to_string(callbacks.rank) + ", expected 0 to " + std::to_string(callbacks.size - 1));
  }
  if (!callbacks.all_gather) fail("all_gather: got nothing, expected a function");
  if (!callbacks.exchange) fail("exchange: got nothing, expected a function");
  return std::make_unique<CallbackCommunicator>(std::move(callbacks));
}

}  // namespace cake
