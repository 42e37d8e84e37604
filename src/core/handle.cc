#include "cake/core/handle.h"

#include <cctype>
#include <vector>

namespace cake {
namespace {

// "dsa_sparse_attention" -> "DsaSparseAttention"; three letters and fewer are initials: "kda" -> "KDA".
std::string camel(const std::string& snake) {
  std::string text;
  std::size_t start = 0;
  while (start <= snake.size()) {
    std::size_t end = snake.find('_', start);
    if (end == std::string::npos) end = snake.size();
    const bool initials = end - start <= 3;
    for (std::size_t i = start; i < end; ++i) {
      const auto c = static_cast<unsigned char>(snake[i]);
      text += static_cast<char>(initials || i == start ? std::toupper(c) : c);
    }
    start = end + 1;
  }
  return text;
}

std::string capitalised(std::string word) {
  if (!word.empty()) word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
  return word;
}

std::string version_text(const Tag& tag) { return "version " + std::to_string(tag.version); }

}  // namespace

std::string Tag::text() const {
  std::string text = "cake/" + op;
  if (!mode.empty()) text += "/" + mode;
  if (kcp) text += "/kcp";
  return text + "/" + object + "/v" + std::to_string(version);
}

Tag Tag::parse(const std::string& text) {
  const auto bad = [&]() {
    return InvalidArgument("tag: got \"" + text + "\", expected cake/<op>[/<mode>][/kcp]/<object>/v<n>");
  };
  std::vector<std::string> parts;
  std::size_t start = 0;
  for (;;) {
    const std::size_t end = text.find('/', start);
    parts.push_back(text.substr(start, end == std::string::npos ? end : end - start));
    if (parts.back().empty()) throw bad();
    if (end == std::string::npos) break;
    start = end + 1;
  }
  if (parts.size() < 4 || parts.front() != "cake") throw bad();
  const std::string& version = parts.back();
  if (version.size() < 2 || version.size() > 10 || version[0] != 'v') throw bad();
  for (std::size_t i = 1; i < version.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(version[i])) == 0) throw bad();
  }
  Tag tag;
  tag.op = parts[1];
  tag.version = std::stoi(version.substr(1));
  tag.object = parts[parts.size() - 2];
  std::size_t at = 2;
  if (parts[at] == "det" || parts[at] == "nondet") tag.mode = parts[at++];
  if (parts[at] == "kcp") {
    tag.kcp = true;
    ++at;
  }
  if (at != parts.size() - 2) throw bad();
  return tag;
}

std::string Tag::module() const {
  if (mode.empty()) return "cake_kcp";
  return "cake_" + op + "_" + mode + "_train" + (kcp ? "_kcp" : "");
}

std::string tag_class_name(const Tag& tag) {
  if (tag.mode.empty() && tag.op == "kcp") {  // neutral objects over ranks
    return "CakeKcp" + capitalised(tag.object) + (tag.object == "recompute" ? "Handle" : "");
  }
  return "Cake" + (tag.mode.empty() ? std::string() : camel(tag.op) + capitalised(tag.mode)) + (tag.kcp ? "Kcp" : "") +
         camel(tag.object.size() <= 3 ? tag.object : capitalised(tag.object));
}

void check_tag(const Tag& given, const Tag& expected, const char* argument) {
  if (given == expected) return;
  const std::string wanted = tag_class_name(expected);
  const std::string got = tag_class_name(given);
  const bool same_kind = given.op == expected.op && given.kcp == expected.kcp && given.object == expected.object;
  if (same_kind && given.mode != expected.mode) {
    std::string text = std::string(argument) + ": got a " + got + ", expected a " + wanted;
    if (expected.object == "saved") {
      text += "; this saved set belongs to the backward of " + given.module();
    } else {
      text += "; it is a " + given.object + " of the " + given.mode + " mode";
    }
    throw WrongMode(text);
  }
  if (same_kind) {
    throw InvalidArgument(std::string(argument) + ": got a " + got + " of " + version_text(given) + ", expected " +
                          version_text(expected));
  }
  if (expected.object == "saved" && given.object == "saved") {
    throw InvalidArgument(std::string(argument) + ": got a " + got + ", expected a " + wanted);
  }
  throw WrongType(std::string(argument) + " must be a " + wanted);
}

void Handle::check(const Tag& expected, const char* argument) const {
  if (empty()) throw WrongType(std::string(argument) + " must be a " + tag_class_name(expected));
  check_tag(tag_, expected, argument);
}

}  // namespace cake
