#include "cake/core/error.h"

#include "test_util.h"

namespace cake {
namespace {

template <class ErrorType>
void expect_kind(ErrorKind kind, const char* name) {
  EXPECT_STREQ(error_kind_name(kind), name);
  bool caught = false;
  try {
    throw ErrorType("the message");
  } catch (const Error& e) {  // every exception is an Error and keeps its kind and text
    caught = true;
    EXPECT_EQ(e.kind(), kind);
    EXPECT_STREQ(e.what(), "the message");
    EXPECT_NE(dynamic_cast<const ErrorType*>(&e), nullptr);
  }
  EXPECT_TRUE(caught);
  EXPECT_THROW(throw ErrorType("x"), std::runtime_error);
}

TEST(ErrorKinds, EachClassHasItsKind) {
  expect_kind<InvalidArgument>(ErrorKind::kInvalidArgument, "InvalidArgument");
  expect_kind<WrongType>(ErrorKind::kWrongType, "WrongType");
  expect_kind<WrongMode>(ErrorKind::kWrongMode, "WrongMode");
  expect_kind<NotSupported>(ErrorKind::kNotSupported, "NotSupported");
  expect_kind<NondeterminismAlert>(ErrorKind::kNondeterminismAlert, "NondeterminismAlert");
  expect_kind<DeviceError>(ErrorKind::kDeviceError, "DeviceError");
  expect_kind<CommError>(ErrorKind::kCommError, "CommError");
  expect_kind<OutOfMemory>(ErrorKind::kOutOfMemory, "OutOfMemory");
}

TEST(ErrorKinds, UnknownKindHasAName) { EXPECT_STREQ(error_kind_name(static_cast<ErrorKind>(99)), "unknown"); }

TEST(ErrorKinds, ThrownInsideTheLibraryIsCaughtByItsClass) {
  EXPECT_THROW(parse_cpu_isa("avx9"), InvalidArgument);  // crosses the border of libcake_core
}

}  // namespace
}  // namespace cake
