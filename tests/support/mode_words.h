// Messages of the two modes are equal with the mode words exchanged.
#pragma once

#include <string>

namespace cake::test {

/// A text with the words of the two modes exchanged.
inline std::string swapped(std::string text) {
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  };
  replace("nondet", "\x01");
  replace("Nondet", "\x02");
  replace("det", "nondet");
  replace("Det", "Nondet");
  replace("\x01", "det");
  replace("\x02", "Det");
  return text;
}

}  // namespace cake::test
