// SHA-256 for checkpoints, logs and the digest of a run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace cake::train_lm {

/// A running SHA-256.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(const void* data, std::size_t bytes);
  /// The hash; the object cannot be used afterwards.
  std::array<std::uint8_t, 32> finish();
  /// "sha256:<64 hex digits>".
  std::string finish_text();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cake::train_lm
