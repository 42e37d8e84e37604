// SHA-256 digests of results, and the tools' own random numbers (the same on every machine).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cake::tool {

/// SHA-256 of the bytes, 64 hexadecimal digits.
std::string sha256(const void* data, std::size_t bytes);

/// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// 64 random bits.
  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, 1), a multiple of 2^-24: every operation on it is exact.
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
  /// Mean 0, variance 1, bell-shaped: a centred sum of twelve uniform numbers.
  float bell() {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

}  // namespace cake::tool
