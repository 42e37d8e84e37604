#include "tests/support/kda_problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

namespace cake::test {
namespace {

using Numbers = std::vector<double>;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

Numbers normals(Random& random, std::int64_t count, double scale = 1.0) {
  Numbers numbers(to_size(count));
  for (double& x : numbers) x = scale * random.normal();
  return numbers;
}

/// [rows, width] after the data kind; `unit` makes each row about 1 long.
Numbers draw_rows(Random& random, DataKind kind, std::int64_t rows, std::int64_t width, bool unit) {
  Numbers numbers(to_size(rows * width));
  const Numbers common = normals(random, 4 * width);
  for (std::int64_t r = 0; r < rows; ++r) {
    double* row = &numbers[to_size(r * width)];
    const std::int64_t key = random.integer(0, 3);
    double sum = 1e-12;
    for (std::int64_t d = 0; d < width; ++d) {
      if (kind == DataKind::kCorrelated) {
        row[d] = common[to_size(d)] + 0.3 * random.normal();
      } else if (kind == DataKind::kRepeated) {
        row[d] = common[to_size(key * width + d)];
      } else {
        row[d] = random.normal();
      }
      sum += row[d] * row[d];
    }
    for (std::int64_t d = 0; unit && d < width; ++d) row[d] /= std::sqrt(sum);
  }
  return numbers;
}

double draw_decay(Random& random, GateRegime regime, std::int64_t row, std::int64_t head, std::int64_t channel) {
  constexpr std::array<double, 4> kPerHead = {-0.01, -0.1, -0.5, -2.0};
  const double moderate = -0.3 * std::pow(10.0, random.uniform(-1.0, 0.7));
  switch (regime) {
    case GateRegime::kZero: return 0.0;
    case GateRegime::kFaint: return -2e-4 * random.uniform();
    case GateRegime::kWeak: return -0.02 * random.uniform();
    case GateRegime::kModerate: return moderate;
    case GateRegime::kMinus1: return -2.0 * random.uniform();
    case GateRegime::kMinus5: return -5.0;
    case GateRegime::kMinus20: return -20.0;
    case GateRegime::kAlternating: return row % 2 == 0 ? 0.0 : -1.0;
    case GateRegime::kOneChannel: return channel == 0 ? -5.0 : -0.001;
    case GateRegime::kHoles: return random.chance(0.2) ? -1000.0 : moderate;
    case GateRegime::kHardResets: return row % 7 == 3 ? -1000.0 : moderate;
    case GateRegime::kPerHead: return kPerHead[to_size(head % 4)] * random.uniform(0.5, 1.5);
  }
  return 0.0;
}

Numbers draw_gates(Random& random, const KdaSpec& spec, std::int64_t rows) {
  Numbers g;
  g.reserve(to_size(rows * spec.HV * spec.K));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < spec.HV; ++h) {
      for (std::int64_t d = 0; d < spec.K; ++d) {
        g.push_back(spec.options.use_gate_in_kernel ? random.normal() : draw_decay(random, spec.gate, r, h, d));
      }
    }
  }
  return g;
}

/// The rows of the flattened [B * S] behind the last document become NaN.
void spoil_rows_past_end(HostTensor& tensor, std::int64_t documents_end, std::int64_t rows) {
  const std::int64_t width = rows == 0 ? 0 : tensor.numel() / rows;
  for (std::int64_t i = documents_end * width; i < rows * width; ++i) {
    tensor.set(i, std::numeric_limits<double>::quiet_NaN());
  }
}

HostTensor select_rows(const HostTensor& tensor, const KdaProblem& problem, const std::vector<std::int64_t>& documents,
                       Shape shape) {
  const std::int64_t width = volume(Shape(tensor.shape.begin() + 2, tensor.shape.end()));
  const HostTensor flat = tensor.reshaped({problem.B * problem.S, width});
  HostTensor result(tensor.dtype, std::move(shape));
  auto to = result.bytes.begin();
  for (const std::int64_t n : documents) {
    const std::int64_t first = problem.offsets[to_size(n)];
    const HostTensor part = flat.rows(first, problem.offsets[to_size(n + 1)] - first);
    to = std::copy(part.bytes.begin(), part.bytes.end(), to);
  }
  return result;
}

