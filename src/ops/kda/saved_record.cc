#include "ops/kda/saved_record.h"

#include <bit>
#include <cstdint>
#include <cstdlib>

#include "core/checks.h"

namespace cake::kda {
namespace {

// The text is "<tag> <number> <number> ... <partition digest>" with numbers in hexadecimal; floats as their bits.
class Writer {
 public:
  explicit Writer(const Tag& tag) : text_(tag.text()) {}
  void visit(const std::int64_t& x) { add(static_cast<std::uint64_t>(x)); }
  void visit(const std::size_t& x) { add(x); }
  void visit(const bool& x) { add(x ? 1 : 0); }
  void visit(const float& x) { add(std::bit_cast<std::uint32_t>(x)); }
  void visit(const std::optional<float>& x) {
    visit(x.has_value());
    visit(x.value_or(0.0f));
  }
  void visit(const DType& x) { add(static_cast<std::uint64_t>(x)); }
  void visit(const kcp::Exchange& x) { add(static_cast<std::uint64_t>(x)); }
  void visit(const std::string& x) { text_ += " " + (x.empty() ? std::string("-") : x); }
  std::string text() const { return text_; }

 private:
  void add(std::uint64_t x) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string digits;
    do {
      digits.insert(digits.begin(), kDigits[x & 15]);
      x >>= 4;
    } while (x != 0);
    text_ += " " + digits;
  }
  std::string text_;
};

class Reader {
 public:
  Reader(const std::string& text, const Tag& expected) : text_(text) {
    check_tag(Tag::parse(word()), expected, "saved");
  }
  void visit(std::int64_t& x) { x = static_cast<std::int64_t>(number()); }
  void visit(std::size_t& x) { x = number(); }
  void visit(bool& x) { x = limited(1) == 1; }
  void visit(float& x) { x = std::bit_cast<float>(static_cast<std::uint32_t>(limited(0xffffffffu))); }
  void visit(std::optional<float>& x) {
    bool given = false;
    float value = 0.0f;
    visit(given);
    visit(value);
    if (given) {
      x = value;
    } else {
      x.reset();
    }
  }
  void visit(DType& x) { x = static_cast<DType>(limited(static_cast<std::uint64_t>(DType::kInt64))); }
  void visit(kcp::Exchange& x) {
    x = static_cast<kcp::Exchange>(limited(static_cast<std::uint64_t>(kcp::Exchange::kGather)));
  }
  void visit(std::string& x) {
    x = word();
    if (x == "-") x.clear();
  }
  void finish() const {
    if (at_ < text_.size()) bad();
  }

 private:
  [[noreturn]] static void bad() { checks::fail("saved", "memory whose record is damaged", "what a forward filled"); }
  std::string word() {
    if (at_ >= text_.size()) bad();
    const std::size_t end = std::min(text_.find(' ', at_), text_.size());
    std::string w = text_.substr(at_, end - at_);
    if (w.empty()) bad();
    at_ = end + 1;
    return w;
  }
  std::uint64_t number() {
    const std::string w = word();
    std::uint64_t x = 0;
    if (w.size() > 16) bad();
    for (const char c : w) {
      const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
      if (!digit && !letter) bad();
      x = x * 16 + static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
    }
    return x;
  }
  std::uint64_t limited(std::uint64_t most) {
    const std::uint64_t x = number();
    if (x > most) bad();
    return x;
  }
  const std::string& text_;
  std::size_t at_ = 0;
};

template <class Visitor, class Set>
void visit_single(Visitor& v, Set& s) {
  v.visit(s.bytes);
  v.visit(s.tape);
  v.visit(s.problem.B);
  v.visit(s.problem.S);
  v.visit(s.problem.H);
  v.visit(s.problem.HV);
  v.visit(s.problem.K);
  v.visit(s.problem.V);
  v.visit(s.problem.N);
  v.visit(s.problem.packed);
  v.visit(s.problem.scale);
  v.visit(s.settings.scale);
  v.visit(s.settings.use_gate_in_kernel);
  v.visit(s.settings.lower_bound);
  v.visit(s.settings.use_qk_l2norm_in_kernel);
  v.visit(s.settings.use_beta_sigmoid_in_kernel);
  v.visit(s.settings.allow_neg_eigval);
  v.visit(s.dtype);
  v.visit(s.offsets_digest);
}

template <class Visitor, class Set>
void visit_ranks(Visitor& v, Set& s) {
  visit_single(v, s);
  v.visit(s.exchange);
  v.visit(s.transfer);
  v.visit(s.handoff);
  v.visit(s.partition);
}

void check_filled(const SavedSet& saved) {
  if (!saved.filled) checks::fail("saved", "an empty saved set", "one filled by a forward");
}

/// `read` is complete and of the right package; only then the set changes.
template <class Set>
void take(Set& saved, Set read) {
  if (saved.memory.size() < read.bytes) {
    throw OutOfMemory("saved: got memory of " + std::to_string(saved.memory.size()) + " bytes, expected the " +
                      std::to_string(read.bytes) + " bytes that the forward filled");
  }
  read.memory = std::move(saved.memory);
  read.filled = true;
  saved = std::move(read);
}

}  // namespace

std::string saved_record(const Tag& tag, const SavedSet& saved) {
  check_filled(saved);
  Writer writer(tag);
  visit_single(writer, saved);
  return writer.text();
}

std::string saved_record(const Tag& tag, const KcpSavedSet& saved) {
  check_filled(saved);
  Writer writer(tag);
  visit_ranks(writer, saved);
  return writer.text();
}

void restore_saved(SavedSet& saved, const Tag& expected, const std::string& record) {
  Reader reader(record, expected);
  SavedSet read;
  visit_single(reader, read);
  reader.finish();
  take(saved, std::move(read));
}

void restore_saved(KcpSavedSet& saved, const Tag& expected, const std::string& record) {
  Reader reader(record, expected);
  KcpSavedSet read;
  visit_ranks(reader, read);
  reader.finish();
  take(saved, std::move(read));
}

}  // namespace cake::kda
