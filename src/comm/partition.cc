#include <algorithm>
#include <utility>

#include "cake/core/canonical.h"
#include "cake/kcp.h"

namespace cake::kcp {
namespace {

[[noreturn]] void fail(const std::string& text) { throw InvalidArgument(text); }

constexpr std::pair<Layout, const char*> kLayouts[] = {
    {Layout::kContiguous, "contiguous"},
    {Layout::kZigzag, "zigzag"},
    {Layout::kZigzagPerDocument, "zigzag_per_document"},
};

std::vector<std::int32_t> checked_offsets(std::span<const std::int32_t> offsets) {
  if (offsets.empty()) fail("cu_seqlens: got nothing, expected offsets that start at 0");
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const bool good = i == 0 ? offsets[i] == 0 : offsets[i] >= offsets[i - 1];
    if (!good) {
      fail("cu_seqlens: got " + std::to_string(offsets[i]) + " at entry " + std::to_string(i) +
           ", expected offsets that start at 0 and do not decrease");
    }
  }
  return {offsets.begin(), offsets.end()};
}

/// Packed rows [begin, end) as fragments, appended.
void append_rows(const std::vector<std::int32_t>& offsets, std::int64_t begin, std::int64_t end,
                 std::vector<Fragment>& out) {
  auto next = std::upper_bound(offsets.begin(), offsets.end(), begin);
  while (begin < end) {
    const std::int64_t document = next - offsets.begin() - 1;
    const std::int64_t stop = std::min<std::int64_t>(end, *next);
    if (stop > begin) out.push_back({document, begin - offsets[static_cast<std::size_t>(document)], stop - begin});
    begin = stop;
    ++next;
  }
}

/// Part i of `parts` equal parts of `rows` rows.
std::pair<std::int64_t, std::int64_t> part(std::int64_t rows, std::int64_t parts, std::int64_t i) {
  return {rows * i / parts, rows * (i + 1) / parts};
}

std::string fragment_text(std::size_t rank, std::size_t i, const Fragment& f) {
  return "fragments[" + std::to_string(rank) + "][" + std::to_string(i) + "]: got rows " + std::to_string(f.offset) +
         " to " + std::to_string(f.offset + f.length) + " of document " + std::to_string(f.document);
}

/// Two neighbouring fragments that cover the same rows of a rank's tensors without a gap become one.
std::vector<Fragment> joined(const std::vector<Fragment>& fragments) {
  std::vector<Fragment> result;
  for (const Fragment& f : fragments) {
    if (!result.empty() && f.length > 0 && result.back().document == f.document &&
        result.back().offset + result.back().length == f.offset) {
      result.back().length += f.length;
    } else {
      result.push_back(f);
    }
  }
  return result;
}

}  // namespace

const char* layout_name(Layout layout) {
  for (const auto& [value, name] : kLayouts) {
    if (value == layout) return name;
  }
  return "unknown";
}

Layout parse_layout(const std::string& name) {
  for (const auto& [value, known] : kLayouts) {
    if (name == known) return value;
  }
  fail("layout: got \"" + name + "\", expected contiguous, zigzag or zigzag_per_document");
}

Partition::Partition(std::vector<std::int32_t> cu_seqlens, std::vector<std::vector<Fragment>> fragments,
                     std::string layout)
    : cu_seqlens_(std::move(cu_seqlens)), fragments_(std::move(fragments)), layout_(std::move(layout)) {
  for (auto& list : fragments_) list = joined(list);
}

