// Reading text and dealing it into batches.
#include "examples/train_lm/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the data under test
namespace fs = std::filesystem;

std::string text_of(const Corpus& c) { return {c.bytes.begin(), c.bytes.end()}; }

TEST(Corpus, OneFile) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "hello");
  const Corpus c = load_corpus(folder / "a.txt");
  EXPECT_EQ(text_of(c), "hello");
  EXPECT_EQ(c.borders, (std::vector<std::int64_t>{0, 5}));
  EXPECT_EQ(c.pairs(), 4);
  EXPECT_TRUE(c.notes.empty());
}

TEST(Corpus, FolderIsRecursiveAndSortedByPath) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "b");
  write_text(folder / "c.txt", "third");
  write_text(folder / "b/x.txt", "second");
  write_text(folder / "a.txt", "first");
  const Corpus c = load_corpus(folder.path().string());
  EXPECT_EQ(text_of(c), "firstsecondthird");
  EXPECT_EQ(c.borders, (std::vector<std::int64_t>{0, 5, 11, 16}));
}

TEST(Corpus, LinksAreResolvedAndDuplicatesDropped) {
  const TemporaryFolder folder, outside;
  write_text(folder / "real.txt", "text");
  write_text(outside / "other.txt", "linked");
  fs::create_symlink("real.txt", folder / "alias.txt");
  fs::create_hard_link(folder / "real.txt", folder / "twin.txt");
  fs::create_symlink(outside / "other.txt", folder / "far.txt");
  fs::create_directory_symlink(folder.path(), folder / "cycle");
  const Corpus c = load_corpus(folder.path().string());
  EXPECT_EQ(c.files(), 2);
  const std::string text = text_of(c);
  EXPECT_TRUE(text == "textlinked" || text == "linkedtext") << text;
}

TEST(Corpus, LeavesOutBinaryEmptyAndBrokenWithANote) {
  const TemporaryFolder folder;
  write_text(folder / "good.txt", "good text");
  write_text(folder / "empty.txt", "");
  write_text(folder / "one.txt", "1");
  write_text(folder / "binary.bin", std::string("ab\0cd", 5));
  fs::create_symlink("nowhere", folder / "broken");
  const Corpus c = load_corpus(folder.path().string());
  EXPECT_EQ(text_of(c), "good text");
  ASSERT_EQ(c.notes.size(), 3u);
  const auto noted = [&](const std::string& part) {
    return std::any_of(c.notes.begin(), c.notes.end(),
                       [&](const auto& n) { return n.find(part) != std::string::npos; });
  };
  EXPECT_TRUE(noted("left out 1 file: binary, it has a zero byte"));
  EXPECT_TRUE(noted("binary.bin"));
  EXPECT_TRUE(noted("left out 2 files: fewer than two bytes"));
  EXPECT_TRUE(noted("left out 1 file: a link that leads nowhere"));
}

TEST(Corpus, RefusalsNameThePathAndTheReason) {
  const TemporaryFolder folder;
  const std::string missing = folder / "missing";
  EXPECT_EQ(message_of([&] { load_corpus(missing); }), "text: got \"" + missing + "\": no such file or folder");
  EXPECT_NE(message_of([&] { load_corpus(folder.path().string()); }).find("expected text of at least two bytes"),
            std::string::npos);
  write_text(folder / "binary.bin", std::string(10, '\0'));
  const std::string binary = message_of([&] { load_corpus(folder / "binary.bin"); });
  EXPECT_NE(binary.find("zero byte"), std::string::npos) << binary;
  EXPECT_NE(message_of([] { load_corpus("/dev/null"); }).find("regular file or a folder"), std::string::npos);
}

