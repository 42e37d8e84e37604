#include "cake/core/handle.h"

#include "test_util.h"

namespace cake {
namespace {

using test::expect_error;
using test::Random;

const Tag kSaved{"kda", "det", false, "saved", 1};

TEST(TagText, RoundTrip) {
  const struct {
    Tag tag;
    const char* text;
    const char* module;
    const char* class_name;
  } cases[] = {
      {{"kda", "det", false, "saved", 1}, "cake/kda/det/saved/v1", "cake_kda_det_train", "CakeKDADetSaved"},
      {{"kda", "nondet", false, "workspace", 3},
       "cake/kda/nondet/workspace/v3",
       "cake_kda_nondet_train",
       "CakeKDANondetWorkspace"},
      {{"kda", "det", true, "saved", 1}, "cake/kda/det/kcp/saved/v1", "cake_kda_det_train_kcp", "CakeKDADetKcpSaved"},
      {{"gdn", "det", true, "workspace", 12},
       "cake/gdn/det/kcp/workspace/v12",
       "cake_gdn_det_train_kcp",
       "CakeGDNDetKcpWorkspace"},
      {{"kda", "", true, "partition", 1}, "cake/kda/kcp/partition/v1", "cake_kcp", "CakeKcpPartition"},
      {{"kda", "", true, "context", 1}, "cake/kda/kcp/context/v1", "cake_kcp", "CakeKcpContext"},
      {{"dsa_sparse_attention", "det", false, "plan", 2},
       "cake/dsa_sparse_attention/det/plan/v2",
       "cake_dsa_sparse_attention_det_train",
       "CakeDSASparseAttentionDetPlan"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.tag.text(), c.text);
    EXPECT_EQ(Tag::parse(c.text), c.tag) << c.text;
    EXPECT_EQ(c.tag.module(), c.module);
    EXPECT_EQ(tag_class_name(c.tag), c.class_name);
  }
}

TEST(TagText, HostileTextsAreRefused) {
  for (const char* text : {"",
                           "/",
                           "//",
                           "cake",
                           "cake/",
                           "cake/kda",
                           "cake/kda/v1",
                           "cake/kda/det/v1",
                           "/cake/kda/det/saved/v1",
                           "cake/kda/det/saved/v1/",
                           "cake//det/saved/v1",
                           "cake/kda/det/saved/v",
                           "cake/kda/det/saved/1",
                           "cake/kda/det/saved/v-1",
                           "cake/kda/det/saved/v+1",
                           "cake/kda/det/saved/v1x",
                           "cake/kda/det/saved/vx1",
                           "cake/kda/det/saved/v 1",
                           "cake/kda/det/saved/v99999999999999999999",
                           "cake/kda/det/saved/v2147483648",
                           "Cake/kda/det/saved/v1",
                           "pie/kda/det/saved/v1",
                           "cake/kda/det/kcp/saved/extra/v1",
                           "cake/kda/kcp/det/saved/v1",
                           "cake/kda/det/det/saved/v1",
                           "cake/kda/det/kcp/kcp/saved/v1",
                           "cake/kda/det/kcp/v1",
                           "cake/kda/other/saved/v1",
                           "cake/kda/det/saved/V1",
                           "cake/kda/det/saved\nv1"}) {
    expect_error<InvalidArgument>([&] { Tag::parse(text); }, {"tag", "expected cake/<op>"});
  }
}

TEST(TagText, BytesOfEveryValueAndRandomTextsNeverDoMoreThanThrow) {
  Random random(11);
  const std::string pieces[] = {"cake", "kda", "det", "nondet", "kcp", "saved", "v1", "v", "/", "//", "", "\xff", "\n"};
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::int64_t n = random.below(9); n > 0; --n) {
      text += random.below(4) == 0 ? std::string(1, static_cast<char>(random.below(256)))
                                   : pieces[random.below(static_cast<std::int64_t>(std::size(pieces)))];
      if (random.below(3) != 0) text += '/';
    }
    try {
      const Tag tag = Tag::parse(text);
      ++parsed;
      EXPECT_EQ(Tag::parse(tag.text()), tag) << text;
    } catch (const InvalidArgument&) {
    }
  }
  EXPECT_GT(parsed, 0) << "the random texts should reach the accepting path too";
  EXPECT_THROW(Tag::parse(std::string("cake/kda/det/saved/v1\0x", 23)), InvalidArgument);
  EXPECT_THROW(Tag::parse(std::string(1 << 20, '/')), InvalidArgument);
}

TEST(CheckTag, EqualTagsPass) {
  EXPECT_NO_THROW(check_tag(kSaved, kSaved, "saved"));
  EXPECT_NO_THROW(check_tag(Tag{"kda", "", true, "context", 1}, Tag{"kda", "", true, "context", 1}, "ctx"));
}

TEST(CheckTag, SavedSetOfTheOtherModeNamesItsBackward) {
  Tag other = kSaved;
  other.mode = "nondet";
  expect_error<WrongMode>([&] { check_tag(other, kSaved, "saved"); },
                          {"saved", "CakeKDANondetSaved", "CakeKDADetSaved", "cake_kda_nondet_train"});
}

