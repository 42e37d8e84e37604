// A saved set's record: a set taken over by another object, from a copy of its memory, serves the backward with the
// same bits; records of other packages, damaged ones and short memory are refused and leave nothing changed.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cake/kda_det_train.h"
#include "cake/kda_det_train_kcp.h"
#include "cake/kda_nondet_train.h"

namespace cake {
namespace {

namespace det = kda_det_train;

constexpr std::int64_t kRows = 150, kDim = 16;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error_kind_name(error.kind())) + " | " + error.what();
  }
  return "none";
}

/// One small problem with memory of its own.
struct Small {
  std::vector<float> x = std::vector<float>(kRows * kDim), out = x, dq = x, beta = std::vector<float>(kRows, 0.5f);
  std::vector<std::byte> memory;
  det::Inputs inputs;
  det::Options options;

  Small() {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = -0.01f * static_cast<float>(i % 17);
    const auto rows = ConstTensorView::contiguous(x.data(), DType::kFloat32, {1, kRows, 1, kDim});
    inputs.q = inputs.k = inputs.v = inputs.g = rows;
    inputs.beta = ConstTensorView::contiguous(beta.data(), DType::kFloat32, {1, kRows, 1});
    options.scale = 0.3f;
    det::Shape shape;
    shape.S = kRows;
    shape.K = shape.V = kDim;
    memory.resize(det::saved_bytes(shape, options));
  }
  std::string forward() {
    det::Saved saved(memory.data(), memory.size());
    det::forward(inputs, {TensorView::contiguous(out.data(), DType::kFloat32, {1, kRows, 1, kDim}), {}}, options,
                 nullptr, &saved);
    return saved.record();
  }
  std::vector<float> backward(const det::Saved& saved) {
    det::Gradients gradients;
    gradients.dq = TensorView::contiguous(dq.data(), DType::kFloat32, {1, kRows, 1, kDim});
    const auto dout = ConstTensorView::contiguous(x.data(), DType::kFloat32, {1, kRows, 1, kDim});
    det::backward(inputs, dout, {}, gradients, options, nullptr, &saved);
    return dq;
  }
};

TEST(KdaSavedRecord, AnotherObjectOnTheMemoryServesTheBackward) {
  Small small;
  const std::string record = small.forward();
  EXPECT_LE(record.size(), 448u);
  det::Saved owner;
  det::forward(small.inputs, {TensorView::contiguous(small.out.data(), DType::kFloat32, {1, kRows, 1, kDim}), {}},
               small.options, nullptr, &owner);
  const std::vector<float> expected = small.backward(owner);
  det::Saved again = det::Saved::from_record(small.memory.data(), small.memory.size(), record);
  EXPECT_EQ(again.record(), record);
  EXPECT_EQ(small.backward(again), expected);
}

TEST(KdaSavedRecord, RememberedOptionsAreStillCompared) {
  Small small;
  const std::string record = small.forward();
  const det::Saved saved = det::Saved::from_record(small.memory.data(), small.memory.size(), record);
  small.options.use_qk_l2norm_in_kernel = true;
  EXPECT_NE(error_of([&] { small.backward(saved); }).find("InvalidArgument | saved: "), std::string::npos);
}

TEST(KdaSavedRecord, OtherPackagesAreRefusedByTag) {
  Small small;
  const std::string record = small.forward();
  void* const data = small.memory.data();
  const std::size_t bytes = small.memory.size();
  EXPECT_EQ(error_of([&] { kda_nondet_train::Saved::from_record(data, bytes, record); }),
            "WrongMode | saved: got a CakeKDADetSaved, expected a CakeKDANondetSaved; this saved set belongs to the "
            "backward of cake_kda_det_train");
  EXPECT_EQ(error_of([&] { kda_det_train_kcp::Saved::from_record(data, bytes, record); }),
            "InvalidArgument | saved: got a CakeKDADetSaved, expected a CakeKDADetKcpSaved");
  std::string newer = record;
  newer.replace(newer.find("/v1"), 3, "/v2");
  EXPECT_NE(error_of([&] { det::Saved::from_record(data, bytes, newer); }).find("version 2"), std::string::npos);
}

TEST(KdaSavedRecord, DamagedRecordsAreRefused) {
  Small small;
  const std::string record = small.forward();
  const auto refused = [&](const std::string& text) {
    return error_of([&] {
             det::Saved::from_record(small.memory.data(), small.memory.size(), text);
           }).rfind("InvalidArgument | ", 0) == 0;
  };
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("cake/kda/det/saved/v1"));
  EXPECT_TRUE(refused(record + " 0"));
  EXPECT_TRUE(refused(record + "g"));
  for (std::size_t end = 0; end + 1 < record.size(); ++end) {
    if (record[end] != ' ') continue;
    EXPECT_TRUE(refused(record.substr(0, end))) << end;
  }
  EXPECT_EQ(error_of([&] { det::Saved::from_record(small.memory.data(), 64, record); }).rfind("OutOfMemory | saved", 0),
            0u);
}

TEST(KdaSavedRecord, AnEmptySetHasNone) {
  const det::Saved saved;
  EXPECT_NE(error_of([&] { (void)saved.record(); }).find("InvalidArgument | saved: got an empty"), std::string::npos);
}

}  // namespace
}  // namespace cake
