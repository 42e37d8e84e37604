#include "cake/core/info.h"

#include "cake/core/canonical.h"
#include "core/parallel.h"
#include "test_util.h"

namespace cake {
namespace {

TEST(BuildInfo, StatesThisBuild) {
  const BuildInfo info = build_info();
  EXPECT_EQ(std::count(info.version.begin(), info.version.end(), '.'), 2);
  EXPECT_NE(info.compiler.find("GNU"), std::string::npos);
  EXPECT_FALSE(info.build_type.empty());
  EXPECT_EQ(info.threads, thread_backend_name());
  EXPECT_EQ(info.segment, kSegment);
  EXPECT_FALSE(info.cuda) << "no package of this version has CUDA code";
#ifdef CAKE_PLANT_ORDER_FAULT
  EXPECT_TRUE(info.planted_fault);
#else
  EXPECT_FALSE(info.planted_fault);
#endif
}

TEST(BuildInfo, CanonicalConstants) {
  EXPECT_EQ(kChunk, 64);
  EXPECT_EQ(kSubChunk, 16);
#ifdef CAKE_TEST_SEGMENT
  EXPECT_EQ(kSegment, CAKE_TEST_SEGMENT);
#else
  EXPECT_EQ(kSegment, 4096);
#endif
}

}  // namespace
}  // namespace cake