Partition Partition::make(std::span<const std::int32_t> cu_seqlens, int world_size, Layout layout) {
  if (world_size < 1) fail("world_size: got " + std::to_string(world_size) + ", expected 1 or more");
  const std::vector<std::int32_t> offsets = checked_offsets(cu_seqlens);
  std::vector<std::vector<Fragment>> fragments(static_cast<std::size_t>(world_size));
  const std::int64_t W = world_size, documents = static_cast<std::int64_t>(offsets.size()) - 1;
  for (std::int64_t r = 0; r < W; ++r) {
    std::vector<Fragment>& mine = fragments[static_cast<std::size_t>(r)];
    const auto add = [&](std::int64_t start, std::int64_t rows, std::int64_t parts, std::int64_t i) {
      const auto [begin, end] = part(rows, parts, i);
      append_rows(offsets, start + begin, start + end, mine);
    };
    switch (layout) {
      case Layout::kContiguous: add(0, offsets.back(), W, r); break;
      case Layout::kZigzag:
        add(0, offsets.back(), 2 * W, r);
        add(0, offsets.back(), 2 * W, 2 * W - 1 - r);
        break;
      case Layout::kZigzagPerDocument:
        for (std::int64_t d = 0; d < documents; ++d) {
          const std::int64_t start = offsets[static_cast<std::size_t>(d)];
          const std::int64_t rows = offsets[static_cast<std::size_t>(d) + 1] - start;
          add(start, rows, 2 * W, r);
          add(start, rows, 2 * W, 2 * W - 1 - r);
        }
        break;
    }
  }
  return {offsets, std::move(fragments), layout_name(layout)};
}

Partition Partition::from_cut_points(std::span<const std::int32_t> cu_seqlens,
                                     std::span<const std::int64_t> cut_points) {
  const std::vector<std::int32_t> offsets = checked_offsets(cu_seqlens);
  std::vector<std::vector<Fragment>> fragments(cut_points.size() + 1);
  std::int64_t begin = 0;
  for (std::size_t r = 0; r <= cut_points.size(); ++r) {
    const std::int64_t end = r < cut_points.size() ? cut_points[r] : offsets.back();
    if (end < begin || end > offsets.back()) {
      fail("cut_points: got " + std::to_string(end) + " at entry " + std::to_string(r) + ", expected " +
           std::to_string(begin) + " to " + std::to_string(offsets.back()));
    }
    append_rows(offsets, begin, end, fragments[r]);
    begin = end;
  }
  return {offsets, std::move(fragments), "cut_points"};
}

Partition Partition::from_fragments(std::span<const std::int32_t> cu_seqlens,
                                    std::vector<std::vector<Fragment>> fragments) {
  const std::vector<std::int32_t> offsets = checked_offsets(cu_seqlens);
  if (fragments.empty()) fail("fragments: got no rank, expected one list per rank");
  const std::int64_t documents = static_cast<std::int64_t>(offsets.size()) - 1;
  struct Place {
    Fragment fragment;
    std::size_t rank, index;
  };
  std::vector<Place> places;
  for (std::size_t r = 0; r < fragments.size(); ++r) {
    for (std::size_t i = 0; i < fragments[r].size(); ++i) {
      const Fragment& f = fragments[r][i];
      if (f.document < 0 || f.document >= documents) {
        fail(fragment_text(r, i, f) + ", expected a document from 0 to " + std::to_string(documents - 1));
      }
      const auto d = static_cast<std::size_t>(f.document);
      const std::int64_t rows = std::int64_t{offsets[d + 1]} - offsets[d];
      if (f.offset < 0 || f.length < 0 || f.offset > rows || f.length > rows - f.offset) {
        fail(fragment_text(r, i, f) + ", expected rows within its " + std::to_string(rows));
      }
      if (f.length > 0) places.push_back({f, r, i});
    }
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::pair(a.fragment.document, a.fragment.offset) < std::pair(b.fragment.document, b.fragment.offset);
  });
  std::size_t at = 0;
  for (std::int64_t d = 0; d < documents; ++d) {
    const std::int64_t rows =
        std::int64_t{offsets[static_cast<std::size_t>(d) + 1]} - offsets[static_cast<std::size_t>(d)];
    std::int64_t covered = 0;
    for (; at < places.size() && places[at].fragment.document == d; ++at) {
      const Place& p = places[at];
      if (p.fragment.offset < covered) {
        fail(fragment_text(p.rank, p.index, p.fragment) + ", whose rows up to " + std::to_string(covered) +
             " lie in another fragment too; expected every row once");
      }
      if (p.fragment.offset > covered) break;
      covered = p.fragment.offset + p.fragment.length;
    }
    if (covered < rows) {
      fail("fragments: row " + std::to_string(covered) + " of document " + std::to_string(d) +
           " is in none; expected every row once");
    }
  }
  return {offsets, std::move(fragments), "fragments"};
}

std::int64_t Partition::length(std::int64_t document) const {
  const auto d = static_cast<std::size_t>(document);
  return std::int64_t{cu_seqlens_.at(d + 1)} - cu_seqlens_.at(d);
}

