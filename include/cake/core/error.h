// The exceptions this library throws. A message names the argument, what was given and what is accepted.
#pragma once

#include <stdexcept>
#include <string>

#include "cake/core/export.h"

namespace cake {

/// What went wrong; the Python package maps each kind to one built-in exception class.
enum class ErrorKind {
  kInvalidArgument,      ///< ValueError
  kWrongType,            ///< TypeError
  kWrongMode,            ///< ValueError: an object of the other mode's package
  kNotSupported,         ///< NotImplementedError: named, not built
  kNondeterminismAlert,  ///< RuntimeError
  kDeviceError,          ///< RuntimeError
  kCommError,            ///< RuntimeError
  kOutOfMemory,          ///< MemoryError
};

/// Name of a kind, for example "InvalidArgument".
CAKE_API const char* error_kind_name(ErrorKind kind);

/// Base of every exception of this library.
class CAKE_API Error : public std::runtime_error {
 public:
  /// An error of a kind; `message` is what what() returns.
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ~Error() override;
  /// The kind, which decides the exception class in other languages.
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// A value, shape, dtype or stride that the named argument does not accept.
class CAKE_API InvalidArgument : public Error {
 public:
  /// `message` names the argument, what was given and what is accepted.
  explicit InvalidArgument(const std::string& message) : Error(ErrorKind::kInvalidArgument, message) {}
  ~InvalidArgument() override;
};

/// An object of a class that the named argument does not accept.
class CAKE_API WrongType : public Error {
 public:
  /// `message` names the argument, what was given and what is accepted.
  explicit WrongType(const std::string& message) : Error(ErrorKind::kWrongType, message) {}
  ~WrongType() override;
};

/// An object that belongs to the other mode's package.
class CAKE_API WrongMode : public Error {
 public:
  /// `message` names the argument, what was given and what is accepted.
  explicit WrongMode(const std::string& message) : Error(ErrorKind::kWrongMode, message) {}
  ~WrongMode() override;
};

/// An option or a device that this version does not build; the message names it.
class CAKE_API NotSupported : public Error {
 public:
  /// `message` names the argument, what was given and what is accepted.
  explicit NotSupported(const std::string& message) : Error(ErrorKind::kNotSupported, message) {}
  ~NotSupported() override;
};

/// A nondeterministic backward was asked for while the policy forbids it.
class CAKE_API NondeterminismAlert : public Error {
 public:
  /// `message` names the argument, what was given and what is accepted.
  explicit NondeterminismAlert(const std::string& message) : Error(ErrorKind::kNondeterminismAlert, message) {}
  ~NondeterminismAlert() override;
};

/// A device call failed.
class CAKE_API DeviceError : public Error {
 public:
  /// `message` names the argument, what was given and what is accepted.
  explicit DeviceError(const std::string& message) : Error(ErrorKind::kDeviceError, message) {}
  ~DeviceError() override;
};

/// A rank failed, disagreed or did not answer in time.
class CAKE_API CommError : public Error {
 public:
  /// `message` names the argument, what was given and what is accepted.
  explicit CommError(const std::string& message) : Error(ErrorKind::kCommError, message) {}
  ~CommError() override;
};

/// Memory could not be had, or a caller's buffer is smaller than the byte query says.
class CAKE_API OutOfMemory : public Error {
 public:
  /// `message` names the argument, what was given and what is accepted.
  explicit OutOfMemory(const std::string& message) : Error(ErrorKind::kOutOfMemory, message) {}
  ~OutOfMemory() override;
};

}  // namespace cake
