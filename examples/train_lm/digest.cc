#include "digest.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace cake::train_lm {
namespace {

void require(int result) {
  if (result != 1) throw std::runtime_error("SHA-256 of OpenSSL failed");
}

}  // namespace

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  require(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr));
}
Sha256::~Sha256() = default;

void Sha256::add(const void* data, std::size_t bytes) { require(EVP_DigestUpdate(impl_->context, data, bytes)); }

std::array<std::uint8_t, 32> Sha256::finish() {
  std::array<std::uint8_t, 32> hash{};
  require(EVP_DigestFinal_ex(impl_->context, hash.data(), nullptr));
  return hash;
}

std::string Sha256::finish_text() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "sha256:";
  for (const std::uint8_t byte : finish()) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace cake::train_lm
