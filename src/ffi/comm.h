// Communicators behind handles.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>

#include "cake/comm.h"
#include "ffi/ffi.h"

namespace cake::ffi {

/// "cake/kcp/communicator/v1" holds no mode.
inline Tag communicator_tag() { return {"kcp", "", false, "communicator", 1}; }
/// "cake/kcp/threads/v1": a group of ranks as threads.
inline Tag threads_tag() { return {"kcp", "", false, "threads", 1}; }

/// A number of the caller's language; what does not fit is out of every range all the same.
inline int clamped(int64_t value) {
  return static_cast<int>(std::clamp<int64_t>(value, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
}

/// The communicator of a handle. Throws the errors of check_tag.
inline std::shared_ptr<Communicator> communicator_of(const HandleRef& ref) {
  return ref->handle.get<Communicator>(communicator_tag(), "group");
}

}  // namespace cake::ffi
