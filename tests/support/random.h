// Random numbers for tests: the same on every machine for one seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cake::test {

/// splitmix64 with the distributions tests need.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// 64 random bits.
  std::uint64_t bits();
  /// A number in [0, 1).
  double uniform();
  /// A number in [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// A normal number with mean 0 and standard deviation 1.
  double normal();
  /// An integer in [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high);
  /// True with probability `p`.
  bool chance(double p) { return uniform() < p; }
  /// One element of a non-empty list.
  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(integer(0, static_cast<std::int64_t>(list.size()) - 1))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace cake::test
