#include "checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "cake/core/error.h"
#include "config_json.h"
#include "digest.h"
#include "files.h"

namespace cake::train_lm {
namespace {

constexpr std::string_view kMagic = "CAKETRLM";
constexpr std::size_t kPrefix = 32, kHash = 32;
constexpr std::size_t kRecordDoubles = 3;

template <class T>
std::string_view bytes_of(const std::vector<T>& v) {
  return {reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T)};
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw FileError("checkpoint \"" + path + "\" " + reason);
}

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, "cannot be read: " + std::error_code(errno, std::generic_category()).message());
  std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) refuse(path, "cannot be read");
  return bytes;
}

std::uint64_t number_at(const std::string& bytes, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

nlohmann::ordered_json header_of(const TrainState& s, const ParameterTable& table) {
  nlohmann::ordered_json j;
  j["options"] = config_to_json(s.config);
  j["text"] = {{"bytes", s.text_bytes}, {"digest", s.text_digest}};
  j["step"] = s.history.size();
  j["position"] = {{"epoch", s.position.epoch}, {"document", s.position.document}, {"offset", s.position.offset}};
  j["beta-powers"] = {s.power1, s.power2};
  j["floats"] = table.size();
  j["tensors"] = nlohmann::ordered_json::array();
  for (const Parameter& p : table.all()) {
    j["tensors"].push_back({{"name", p.name}, {"shape", p.shape}, {"offset", p.offset}});
  }
  return j;
}

/// The parts of the file that lie one after another, checked against its size and hash.
struct Sections {
  std::string_view header, payload;
};

Sections checked_sections(const std::string& path, const std::string& file) {
  const std::size_t seen = std::min(file.size(), kMagic.size());
  if (std::string_view(file).substr(0, seen) != kMagic.substr(0, seen)) {
    refuse(path, "is not a checkpoint of cake train (it does not begin with \"" + std::string(kMagic) + "\")");
  }
  const auto truncated = [&](const std::string& expected) {
    refuse(path, "is truncated: " + std::to_string(file.size()) + " bytes, expected " + expected);
  };
  if (file.size() < kPrefix + kHash) truncated("at least " + std::to_string(kPrefix + kHash));
  const std::uint64_t version = number_at(file, 8);
  if (version != kCheckpointVersion) {
    refuse(path, "has version " + std::to_string(version) + ", this build reads version " +
                     std::to_string(kCheckpointVersion));
  }
  const std::uint64_t header = number_at(file, 16), payload = number_at(file, 24);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  if (header > kMost || payload > kMost) refuse(path, "is corrupt: it states impossible sizes");
  const std::uint64_t expected = kPrefix + header + payload + kHash;
  if (file.size() < expected) truncated(std::to_string(expected));
  if (file.size() > expected) {
    refuse(path, "is corrupt: " + std::to_string(file.size()) + " bytes, expected " + std::to_string(expected));
  }
  Sha256 hash;
  hash.add(file.data(), file.size() - kHash);
  const auto actual = hash.finish();
  if (std::memcmp(actual.data(), file.data() + file.size() - kHash, kHash) != 0) {
    refuse(path, "is corrupt: its SHA-256 does not match its content");
  }
  return {std::string_view(file).substr(kPrefix, header), std::string_view(file).substr(kPrefix + header, payload)};
}

}  // namespace

void save_checkpoint(const std::string& path, const TrainState& state) {
  const ParameterTable table(state.config.model);
  const std::string header = header_of(state, table).dump();
  std::vector<double> history;
  for (const StepRecord& r : state.history) history.insert(history.end(), {r.loss, r.learning_rate, r.gradient_norm});
  const std::uint64_t sizes[3] = {kCheckpointVersion, header.size(),
                                  bytes_of(state.parameters).size() + bytes_of(state.first).size() +
                                      bytes_of(state.second).size() + bytes_of(history).size()};
  std::vector<std::string_view> parts = {kMagic,
                                         {reinterpret_cast<const char*>(sizes), sizeof sizes},
                                         header,
                                         bytes_of(state.parameters),
                                         bytes_of(state.first),
                                         bytes_of(state.second),
                                         bytes_of(history)};
  Sha256 hash;
  for (const std::string_view part : parts) hash.add(part.data(), part.size());
  const auto digest = hash.finish();
  parts.emplace_back(reinterpret_cast<const char*>(digest.data()), digest.size());
  write_file_atomically(path, parts, "checkpoint");
}

TrainState load_checkpoint(const std::string& path) {
  const std::string file = read_all(path);
  const Sections sections = checked_sections(path, file);
  TrainState s;
  try {
    const auto j = nlohmann::ordered_json::parse(sections.header);
    s.config = config_from_json(j.at("options"));
    s.config.validate();
    j.at("text").at("bytes").get_to(s.text_bytes);
    j.at("text").at("digest").get_to(s.text_digest);
    const auto& position = j.at("position");
    s.position = {position.at("epoch").get<std::int64_t>(), position.at("document").get<std::int64_t>(),
                  position.at("offset").get<std::int64_t>()};
    s.power1 = j.at("beta-powers").at(0).get<double>();
    s.power2 = j.at("beta-powers").at(1).get<double>();
    s.history.resize(j.at("step").get<std::size_t>());
  } catch (const nlohmann::json::exception& e) {
    refuse(path, std::string("is corrupt: its header cannot be read: ") + e.what());
  } catch (const Error& e) {
    refuse(path, std::string("is corrupt: its options are not valid: ") + e.what());
  }
  const ParameterTable table(s.config.model);
  const auto floats = static_cast<std::size_t>(table.size());
  const std::size_t array_bytes = floats * sizeof(float);
  const std::size_t history_bytes = s.history.size() * kRecordDoubles * sizeof(double);
  if (sections.payload.size() != 3 * array_bytes + history_bytes) {
    refuse(path, "is corrupt: " + std::to_string(sections.payload.size()) + " bytes of numbers, expected " +
                     std::to_string(3 * array_bytes + history_bytes) + " for its options");
  }
  const char* at = sections.payload.data();
  for (std::vector<float>* array : {&s.parameters, &s.first, &s.second}) {
    array->resize(floats);
    std::memcpy(array->data(), at, array_bytes);
    at += array_bytes;
  }
  for (StepRecord& r : s.history) {
    double record[kRecordDoubles];
    std::memcpy(record, at, sizeof record);
    r = {record[0], record[1], record[2]};
    at += sizeof record;
  }
  return s;
}

}  // namespace cake::train_lm