// One formatter for both modes: with the mode words swapped the two messages are equal.
TEST(CheckTag, ModeMessagesAreMirrorImages) {
  for (const char* object : {"saved", "workspace"}) {
    for (const bool kcp : {false, true}) {
      const Tag det{"kda", "det", kcp, object, 1}, nondet{"kda", "nondet", kcp, object, 1};
      const auto message = [](const Tag& given, const Tag& expected) -> std::string {
        try {
          check_tag(given, expected, "argument");
        } catch (const WrongMode& e) {
          return e.what();
        }
        return "nothing thrown";
      };
      const std::string mirrored = message(det, nondet);
      std::string swapped;
      const std::string text = message(nondet, det);
      for (std::size_t i = 0; i < text.size();) {
        const auto starts = [&](const char* word) { return text.compare(i, std::string(word).size(), word) == 0; };
        const struct {
          const char *from, *to;
        } words[] = {{"nondet", "det"}, {"Nondet", "Det"}, {"det", "nondet"}, {"Det", "Nondet"}};
        bool done = false;
        for (const auto& w : words) {
          if (!done && starts(w.from)) {
            swapped += w.to;
            i += std::string(w.from).size();
            done = true;
          }
        }
        if (!done) swapped += text[i++];
      }
      EXPECT_EQ(swapped, mirrored);
    }
  }
}

TEST(CheckTag, WorkspaceOfTheOtherModeNamesTheMode) {
  const Tag det{"kda", "det", false, "workspace", 1}, nondet{"kda", "nondet", false, "workspace", 1};
  expect_error<WrongMode>([&] { check_tag(nondet, det, "workspace"); },
                          {"workspace", "nondet mode", "CakeKDADetWorkspace"});
  expect_error<WrongMode>([&] { check_tag(det, nondet, "workspace"); }, {"det mode"});
}

TEST(CheckTag, OtherVersionNamesBoth) {
  Tag newer = kSaved;
  newer.version = 7;
  expect_error<InvalidArgument>([&] { check_tag(newer, kSaved, "saved"); },
                                {"saved", "version 7", "version 1", "CakeKDADetSaved"});
}

TEST(CheckTag, ForeignSavedSetNamesBothTypes) {
  expect_error<InvalidArgument>(
      [&] {
        check_tag(Tag{"gdn", "det", false, "saved", 1}, kSaved, "saved");
      },
      {"saved", "CakeGDNDetSaved", "CakeKDADetSaved"});
  expect_error<InvalidArgument>(
      [&] {
        check_tag(Tag{"kda", "det", true, "saved", 1}, kSaved, "saved");
      },
      {"CakeKDADetKcpSaved", "CakeKDADetSaved"});
}

TEST(CheckTag, AnyOtherObjectIsTheWrongType) {
  const Tag workspace{"kda", "det", false, "workspace", 1};
  for (const Tag& given : {kSaved, Tag{"gdn", "det", false, "workspace", 1}, Tag{"kda", "", true, "context", 1}}) {
    try {
      check_tag(given, workspace, "workspace");
      FAIL() << "accepted " << given.text();
    } catch (const WrongType& e) {
      EXPECT_STREQ(e.what(), "workspace must be a CakeKDADetWorkspace");
    }
  }
  expect_error<WrongType>([&] { check_tag(workspace, kSaved, "saved"); }, {"saved must be a CakeKDADetSaved"});
}

TEST(Handle, HoldsSharesAndGivesBack) {
  auto object = std::make_shared<int>(42);
  const Handle handle(kSaved, object);
  const Handle copy = handle;  // NOLINT(performance-unnecessary-copy-initialization): the copy is the subject
  EXPECT_FALSE(handle.empty());
  EXPECT_EQ(handle.tag(), kSaved);
  EXPECT_EQ(*copy.get<int>(kSaved, "saved"), 42);
  EXPECT_EQ(copy.get<int>(kSaved, "saved").get(), object.get());
  *object = 43;
  EXPECT_EQ(*handle.get<int>(kSaved, "saved"), 43);
  std::weak_ptr<int> watch = object;
  object.reset();
  EXPECT_FALSE(watch.expired()) << "handles own the object";
}

TEST(Handle, RefusesBeforeItTouchesTheObject) {
  const Handle empty;
  EXPECT_TRUE(empty.empty());
  expect_error<WrongType>([&] { empty.check(kSaved, "saved"); }, {"saved must be a CakeKDADetSaved"});
  const Handle handle(Tag{"kda", "nondet", false, "saved", 1}, std::make_shared<int>(1));
  expect_error<WrongMode>([&] { handle.get<int>(kSaved, "saved"); }, {"cake_kda_nondet_train"});
  EXPECT_EQ(*handle.get<int>(handle.tag(), "saved"), 1) << "a refusal changes nothing";
}

}  // namespace
}  // namespace cake
