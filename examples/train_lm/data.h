// Text for the trainer: bytes of a file or a folder, cut into documents, packed into batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cake::train_lm {

/// The text: the bytes of all files, one after another.
struct Corpus {
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> borders;  ///< files + 1 offsets into bytes
  std::vector<std::string> notes;     ///< one line per kind of file that was left out

  std::int64_t files() const { return static_cast<std::int64_t>(borders.size()) - 1; }
  /// Pairs of a byte and its successor: what can be trained on.
  std::int64_t pairs() const { return static_cast<std::int64_t>(bytes.size()) - files(); }
};

/// Reads `path`: a file, or every regular file below a folder, sorted by path. Symbolic links are followed; a file
/// reached twice (by a link or a hard link) counts once. In a folder, binary files (a zero byte) and files of fewer
/// than two bytes are left out with a note. Throws InvalidArgument naming `path` when it does not exist, cannot be read
/// or holds no text.
Corpus load_corpus(const std::string& path);

/// One training batch: a packed row of documents.
struct Batch {
  std::vector<std::uint8_t> inputs;      ///< [T]
  std::vector<std::uint8_t> targets;     ///< [T] the byte after each input
  std::vector<std::int32_t> cu_seqlens;  ///< [N + 1], first 0, last T
};

/// Where a batcher stands.
struct DataPosition {
  std::int64_t epoch = 0;
  std::int64_t document = 0;  ///< in the epoch's order
  std::int64_t offset = 0;    ///< pairs of that document already used
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

/// Deals documents into batches. In each epoch every file is cut into documents of `document_tokens` pairs, starting at
/// a random phase, and the documents are shuffled; both follow from (seed, epoch) alone. A document that does not fit
/// into a batch continues in the next one as a document of its own.
class Batcher {
 public:
  /// Throws InvalidArgument unless batch_tokens is 1 to 2^30 and document_tokens is 1 to 2^30. Keeps a reference.
  Batcher(const Corpus& corpus, std::uint64_t seed, std::int64_t batch_tokens, std::int64_t document_tokens);

  /// The next batch of exactly batch_tokens pairs.
  Batch next();
  DataPosition position() const { return position_; }
  /// Goes to a position reported by position(). Throws InvalidArgument for one that cannot be.
  void seek(const DataPosition& position);

 private:
  struct Document {
    std::int64_t begin, pairs;
  };
  void plan_epoch(std::int64_t epoch);

  const Corpus& corpus_;
  std::uint64_t seed_;
  std::int64_t batch_tokens_, document_tokens_;
  DataPosition position_;
  std::vector<Document> documents_;
};

}  // namespace cake::train_lm
