#include "comm/fold_plan.h"

#include <algorithm>
#include <map>

#include "cake/core/canonical.h"

namespace cake::kcp {
namespace {

constexpr std::int64_t kSegmentChunks = kSegment / kChunk;

std::int64_t chunks_of(std::int64_t rows) { return (rows + kChunk - 1) / kChunk; }

/// Messages of cut chunks, in the order of the plan's halo rows on both sides.
void plan_stage(FoldPlan& plan, const RowPlan& rows) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> staged_at;  // (document, chunk): first staging row
  for (const auto& [c, i] : plan.own_parts) {
    const Chain& chain = plan.chains[c];
    const Part& part = chain.parts[i];
    if (!part.staged) continue;
    staged_at[{chain.document, part.first_row / kChunk}] = part.local_row;
    // Only the pieces around the chunk can hold rows of it; pieces are sorted by offset.
    const std::vector<Piece>& pieces = rows.pieces(chain.document);
    auto piece = std::lower_bound(pieces.begin(), pieces.end(), part.first_row,
                                  [](const Piece& p, std::int64_t row) { return p.offset + p.length <= row; });
    for (; piece != pieces.end() && piece->offset < part.first_row + part.rows; ++piece) {
      const std::int64_t from = std::max(piece->offset, part.first_row);
      const std::int64_t to = std::min(piece->offset + piece->length, part.first_row + part.rows);
      if (piece->rank != plan.rank) continue;
      plan.own_rows.push_back(
          {part.local_row + from - part.first_row, to - from, piece->local_row + from - piece->offset});
    }
  }
  std::map<int, StagePeer> outgoing, incoming;
  const auto add = [](std::map<int, StagePeer>& peers, int peer, std::int64_t row, std::int64_t count) {
    StagePeer& entry = peers[peer];
    entry.rank = peer;
    entry.rows += count;
    entry.list.push_back({row, count});
  };
  for (const HaloRows& h : rows.halo()) {
    if (h.holder == plan.rank) add(outgoing, h.computer, h.holder_row, h.length);
    if (h.computer == plan.rank) {
      const std::int64_t at = staged_at.at({h.document, h.chunk});
      add(incoming, h.holder, at + h.offset - h.chunk * kChunk, h.length);
    }
  }
  for (auto& [peer, entry] : outgoing) {
    plan.outgoing_rows += entry.rows;
    plan.outgoing.push_back(std::move(entry));
  }
  for (auto& [peer, entry] : incoming) {
    plan.incoming_rows += entry.rows;
    plan.incoming.push_back(std::move(entry));
  }
}

}  // namespace

std::vector<std::int64_t> canonical_segments(const std::vector<Piece>&, std::int64_t chunks) {
  std::vector<std::int64_t> ends;
  for (std::int64_t at = 0; at < chunks; at = ends.back()) ends.push_back(std::min(chunks, at + kSegmentChunks));
  return ends;
}

std::vector<std::int64_t> rank_segments(const std::vector<Piece>& pieces, std::int64_t) {
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < pieces.size();) {
    const std::int64_t first = pieces[i].first_chunk;
    const int rank = pieces[i].rank;
    std::int64_t end = first;
    // Pieces without chunks of their own end no run: their rows are staged on the rank that follows.
    for (; i < pieces.size() && (pieces[i].rank == rank || pieces[i].first_chunk == pieces[i].end_chunk); ++i) {
      end = pieces[i].end_chunk;
    }
    const std::int64_t parts = (end - first + kSegmentChunks - 1) / kSegmentChunks;
    for (std::int64_t n = 1; n <= parts; ++n) ends.push_back(first + (end - first) * n / parts);
  }
  return ends;
}

FoldPlan::FoldPlan(const Partition& partition, const RowPlan& rows, int this_rank, SegmentRule rule)
    : rank(this_rank), world_size(partition.world_size()), documents(partition.documents()) {
  for (std::int64_t d = 0; d < documents; ++d) {
    const std::int64_t length = partition.length(d);
    const std::vector<std::int64_t> ends = rule(rows.pieces(d), chunks_of(length));
    const auto count = static_cast<std::int64_t>(ends.size());
    total_rows += length;
    first_chain.push_back(chains.size());
    segments.push_back(count);
    most_segments = std::max(most_segments, count);
    for (std::int64_t j = 0; j < count; ++j) {
      Chain chain;
      chain.document = d;
      chain.segment = j;
      chain.last = j + 1 == count;
      chains.push_back(std::move(chain));
    }
    std::int64_t segment = 0;
    const auto add = [&](const Piece& piece, std::int64_t from, std::int64_t end, bool staged) {
      while (from < end) {
        while (ends[static_cast<std::size_t>(segment)] <= from) ++segment;
        const std::int64_t stop = std::min(end, ends[static_cast<std::size_t>(segment)]);
        const std::size_t c = first_chain.back() + static_cast<std::size_t>(segment);
        Part part;
        part.rank = piece.rank;
        part.first_row = from * kChunk;
        part.rows = std::min(length, stop * kChunk) - part.first_row;
        part.staged = staged;
        part.local_row = staged ? staged_rows : piece.local_row + part.first_row - piece.offset;
        if (piece.rank == rank) {
          part.number = static_cast<std::int64_t>(own_parts.size());
          part.rows_before = part_rows;
          part.chunks_before = part_chunks;
          part.blocks_before = part_blocks;
          part_rows += part.rows;
          part_chunks += chunks_of(part.rows);
          part_blocks += part.rows / kChunk * triangle_blocks(kChunk) + triangle_blocks(part.rows % kChunk);
          longest_part = std::max(longest_part, part.rows);
          if (staged) staged_rows += part.rows;
          own_parts.emplace_back(c, chains[c].parts.size());
        }
        chains[c].parts.push_back(part);
        from = stop;
      }
    };
    spanning.push_back(false);
    int computer = -1;
    for (const Piece& piece : rows.pieces(d)) {
      if (piece.first_chunk == piece.end_chunk) continue;
      const bool cut = piece.first_chunk * kChunk < piece.offset;
      if (cut) add(piece, piece.first_chunk, piece.first_chunk + 1, true);
      add(piece, piece.first_chunk + (cut ? 1 : 0), piece.end_chunk, false);
      if (computer >= 0 && computer != piece.rank) spanning.back() = true;
      computer = piece.rank;
    }
  }
  for (std::int64_t d = 0; d < documents; ++d) {
    if (rows.pieces(d).empty()) continue;
    const int holder = rows.pieces(d).front().rank, computer = chains[chain_at(d, 0)].first_rank();
    if (holder != computer) edges.push_back({d, holder, computer});
    if (holder != computer && holder == rank) ++held_edges;
  }
  for (std::size_t c = 0; c < chains.size(); ++c) {
    Chain& chain = chains[c];
    const bool here = std::any_of(chain.parts.begin(), chain.parts.end(), [](const Part& p) { return p.number >= 0; });
    if (here) {
      chain.own = static_cast<std::int64_t>(own_chains.size());
      own_chains.push_back(c);
    }
    if (chain.last_rank() == rank) {
      chain.ending = static_cast<std::int64_t>(ending_chains.size());
      ending_chains.push_back(c);
    }
  }
  plan_stage(*this, rows);
}

}  // namespace cake::kcp
