#include "data.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "cake/core/error.h"
#include "random.h"

namespace cake::train_lm {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw InvalidArgument("text: got \"" + path + "\": " + reason);
}

/// Identity of a file, whatever name led to it.
using FileId = std::pair<dev_t, ino_t>;

FileId file_id(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    refuse(path.string(), "cannot be read: " + std::error_code(errno, std::generic_category()).message());
  }
  return {info.st_dev, info.st_ino};
}

/// What was left out, by reason: how many and the first.
class Omissions {
 public:
  void add(const std::string& reason, const fs::path& path) {
    for (Entry& e : entries_) {
      if (e.reason == reason) {
        ++e.count;
        return;
      }
    }
    entries_.push_back({reason, path.string(), 1});
  }
  std::vector<std::string> notes() const {
    std::vector<std::string> lines;
    for (const Entry& e : entries_) {
      std::string line = "left out " + std::to_string(e.count) + (e.count == 1 ? " file: " : " files: ") + e.reason;
      lines.push_back(line + (e.count == 1 ? " (" : " (first: ") + e.first + ")");
    }
    return lines;
  }

 private:
  struct Entry {
    std::string reason, first;
    std::int64_t count;
  };
  std::vector<Entry> entries_;
};

/// Collects the resolved paths of regular files below `folder`; `seen` holds folders already entered (link cycles).
void collect(const fs::path& folder, std::set<FileId>& seen, std::vector<fs::path>& files, Omissions& omitted) {
  if (!seen.insert(file_id(folder)).second) return;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) refuse(folder.string(), "cannot be listed: " + error.message());
  for (const fs::directory_entry& entry : entries) {
    const fs::file_status status = entry.status(error);
    if (!fs::exists(status)) {
      omitted.add("a link that leads nowhere", entry.path());
    } else if (fs::is_directory(status)) {
      collect(fs::canonical(entry.path()), seen, files, omitted);
    } else if (fs::is_regular_file(status)) {
      files.push_back(fs::canonical(entry.path()));
    } else {
      omitted.add("not a regular file", entry.path());
    }
  }
}

std::vector<std::uint8_t> read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path.string(), "cannot be read: " + std::error_code(errno, std::generic_category()).message());
  std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) refuse(path.string(), "reading failed");
  return bytes;
}

}  // namespace

Corpus load_corpus(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) refuse(path, "no such file or folder");
  const bool folder = fs::is_directory(status);
  if (!folder && !fs::is_regular_file(status)) refuse(path, "expected a regular file or a folder");

  std::vector<fs::path> files;
  Omissions omitted;
  if (folder) {
    std::set<FileId> seen;
    collect(fs::canonical(path), seen, files, omitted);
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(fs::canonical(path));
  }

  Corpus corpus;
  corpus.borders.push_back(0);
  std::set<FileId> taken;
  for (const fs::path& file : files) {
    if (!taken.insert(file_id(file)).second) continue;
    const std::vector<std::uint8_t> bytes = read_file(file);
    if (bytes.size() < 2) {
      omitted.add("fewer than two bytes", file);
    } else if (std::find(bytes.begin(), bytes.end(), std::uint8_t{0}) != bytes.end()) {
      omitted.add("binary, it has a zero byte", file);
    } else {
      corpus.bytes.insert(corpus.bytes.end(), bytes.begin(), bytes.end());
      corpus.borders.push_back(static_cast<std::int64_t>(corpus.bytes.size()));
    }
  }
  corpus.notes = omitted.notes();
  if (corpus.files() == 0) {
    std::string reason = "expected text of at least two bytes";
    for (const std::string& note : corpus.notes) reason += "; " + note;
    refuse(path, reason);
  }
  return corpus;
}

Batcher::Batcher(const Corpus& corpus, std::uint64_t seed, std::int64_t batch_tokens, std::int64_t document_tokens)
    : corpus_(corpus), seed_(seed), batch_tokens_(batch_tokens), document_tokens_(document_tokens) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto check = [](const char* name, std::int64_t value) {
    if (value < 1 || value > kMost) {
      throw InvalidArgument(std::string(name) + ": got " + std::to_string(value) + ", expected 1 to 2^30");
    }
  };
  check("batch-tokens", batch_tokens);
  check("document-tokens", document_tokens);
  plan_epoch(0);
}

void Batcher::plan_epoch(std::int64_t epoch) {
  const auto substream = static_cast<std::uint32_t>(epoch);
  Random phases(seed_, RandomStream::kPhase, substream), order(seed_, RandomStream::kOrder, substream);
  documents_.clear();
  for (std::int64_t file = 0; file < corpus_.files(); ++file) {
    std::int64_t at = corpus_.borders[static_cast<std::size_t>(file)];
    const std::int64_t last = corpus_.borders[static_cast<std::size_t>(file) + 1] - 1;  // has no successor
    std::int64_t room = 1 + static_cast<std::int64_t>(phases.below(static_cast<std::uint64_t>(document_tokens_)));
    for (; at < last; at += room, room = document_tokens_) {
      room = std::min(room, last - at);
      documents_.push_back({at, room});
    }
  }
  order.shuffle(documents_);
}

Batch Batcher::next() {
  const auto tokens = static_cast<std::size_t>(batch_tokens_);
  Batch batch;
  batch.inputs.reserve(tokens);
  batch.targets.reserve(tokens);
  batch.cu_seqlens.push_back(0);
  while (batch.inputs.size() < tokens) {
    const Document& document = documents_[static_cast<std::size_t>(position_.document)];
    const std::int64_t count =
        std::min(document.pairs - position_.offset, batch_tokens_ - static_cast<std::int64_t>(batch.inputs.size()));
    const auto first = corpus_.bytes.begin() + document.begin + position_.offset;
    batch.inputs.insert(batch.inputs.end(), first, first + count);
    batch.targets.insert(batch.targets.end(), first + 1, first + 1 + count);
    batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.inputs.size()));
    position_.offset += count;
    if (position_.offset < document.pairs) continue;
    position_.offset = 0;
    if (++position_.document == static_cast<std::int64_t>(documents_.size())) {
      position_.document = 0;
      plan_epoch(++position_.epoch);
    }
  }
  return batch;
}

void Batcher::seek(const DataPosition& position) {
  if (position.epoch < 0)
    throw InvalidArgument("position: got epoch " + std::to_string(position.epoch) + ", expected 0 or more");
  plan_epoch(position.epoch);
  const bool inside = position.document >= 0 && position.document < static_cast<std::int64_t>(documents_.size()) &&
                      position.offset >= 0 &&
                      position.offset < documents_[static_cast<std::size_t>(position.document)].pairs;
  if (!inside) {
    throw InvalidArgument("position: got document " + std::to_string(position.document) + ", offset " +
                          std::to_string(position.offset) + ", which this text does not have");
  }
  position_ = position;
}

}  // namespace cake::train_lm
