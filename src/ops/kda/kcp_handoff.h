// What a replayed forward leaves in its workspace for the backward that follows: the chunk states of a tape, so that
// the backward rebuilds nothing. A saved set and a workspace find each other by a token; whatever overwrites the rows
// takes the token away, and the backward then rebuilds them as always (same bits).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kda/call.h"

namespace cake::kda {

/// Part of a workspace.
struct KcpHandoff {
  CallerMemory memory{};    ///< where the workspace grows; in a caller's memory the rows lie at its end
  std::uint64_t token = 0;  ///< of the saved set whose rows it holds; 0: none
  std::size_t bytes = 0;
  // Counters.
  std::uint64_t save = 0, bound = 0, refused_memory = 0, refused_overwritten = 0, refused_workspace = 0,
                refused_option = 0;
};

/// Takes place for `bytes` bytes beside `used` bytes of the workspace for a new saved set, whose token it returns; 0
/// where there is no room. `place`: the rows.
std::uint64_t save_handoff(KcpHandoff& handoff, WorkspaceMemory& workspace, std::size_t bytes, std::size_t used,
                           void*& place);
/// The rows of a saved set's token, or nullptr, which is counted with its reason. `used`: bytes of the workspace that
/// the backward takes.
void* bind_handoff(KcpHandoff* handoff, WorkspaceMemory* workspace, std::uint64_t token, bool wanted, std::size_t used);
/// A call that takes `used` bytes of the workspace: rows it reaches are lost.
void overwrite_handoff(KcpHandoff* handoff, const WorkspaceMemory& workspace, std::size_t used);

}  // namespace cake::kda
