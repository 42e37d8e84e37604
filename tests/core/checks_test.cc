#include "core/checks.h"

#include "test_util.h"

namespace cake {
namespace {

using test::expect_error;

TEST(Checks, Given) {
  float x[6] = {};
  checks::require_given(ConstTensorView::contiguous(x, DType::kFloat32, {2, 3}), "q");
  checks::require_given(ConstTensorView::contiguous(nullptr, DType::kFloat32, {0, 3}), "q");
  expect_error<InvalidArgument>([] { checks::require_given(ConstTensorView{}, "q"); }, {"q", "nothing", "a tensor"});
  ConstTensorView on_gpu = ConstTensorView::contiguous(x, DType::kFloat32, {2, 3});
  on_gpu.device = {DeviceType::kCuda, 1};
  expect_error<InvalidArgument>([&] { checks::require_given(on_gpu, "beta"); }, {"beta", "cuda:1", "cpu"});
}

TEST(Checks, Shape) {
  float x[24] = {};
  const auto view = ConstTensorView::contiguous(x, DType::kFloat32, {2, 3, 4});
  checks::require_shape(view, "k", "[B, S, K]", {2, 3, 4});
  checks::require_shape(view, "k", "[B, S, K]", {checks::kAny, 3, checks::kAny});
  expect_error<InvalidArgument>(
      [&] {
        checks::require_shape(view, "k", "[B, S, K]", {2, 3, 5});
      },
      {"k", "[2, 3, 4]", "[B, S, K]", "[2, 3, 5]"});
  expect_error<InvalidArgument>(
      [&] {
        checks::require_shape(view, "k", "[B, S]", {2, checks::kAny});
      },
      {"k", "[2, 3, 4]", "[2, any]"});
  expect_error<InvalidArgument>([&] { checks::require_shape(view, "k", "[]", {}); }, {"k"});
  expect_error<InvalidArgument>([&] { checks::require_shape(view, "k", "[N]", {2, 3, 4, 1}); }, {"k"});
}

TEST(Checks, Dtype) {
  std::uint16_t x[4] = {};
  const auto view = ConstTensorView::contiguous(x, DType::kBFloat16, {4});
  checks::require_dtype(view, "v", {DType::kFloat32, DType::kBFloat16});
  expect_error<InvalidArgument>(
      [&] {
        checks::require_dtype(view, "v", {DType::kFloat32, DType::kFloat16});
      },
      {"v", "bf16", "fp32 or fp16"});
  expect_error<InvalidArgument>([&] { checks::require_dtype(view, "v", {DType::kInt32}); }, {"bf16", "int32"});
}

TEST(Checks, Data) {
  alignas(8) unsigned char raw[32] = {};
  checks::require_data(ConstTensorView::contiguous(raw, DType::kFloat32, {4}), "g");
  checks::require_data(ConstTensorView::contiguous(nullptr, DType::kFloat32, {0}), "g");
  checks::require_data(ConstTensorView::contiguous(raw + 2, DType::kFloat16, {4}), "g");
  expect_error<InvalidArgument>(
      [] { checks::require_data(ConstTensorView::contiguous(nullptr, DType::kFloat32, {4}), "g"); },
      {"g", "null", "[4]"});
  expect_error<InvalidArgument>(
      [&] { checks::require_data(ConstTensorView::contiguous(raw + 2, DType::kFloat32, {4}), "g"); }, {"g", "aligned"});
  expect_error<InvalidArgument>(
      [&] { checks::require_data(ConstTensorView::contiguous(raw + 4, DType::kInt64, {1}), "g"); }, {"aligned"});
}

TEST(Checks, NotExpanded) {
  float x[8] = {};
  checks::require_not_expanded(ConstTensorView::strided(x, DType::kFloat32, {2, 3}, {4, 1}), "out");
  checks::require_not_expanded(ConstTensorView::strided(x, DType::kFloat32, {1, 3}, {0, 1}), "out");
  checks::require_not_expanded(ConstTensorView::strided(x, DType::kFloat32, {0, 3}, {0, 1}), "out");
  expect_error<InvalidArgument>(
      [&] {
        checks::require_not_expanded(ConstTensorView::strided(x, DType::kFloat32, {2, 3}, {0, 1}), "out");
      },
      {"out", "stride 0", "dimension 0"});
  expect_error<InvalidArgument>(
      [&] {
        checks::require_not_expanded(ConstTensorView::strided(x, DType::kFloat32, {2, 3}, {3, 0}), "out");
      },
      {"dimension 1"});
}

TEST(Checks, FailIsWordedAsEveryCheck) {
  try {
    checks::fail("lower_bound", "0.5", "a number below 0");
    FAIL() << "returned";
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "lower_bound: got 0.5, expected a number below 0");
  }
}

}  // namespace
}  // namespace cake
