#include "cake/core/error.h"

namespace cake {

const char* error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "InvalidArgument";
    case ErrorKind::kWrongType: return "WrongType";
    case ErrorKind::kWrongMode: return "WrongMode";
    case ErrorKind::kNotSupported: return "NotSupported";
    case ErrorKind::kNondeterminismAlert: return "NondeterminismAlert";
    case ErrorKind::kDeviceError: return "DeviceError";
    case ErrorKind::kCommError: return "CommError";
    case ErrorKind::kOutOfMemory: return "OutOfMemory";
  }
  return "unknown";
}

// Out of line, so that each class has one home for its type information and can be caught across libraries.
Error::~Error() = default;
InvalidArgument::~InvalidArgument() = default;
WrongType::~WrongType() = default;
WrongMode::~WrongMode() = default;
NotSupported::~NotSupported() = default;
NondeterminismAlert::~NondeterminismAlert() = default;
DeviceError::~DeviceError() = default;
CommError::~CommError() = default;
OutOfMemory::~OutOfMemory() = default;

}  // namespace cake