TEST(Batcher, TargetsAreTheNextBytesAndDocumentsEndWithFiles) {
  const Corpus corpus = sample_corpus();
  Batcher batcher(corpus, 3, 333, 100);
  for (int i = 0; i < 40; ++i) {
    const Batch b = batcher.next();
    ASSERT_EQ(b.inputs.size(), 333u);
    ASSERT_EQ(b.targets.size(), 333u);
    ASSERT_EQ(b.cu_seqlens.front(), 0);
    ASSERT_EQ(b.cu_seqlens.back(), 333);
    for (std::size_t d = 0; d + 1 < b.cu_seqlens.size(); ++d) {
      const auto from = static_cast<std::size_t>(b.cu_seqlens[d]), to = static_cast<std::size_t>(b.cu_seqlens[d + 1]);
      ASSERT_GT(to, from);
      ASSERT_LE(to - from, 100u);
      // A document and its last target are one stretch of one file.
      std::string piece(b.inputs.begin() + static_cast<std::ptrdiff_t>(from),
                        b.inputs.begin() + static_cast<std::ptrdiff_t>(to));
      piece += static_cast<char>(b.targets[to - 1]);
      for (std::size_t t = from; t + 1 < to; ++t) ASSERT_EQ(b.targets[t], b.inputs[t + 1]);
      const std::string text = text_of(corpus);
      const auto border = static_cast<std::size_t>(corpus.borders[1]);
      EXPECT_TRUE(text.substr(0, border).find(piece) != std::string::npos ||
                  text.substr(border).find(piece) != std::string::npos);
    }
  }
}

TEST(Batcher, AnEpochUsesEveryPairOnce) {
  // Distinct pairs, so that each can be recognised: 200 bytes, all different.
  Corpus corpus;
  for (int i = 0; i < 200; ++i) corpus.bytes.push_back(static_cast<std::uint8_t>(i + 1));
  corpus.borders = {0, 50, 200};
  Batcher batcher(corpus, 1, corpus.pairs(), 16);
  std::vector<std::uint8_t> previous;
  for (int epoch = 0; epoch < 3; ++epoch) {
    Batch b = batcher.next();
    EXPECT_EQ(batcher.position(), (DataPosition{epoch + 1, 0, 0}));
    EXPECT_NE(b.inputs, previous) << "each epoch has its own order";
    previous = b.inputs;
    std::sort(b.inputs.begin(), b.inputs.end());
    EXPECT_TRUE(std::adjacent_find(b.inputs.begin(), b.inputs.end()) == b.inputs.end());
    EXPECT_EQ(std::count(b.inputs.begin(), b.inputs.end(), 50), 0) << "the last byte of a file has no successor";
  }
}

TEST(Batcher, FollowsFromSeedAndResumes) {
  const Corpus corpus = sample_corpus();
  Batcher a(corpus, 7, 500, 128), b(corpus, 7, 500, 128), other(corpus, 8, 500, 128);
  EXPECT_NE(a.next().inputs, other.next().inputs);
  b.next();
  for (int i = 0; i < 30; ++i) {  // across several epochs
    Batcher resumed(corpus, 7, 500, 128);
    resumed.seek(a.position());
    const Batch expected = a.next(), actual = resumed.next();
    ASSERT_EQ(expected.inputs, actual.inputs);
    ASSERT_EQ(expected.cu_seqlens, actual.cu_seqlens);
    ASSERT_EQ(expected.inputs, b.next().inputs);
  }
  EXPECT_GT(a.position().epoch, 1);
}

TEST(Batcher, RefusesBadSizesAndPositions) {
  const Corpus corpus = sample_corpus();
  EXPECT_EQ(message_of([&] { Batcher(corpus, 1, 0, 16); }), "batch-tokens: got 0, expected 1 to 2^30");
  EXPECT_EQ(message_of([&] { Batcher(corpus, 1, 16, 0); }), "document-tokens: got 0, expected 1 to 2^30");
  Batcher batcher(corpus, 1, 16, 16);
  for (const DataPosition p : {DataPosition{-1, 0, 0}, {0, 1 << 20, 0}, {0, -1, 0}, {0, 0, 16}}) {
    EXPECT_NE(message_of([&] { batcher.seek(p); }).find("position: got"), std::string::npos);
  }
}

TEST(Batcher, TinyTextFillsLargeBatches) {
  Corpus corpus;
  corpus.bytes = {'a', 'b'};
  corpus.borders = {0, 2};
  Batcher batcher(corpus, 1, 100, 1000);
  const Batch b = batcher.next();
  EXPECT_EQ(b.cu_seqlens.size(), 101u);
  EXPECT_EQ(b.inputs, std::vector<std::uint8_t>(100, 'a'));
  EXPECT_EQ(b.targets, std::vector<std::uint8_t>(100, 'b'));
}

}  // namespace
}  // namespace cake::test
