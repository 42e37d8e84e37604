// Views with any strides: the bits of the contiguous copy, and nothing written between a result's elements.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {
namespace {

using kda_det_train::Gradients;
using kda_det_train::Inputs;

KdaProblem strided_problem(DType dtype) {
  KdaSpec spec;
  spec.lengths = {66, 0, kShortSegments ? kSegment + 20 : 90};
  spec.rows_past_end = 4;
  spec.H = 2;
  spec.HV = 4;
  spec.K = spec.V = 19;
  spec.dtype = spec.raw_gate_dtype = dtype;
  spec.initial_state = true;
  use_every_activation(spec);
  spec.seed = 1;
  return make_problem(spec);
}

ConstTensorView final_gradient(const KdaProblem& problem) {
  return problem.d_final_state ? problem.d_final_state->view() : ConstTensorView{};
}

TEST(KdaStrides, EveryLayoutOfOperandsAndResults) {
  for (const DType dtype : float_dtypes()) {
    const KdaProblem problem = strided_problem(dtype);
    const KdaResults expected = run(problem);
    for (const Layout layout : all_layouts()) {
      for (const bool recompute : {false, true}) {
        EXPECT_TRUE(same_bits(expected, run(problem, {.recompute = recompute, .inputs = layout})))
            << "inputs " << layout_name(layout) << ' ' << dtype_name(dtype);
        EXPECT_TRUE(same_bits(expected, run(problem, {.recompute = recompute, .outputs = layout})))
            << "outputs " << layout_name(layout) << ' ' << dtype_name(dtype);
      }
    }
    EXPECT_TRUE(same_bits(expected, run(problem, {.inputs = Layout::kHeadsFirst, .outputs = Layout::kLastStride2})));
  }
}

TEST(KdaStrides, ABatchInEveryLayout) {
  KdaSpec spec;
  spec.lengths = {70, 70, 70};
  spec.packed = false;
  spec.H = 2;
  spec.HV = 4;
  spec.flat_dt_bias = true;
  use_every_activation(spec);
  spec.seed = 2;
  const KdaProblem problem = make_problem(spec);
  const KdaResults expected = run(problem);
  for (const Layout layout : all_layouts()) {
    EXPECT_TRUE(same_bits(expected, run(problem, {.inputs = layout, .outputs = layout}))) << layout_name(layout);
  }
}

/// View of `width` columns from `column` on of a row-major [B, S, columns] buffer, as [B, S, heads, width / heads].
template <class View>
View slice(View whole, std::int64_t column, std::int64_t heads, std::int64_t width) {
  const std::int64_t row = whole.strides[1];
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  whole.data = static_cast<Byte*>(whole.data) + column * dtype_size(whole.dtype);
  whole.ndim = 4;
  whole.shape = {whole.shape[0], whole.shape[1], heads, width / heads};
  whole.strides = {whole.shape[1] * row, row, width / heads, 1};
  return whole;
}

TEST(KdaStrides, OneProjectionHoldsQueriesKeysAndValues) {
  for (const DType dtype : float_dtypes()) {
    const KdaProblem p = strided_problem(dtype);
    const std::int64_t qk = p.spec.H * p.spec.K, v = p.spec.HV * p.spec.V, columns = 2 * qk + v;
    HostTensor qkv(dtype, {p.B, p.S, columns});
    for (std::int64_t row = 0; row < p.B * p.S; ++row) {
      for (std::int64_t i = 0; i < qk; ++i) {
        qkv.set(row * columns + i, p.q.at(row * qk + i));
        qkv.set(row * columns + qk + i, p.k.at(row * qk + i));
      }
      for (std::int64_t i = 0; i < v; ++i) qkv.set(row * columns + 2 * qk + i, p.v.at(row * v + i));
    }
    Inputs inputs = p.inputs();
    inputs.q = slice<ConstTensorView>(qkv.view(), 0, p.spec.H, qk);
    inputs.k = slice<ConstTensorView>(qkv.view(), qk, p.spec.H, qk);
    inputs.v = slice<ConstTensorView>(qkv.view(), 2 * qk, p.spec.HV, v);
    const KdaResults expected = run(p);
    EXPECT_TRUE(same_bits(expected, run_views(p, inputs, p.dout.view(), final_gradient(p))));

    // Gradients land in the right slices of one buffer.
    HostTensor dqkv(dtype, {p.B, p.S, columns});
    for (std::int64_t i = 0; i < dqkv.numel(); ++i) dqkv.set(i, 3e4);
    Gradients gradients;
    gradients.dq = slice<TensorView>(dqkv.view(), 0, p.spec.H, qk);
    gradients.dk = slice<TensorView>(dqkv.view(), qk, p.spec.H, qk);
    gradients.dv = slice<TensorView>(dqkv.view(), 2 * qk, p.spec.HV, v);
    kda_det_train::backward(inputs, p.dout.view(), final_gradient(p), gradients, p.spec.options);
    for (std::int64_t row = 0; row < p.B * p.S; ++row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const double wanted = i < qk       ? expected.at("dq").at(row * qk + i)
                              : i < 2 * qk ? expected.at("dk").at(row * qk + i - qk)
                                           : expected.at("dv").at(row * v + i - 2 * qk);
        ASSERT_EQ(dqkv.at(row * columns + i), wanted) << "row " << row << ", column " << i;
      }
    }
  }
}

