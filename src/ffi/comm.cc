// ffi functions of communicators: ranks as threads, and a transport of the caller's language.
#include "ffi/comm.h"

#include <chrono>
#include <cmath>

namespace cake::ffi {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;

HandleRef make_threads(int64_t ranks, double timeout_seconds) {
  return translated([&] {
    if (!(timeout_seconds > 0) || timeout_seconds > 1e9) {
      throw InvalidArgument("timeout: got " + std::to_string(timeout_seconds) +
                            " s, expected more than 0, at most 1e9");
    }
    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(std::ceil(timeout_seconds * 1000)));
    return HandleRef(Handle(threads_tag(), std::make_shared<ThreadGroup>(clamped(ranks), timeout)));
  });
}

HandleRef communicator_of_thread(HandleRef group, int64_t rank) {
  return translated([&] {
    const auto threads = group->handle.get<ThreadGroup>(threads_tag(), "group");
    Communicator& communicator = threads->communicator(clamped(rank));
    return HandleRef(Handle(communicator_tag(), std::shared_ptr<Communicator>(threads, &communicator)));
  });
}

int64_t address(const void* data) { return static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(data)); }

/// Calls a function of the caller's language. It must return true: one that did not get to its end returns nothing.
template <class... Arguments>
void call(const Function& function, const char* name, const Arguments&... arguments) {
  try {
    const tvm::ffi::Any done = function(arguments...);
    if (done.try_cast<bool>().value_or(false)) return;
  } catch (const tvm::ffi::Error& error) {
    throw CommError(std::string(name) + ": " + error.what());
  }
  throw CommError(std::string(name) + ": it did not get to its end");
}

/// [rank, address, bytes, rank, address, bytes, ...].
template <class Messages, class Rank>
Array<int64_t> list_of(const Messages& messages, Rank rank) {
  Array<int64_t> list;
  list.reserve(static_cast<int64_t>(3 * messages.size()));
  for (const auto& m : messages) {
    list.push_back(rank(m));
    list.push_back(address(m.data));
    list.push_back(static_cast<int64_t>(m.bytes));
  }
  return list;
}

HandleRef make_callbacks(int64_t rank, int64_t size, Function all_gather, Function exchange,
                         tvm::ffi::Optional<Function> barrier, tvm::ffi::Optional<Function> abort) {
  return translated([&] {
    CommCallbacks calls;
    calls.rank = clamped(rank);
    calls.size = clamped(size);
    calls.all_gather = [all_gather](const void* data, std::size_t bytes, void* all) {
      call(all_gather, "all_gather", address(data), static_cast<int64_t>(bytes), address(all));
    };
    calls.exchange = [exchange](std::span<const Send> sends, std::span<const Receive> receives) {
      call(exchange, "exchange", list_of(sends, [](const Send& s) { return s.to; }),
           list_of(receives, [](const Receive& r) { return r.from; }));
    };
    if (barrier.has_value()) calls.barrier = [function = *barrier] { call(function, "barrier"); };
    if (abort.has_value()) {
      calls.abort = [function = *abort](const std::string& reason) { function(tvm::ffi::String(reason)); };
    }
    return HandleRef(
        Handle(communicator_tag(), std::shared_ptr<Communicator>(make_callback_communicator(std::move(calls)))));
  });
}

int64_t communicator_rank(HandleRef communicator) {
  return translated([&] { return static_cast<int64_t>(communicator_of(communicator)->rank()); });
}
int64_t communicator_size(HandleRef communicator) {
  return translated([&] { return static_cast<int64_t>(communicator_of(communicator)->size()); });
}
void communicator_abort(HandleRef communicator, tvm::ffi::String reason) {
  translated([&] { communicator_of(communicator)->abort(reason); });
}
/// messages_sent, bytes_sent, bytes_received, all_gathers.
Array<int64_t> communicator_counters(HandleRef communicator) {
  return translated([&] {
    const CommCounters& c = communicator_of(communicator)->counters();
    return Array<int64_t>{static_cast<int64_t>(c.messages_sent), static_cast<int64_t>(c.bytes_sent),
                          static_cast<int64_t>(c.bytes_received), static_cast<int64_t>(c.all_gathers)};
  });
}

}  // namespace
}  // namespace cake::ffi

TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_make_threads, cake::ffi::make_threads)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_communicator_of_thread, cake::ffi::communicator_of_thread)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_make_callbacks, cake::ffi::make_callbacks)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_communicator_rank, cake::ffi::communicator_rank)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_communicator_size, cake::ffi::communicator_size)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_communicator_abort, cake::ffi::communicator_abort)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_communicator_counters, cake::ffi::communicator_counters)
