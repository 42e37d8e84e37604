// Random numbers by counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011). A number is a function of (seed, stream, index), so nothing but a position needs to be saved for a resume,
// and the standard library's distributions, which differ between libraries, are not needed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cake::train_lm {

/// What a stream of numbers is for; part of the counter.
enum class RandomStream : std::uint32_t { kInit = 1, kOrder = 2, kPhase = 3 };

/// One block of four 32-bit numbers.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0], b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

/// The numbers of one (seed, stream, substream), one after another.
class Random {
 public:
  Random(std::uint64_t seed, RandomStream stream, std::uint32_t substream)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        stream_(static_cast<std::uint32_t>(stream)),
        substream_(substream) {}

  /// 32 random bits.
  std::uint32_t bits() {
    if (used_ == 4) {
      block_ = philox(
          {static_cast<std::uint32_t>(index_), static_cast<std::uint32_t>(index_ >> 32), substream_, stream_}, key_);
      ++index_;
      used_ = 0;
    }
    return block_[used_++];
  }
  /// A multiple of 2^-24 in [0, 1), exact.
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }
  /// A number in [0, n), n >= 1; n is far below 2^64, so the bias of the remainder does not matter here.
  std::uint64_t below(std::uint64_t n) {
    const std::uint64_t high = bits();
    return (high << 32 | bits()) % n;
  }
  /// Fisher-Yates.
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint32_t stream_, substream_;
  std::uint64_t index_ = 0;
  std::array<std::uint32_t, 4> block_{};
  std::size_t used_ = 4;
};

}  // namespace cake::train_lm
