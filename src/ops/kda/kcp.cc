#include "ops/kda/kcp.h"

#include <cstdio>

#include "comm/context_state.h"
#include "core/checks.h"
#include "ops/kda/kcp_run.h"

namespace cake::kda {
namespace {

constexpr const char* kEntry = "kda";

std::string text_of(bool x) { return x ? "true" : "false"; }
std::string text_of(float x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(x));
  return text;
}

Problem check_kcp_problem(const Operands& operands, const Settings& settings, const kcp::Context& context) {
  Problem p = check_problem(operands, settings, context.partition().documents());
  if (p.B != 1) checks::fail("q", "B = " + std::to_string(p.B), "1: a rank holds one row of packed fragments");
  if (p.S != context.rows()) {
    checks::fail("q", std::to_string(p.S) + " rows",
                 std::to_string(context.rows()) + ", the rows of rank " + std::to_string(context.rank()));
  }
  return p;
}

KcpSizes sizes_of(const kcp::FoldPlan& plan, const Problem& p, const Operands& x, const KcpOptions& o, bool params) {
  return kcp_sizes(plan, {p.H, p.HV, p.K, p.V, x.q.dtype, x.g.dtype, x.beta.dtype, params, x.initial_state.given}, o);
}

/// What all ranks' calls must have in common, and a recompute with its forward.
AgreementFields call_fields(const KcpPackage& package, const kcp::Context& context, const Problem& p, const Operands& x,
                            const Settings& s, const KcpSizes& sizes) {
  AgreementFields f = {{"module", package.module}, {"partition", context.state().digest}};
  const auto number = [&](const char* name, std::int64_t value) { f.emplace_back(name, std::to_string(value)); };
  number("H", p.H);
  number("HV", p.HV);
  number("K", p.K);
  number("V", p.V);
  f.emplace_back("dtype", dtype_name(x.q.dtype));
  f.emplace_back("dtype of g", dtype_name(x.g.dtype));
  f.emplace_back("dtype of beta", dtype_name(x.beta.dtype));
  f.emplace_back("scale", text_of(p.scale));
  f.emplace_back("use_gate_in_kernel", text_of(s.use_gate_in_kernel));
  f.emplace_back("lower_bound", s.lower_bound ? text_of(*s.lower_bound) : "none");
  f.emplace_back("use_qk_l2norm_in_kernel", text_of(s.use_qk_l2norm_in_kernel));
  f.emplace_back("use_beta_sigmoid_in_kernel", text_of(s.use_beta_sigmoid_in_kernel));
  f.emplace_back("allow_neg_eigval", text_of(s.allow_neg_eigval));
  f.emplace_back("exchange", kcp::exchange_name(sizes.exchange));
  f.emplace_back("save_transfer", text_of(sizes.transfer));
  f.emplace_back("initial_state given", text_of(x.initial_state.given));
  f.emplace_back("A_log given", text_of(x.A_log.given));
  f.emplace_back("dt_bias given", text_of(x.dt_bias.given));
  return f;
}

std::int64_t tape_size(const KcpSizes& s) {
  return s.plan->part_chunks * s.extents.HV * tape_floats(s.extents.Kp, s.extents.Vp);
}

float* carve_tape(void* place, std::size_t bytes, const KcpSizes& sizes) {
  Arena arena(place, bytes, "workspace");
  return arena.take<float>(tape_size(sizes));
}

std::string rows_digest(const Operands& x, const kcp::Context& context) {
  const auto& fragments = context.partition().fragments(context.rank());
  std::uint64_t digest = 14695981039346656037ull;
  for (const ConstTensorView* rows : {&x.q, &x.k, &x.v, &x.g, &x.beta}) digest = digest_rows(digest, *rows, fragments);
  if (x.initial_state.given) {
    for (const kcp::Fragment& f : fragments) {
      if (f.length > 0 && f.offset == 0) digest = digest_state(digest, x.initial_state, f.document);
    }
  }
  return std::to_string(digest);
}

/// Refuses an entry of another package, problem or step, naming the first field that differs.
void check_entry(const kcp::detail::RecomputeEntry& entry, const AgreementFields& now) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto& [name, value] = now[i];
    if (i < entry.record.size() && entry.record[i] == now[i]) continue;
    const std::string then = i < entry.record.size() ? entry.record[i].second : "nothing";
    checks::fail("recompute",
                 std::string("an entry \"") + kEntry + "\" stored by a forward with " + name + " = " + then,
                 value + " (clear() it for another forward)");
  }
}

}  // namespace

