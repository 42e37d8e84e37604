#include "cake/core/determinism.h"

#include <thread>
#include <vector>

#include "test_util.h"

namespace cake {
namespace {

using test::expect_error;

std::vector<std::string>& heard() {
  static std::vector<std::string> messages;
  return messages;
}
void listen(const std::string& message) { heard().push_back(message); }

class DeterminismAlert : public ::testing::Test {
 protected:
  void SetUp() override {
    heard().clear();
    before_ = set_warning_handler(listen);
  }
  void TearDown() override { set_warning_handler(before_); }

 private:
  WarningHandler before_ = nullptr;
};

TEST_F(DeterminismAlert, AllowIsSilent) {
  alert_not_deterministic("cake_kda_nondet_train_backward", DeterminismPolicy::kAllow, "setting");
  EXPECT_TRUE(heard().empty());
}

TEST_F(DeterminismAlert, WarnSpeaksOncePerCall) {
  alert_not_deterministic("cake_kda_nondet_train_backward", DeterminismPolicy::kWarn, "DeterminismPolicy::kWarn");
  ASSERT_EQ(heard().size(), 1u);
  EXPECT_NE(heard()[0].find("cake_kda_nondet_train_backward"), std::string::npos);
  EXPECT_NE(heard()[0].find("DeterminismPolicy::kWarn"), std::string::npos);
  alert_not_deterministic("entry", DeterminismPolicy::kWarn, "s");
  EXPECT_EQ(heard().size(), 2u);
}

TEST_F(DeterminismAlert, ForbidThrowsAndWarnsNobody) {
  expect_error<NondeterminismAlert>(
      [] { alert_not_deterministic("cake_gdn_nondet_train_backward", DeterminismPolicy::kForbid, "the switch"); },
      {"cake_gdn_nondet_train_backward", "'the switch'", "does not have a deterministic implementation"});
  EXPECT_TRUE(heard().empty());
}

TEST_F(DeterminismAlert, HandlerIsReturnedAndReplaced) {
  EXPECT_EQ(set_warning_handler(nullptr), &listen);
  testing::internal::CaptureStderr();
  alert_not_deterministic("entry_name", DeterminismPolicy::kWarn, "s");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("entry_name"), std::string::npos);
  EXPECT_EQ(set_warning_handler(listen), nullptr);
  EXPECT_TRUE(heard().empty());
}

TEST_F(DeterminismAlert, ABindingsWordsAreUsedForAScope) {
  std::vector<std::string> warned;
  const AlertWords words{"cake_toy_nondet", "the switch", "Turn it off.",
                         [&](const std::string& text) { warned.push_back(text); }};
  const std::string text =
      "cake_toy_nondet does not have a deterministic implementation, but you set 'the switch'. Turn it off.";
  {
    const ScopedAlertWords scope(words);
    alert_not_deterministic("entry", DeterminismPolicy::kAllow, "setting");
    EXPECT_TRUE(warned.empty());
    alert_not_deterministic("entry", DeterminismPolicy::kWarn, "setting");
    expect_error<NondeterminismAlert>([] { alert_not_deterministic("entry", DeterminismPolicy::kForbid, "setting"); },
                                      {text.c_str()});
    std::thread([] { alert_not_deterministic("other", DeterminismPolicy::kWarn, "setting"); }).join();
  }
  EXPECT_EQ(warned, std::vector<std::string>{text});
  alert_not_deterministic("entry", DeterminismPolicy::kWarn, "setting");
  ASSERT_EQ(heard().size(), 2u);
  EXPECT_EQ(heard()[0].rfind("other ", 0), 0u);
  EXPECT_EQ(heard()[1].rfind("entry ", 0), 0u);
}

TEST_F(DeterminismAlert, WhatABindingsWarningThrowsEndsTheCall) {
  const AlertWords words{"entry", "setting", "", [](const std::string&) { throw InvalidArgument("stop"); }};
  const ScopedAlertWords scope(words);
  expect_error<InvalidArgument>([] { alert_not_deterministic("entry", DeterminismPolicy::kWarn, "setting"); },
                                {"stop"});
}

TEST_F(DeterminismAlert, DefaultPolicyBelongsToTheThread) {
  EXPECT_EQ(default_determinism_policy(), DeterminismPolicy::kAllow);
  {
    const ScopedDeterminismPolicy outer(DeterminismPolicy::kForbid);
    EXPECT_EQ(default_determinism_policy(), DeterminismPolicy::kForbid);
    {
      const ScopedDeterminismPolicy inner(DeterminismPolicy::kWarn);
      EXPECT_EQ(default_determinism_policy(), DeterminismPolicy::kWarn);
    }
    EXPECT_EQ(default_determinism_policy(), DeterminismPolicy::kForbid);
    DeterminismPolicy other = DeterminismPolicy::kForbid;
    std::thread([&] { other = default_determinism_policy(); }).join();
    EXPECT_EQ(other, DeterminismPolicy::kAllow);
  }
  EXPECT_EQ(default_determinism_policy(), DeterminismPolicy::kAllow);
}

}  // namespace
}  // namespace cake
