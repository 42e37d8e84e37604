// What an audit varies for a package over ranks: the number of ranks, the partition, the exchange, and what the forward
// keeps for the backward.
#include <cmath>
#include <limits>
#include <utility>

#include "audit.h"

namespace cake::tool {
namespace {

constexpr kcp::Layout kLayouts[] = {kcp::Layout::kContiguous, kcp::Layout::kZigzag, kcp::Layout::kZigzagPerDocument};
constexpr kcp::Exchange kExchanges[] = {kcp::Exchange::kRelay, kcp::Exchange::kGather, kcp::Exchange::kAuto};

/// What the forward keeps.
enum class Keep { kSaved, kTape, kNothing, kNoTransitions, kHandleStates, kHandleTransfer };
constexpr std::pair<Keep, const char*> kKeeps[] = {{Keep::kSaved, "saved set"},
                                                   {Keep::kTape, "tape"},
                                                   {Keep::kNothing, "no saved set"},
                                                   {Keep::kNoTransitions, "saved set without transitions"},
                                                   {Keep::kHandleStates, "handle that keeps states"},
                                                   {Keep::kHandleTransfer, "handle that keeps transitions"}};

/// Number `i` of a series that goes through a list again and again.
template <class T, std::size_t N>
const T& cycle(const T (&list)[N], std::size_t i) {
  return list[i % N];
}

/// Every second run in memory full of NaN, so that whatever is read must have been written.
Variation variation(int ranks, const std::string& partition, kcp::Exchange exchange, std::size_t keep, std::size_t i) {
  const auto& [what, name] = kKeeps[keep];
  Variation v;
  v.label = "ranks " + std::to_string(ranks) + ", " + partition + ", " + kcp::exchange_name(exchange) + ", " + name;
  v.over.ranks = ranks;
  v.over.exchange = exchange;
  v.over.save_transfer = what != Keep::kNoTransitions;
  if (what == Keep::kHandleStates) v.over.handle = kcp::CheckpointKeep::kStates;
  if (what == Keep::kHandleTransfer) v.over.handle = kcp::CheckpointKeep::kTransfer;
  v.tape = what == Keep::kTape;
  v.recompute = what == Keep::kNothing;
  v.threads = 1 + static_cast<int>(i / 2 % 2);
  if (i % 2 == 1) v.fill = std::numeric_limits<float>::quiet_NaN();
  return v;
}

Perturbation layout_column(kcp::Layout layout, const AuditOptions& options) {
  Perturbation column{kcp::layout_name(layout), {}, "", true};
  std::size_t i = 0;
  for (const int ranks : options.ranks) {
    for (const kcp::Exchange exchange : kExchanges) {
      column.variations.push_back(variation(ranks, column.name, exchange, 0, i++));
      column.variations.back().over.layout = layout;
    }
  }
  return column;
}

/// Sets of cuts take the exchanges and what a forward keeps in turn: 18 sets have every pair.
Perturbation cuts_column(const AuditOptions& options) {
  Perturbation column{"random cuts", {}, "", true};
  for (const int ranks : options.ranks) {
    for (std::size_t i = 0; ranks > 1 && i < static_cast<std::size_t>(options.cuts.sets); ++i) {
      Variation v = variation(ranks, "random cuts " + std::to_string(i + 1), cycle(kExchanges, i),
                              i / std::size(kExchanges) % std::size(kKeeps), i);
      v.over.cuts = options.cuts.seed * 100003 + i;
      column.variations.push_back(std::move(v));
    }
  }
  if (column.variations.empty()) column.not_run = "one rank has no cuts";
  return column;
}

/// Every layout and number of ranks with one or two ways to keep things, the exchanges in turn.
Perturbation keep_column(const char* name, std::initializer_list<Keep> keeps, const AuditOptions& options) {
  Perturbation column{name, {}, "", true};
  std::size_t i = 0;
  for (std::size_t r = 0; r < options.ranks.size(); ++r) {
    for (std::size_t l = 0; l < std::size(kLayouts); ++l) {
      const Keep keep = keeps.begin()[i % keeps.size()];
      Variation v = variation(options.ranks[r], kcp::layout_name(kLayouts[l]), cycle(kExchanges, r + l),
                              static_cast<std::size_t>(keep), i);
      v.over.layout = kLayouts[l];
      column.variations.push_back(std::move(v));
      ++i;
    }
  }
  return column;
}

}  // namespace

std::vector<Perturbation> rank_perturbations(const AuditOptions& options) {
  std::vector<Perturbation> columns;
  for (const kcp::Layout layout : kLayouts) columns.push_back(layout_column(layout, options));
  columns.push_back(cuts_column(options));
  columns.push_back(keep_column("recompute", {Keep::kNothing}, options));
  columns.push_back(keep_column("tape", {Keep::kTape}, options));
  columns.push_back(keep_column("no transitions", {Keep::kNoTransitions}, options));
  columns.push_back(keep_column("handle", {Keep::kHandleStates, Keep::kHandleTransfer}, options));
  return columns;
}

}  // namespace cake::tool