void check_kcp_options(const KcpOptions& o) {
  if (o.missing_rows != nullptr) {
    throw NotSupported(std::string("saved_rows: got ") + o.missing_rows +
                       ", which the CPU does not keep; expected auto, tape or none");
  }
  if (!o.checkpoint_keep || !o.save_transfer || *o.save_transfer == o.transfer()) return;
  checks::fail("save_transfer", text_of(*o.save_transfer),
               std::string("none or ") + text_of(o.transfer()) + " with checkpoint_keep " +
                   (o.transfer() ? "transfer" : "states"));
}

const kcp::FoldPlan& canonical_plan(const kcp::Context& context) { return context.state().canonical; }
const kcp::FoldPlan& rank_plan(const kcp::Context& context) { return context.state().by_rank; }

KcpSizes kcp_sizes(const kcp::FoldPlan& plan, const KcpShape& s, const KcpOptions& options) {
  check_kcp_options(options);
  const Sizes checked = check_sizes(1, 0, 1, s.H, s.HV, s.K, s.V, {}, s.gate_param_grads, {});
  KcpSizes sizes;
  sizes.plan = &plan;
  sizes.extents = checked.extents;
  sizes.extents.totals = {};
  const auto row = [](std::int64_t numbers, DType dtype) {
    return static_cast<std::size_t>(numbers * dtype_size(dtype));
  };
  sizes.row_bytes = {row(s.H * s.K, s.dtype), row(s.H * s.K, s.dtype), row(s.HV * s.V, s.dtype),
                     row(s.HV * s.K, s.gate_dtype), row(s.HV, s.beta_dtype)};
  sizes.out_bytes = row(s.HV * s.V, s.dtype);
  sizes.tape = options.tape;
  sizes.transfer = options.transfer();
  sizes.params = s.gate_param_grads;
  sizes.initial_state = s.initial_state;
  sizes.exchange = options.exchange;
  resolve(sizes);
  return sizes;
}

std::size_t kcp_handoff_bytes(const KcpSizes& sizes) {
  Arena count;
  count.take<float>(tape_size(sizes));
  return count.bytes_needed();
}