const std::vector<Fragment>& Partition::fragments(int rank) const {
  if (rank < 0 || rank >= world_size()) {
    fail("rank: got " + std::to_string(rank) + ", expected 0 to " + std::to_string(world_size() - 1));
  }
  return fragments_[static_cast<std::size_t>(rank)];
}

std::int64_t Partition::rows(int rank) const {
  std::int64_t rows = 0;
  for (const Fragment& f : fragments(rank)) rows += f.length;
  return rows;
}

std::vector<std::int64_t> Partition::global_rows(int rank) const {
  std::vector<std::int64_t> rows;
  for (const Fragment& f : fragments(rank)) {
    const std::int64_t start = cu_seqlens_[static_cast<std::size_t>(f.document)] + f.offset;
    for (std::int64_t i = 0; i < f.length; ++i) rows.push_back(start + i);
  }
  return rows;
}

std::vector<std::pair<std::string, std::string>> Partition::fields() const {
  std::string offsets, list;
  const auto append = [](std::string& text, std::int64_t number, char before) {
    if (!text.empty()) text += before;
    text += std::to_string(number);
  };
  for (const std::int32_t x : cu_seqlens_) append(offsets, x, ' ');
  for (std::size_t r = 0; r < fragments_.size(); ++r) {
    append(list, static_cast<std::int64_t>(r), ';');
    for (const Fragment& f : fragments_[r]) {
      append(list, f.document, ' ');
      append(list, f.offset, '/');
      append(list, f.length, '+');
    }
  }
  return {
      {"world_size", std::to_string(world_size())}, {"cu_seqlens", offsets}, {"layout", layout_}, {"fragments", list}};
}

Tag Partition::tag() { return {"kcp", "", false, "partition", 1}; }

RowPlan::RowPlan(const Partition& partition) : pieces_(static_cast<std::size_t>(partition.documents())) {
  for (int r = 0; r < partition.world_size(); ++r) {
    std::int64_t row = 0;
    for (const Fragment& f : partition.fragments(r)) {
      if (f.length > 0) pieces_[static_cast<std::size_t>(f.document)].push_back({r, f.offset, f.length, row, 0, 0});
      row += f.length;
    }
  }
  for (std::int64_t d = 0; d < partition.documents(); ++d) {
    std::vector<Piece>& list = pieces_[static_cast<std::size_t>(d)];
    std::sort(list.begin(), list.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    const std::int64_t rows = partition.length(d), chunks = (rows + kChunk - 1) / kChunk;
    std::int64_t next = 0;  // first chunk that no earlier piece computes
    for (std::size_t i = 0; i < list.size(); ++i) {
      Piece& piece = list[i];
      const std::int64_t end = piece.offset + piece.length;
      piece.first_chunk = next;
      piece.end_chunk = end == rows ? chunks : end / kChunk;  // whole chunks up to here; the last one may be ragged
      next = piece.end_chunk;
      if (piece.end_chunk == piece.first_chunk) continue;
      // Rows of its first chunk that lie in earlier pieces: the last few of them, by offset.
      const std::int64_t start = piece.first_chunk * kChunk;
      std::size_t j = i;
      while (j > 0 && list[j - 1].offset + list[j - 1].length > start) --j;
      for (; j < i; ++j) {
        const Piece& earlier = list[j];
        if (earlier.rank == piece.rank) continue;
        const std::int64_t from = std::max(start, earlier.offset);
        halo_.push_back({d, piece.first_chunk, from, earlier.offset + earlier.length - from, earlier.rank, piece.rank,
                         earlier.local_row + from - earlier.offset});
      }
    }
  }
}

const std::vector<Piece>& RowPlan::pieces(std::int64_t document) const {
  return pieces_.at(static_cast<std::size_t>(document));
}

std::int64_t RowPlan::rows_sent(int rank) const {
  std::int64_t rows = 0;
  for (const HaloRows& h : halo_) rows += h.holder == rank ? h.length : 0;
  return rows;
}

std::int64_t RowPlan::rows_received(int rank) const {
  std::int64_t rows = 0;
  for (const HaloRows& h : halo_) rows += h.computer == rank ? h.length : 0;
  return rows;
}

}  // namespace cake::kcp
