// The dense GEMM: exact order against a scalar chain, accuracy against float64 and OpenBLAS, and the same bits whatever
// the threads, the task order, the level and the layout of the operands.
#include "core/gemm.h"

#include <cmath>
#include <vector>

#ifdef CAKE_TEST_OPENBLAS
#include <cblas.h>
#endif

#include "cake/core/parallel.h"
#include "core/parallel.h"
#include "test_util.h"

namespace cake {
namespace {

using test::bits_of;
using test::Random;

// A matrix stored by rows or by columns, with some padding between them.
struct Dense {
  Dense(std::int64_t r, std::int64_t c, bool by_rows, std::int64_t pad, Random& random)
      : rows(r),
        cols(c),
        by_rows_(by_rows),
        stride((by_rows ? c : r) + pad),
        data(static_cast<std::size_t>((by_rows ? r : c) * stride + 1), NAN) {
    for (std::int64_t i = 0; i < r; ++i) {
      for (std::int64_t j = 0; j < c; ++j) at(i, j) = random.uniform(-1.0f, 1.0f);
    }
  }
  float& at(std::int64_t i, std::int64_t j) {
    return data[static_cast<std::size_t>(by_rows_ ? i * stride + j : j * stride + i)];
  }
  float at(std::int64_t i, std::int64_t j) const { return const_cast<Dense*>(this)->at(i, j); }
  DenseOperand operand() const {
    return by_rows_ ? DenseOperand{data.data(), stride, 1} : DenseOperand{data.data(), 1, stride};
  }
  /// The same numbers in the other storage order.
  Dense restored(bool by_rows, std::int64_t pad) const {
    Random unused(0);
    Dense other(rows, cols, by_rows, pad, unused);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) other.at(i, j) = at(i, j);
    }
    return other;
  }
  std::int64_t rows, cols;

 private:
  bool by_rows_;

 public:
  std::int64_t stride;
  std::vector<float> data;
};

std::vector<float> multiply(const Dense& a, const Dense& b, std::int64_t c_stride, bool accumulate,
                            float start = 0.25f) {
  std::vector<float> c(static_cast<std::size_t>(a.rows * c_stride), start);
  dense_gemm(a.rows, b.cols, a.cols, a.operand(), b.operand(), c.data(), c_stride, accumulate);
  return c;
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(bits_of(got[i]), bits_of(want[i])) << what << " at " << i;
}

struct Size {
  std::int64_t m, n, k;
};
const Size kSizes[] = {{1, 1, 1},       {1, 17, 3},      {5, 1, 16},     {16, 16, 16},  {17, 33, 15},  {63, 65, 64},
                       {128, 128, 256}, {129, 127, 257}, {200, 300, 70}, {7, 260, 600}, {260, 5, 513}, {1, 1, 1000}};

TEST(DenseGemm, IsTheScalarChainInEveryLayout) {
  Random random(51);
  for (const Size& s : kSizes) {
    const Dense a(s.m, s.k, true, 3, random), b(s.k, s.n, true, 2, random);
    for (const bool accumulate : {false, true}) {
      // k ascending, one accumulator, fused.
      const std::int64_t c_stride = s.n + 4;
      std::vector<float> want(static_cast<std::size_t>(s.m * c_stride), 0.25f);
      for (std::int64_t i = 0; i < s.m; ++i) {
        for (std::int64_t j = 0; j < s.n; ++j) {
          float acc = accumulate ? 0.25f : 0.0f;
          for (std::int64_t k = 0; k < s.k; ++k) acc = std::fma(a.at(i, k), b.at(k, j), acc);
          want[static_cast<std::size_t>(i * c_stride + j)] = acc;  // between the rows of C nothing may change
        }
      }
      for (const bool a_rows : {true, false}) {
        for (const bool b_rows : {true, false}) {
          const auto got = multiply(a.restored(a_rows, 1), b.restored(b_rows, 5), c_stride, accumulate);
          expect_same_bits(got, want,
                           std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
                               (a_rows ? " A by rows" : " A by columns") + (b_rows ? " B by rows" : " B by columns") +
                               (accumulate ? " +=" : " ="));
        }
      }
    }
  }
}

TEST(DenseGemm, BitsFollowNeitherThreadsNorOrderNorLevel) {
  Random random(52);
  const Dense a(300, 700, false, 0, random), b(700, 390, true, 0, random);
  std::vector<float> want;
  for (const CpuIsa isa : supported_cpu_isas()) {
    const ScopedCpuIsa level(isa);
    for (const int threads : {1, 2, 3, 7}) {
      const ScopedNumThreads scope(threads);
      const auto plain = multiply(a, b, 390, true);
      if (want.empty()) want = plain;
      expect_same_bits(plain, want, std::string(cpu_isa_name(isa)) + " on " + std::to_string(threads));
      const ScopedTaskShuffle shuffle(static_cast<std::uint64_t>(threads));
      expect_same_bits(multiply(a, b, 390, true), want, "shuffled");
      if (isa == CpuIsa::kBase) break;  // slow; its threads run the same scheduler
    }
  }
}