/// The tensor with every index of the dimensions in `dims` reading index 0, as a view of stride 0 and as a copy.
std::pair<ConstTensorView, HostTensor> expanded(const HostTensor& tensor, const std::vector<int>& dims) {
  ConstTensorView view = tensor.view();
  for (const int d : dims) view.strides[static_cast<std::size_t>(d)] = 0;
  HostTensor copy(tensor.dtype, tensor.shape);
  for (std::int64_t i = 0; i < copy.numel(); ++i) {
    std::int64_t rest = i, from = 0;
    for (std::size_t d = tensor.shape.size(); d > 0; --d) {
      from += rest % tensor.shape[d - 1] * view.strides[d - 1];
      rest /= tensor.shape[d - 1];
    }
    copy.set(i, tensor.at(from));
  }
  return {view, std::move(copy)};
}

TEST(KdaStrides, ExpandedIncomingGradients) {
  // y.sum().backward() hands over one element with stride 0 everywhere.
  for (const DType dtype : float_dtypes()) {
    for (const std::vector<int>& dims : {std::vector<int>{0, 1, 2, 3}, {3}, {2}, {1}}) {
      KdaProblem problem = strided_problem(dtype);
      const HostTensor dout = problem.dout;
      auto [view, copy] = expanded(dout, dims);
      problem.dout = copy;
      const KdaResults expected = run(problem);
      for (const bool recompute : {false, true}) {
        EXPECT_TRUE(same_bits(
            expected, run_views(problem, problem.inputs(), view, final_gradient(problem), {.recompute = recompute})));
      }
      EXPECT_TRUE(matches_reference(problem, expected));
    }
  }
}

TEST(KdaStrides, ExpandedOperands) {
  KdaProblem problem = strided_problem(DType::kFloat32);
  problem.spec.options.use_qk_l2norm_in_kernel = true;
  const HostTensor q = problem.q, g = problem.g, beta = problem.beta, state = *problem.initial_state,
                   dstate = *problem.d_final_state;
  auto [q_view, q_copy] = expanded(q, {2});
  auto [g_view, g_copy] = expanded(g, {2});
  auto [beta_view, beta_copy] = expanded(beta, {0, 1, 2});
  auto [state_view, state_copy] = expanded(state, {0, 1});
  auto [dstate_view, dstate_copy] = expanded(dstate, {0, 3});
  problem.q = q_copy;
  problem.g = g_copy;
  problem.beta = beta_copy;
  problem.initial_state = state_copy;
  problem.d_final_state = dstate_copy;
  Inputs inputs = problem.inputs();
  inputs.q = q_view;
  inputs.g = g_view;
  inputs.beta = beta_view;
  inputs.initial_state = state_view;
  EXPECT_TRUE(same_bits(run(problem), run_views(problem, inputs, problem.dout.view(), dstate_view)));
}

