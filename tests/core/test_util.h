// What the core tests share: a seeded random source, error expectations, and calls in a child process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <string>
#include <type_traits>

#include "cake/core/cpu_isa.h"
#include "cake/core/error.h"

namespace cake::test {

/// Seed of every random case: CAKE_TEST_SEED, else a constant. Printed once, so that a failure can be repeated.
inline std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("CAKE_TEST_SEED");
    const std::uint64_t value = text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 0) : 20240607u;
    std::cout << "CAKE_TEST_SEED=" << value << "\n";
    return value;
  }();
  return seed;
}

/// splitmix64 with helpers; `stream` keeps the cases of different tests apart.
class Random {
 public:
  explicit Random(std::uint64_t stream) : state_(test_seed() * 0x9e3779b97f4a7c15ull + stream) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }
  /// Uniform in [lo, hi).
  float uniform(float lo, float hi) { return lo + (hi - lo) * static_cast<float>(next() >> 40) * 0x1p-24f; }
  /// Any of the 2^32 bit patterns.
  float any_bits() { return std::bit_cast<float>(static_cast<std::uint32_t>(next() >> 32)); }

 private:
  std::uint64_t state_;
};

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float from_bits(std::uint32_t u) { return std::bit_cast<float>(u); }
inline bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }
inline bool is_subnormal(float x) { return (bits_of(x) & 0x7f800000u) == 0 && (bits_of(x) & 0x7fffffffu) != 0; }
/// Equal bits, or NaN on both sides (which NaN comes out of an operation on two NaNs is not promised).
inline bool same_number(float a, float b) { return bits_of(a) == bits_of(b) || (is_nan(a) && is_nan(b)); }

/// Expects fn to throw exactly ErrorType, with each of `parts` in its message.
template <class ErrorType, class Fn>
void expect_error(Fn&& fn, std::initializer_list<const char*> parts) {
  try {
    fn();
  } catch (const ErrorType& e) {
    static_assert(std::is_base_of_v<Error, ErrorType>);
    for (const char* part : parts) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "\"" << part << "\" missing in: " << e.what();
    }
    return;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another exception: " << e.what();
    return;
  }
  ADD_FAILURE() << "nothing was thrown";
}

/// What a child process printed and how it ended.
struct ChildResult {
  int status = -1;  ///< exit status; -1 when a signal ended it
  std::string text;
};

/// Runs fn in a child process with one environment variable set (null value: unset). The child prints what fn returns
/// and exits with 0, or prints the message of the cake::Error and exits with 10 + its kind.
template <class Fn>
ChildResult run_in_child(const char* variable, const char* value, Fn&& fn) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    if (value != nullptr) {
      setenv(variable, value, 1);
    } else {
      unsetenv(variable);
    }
    std::string text;
    int status = 0;
    try {
      text = fn();
    } catch (const Error& e) {
      text = e.what();
      status = 10 + static_cast<int>(e.kind());
    } catch (...) {
      status = 9;
    }
    const bool written = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(written ? status : 8);
  }
  close(ends[1]);
  ChildResult result;
  char buffer[512];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    result.text.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

/// Exit status of run_in_child for an error of this kind.
inline int child_status(ErrorKind kind) { return 10 + static_cast<int>(kind); }

}  // namespace cake::test
