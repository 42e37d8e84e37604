#include <algorithm>
#include <cstring>
#include <exception>

#include "cake/comm.h"

namespace cake {
namespace {

void check_peer(const char* name, int peer, int size) {
  if (peer >= 0 && peer < size) return;
  throw InvalidArgument(std::string(name) + ": got rank " + std::to_string(peer) + ", expected 0 to " +
                        std::to_string(size - 1));
}

void check_data(const char* name, const void* data, std::size_t bytes) {
  if (data == nullptr && bytes > 0) throw InvalidArgument(std::string(name) + ": a null pointer");
}

}  // namespace

Communicator::~Communicator() = default;

void Communicator::all_gather(const void* data, std::size_t bytes, void* all) {
  check_data("data", data, bytes);
  check_data("all", all, bytes);
  do_all_gather(data, bytes, all);
  const auto others = static_cast<std::uint64_t>(size() - 1);
  counters_.all_gathers += 1;
  counters_.bytes_sent += others * bytes;
  counters_.bytes_received += others * bytes;
}

void Communicator::gather_by_exchange(const void* data, std::size_t bytes, void* all) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < size(); ++r) {
    auto* place = static_cast<std::byte*>(all) + static_cast<std::size_t>(r) * bytes;
    if (r == rank()) {
      if (bytes > 0) std::memmove(place, data, bytes);
      continue;
    }
    sends.push_back({r, data, bytes});
    receives.push_back({r, place, bytes});
  }
  do_exchange(sends, receives);
}

void Communicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  for (const Send& s : sends) {
    check_peer("sends", s.to, size());
    check_data("sends", s.data, s.bytes);
  }
  for (const Receive& r : receives) {
    check_peer("receives", r.from, size());
    check_data("receives", r.data, r.bytes);
  }
  do_exchange(sends, receives);
  for (const Send& s : sends) {
    counters_.messages_sent += 1;
    counters_.bytes_sent += s.bytes;
  }
  for (const Receive& r : receives) counters_.bytes_received += r.bytes;
}

void Communicator::barrier() { do_barrier(); }

void Communicator::abort(const std::string& reason) noexcept { do_abort(reason); }

namespace {

using Fields = AgreementFields;

void append(std::string& text, const std::string& part) {
  const std::uint64_t size = part.size();
  text.append(reinterpret_cast<const char*>(&size), sizeof size);
  text += part;
}

std::string encode(const Fields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    append(text, name);
    append(text, value);
  }
  return text;
}

Fields decode(const char* text, std::size_t bytes) {
  Fields fields;
  const char* end = text + bytes;
  const auto part = [&] {
    std::uint64_t size = 0;
    std::memcpy(&size, text, sizeof size);
    std::string result(text + sizeof size, size);
    text += sizeof size + size;
    return result;
  };
  while (text < end) {
    std::string name = part();
    fields.emplace_back(std::move(name), part());
  }
  return fields;
}

struct Summary {
  std::uint64_t failed;                ///< the check threw: the text is its message
  std::uint64_t bytes, first, second;  ///< length, and two hashes with different starts
};

Summary summarise(const std::string& text, bool failed) {
  Summary s{failed ? 1u : 0u, text.size(), 14695981039346656037ull, 0x9e3779b97f4a7c15ull};
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    s.first = (s.first ^ byte) * 1099511628211ull;
    s.second = (s.second + byte) * 0xbf58476d1ce4e5b9ull;
    s.second ^= s.second >> 31;
  }
  return s;
}

std::string value_of(const Fields& fields, const std::string& name) {
  for (const auto& [key, value] : fields) {
    if (key == name) return value;
  }
  return "not given";
}

/// Throws for the first field that differs between ranks.
[[noreturn]] void fail_at_difference(const char* what, const std::vector<Fields>& given) {
  for (const Fields& names : given) {
    for (const auto& [name, first] : names) {
      std::string values;
      bool differs = false;
      for (std::size_t r = 0; r < given.size(); ++r) {
        const std::string value = value_of(given[r], name);
        differs = differs || value != first;
        values += (r == 0 ? "" : ", ") + std::string("rank ") + std::to_string(r) + " " + value;
      }
      if (differs) throw InvalidArgument(std::string(what) + ": " + name + " differs between ranks: " + values);
    }
  }
  throw InvalidArgument(std::string(what) + ": the order of fields differs between ranks");
}

}  // namespace

void require_agreement(Communicator& c, const char* what, const Fields& fields) {
  require_agreement(c, what, [&] { return fields; });
}

void require_agreement(Communicator& c, const char* what, const std::function<Fields()>& check) {
  const auto ranks = static_cast<std::size_t>(c.size());
  std::string mine;
  std::exception_ptr failure;
  try {
    mine = encode(check());
  } catch (const std::exception& e) {
    failure = std::current_exception();
    mine = e.what();
  }
  const Summary summary = summarise(mine, failure != nullptr);
  std::vector<Summary> all(ranks);
  c.do_all_gather(&summary, sizeof summary, all.data());
  std::size_t longest = 0, failed = ranks;
  bool equal = true;
  for (std::size_t r = ranks; r-- > 0;) {
    equal = equal && std::memcmp(&all[r], &all[0], sizeof summary) == 0;
    longest = std::max<std::size_t>(longest, all[r].bytes);
    if (all[r].failed != 0) failed = r;
  }
  if (equal && failed == ranks) return;
  std::string padded = mine, texts(longest * ranks, '\0');
  padded.resize(longest);
  c.do_all_gather(padded.data(), longest, texts.data());
  if (failure != nullptr) std::rethrow_exception(failure);
  if (failed < ranks) {
    throw CommError("rank " + std::to_string(failed) + ": " + std::string(what) + ": " +
                    texts.substr(failed * longest, all[failed].bytes));
  }
  std::vector<Fields> given(ranks);
  for (std::size_t r = 0; r < ranks; ++r) given[r] = decode(texts.data() + r * longest, all[r].bytes);
  fail_at_difference(what, given);
}

}  // namespace cake