TEST(KdaStrides, RowsInReverseOrder) {
  // Negative strides: the last row lies first.
  KdaProblem problem = strided_problem(DType::kBFloat16);
  const auto reversed = [](const HostTensor& tensor, HostTensor& held) {
    held = HostTensor(tensor.dtype, tensor.shape);
    const std::int64_t rows = tensor.shape[1], width = tensor.numel() / rows;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < width; ++i) held.set((rows - 1 - row) * width + i, tensor.at(row * width + i));
    }
    ConstTensorView view = std::as_const(held).view();
    view.data = static_cast<const std::byte*>(view.data) + (rows - 1) * width * dtype_size(view.dtype);
    view.strides[1] = -width;
    return view;
  };
  HostTensor q, v, dout;
  Inputs inputs = problem.inputs();
  inputs.q = reversed(problem.q, q);
  inputs.v = reversed(problem.v, v);
  const ConstTensorView dout_view = reversed(problem.dout, dout);
  EXPECT_TRUE(same_bits(run(problem), run_views(problem, inputs, dout_view, final_gradient(problem))));
}

/// Address space that is only backed where it is touched.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

TEST(KdaStrides, OffsetsBeyond32Bits) {
  // Rows 2^22 elements apart: row 512 starts 2^31 elements after the first. Wrapped offsets give finite wrong numbers.
  constexpr std::int64_t kRow = std::int64_t{1} << 22, kRows = 600;
  KdaSpec spec;
  spec.lengths = {kRows};
  spec.H = spec.HV = 1;
  spec.dtype = DType::kBFloat16;
  spec.seed = 3;
  const KdaProblem problem = make_problem(spec);
  const KdaResults expected = run(problem);
  const auto bytes = static_cast<std::size_t>(kRow) * static_cast<std::size_t>(kRows) * 2;
  const SparseMemory q(bytes), v(bytes), dout(bytes), dk(bytes);
  ASSERT_TRUE(q.ok() && v.ok() && dout.ok() && dk.ok());
  const auto spread = [&](const HostTensor& tensor, const SparseMemory& memory) {
    ConstTensorView view = tensor.view();
    view.strides[0] = kRows * kRow;
    view.strides[1] = kRow;
    view.data = memory.data();
    const auto width = static_cast<std::size_t>(tensor.numel() / kRows) * 2;
    for (std::size_t row = 0; row < static_cast<std::size_t>(kRows); ++row) {
      std::memcpy(static_cast<std::byte*>(memory.data()) + row * static_cast<std::size_t>(kRow) * 2,
                  tensor.bytes.data() + row * width, width);
    }
    return view;
  };
  Inputs inputs = problem.inputs();
  inputs.q = spread(problem.q, q);
  inputs.v = spread(problem.v, v);
  const ConstTensorView dout_view = spread(problem.dout, dout);
  EXPECT_TRUE(same_bits(expected, run_views(problem, inputs, dout_view, final_gradient(problem))));

  Gradients gradients;
  gradients.dk = HostTensor(spec.dtype, problem.k.shape).view();
  gradients.dk.data = dk.data();
  gradients.dk.strides[0] = kRows * kRow;
  gradients.dk.strides[1] = kRow;
  kda_det_train::backward(inputs, dout_view, final_gradient(problem), gradients, spec.options);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t d = 0; d < spec.K; ++d) {
      ASSERT_EQ(load(spec.dtype, static_cast<std::byte*>(dk.data()) + (row * kRow + d) * 2),
                expected.at("dk").at(row * spec.K + d));
    }
  }
}

}  // namespace
}  // namespace cake::test