HostTensor select_states(const HostTensor& tensor, const std::vector<std::int64_t>& documents) {
  Shape shape = tensor.shape;
  shape[0] = static_cast<std::int64_t>(documents.size());
  HostTensor result(tensor.dtype, shape);
  auto to = result.bytes.begin();
  for (const std::int64_t n : documents) {
    const HostTensor part = tensor.rows(n, 1);
    to = std::copy(part.bytes.begin(), part.bytes.end(), to);
  }
  return result;
}

HostTensor offsets_tensor(const std::vector<std::int64_t>& offsets) {
  return HostTensor(DType::kInt32, {static_cast<std::int64_t>(offsets.size())},
                    Numbers(offsets.begin(), offsets.end()));
}

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
  return offsets;
}

}  // namespace

const std::vector<GateRegime>& all_gate_regimes() {
  static const std::vector<GateRegime> regimes = {
      GateRegime::kZero,       GateRegime::kFaint,  GateRegime::kWeak,       GateRegime::kModerate,
      GateRegime::kMinus1,     GateRegime::kMinus5, GateRegime::kMinus20,    GateRegime::kAlternating,
      GateRegime::kOneChannel, GateRegime::kHoles,  GateRegime::kHardResets, GateRegime::kPerHead};
  return regimes;
}

std::string gate_regime_name(GateRegime regime) {
  constexpr std::array<const char*, 12> kNames = {"zero",        "faint",  "weak",        "moderate",
                                                  "minus1",      "minus5", "minus20",     "alternating",
                                                  "one_channel", "holes",  "hard_resets", "per_head"};
  return kNames.at(static_cast<std::size_t>(regime));
}

