// Products and transposes in panels, every form, against a scalar chain of fused multiply-adds: the bits must be equal.
#include <cmath>
#include <vector>

#include "core/fpenv.h"
#include "isa_probe.h"
#include "test_util.h"

namespace cake {
namespace {

using test::bits_of;
using test::isa_probe;
using test::Random;

constexpr int kLanes = 16;
constexpr int kZero = 0, kAdd = 1, kScaleRows = 2, kScaleCols = 3;

// A matrix in panels with `spare` rows after each panel's last one, so that strides are not what one would guess.
struct PanelMatrix {
  PanelMatrix(int r, int c, int spare = 0)
      : rows(r),
        cols(c),
        stride(static_cast<std::int64_t>(r + spare) * kLanes),
        data(static_cast<std::size_t>(stride * ((c + kLanes - 1) / kLanes)), NAN) {}
  float& at(int r, int c) { return data[static_cast<std::size_t>((c / kLanes) * stride + r * kLanes + c % kLanes)]; }
  void fill(Random& random) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) at(r, c) = random.uniform(-2.0f, 2.0f);
    }
  }
  int rows, cols;
  std::int64_t stride;
  std::vector<float> data;
};

void expect_product(CpuIsa isa, int op, int init, int rows, int panels, int depth, Random& random) {
  const int cols = panels * kLanes;
  // A plain A is padded with zero columns to a multiple of 16, a transposed one needs no padding in depth.
  const int depth16 = (depth + kLanes - 1) / kLanes * kLanes;
  PanelMatrix a =
      op == 0 ? PanelMatrix(rows, depth16, 3) : PanelMatrix(depth, (rows + kLanes - 1) / kLanes * kLanes, 2);
  PanelMatrix b(depth16, cols, 1), c(rows, cols, 5);
  a.fill(random);
  b.fill(random);
  c.fill(random);
  for (int k = depth; k < depth16; ++k) {
    for (int j = 0; j < cols; ++j) b.at(k, j) = 0.0f;
    for (int i = 0; i < rows && op == 0; ++i) a.at(i, k) = 0.0f;
  }
  std::vector<float> factors(static_cast<std::size_t>(std::max(rows, cols)));
  for (float& f : factors) f = random.uniform(0.1f, 1.0f);
  PanelMatrix got = c;
  isa_probe(isa).panel_gemm(op, init, rows, panels, op == 0 ? depth16 : depth, a.data.data(), a.stride, b.data.data(),
                            b.stride, got.data.data(), got.stride, factors.data());
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j) {
      float acc = init == kZero ? 0.0f : c.at(i, j);
      if (init == kScaleRows) acc *= factors[static_cast<std::size_t>(i)];
      if (init == kScaleCols) acc *= factors[static_cast<std::size_t>(j)];
      for (int k = 0; k < depth; ++k) acc = std::fma(op == 0 ? a.at(i, k) : a.at(k, i), b.at(k, j), acc);
      ASSERT_EQ(bits_of(got.at(i, j)), bits_of(acc)) << cpu_isa_name(isa) << " op " << op << " init " << init << " "
                                                     << rows << "x" << cols << "x" << depth << " at " << i << ", " << j;
    }
  }
  // Rows between the panels are not touched.
  for (int p = 0; p < panels; ++p) {
    for (std::int64_t i = static_cast<std::int64_t>(rows) * kLanes; i < got.stride; ++i) {
      ASSERT_TRUE(test::is_nan(got.data[static_cast<std::size_t>(p * got.stride + i)]));
    }
  }
}

class PanelGemm : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(PanelGemm, EveryFormEqualsTheScalarChain) {
  Random random(41);
  for (const int op : {0, 1}) {
    for (const int init : {kZero, kAdd, kScaleRows, kScaleCols}) {
      for (const int rows : {1, 2, 3, 5, 6, 7, 8, 13, 16, 17, 31, 32, 64}) {
        for (const int panels : {1, 2, 3}) {
          for (const int depth : {16, 48}) expect_product(GetParam(), op, init, rows, panels, depth, random);
        }
      }
      for (const int depth : {0, 1, 7, 15, 17, 63}) {
        for (const int rows : {5, 16, 20}) expect_product(GetParam(), op, init, rows, 2, depth, random);
      }
      expect_product(GetParam(), op, init, 64, 8, 128, random);
    }
  }
}

TEST_P(PanelGemm, Transpose) {
  Random random(42);
  for (const int rows : {16, 64}) {
    for (const int panels : {1, 3, 8}) {
      PanelMatrix src(rows, panels * kLanes, 2), dst(panels * kLanes, rows, 3);
      src.fill(random);
      isa_probe(GetParam()).transpose_panels(rows, panels, src.data.data(), src.stride, dst.data.data(), dst.stride);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < panels * kLanes; ++c) ASSERT_EQ(bits_of(dst.at(c, r)), bits_of(src.at(r, c)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, PanelGemm, ::testing::ValuesIn(supported_cpu_isas()),
                         [](const auto& level) { return std::string(cpu_isa_name(level.param)); });

}  // namespace
}  // namespace cake
