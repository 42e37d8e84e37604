// KDA over ranks: no option that may not change bits does. Exchange forms, save modes, saved transitions, recompute,
// threads, memory, layouts and dtypes against one rank; and the options that do mean something, over ranks.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

using kcp::Exchange;
using kcp::Partition;
using Cuts = std::vector<std::int64_t>;

/// Several segments, cut inside the first, a middle and the last one, and a second document on a border.
struct Pack {
  explicit Pack(const KdaSpec& spec)
      : p(make_problem(spec)),
        one(one_rank(p)),
        partition(Partition::from_cut_points(
            offsets_of(p), Cuts{37, kSegment + 70, 2 * kSegment + 65, p.offsets.at(1), p.offsets.back() - 1})) {}
  KdaProblem p;
  OneRank one;
  Partition partition;
};

KdaSpec pack_spec(bool raw_gate = true) { return kcp_spec({2 * kSegment + 70, 0, 90, 1}, raw_gate); }

TEST(KdaKcpOptions, ExchangeSaveModeTransferAndRecompute) {
  const Pack pack(pack_spec());
  for (const Exchange exchange : all_exchanges()) {
    for (const bool tape : {false, true}) {
      for (const std::optional<bool> transfer : {std::optional<bool>{}, std::optional(true), std::optional(false)}) {
        for (const bool recompute : {false, true}) {
          if (recompute && transfer.has_value()) continue;
          SCOPED_TRACE(std::string(kcp::exchange_name(exchange)) + (tape ? ", tape" : ", light") +
                       (recompute ? ", recompute" : "") +
                       (transfer ? *transfer ? ", with transitions" : ", without transitions" : ""));
          KcpRun how;
          how.exchange = exchange;
          how.tape = tape;
          how.save_transfer = transfer;
          how.recompute = recompute;
          how.memory = Memory::kCaller;
          how.threads = recompute ? 2 : 1;
          expect_one_rank_bits(pack.p, pack.one, pack.partition, how);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(KdaKcpOptions, AutoChoosesWithoutChangingBitsOnEitherSideOfItsLimit) {
  // Summaries of this pack are far below 1 MiB for one and far above it for the other.
  KdaSpec small = kcp_spec({150});
  KdaSpec large = kcp_spec({kShortSegments ? 40 * kSegment : 3 * kSegment + 1});
  if (kShortSegments) {
    large.K = large.V = 64;
    if (kSanitized) large.lengths = {20 * kSegment};
  } else {
    large.K = 160;
    large.V = 130;
    large.HV = 3;
  }
  for (const KdaSpec& spec : {small, large}) {
    const KdaProblem p = make_problem(spec);
    const KdaResults expected = run(p);
    const Partition partition = Partition::make(offsets_of(p), 2);
    for (const bool recompute : {false, true}) {
      if (recompute && kSlow && spec.K > 60) continue;
      KcpRun how;
      how.recompute = recompute;
      const KdaResults got = gathered(p, partition, run_ranks<DetKcp>(p, partition, how));
      EXPECT_TRUE(same_bits(got, expected)) << spec.text();
    }
  }
}

TEST(KdaKcpOptions, ThreadsOrderMemoryAndLayouts) {
  const Pack pack(pack_spec());
  for (const int threads : {1, 2, 3, 7}) {
    for (const Memory memory : {Memory::kNone, Memory::kLibrary, Memory::kCaller}) {
      KcpRun how;
      how.threads = threads;
      how.memory = memory;
      how.fill = threads % 2 == 0 ? kHugePattern : kNanPattern;
      how.misalignment = static_cast<std::size_t>(9 * threads);
      how.shuffle = static_cast<std::uint64_t>(threads);
      how.inputs = all_layouts()[static_cast<std::size_t>(threads) % all_layouts().size()];
      how.outputs = all_layouts()[static_cast<std::size_t>(threads + 2) % all_layouts().size()];
      how.poison = threads % 2 == 0 ? 1e30 : __builtin_nan("");
      SCOPED_TRACE(std::to_string(threads) + " threads, " + layout_name(how.inputs));
      expect_one_rank_bits(pack.p, pack.one, pack.partition, how);
    }
  }
}

TEST(KdaKcpOptions, EveryInstructionSetLevel) {
  // A group may even mix them: what is handed on are exact fp32 values.
  const KdaProblem p = make_problem(kcp_spec({kShortSegments ? kSegment + 70 : 150, 40}, true));
  const OneRank one = one_rank(p);
  const Partition partition = Partition::from_cut_points(offsets_of(p), Cuts{33, 100});
  const std::vector<CpuIsa> levels = supported_cpu_isas();
  for (const CpuIsa level : levels) {
    KcpRun how;
    how.isa = level;
    expect_one_rank_bits(p, one, partition, how);
  }
  std::vector<RankResults> ranks(3);
  ThreadGroup(3).run([&](Communicator& comm) {
    const kcp::Context context(partition, comm);
    KcpRun how;
    how.isa = levels[static_cast<std::size_t>(comm.rank()) % levels.size()];
    ranks[static_cast<std::size_t>(comm.rank())] = run_rank<DetKcp>(p, context, how);
  });
  expect_bits(p, one, partition, ranks);
}

TEST(KdaKcpOptions, StridedInputsAndOutputs) {
  const KdaProblem p = make_problem(kcp_spec({2 * kSegment + 1, 40}));
  const OneRank one = one_rank(p);
  for (const Layout layout : all_layouts()) {
    SCOPED_TRACE(layout_name(layout));
    KcpRun how;
    how.inputs = how.outputs = layout;
    expect_one_rank_bits(p, one, Partition::from_cut_points(offsets_of(p), Cuts{100, kSegment + 3}), how);
  }
}

TEST(KdaKcpOptions, AnExpandedDout) {
  // y.sum().backward() gives one row for all: stride 0 in rows, heads and channels.
  KdaProblem p = make_problem(kcp_spec({100, 30}));
  for (std::int64_t i = 0; i < p.dout.numel(); ++i) p.dout.set(i, 0.75);
  const KdaResults expected = run(p);
  const Partition partition = Partition::from_cut_points(offsets_of(p), Cuts{70});
  const HostTensor number(p.dout.dtype, {1}, {0.75});
  std::vector<RankResults> ranks(2);
  ThreadGroup(2).run([&](Communicator& comm) {
    const kcp::Context context(partition, comm);
    RankCall<DetKcp> call(p, context);
    call.dout.data = number.bytes.data();
    for (int i = 0; i < call.dout.ndim; ++i) call.dout.strides[static_cast<std::size_t>(i)] = 0;
    call.forward();
    call.backward();
    ranks[static_cast<std::size_t>(comm.rank())] = call.results();
  });
  EXPECT_TRUE(same_bits(gathered(p, partition, ranks), expected));
}

TEST(KdaKcpOptions, EveryDtype) {
  for (const DType dtype : float_dtypes()) {
    for (const bool beta_fp32 : {false, true}) {
      for (const DType gate : float_dtypes()) {
        KdaSpec spec = kcp_spec({kShortSegments ? 2 * kSegment + 30 : 200, 65}, true);
        spec.dtype = dtype;
        spec.raw_gate_dtype = gate;
        spec.beta_fp32 = beta_fp32;
        const KdaProblem p = make_problem(spec);
        SCOPED_TRACE(spec.text());
        const std::int64_t end = p.offsets.back();
        expect_one_rank_bits(p, one_rank(p), Partition::from_cut_points(offsets_of(p), Cuts{63, 150, end - 40}));
      }
    }
  }
}

TEST(KdaKcpOptions, GroupedHeads) {
  for (const auto& [H, HV] : std::vector<std::pair<std::int64_t, std::int64_t>>{{2, 6}, {3, 3}, {1, 8}}) {
    KdaSpec spec = kcp_spec({kShortSegments ? 2 * kSegment + 30 : 300, 65}, true);
    spec.H = H;
    spec.HV = HV;
    const KdaProblem p = make_problem(spec);
    SCOPED_TRACE(spec.text());
    expect_one_rank_bits(p, one_rank(p), Partition::from_cut_points(offsets_of(p), Cuts{63, 170, 190}));
  }
}

TEST(KdaKcpOptions, GatesNormsAndScale) {
  const std::vector<std::function<void(KdaSpec&)>> changes = {
      [](KdaSpec&) {},
      [](KdaSpec& s) { s.options.scale = 0.3f; },
      [](KdaSpec& s) { s.options.use_qk_l2norm_in_kernel = true; },
      [](KdaSpec& s) { s.options.use_beta_sigmoid_in_kernel = true; },
      [](KdaSpec& s) { s.options.use_beta_sigmoid_in_kernel = s.options.allow_neg_eigval = true; },
      [](KdaSpec& s) { s.options.use_gate_in_kernel = true; },
      [](KdaSpec& s) { s.options.use_gate_in_kernel = true, s.dt_bias = false; },
      [](KdaSpec& s) { s.options.use_gate_in_kernel = true, s.options.lower_bound = -5.0f; },
      [](KdaSpec& s) { s.options.use_gate_in_kernel = true, s.options.lower_bound = -0.1f, s.A_log = false; },
      [](KdaSpec& s) {
        s.options.use_gate_in_kernel = true, s.options.lower_bound = -0.1f, s.A_log = s.dt_bias = false;
      },
  };
  for (const auto& change : changes) {
    KdaSpec spec = kcp_spec({kShortSegments ? kSegment + 90 : 150, 65});
    change(spec);
    const KdaProblem p = make_problem(spec);
    SCOPED_TRACE(spec.text());
    expect_one_rank_bits(p, one_rank(p), Partition::from_cut_points(offsets_of(p), Cuts{63, 140}));
  }
}

TEST(KdaKcpOptions, EveryGateRegime) {
  for (const GateRegime gate : all_gate_regimes()) {
    KdaSpec spec = kcp_spec({kShortSegments ? 2 * kSegment + 30 : 250, 66});
    spec.gate = gate;
    const KdaProblem p = make_problem(spec);
    SCOPED_TRACE(spec.text());
    expect_one_rank_bits(p, one_rank(p), Partition::from_cut_points(offsets_of(p), Cuts{33, 160, 161}));
  }
}

TEST(KdaKcpOptions, StatesGivenOrNot) {
  for (const bool initial : {false, true}) {
    for (const bool final_state : {false, true}) {
      for (const bool d_final : {false, true}) {
        KdaSpec spec = kcp_spec({0, 2 * kSegment + 5, 0, 64, 1});
        spec.initial_state = initial;
        spec.final_state = final_state;
        spec.d_final_state = d_final;
        const KdaProblem p = make_problem(spec);
        SCOPED_TRACE(spec.text());
        const Partition partition = Partition::from_cut_points(offsets_of(p), Cuts{0, kSegment + 5, p.offsets.at(2)});
        const auto ranks = run_ranks<DetKcp>(p, partition);
        expect_bits(p, one_rank(p), partition, ranks);
        if (!initial) continue;
        // Of an empty document: its initial state, and the gradient of its final state, on rank 0.
        const HostTensor& d_initial = ranks[0].tensors.at("dinitial_state");
        for (const std::int64_t d : {0, 2}) {
          if (final_state) {
            EXPECT_TRUE(same_bits(ranks[0].tensors.at("final_state").rows(d, 1), p.initial_state->rows(d, 1)));
          }
          if (d_final) {
            EXPECT_TRUE(same_bits(d_initial.rows(d, 1), p.d_final_state->rows(d, 1)));
          } else {
            EXPECT_TRUE(all_positive_zero(d_initial.rows(d, 1)));
          }
        }
      }
    }
  }
}

TEST(KdaKcpOptions, EachGradientAlone) {
  const KdaProblem p = make_problem(kcp_spec({kShortSegments ? 2 * kSegment + 30 : 200, 65}, true));
  const OneRank one = one_rank(p);
  const Partition partition = Partition::from_cut_points(offsets_of(p), Cuts{63, 100, 190});
  for (const std::string& name :
       std::vector<std::string>{"dq", "dk", "dv", "dg", "dbeta", "dinitial_state", "ddt_bias", "none"}) {
    std::vector<RankResults> ranks(4);
    ThreadGroup(4).run([&](Communicator& comm) {
      const kcp::Context context(partition, comm);
      RankCall<DetKcp> call(p, context);
      const auto all = call.gradients;
      call.gradients = {};
      if (name == "dq") call.gradients.dq = all.dq;
      if (name == "dk") call.gradients.dk = all.dk;
      if (name == "dv") call.gradients.dv = all.dv;
      if (name == "dg") call.gradients.dg = all.dg;
      if (name == "dbeta") call.gradients.dbeta = all.dbeta;
      if (name == "dinitial_state") call.gradients.dinitial_state = all.dinitial_state;
      if (name == "ddt_bias") call.gradients.gate_params = all.gate_params;
      call.forward();
      call.fill(-3.0);
      call.backward();
      if (name == "ddt_bias") {
        call.dA_log = {};
        call.reduce();
      }
      if (name == "none") {
        EXPECT_TRUE(call.untouched());
      }
      ranks[static_cast<std::size_t>(comm.rank())] = call.results();
    });
    for (std::size_t r = 0; r < 4 && name != "none"; ++r) {
      const HostTensor& whole = one.tensors.at(name);
      const HostTensor& got = ranks[r].tensors.at(name);
      if (is_state(name)) continue;
      EXPECT_TRUE(same_bits(
          got, is_parameter_gradient(name) ? whole : pick_rows(whole, partition.global_rows(static_cast<int>(r))),
          name));
    }
    if (name == "dinitial_state") expect_states(p, name, one.tensors.at(name), partition, ranks);
  }
}

TEST(KdaKcpOptions, LocalSharesAddUpToTheTotal) {
  // A rank's share is what a framework reduces like any other parameter's gradient.
  const Pack pack(pack_spec());
  const KdaProblem& p = pack.p;
  std::vector<HostTensor> bias(static_cast<std::size_t>(pack.partition.world_size())), a_log = bias;
  ThreadGroup(pack.partition.world_size()).run([&](Communicator& comm) {
    const kcp::Context context(pack.partition, comm);
    RankCall<DetKcp> call(p, context);
    EXPECT_TRUE(call.partials.empty());
    EXPECT_EQ(call.partials.nbytes(), 0u);
    call.forward();
    call.backward();
    EXPECT_FALSE(call.partials.empty());
    call.partials.local_grads(call.dA_log, call.ddt_bias);
    const auto at = static_cast<std::size_t>(comm.rank());
    bias[at] = call.result("ddt_bias");
    a_log[at] = call.result("dA_log");
    // One of the two alone, and flat.
    LaidOutTensor flat(DType::kFloat32, {p.spec.HV * p.spec.K});
    call.partials.local_grads({}, flat.view());
    EXPECT_TRUE(same_bits(flat.gather().reshaped(bias[at].shape), bias[at]));
    LaidOutTensor wrong(DType::kFloat32, {p.spec.HV + 1});
    EXPECT_THROW(call.partials.local_grads(wrong.view(), {}), InvalidArgument);
  });
  for (const auto& [name, shares] : {std::pair{"ddt_bias", &bias}, {"dA_log", &a_log}}) {
    const HostTensor& total = pack.one.tensors.at(name);
    std::vector<double> sum(static_cast<std::size_t>(total.numel()), 0.0);
    for (const HostTensor& share : *shares) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share.at(static_cast<std::int64_t>(i));
    }
    EXPECT_LT(relative_l2(sum, total.doubles()), 1e-5) << name;
  }
}

}  // namespace
}  // namespace cake::test