std::string data_kind_name(DataKind kind) {
  constexpr std::array<const char*, 4> kNames = {"gaussian", "scaled", "correlated", "repeated"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string KdaSpec::text() const {
  std::ostringstream os;
  os << "seed " << seed << ", lengths";
  for (const std::int64_t length : lengths) os << ' ' << length;
  os << (packed ? ", packed" : ", batched") << ", " << rows_past_end << " rows past the end, H " << H << ", HV " << HV
     << ", K " << K << ", V " << V << ", " << dtype_name(dtype) << ", gate "
     << (options.use_gate_in_kernel ? std::string("raw ") + dtype_name(raw_gate_dtype) : gate_regime_name(gate))
     << (options.lower_bound ? " with lower bound" : "") << ", data " << data_kind_name(data)
     << (initial_state ? ", initial state" : "") << (d_final_state ? ", d_final_state" : "")
     << (options.use_qk_l2norm_in_kernel ? ", l2norm" : "")
     << (options.use_beta_sigmoid_in_kernel ? ", beta sigmoid" : "")
     << (options.allow_neg_eigval ? ", negative eigenvalues" : "") << (beta_fp32 ? ", beta fp32" : "");
  if (options.use_gate_in_kernel) os << (A_log ? ", A_log" : "") << (dt_bias ? ", dt_bias" : "");
  if (options.scale) os << ", scale " << *options.scale;
  if (beta_max != 1.0) os << ", beta up to " << beta_max;
  return os.str();
}

KdaProblem make_problem(const KdaSpec& spec) {
  KdaProblem p;
  p.spec = spec;
  p.N = static_cast<std::int64_t>(spec.lengths.size());
  p.offsets = offsets_of(spec.lengths);
  const std::int64_t end = p.offsets.back();
  p.B = spec.packed ? 1 : p.N;
  p.S = spec.packed ? end + spec.rows_past_end : (p.N == 0 ? 0 : spec.lengths[0]);
  const std::int64_t rows = p.B * p.S;
  Random random(spec.seed * 7919 + 17);
  const double scale = spec.data == DataKind::kScaled ? 30.0 : 1.0;
  const auto scaled = [](Numbers numbers, double factor) {
    for (double& x : numbers) x *= factor;
    return numbers;
  };
  const bool norm = spec.options.use_qk_l2norm_in_kernel;
  p.q = HostTensor(spec.dtype, {p.B, p.S, spec.H, spec.K},
                   scaled(draw_rows(random, spec.data, rows * spec.H, spec.K, false), scale));
  p.k = HostTensor(spec.dtype, {p.B, p.S, spec.H, spec.K},
                   scaled(draw_rows(random, spec.data, rows * spec.H, spec.K, !norm), norm ? scale : 1.0));
  p.v = HostTensor(spec.dtype, {p.B, p.S, spec.HV, spec.V}, normals(random, rows * spec.HV * spec.V, scale));
  const DType gate_dtype = spec.options.use_gate_in_kernel ? spec.raw_gate_dtype : DType::kFloat32;
  p.g = HostTensor(gate_dtype, {p.B, p.S, spec.HV, spec.K}, draw_gates(random, spec, rows));
  Numbers beta(to_size(rows * spec.HV));
  for (double& x : beta) {
    x = spec.options.use_beta_sigmoid_in_kernel ? random.normal() + std::log(spec.beta_max)
                                                : spec.beta_max * random.uniform(0.05, 1.0);
  }
  p.beta = HostTensor(spec.beta_fp32 ? DType::kFloat32 : spec.dtype, {p.B, p.S, spec.HV}, beta);
  p.dout = HostTensor(spec.dtype, p.v.shape, normals(random, rows * spec.HV * spec.V));
  const Shape states = {p.N, spec.HV, spec.K, spec.V};
  if (spec.initial_state) p.initial_state = HostTensor(DType::kFloat32, states, normals(random, volume(states), 0.3));
  if (spec.d_final_state) p.d_final_state = HostTensor(DType::kFloat32, states, normals(random, volume(states), 0.3));
  if (spec.options.use_gate_in_kernel && spec.A_log) {
    Numbers a(to_size(spec.HV));
    for (double& x : a) x = random.uniform(-1.5, 0.7);
    p.A_log = HostTensor(DType::kFloat32, {spec.HV}, a);
  }
  if (spec.options.use_gate_in_kernel && spec.dt_bias) {
    const Shape shape = spec.flat_dt_bias ? Shape{spec.HV * spec.K} : Shape{spec.HV, spec.K};
    p.dt_bias = HostTensor(DType::kFloat32, shape, normals(random, spec.HV * spec.K, 0.5));
  }
  if (spec.packed) p.cu_seqlens = offsets_tensor(p.offsets);
  for (HostTensor* tensor : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.dout}) spoil_rows_past_end(*tensor, end, rows);
  return p;
}

KdaProblem select_documents(const KdaProblem& problem, const std::vector<std::int64_t>& documents) {
  KdaProblem p = problem;
  p.spec.lengths.clear();
  for (const std::int64_t n : documents) p.spec.lengths.push_back(problem.spec.lengths.at(to_size(n)));
  p.spec.packed = true;
  p.spec.rows_past_end = 0;
  p.N = static_cast<std::int64_t>(documents.size());
  p.B = 1;
  p.offsets = offsets_of(p.spec.lengths);
  p.S = p.offsets.back();
  p.cu_seqlens = offsets_tensor(p.offsets);
  for (auto [to, from] : {std::pair{&p.q, &problem.q},
                          {&p.k, &problem.k},
                          {&p.v, &problem.v},
                          {&p.g, &problem.g},
                          {&p.beta, &problem.beta},
                          {&p.dout, &problem.dout}}) {
    Shape shape = from->shape;
    shape[0] = 1;
    shape[1] = p.S;
    *to = select_rows(*from, problem, documents, shape);
  }
  if (problem.initial_state) p.initial_state = select_states(*problem.initial_state, documents);
  if (problem.d_final_state) p.d_final_state = select_states(*problem.d_final_state, documents);
  return p;
}

HostTensor document_part(const KdaProblem& problem, const std::string& name, const HostTensor& tensor,
                         const std::vector<std::int64_t>& documents) {
  if (is_state(name)) return select_states(tensor, documents);
  Shape shape = tensor.shape;
  shape[0] = 1;
  shape[1] = 0;
  for (const std::int64_t n : documents) shape[1] += problem.spec.lengths.at(to_size(n));
  return select_rows(tensor, problem, documents, shape);
}

bool is_state(const std::string& name) { return name == "final_state" || name == "dinitial_state"; }
bool is_parameter_gradient(const std::string& name) { return name == "dA_log" || name == "ddt_bias"; }

}  // namespace cake::test