void run_kcp_forward(const KcpPackage& package, const Operands& operands, const Settings& settings,
                     const kcp::Context& context, const KcpOptions& options, const ForwardResults& results,
                     const ResolveObjects& resolve_objects) {
  KcpObjects objects;
  std::exception_ptr refused;
  try {
    objects = resolve_objects();
  } catch (const Error&) {
    refused = std::current_exception();
  }
  WorkspaceMemory own;
  WorkspaceMemory& workspace = objects.workspace != nullptr ? *objects.workspace : own;
  KcpSavedSet* const saved = objects.saved;
  const bool saving = saved != nullptr;
  auto* entries = objects.recompute != nullptr ? &objects.recompute->state().entries : nullptr;
  const bool replaying = entries != nullptr && entries->count(kEntry) > 0;

  Problem problem;
  std::optional<KcpSizes> sizes;
  AgreementFields record;
  std::unique_ptr<std::byte[]> saved_memory;
  std::vector<std::byte> entry_memory;
  std::size_t saved_bytes = 0, used = 0;
  int workers = 1;
  const auto check = [&]() -> AgreementFields {
    if (refused) std::rethrow_exception(refused);
    check_kcp_options(options);
    problem = check_kcp_problem(operands, settings, context);
    check_forward(problem, operands, results);
    sizes = sizes_of(package.plan(context), problem, operands, options, false);
    AgreementFields fields = call_fields(package, context, problem, operands, settings, *sizes);
    if (entries != nullptr) {
      record = fields;
      record.emplace_back("rows", rows_digest(operands, context));
    }
    if (replaying) check_entry(entries->at(kEntry), record);
    workers = reserve(workspace, [&](int n) { return kcp_forward_bytes(*sizes, saving, n); });
    used = kcp_forward_bytes(*sizes, saving, workers);
    if (saving) {
      saved_bytes = kcp_saved_bytes(*sizes);
      saved_memory = saved->memory.prepare(saved_bytes, "saved");
    }
    if (entries != nullptr && !replaying) {
      Arena count;
      carve_kcp_entry(count, *sizes);
      entry_memory.resize(count.bytes_needed());
    }
    fields.emplace_back("call", "forward");
    fields.emplace_back("save_mode", options.tape ? "tape" : "light");
    fields.emplace_back("saved given", text_of(saving));
    fields.emplace_back("final_state given", text_of(results.final_state.given));
    fields.emplace_back("recompute", entries == nullptr ? "none" : "a handle without this entry");
    return fields;
  };
  // A replay communicates nothing, not even to compare: its forward's entry says that the ranks agreed.
  if (replaying) {
    check();
  } else {
    require_agreement(context.communicator(), package.module, check);
  }

  overwrite_handoff(objects.handoff, workspace, used);
  KcpSavedMemory kept;
  Arena arena(workspace.memory.data(), workspace.memory.size(), "workspace");
  const KcpForwardMemory memory = carve_kcp_forward(arena, *sizes, saving);
  if (saving) {
    saved->filled = false;
    saved->memory.adopt(std::move(saved_memory), saved_bytes);
    Arena saved_arena(saved->memory.data(), saved->memory.size(), "saved");
    kept = carve_kcp_saved(saved_arena, *sizes);
    saved->bytes = saved_bytes;
    saved->handoff = 0;
    if (replaying && options.handoff && !options.tape && objects.handoff != nullptr) {
      void* place = nullptr;
      const std::size_t bytes = kcp_handoff_bytes(*sizes);
      saved->handoff = save_handoff(*objects.handoff, workspace, bytes, used, place);
      if (saved->handoff != 0) kept.tape = carve_tape(place, bytes, *sizes);
    }
  } else {
    kept = memory.kept;
  }
  KcpRun run(*sizes, context.communicator(), problem, operands, settings,
             carve_workers(arena, sizes->extents, {}, workers, false), workers);
  KcpEntryMemory entry;
  if (entries != nullptr) {
    std::vector<std::byte>& data = replaying ? entries->at(kEntry).data : entry_memory;
    Arena entry_arena(data.data(), data.size(), "recompute");
    entry = carve_kcp_entry(entry_arena, *sizes);
  }
  if (replaying) {
    run.replay(memory, kept, saving, results, entry);
  } else {
    run.forward(memory, kept, saving, &results, entries != nullptr ? &entry : nullptr);
  }
  if (entries != nullptr && !replaying) (*entries)[kEntry] = {std::move(record), std::move(entry_memory)};
  if (!saving) return;
  record_saved(*saved, problem, operands, settings, options.tape);
  saved->partition = context.state().digest;
  saved->exchange = sizes->exchange;
  saved->transfer = sizes->transfer;
}

