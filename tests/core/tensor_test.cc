#include "cake/core/tensor.h"

#include "test_util.h"

namespace cake {
namespace {

using test::expect_error;

TEST(TensorView, Contiguous) {
  float x[24] = {};
  const auto view = ConstTensorView::contiguous(x, DType::kFloat32, {2, 3, 4});
  EXPECT_EQ(view.data, x);
  EXPECT_EQ(view.ndim, 3);
  EXPECT_TRUE(view.given);
  EXPECT_EQ(view.numel(), 24);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(view.shape_string(), "[2, 3, 4]");
  EXPECT_EQ(view.device, Device{});
}

TEST(TensorView, NotGiven) {
  const ConstTensorView view;
  EXPECT_FALSE(view.given);
  EXPECT_EQ(view.numel(), 0);
  EXPECT_EQ(view.shape_string(), "(not given)");
}

TEST(TensorView, EmptyAndScalar) {
  const auto empty = ConstTensorView::contiguous(nullptr, DType::kBFloat16, {3, 0, 5});
  EXPECT_TRUE(empty.given);
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_TRUE(empty.is_contiguous());
  float x = 0;
  const auto scalar = ConstTensorView::contiguous(&x, DType::kFloat32, {});
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.shape_string(), "[]");
  EXPECT_TRUE(scalar.is_contiguous());
}

TEST(TensorView, Strides) {
  float x[64] = {};
  EXPECT_FALSE(ConstTensorView::strided(x, DType::kFloat32, {2, 3}, {8, 1}).is_contiguous());
  EXPECT_FALSE(ConstTensorView::strided(x, DType::kFloat32, {2, 3}, {1, 2}).is_contiguous());
  EXPECT_FALSE(ConstTensorView::strided(x, DType::kFloat32, {2, 3}, {0, 1}).is_contiguous());
  EXPECT_TRUE(ConstTensorView::strided(x, DType::kFloat32, {2, 3}, {3, 1}).is_contiguous());
  // Strides of extents 1 mean nothing.
  EXPECT_TRUE(ConstTensorView::strided(x, DType::kFloat32, {1, 3}, {77, 1}).is_contiguous());
  EXPECT_TRUE(ConstTensorView::strided(x, DType::kFloat32, {4, 1}, {1, -5}).is_contiguous());
  const auto back = ConstTensorView::strided(x + 63, DType::kFloat32, {4}, {-2});
  EXPECT_EQ(back.strides[0], -2);
  EXPECT_EQ(back.numel(), 4);
}

TEST(TensorView, SizesAre64Bit) {
  const auto view = ConstTensorView::strided(nullptr, DType::kFloat32, {1 << 20, 1 << 20}, {1 << 20, 1});
  EXPECT_EQ(view.numel(), std::int64_t{1} << 40);
}

TEST(TensorView, WritableConvertsToReadOnly) {
  float x[8] = {};
  TensorView view = TensorView::strided(x, DType::kFloat32, {2, 3}, {4, 1});
  view.device = {DeviceType::kCuda, 3};
  const ConstTensorView read = view;
  EXPECT_EQ(read.data, x);
  EXPECT_EQ(read.dtype, DType::kFloat32);
  EXPECT_EQ(read.ndim, 2);
  EXPECT_TRUE(read.given);
  EXPECT_EQ(read.shape, view.shape);
  EXPECT_EQ(read.strides, view.strides);
  EXPECT_EQ(read.device, view.device);
  EXPECT_EQ(view.numel(), 6);
  EXPECT_FALSE(ConstTensorView(TensorView{}).given);
}

TEST(TensorView, Refusals) {
  float x[4] = {};
  expect_error<InvalidArgument>([&] { ConstTensorView::contiguous(x, DType::kFloat32, {2, -1}); }, {"shape", "-1"});
  expect_error<InvalidArgument>(
      [&] {
        ConstTensorView::contiguous(x, DType::kFloat32, {1, 1, 1, 1, 1, 1, 1, 1, 1});
      },
      {"shape", "8", "9"});
  expect_error<InvalidArgument>([&] { TensorView::strided(x, DType::kFloat32, {2, 2}, {1}); }, {"strides", "1 for 2"});
  const auto most = ConstTensorView::contiguous(x, DType::kFloat32, {1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(most.ndim, kMaxDims);
}

TEST(Device, Names) {
  EXPECT_EQ(device_name({}), "cpu");
  EXPECT_EQ(device_name({DeviceType::kCuda, 0}), "cuda:0");
  EXPECT_EQ(device_name({DeviceType::kCuda, 7}), "cuda:7");
  EXPECT_FALSE((Device{DeviceType::kCuda, 0}) == (Device{DeviceType::kCuda, 1}));
}

}  // namespace
}  // namespace cake
