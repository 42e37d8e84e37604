#include "tests/support/kda_compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <utility>

namespace cake::test {
namespace {

/// Fraction of its limit and error of the worst block so far.
struct Worst {
  double error = 0.0, limit = 0.0;
  std::string where;
};
std::map<std::pair<std::string, std::string>, Worst>& worst_errors() {
  static std::map<std::pair<std::string, std::string>, Worst> table;
  return table;
}

/// Prints the table after the last test of the program.
class WorstErrorsAtEnd : public testing::Environment {
 public:
  void TearDown() override {
    for (const auto& [key, worst] : worst_errors()) {
      std::printf("worst error  %-14s %-12s %.2e, limit %.0e  %s\n", key.first.c_str(), key.second.c_str(), worst.error,
                  worst.limit, worst.where.c_str());
    }
  }
};
const testing::Environment* const kPrinter = testing::AddGlobalTestEnvironment(new WorstErrorsAtEnd);

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Half the spacing of the smallest numbers an element can hold, and what flushed intermediates may lose: an error that
/// is no rounding of the method.
double smallest_step(DType dtype) { return dtype == DType::kFloat16 ? 0x1p-25 : 1e-33; }

/// Elements of one document and head.
struct Block {
  std::int64_t document = 0, head = 0;
  std::vector<std::int64_t> elements;
};

std::vector<Block> blocks_of(const KdaProblem& p, const std::string& name, const HostTensor& tensor) {
  std::vector<Block> blocks;
  if (is_parameter_gradient(name)) {
    const std::int64_t width = tensor.numel() / p.spec.HV;
    for (std::int64_t h = 0; h < p.spec.HV; ++h) {
      Block block{-1, h, {}};
      for (std::int64_t i = 0; i < width; ++i) block.elements.push_back(h * width + i);
      blocks.push_back(std::move(block));
    }
    return blocks;
  }
  const bool state = is_state(name);
  const std::int64_t heads = state ? tensor.shape[1] : tensor.shape[2];
  const std::int64_t width = volume(Shape(tensor.shape.begin() + (state ? 2 : 3), tensor.shape.end()));
  for (std::int64_t n = 0; n < p.N; ++n) {
    const std::int64_t first = state ? n : p.offsets[to_size(n)], last = state ? n + 1 : p.offsets[to_size(n + 1)];
    if (first == last) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      Block block{n, h, {}};
      for (std::int64_t row = first; row < last; ++row) {
        for (std::int64_t i = 0; i < width; ++i) block.elements.push_back((row * heads + h) * width + i);
      }
      blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

std::string describe(const KdaProblem& p, const std::string& name, const Block& block) {
  std::string text = name + " of head " + std::to_string(block.head);
  if (block.document >= 0) {
    text += ", document " + std::to_string(block.document) + " (" +
            std::to_string(p.spec.lengths[to_size(block.document)]) + " tokens)";
  }
  return text;
}

double norm_of_difference(const Block& block, const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (const std::int64_t i : block.elements) sum += (a[to_size(i)] - b[to_size(i)]) * (a[to_size(i)] - b[to_size(i)]);
  return std::sqrt(sum);
}

/// The operands with a relative change of at most 2^-24 each; logits and raw gates, whose activation is rounded as
/// well, change by at least as much as a number of size 1. So do the decays exp(g), which for g near 0 is the larger
/// change: a decay of 1 - 1e-5 in fp32 holds g to three digits.
kda::ReferenceInputs nudged(const KdaProblem& p, std::uint64_t seed) {
  kda::ReferenceInputs in = p.reference_inputs();
  Random random(seed);
  const auto nudge = [&](std::vector<double>& list, bool activated) {
    for (double& x : list) x += 0x1p-24 * random.uniform(-1.0, 1.0) * (activated ? std::max(1.0, std::abs(x)) : x);
  };
  for (auto* list : {&in.q, &in.k, &in.v, &in.initial_state, &in.A_log, &in.dt_bias}) nudge(*list, false);
  nudge(in.g, in.use_gate_in_kernel);
  in.decay_error.resize(in.g.size());
  for (double& x : in.decay_error) x = 0x1p-24 * random.uniform(-1.0, 1.0);
  nudge(in.beta, in.use_beta_sigmoid_in_kernel);
  return in;
}

/// Judges the blocks of one problem; runs the reference on nudged operands when a block needs it.
class Judge {
 public:
  Judge(const KdaProblem& problem, const ReferenceResults& reference, const Judgement& how)
      : p_(problem), reference_(reference), how_(how) {}

  /// "" when the block is right, else what is wrong with it.
  std::string fault(const std::string& name, const HostTensor& tensor, const Block& block,
                    const std::vector<double>& got) {
    const std::vector<double>& expected = reference_.tensors.at(name);
    double scale = 0.0;
    bool zero = true;
    for (const std::int64_t i : block.elements) {
      const double x = expected[to_size(i)];
      zero = zero && x == 0.0;
      scale += x * x;
    }
    if (zero) return fault_of_zero(name, block, got);
    if (const auto squares = reference_.squares.find(name); squares != reference_.squares.end()) {
      scale = 0.0;
      for (const std::int64_t i : block.elements) scale += squares->second[to_size(i)];
    }
    scale = std::sqrt(scale);
    const double error = norm_of_difference(block, got, expected);
    const double slack = smallest_step(tensor.dtype) * std::sqrt(static_cast<double>(block.elements.size()));
    const double limit = how_.factor * kda_limit(name, tensor.dtype, p_.spec.dtype);
    if (error <= limit * scale + slack) {
      record(name, tensor.dtype, block, std::max(0.0, error - slack) / scale, limit);
      return "";
    }
    const double inherent = inherent_change(name, block);
    if (error <= kNudges * inherent + slack) return "";
    char text[160];
    std::snprintf(text, sizeof text,
                  ": relative L2 error %.3g, limit %.3g, norm %.3g, rounded operands change it by %.3g", error / scale,
                  limit, scale, inherent / scale);
    return describe(p_, name, block) + text;
  }

 private:
  static constexpr double kNudges = 64.0;

  std::string fault_of_zero(const std::string& name, const Block& block, const std::vector<double>& got) const {
    for (const std::int64_t i : block.elements) {
      if (got[to_size(i)] != 0.0) {
        return describe(p_, name, block) + ": " + std::to_string(got[to_size(i)]) + " where the reference is exactly 0";
      }
    }
    return "";
  }

  void record(const std::string& name, DType held, const Block& block, double relative, double limit) const {
    Worst& worst = worst_errors()[{name, std::string(dtype_name(held)) + " of " + dtype_name(p_.spec.dtype)}];
    if (how_.factor == 1.0 && relative > worst.error) {
      worst = {relative, limit, describe(p_, name, block) + "; " + p_.spec.text()};
    }
  }

  /// What rounding the operands, or the two terms of a gradient through the l2 norm, may change in a block.
  double inherent_change(const std::string& name, const Block& block) {
    if (nudged_.empty()) {
      for (const std::uint64_t seed : {1, 2}) {
        nudged_.push_back(run_reference(nudged(p_, seed), p_.dout.doubles(),
                                        p_.d_final_state ? p_.d_final_state->doubles() : std::vector<double>{}));
      }
    }
    double change = 0.0;
    for (const ReferenceResults& other : nudged_) {
      change = std::max(change, norm_of_difference(block, other.tensors.at(name), reference_.tensors.at(name)));
    }
    if (const auto terms = reference_.norm_squares.find(name); terms != reference_.norm_squares.end()) {
      double sum = 0.0;
      for (const std::int64_t i : block.elements) sum += terms->second[to_size(i)];
      change = std::max(change, 0x1p-24 * std::sqrt(sum));
    }
    return change;
  }

  const KdaProblem& p_;
  const ReferenceResults& reference_;
  const Judgement& how_;
  std::vector<ReferenceResults> nudged_;
};

std::string judge_rows_past_end(const KdaProblem& p, const std::string& name, const HostTensor& tensor) {
  if (is_state(name) || is_parameter_gradient(name)) return "";
  const std::int64_t rows = p.B * p.S, width = rows == 0 ? 0 : tensor.numel() / rows;
  for (std::int64_t i = p.offsets.back() * width; i < rows * width; ++i) {
    if (tensor.at(i) != 0.0) {
      return name + ": " + std::to_string(tensor.at(i)) + " in row " + std::to_string(i / width) +
             ", past the last offset " + std::to_string(p.offsets.back());
    }
  }
  return "";
}

std::string judge_first_rows(const KdaProblem& p, const HostTensor& dg) {
  if (p.initial_state) return "";
  const std::int64_t width = p.spec.HV * p.spec.K;
  for (std::int64_t n = 0; n < p.N; ++n) {
    if (p.spec.lengths[to_size(n)] == 0) continue;
    for (std::int64_t i = 0; i < width; ++i) {
      if (const double x = dg.at(p.offsets[to_size(n)] * width + i); x != 0.0) {
        return "dg: " + std::to_string(x) + " in the first row of document " + std::to_string(n) +
               " without an initial state";
      }
    }
  }
  return "";
}

bool chosen(const std::vector<std::string>& only, const std::string& name) {
  return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
}

}  // namespace

double kda_limit(const std::string& tensor, DType held, DType dtype) {
  if (held == DType::kFloat32) return dtype == DType::kFloat32 ? 2e-5 : 1e-4;
  if (held == DType::kFloat16) return 1e-3;
  if (tensor == "out") return 5e-3;
  return tensor == "dg" || tensor == "dbeta" ? 1e-2 : 8e-3;
}

testing::AssertionResult matches_reference(const KdaProblem& p, const KdaResults& results,
                                           const ReferenceResults& reference, const Judgement& how) {
  std::vector<std::string> faults;
  Judge judge(p, reference, how);
  for (const auto& [name, tensor] : results) {
    if (!chosen(how.only, name)) continue;
    const std::vector<double> got = tensor.doubles();
    if (got.size() != reference.tensors.at(name).size()) {
      faults.push_back(name + ": " + std::to_string(got.size()) + " elements, the reference has " +
                       std::to_string(reference.tensors.at(name).size()));
      continue;
    }
    if (const auto bad = std::find_if(got.begin(), got.end(), [](double x) { return !std::isfinite(x); });
        bad != got.end()) {
      faults.push_back(name + ": element " + std::to_string(bad - got.begin()) + " is " + std::to_string(*bad));
      continue;
    }
    for (const Block& block : blocks_of(p, name, tensor)) {
      faults.push_back(judge.fault(name, tensor, block, got));
    }
    faults.push_back(judge_rows_past_end(p, name, tensor));
    if (name == "dg") faults.push_back(judge_first_rows(p, tensor));
  }
  std::erase(faults, "");
  if (faults.empty()) return testing::AssertionSuccess();
  auto failure = testing::AssertionFailure() << p.spec.text();
  for (std::size_t i = 0; i < std::min<std::size_t>(faults.size(), 12); ++i) failure << "\n  " << faults[i];
  if (faults.size() > 12) failure << "\n  and " << faults.size() - 12 << " more";
  return failure;
}

testing::AssertionResult matches_reference(const KdaProblem& p, const KdaResults& results) {
  return matches_reference(p, results, run_reference(p));
}

testing::AssertionResult same_bits(const HostTensor& a, const HostTensor& b, const std::string& name) {
  if (a.dtype != b.dtype || a.shape != b.shape) {
    return testing::AssertionFailure() << name << ": " << dtype_name(a.dtype) << ' ' << a.view().shape_string()
                                       << " against " << dtype_name(b.dtype) << ' ' << b.view().shape_string();
  }
  if (a.bytes == b.bytes) return testing::AssertionSuccess();
  std::int64_t different = 0, first = -1;
  const std::int64_t size = dtype_size(a.dtype);
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const auto at = a.bytes.begin() + i * size;
    if (!std::equal(at, at + size, b.bytes.begin() + i * size)) {
      if (first < 0) first = i;
      ++different;
    }
  }
  char text[160];
  std::snprintf(text, sizeof text, "%lld of %lld elements differ, the first at %lld: %.9g against %.9g",
                static_cast<long long>(different), static_cast<long long>(a.numel()), static_cast<long long>(first),
                a.at(first), b.at(first));
  return testing::AssertionFailure() << name << ' ' << a.view().shape_string() << ": " << text;
}

testing::AssertionResult same_bits(const KdaResults& a, const KdaResults& b, const std::vector<std::string>& only) {
  std::string faults;
  std::size_t compared = 0;
  for (const auto& [name, tensor] : a) {
    if (!chosen(only, name)) continue;
    ++compared;
    const auto other = b.find(name);
    if (other == b.end()) {
      faults += "\n  " + name + " is missing in the second";
    } else if (const auto result = same_bits(tensor, other->second, name); !result) {
      faults += std::string("\n  ") + result.message();
    }
  }
  if (compared == 0) return testing::AssertionFailure() << "nothing to compare";
  if (only.empty() && a.size() != b.size()) faults += "\n  the two hold different tensors";
  return faults.empty() ? testing::AssertionSuccess() : testing::AssertionFailure() << faults;
}

double relative_l2(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b.at(i)) * (a[i] - b.at(i));
    norm += b.at(i) * b.at(i);
  }
  if (difference == 0.0) return 0.0;
  return norm == 0.0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

}  // namespace cake::test