void check_kcp_backward(const KcpPackage& package, const Operands& operands, const Settings& settings,
                        const kcp::Context& context, const KcpOptions& options, const BackwardArguments& arguments,
                        KcpPartials* partials, bool by_rank, const ResolveObjects& resolve_objects,
                        KcpBackwardBytes bytes_for, const std::function<void()>& alert, CheckedKcpBackward& checked) {
  std::unique_ptr<std::byte[]> partials_memory;
  std::size_t partials_bytes = 0;
  const kcp::FoldPlan& plan = package.plan(context);
  const auto check = [&]() -> AgreementFields {
    checked.objects = resolve_objects();
    const KcpSavedSet* saved = checked.objects.saved;
    if (saved != nullptr) {
      CallOptions saved_options;
      saved_options.tape = options.tape;
      check_saved_options(*saved, settings, saved_options);
      if (saved->partition != context.state().digest) {
        checks::fail("saved", "one of a forward on another partition", "one of this context's");
      }
    }
    check_kcp_options(options);
    const Problem& problem = checked.problem = check_kcp_problem(operands, settings, context);
    if (saved != nullptr) check_saved_problem(*saved, problem, operands);
    checked.sizes =
        sizes_of(plan, problem, operands, saved != nullptr ? options : recompute_options(options), partials != nullptr);
    const KcpSizes& sizes = *checked.sizes;
    if (saved != nullptr) {
      const auto same = [](const char* field, const std::string& then, const std::string& now) {
        if (then != now) checks::fail("saved", std::string("one of a forward with ") + field + " = " + then, now);
      };
      same("exchange", kcp::exchange_name(saved->exchange), kcp::exchange_name(sizes.exchange));
      same("save_transfer", text_of(saved->transfer), text_of(sizes.transfer));
    }
    check_backward(problem, operands, settings, arguments.dout, arguments.d_final_state, arguments.results);
    if (partials != nullptr && !(settings.use_gate_in_kernel && (operands.A_log.given || operands.dt_bias.given))) {
      checks::fail("gate_params", "an object", "none without A_log or dt_bias");
    }
    WorkspaceMemory& workspace =
        checked.objects.workspace != nullptr ? *checked.objects.workspace : checked.own_workspace;
    checked.scratch_tape = !sizes.tape;
    checked.workers = reserve(workspace, [&](int n) { return bytes_for(sizes, saved == nullptr, !sizes.tape, n); });
    if (partials != nullptr) {
      const auto blocks = by_rank ? 1 : static_cast<std::int64_t>(plan.ending_chains.size());
      Arena count;
      count.take<float>(blocks * sizes.param_block());
      partials_bytes = count.bytes_needed();
      partials_memory = partials->memory.prepare(partials_bytes, "gate_params");
    }
    AgreementFields fields = call_fields(package, context, problem, operands, settings, sizes);
    fields.emplace_back("call", "backward");
    fields.emplace_back("save_mode", options.tape ? "tape" : "light");
    fields.emplace_back("saved given", text_of(saved != nullptr));
    const BackwardResults& r = arguments.results;
    const std::pair<const char*, bool> given[] = {{"dq given", r.dq.given},
                                                  {"dk given", r.dk.given},
                                                  {"dv given", r.dv.given},
                                                  {"dg given", r.dg.given},
                                                  {"dbeta given", r.dbeta.given},
                                                  {"dinitial_state given", r.dinitial_state.given},
                                                  {"d_final_state given", arguments.d_final_state.given},
                                                  {"gate_params given", partials != nullptr}};
    for (const auto& [name, value] : given) fields.emplace_back(name, text_of(value));
    if (plan.total_rows > 0) alert();
    return fields;
  };
  require_agreement(context.communicator(), package.module, check);

  if (checked.objects.saved != nullptr) {
    Arena arena(checked.objects.saved->memory.data(), checked.objects.saved->memory.size(), "saved");
    checked.kept = carve_kcp_saved(arena, *checked.sizes);
  }
  // Rows left by a replayed forward: then the workers need no room to rebuild them.
  const KcpObjects& objects = checked.objects;
  const auto used = [&] {
    return bytes_for(*checked.sizes, objects.saved == nullptr, checked.scratch_tape, checked.workers);
  };
  if (objects.saved != nullptr && objects.saved->handoff != 0) {
    const std::size_t without = bytes_for(*checked.sizes, false, false, checked.workers);
    void* rows = bind_handoff(objects.handoff, objects.workspace, objects.saved->handoff, options.handoff, without);
    if (rows != nullptr) {
      checked.scratch_tape = false;
      checked.kept.tape = carve_tape(rows, objects.handoff->bytes, *checked.sizes);
    }
  }
  if (objects.workspace != nullptr) overwrite_handoff(objects.handoff, *objects.workspace, used());
  if (partials == nullptr) return;
  partials->filled = false;
  partials->memory.adopt(std::move(partials_memory), partials_bytes);
  partials->by_rank = by_rank;
  partials->problem = checked.problem;
  partials->partition = context.state().digest;
  partials->segments.clear();
  for (const std::size_t c : plan.ending_chains) {
    if (!by_rank) partials->segments.emplace_back(plan.chains[c].document, plan.chains[c].segment);
  }
  partials->count = by_rank ? 1 : static_cast<std::int64_t>(partials->segments.size());
}

}  // namespace cake::kda