TEST(DenseGemm, InsideATaskItGivesTheSameBits) {
  Random random(53);
  const Dense a(140, 64, true, 0, random), b(64, 150, false, 0, random);
  const auto want = multiply(a, b, 150, false);
  std::vector<std::vector<float>> got(3);
  parallel_for(3, 3, [&](std::int64_t task, int) { got[static_cast<std::size_t>(task)] = multiply(a, b, 150, false); });
  for (const auto& c : got) expect_same_bits(c, want, "inside a task");
}

TEST(DenseGemm, EmptyProducts) {
  Random random(54);
  const Dense a(4, 1, true, 0, random), b(1, 5, true, 0, random);
  // k = 0: C becomes zero, or stays.
  std::vector<float> c(20, 7.0f);
  dense_gemm(4, 5, 0, a.operand(), b.operand(), c.data(), 5, true);
  for (const float x : c) EXPECT_EQ(x, 7.0f);
  dense_gemm(4, 5, 0, a.operand(), b.operand(), c.data(), 5, false);
  for (const float x : c) EXPECT_EQ(bits_of(x), 0u);
  c.assign(20, 7.0f);
  dense_gemm(0, 5, 1, a.operand(), b.operand(), c.data(), 5, false);
  dense_gemm(4, 0, 1, a.operand(), b.operand(), c.data(), 5, false);
  for (const float x : c) EXPECT_EQ(x, 7.0f);
}

TEST(DenseGemm, NanAndInfinityReachOnlyTheirRowAndColumn) {
  Random random(55);
  Dense a(20, 33, true, 0, random), b(33, 18, false, 0, random);
  a.at(3, 32) = NAN;
  b.at(0, 7) = INFINITY;
  const auto c = multiply(a, b, 18, false);
  for (std::int64_t i = 0; i < 20; ++i) {
    for (std::int64_t j = 0; j < 18; ++j) {
      EXPECT_EQ(std::isfinite(c[static_cast<std::size_t>(i * 18 + j)]), i != 3 && j != 7) << i << " " << j;
    }
  }
}

// |error| <= k u sum |a b| bounds any order; u = 2^-24.
TEST(DenseGemm, AccurateAgainstFloat64) {
  Random random(56);
  for (const Size& s : kSizes) {
    const Dense a(s.m, s.k, false, 0, random), b(s.k, s.n, true, 0, random);
    const auto c = multiply(a, b, s.n, false);
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < s.n; ++j) {
        double exact = 0, size = 0;
        for (std::int64_t k = 0; k < s.k; ++k) {
          const double product = static_cast<double>(a.at(i, k)) * b.at(k, j);
          exact += product;
          size += std::fabs(product);
        }
        ASSERT_LE(std::fabs(c[static_cast<std::size_t>(i * s.n + j)] - exact),
                  static_cast<double>(s.k) * 0x1p-24 * size);
      }
    }
  }
}

TEST(DenseGemm, AgreesWithOpenBlas) {
#ifdef CAKE_TEST_OPENBLAS
  Random random(57);
  for (const Size& s : kSizes) {
    for (const bool a_rows : {true, false}) {
      for (const bool b_rows : {true, false}) {
        const Dense a(s.m, s.k, a_rows, 2, random), b(s.k, s.n, b_rows, 3, random);
        const auto ours = multiply(a, b, s.n, true);
        std::vector<float> theirs(static_cast<std::size_t>(s.m * s.n), 0.25f);
        cblas_sgemm(CblasRowMajor, a_rows ? CblasNoTrans : CblasTrans, b_rows ? CblasNoTrans : CblasTrans,
                    static_cast<int>(s.m), static_cast<int>(s.n), static_cast<int>(s.k), 1.0f, a.data.data(),
                    static_cast<int>(a.stride), b.data.data(), static_cast<int>(b.stride), 1.0f, theirs.data(),
                    static_cast<int>(s.n));
        double difference = 0, size = 0;
        for (std::size_t i = 0; i < ours.size(); ++i) {
          difference += std::pow(static_cast<double>(ours[i]) - theirs[i], 2);
          size += std::pow(static_cast<double>(theirs[i]), 2);
        }
        EXPECT_LE(std::sqrt(difference / size), 2e-6) << s.m << "x" << s.n << "x" << s.k;
      }
    }
  }
#else
  GTEST_SKIP() << "built without OpenBLAS";
#endif
}

}  // namespace
}  // namespace cake
