#include "ops/kda/kcp_handoff.h"

#include <atomic>

#include "cake/core/error.h"

namespace cake::kda {
namespace {

std::byte* tail_of(const WorkspaceMemory& workspace, std::size_t bytes) {
  return static_cast<std::byte*>(workspace.memory.data()) + (workspace.memory.size() - bytes);
}

bool fits_behind(const WorkspaceMemory& workspace, std::size_t bytes, std::size_t used) {
  return used <= workspace.memory.size() && bytes <= workspace.memory.size() - used;
}

}  // namespace

std::uint64_t save_handoff(KcpHandoff& handoff, WorkspaceMemory& workspace, std::size_t bytes, std::size_t used,
                           void*& place) {
  static std::atomic<std::uint64_t> next{1};
  handoff.token = 0;
  if (!workspace.memory.fixed()) {
    try {
      place = handoff.memory.ensure(bytes, "workspace");
    } catch (const cake::OutOfMemory&) {  // the rows save time; a call does not fail for them
      ++handoff.refused_memory;
      return 0;
    }
  } else if (fits_behind(workspace, bytes, used)) {
    place = tail_of(workspace, bytes);
  } else {
    ++handoff.refused_memory;
    return 0;
  }
  ++handoff.save;
  handoff.bytes = bytes;
  handoff.token = next.fetch_add(1);
  return handoff.token;
}

void* bind_handoff(KcpHandoff* handoff, WorkspaceMemory* workspace, std::uint64_t token, bool wanted,
                   std::size_t used) {
  if (token == 0 || handoff == nullptr || workspace == nullptr) return nullptr;
  if (!wanted) {
    ++handoff->refused_option;
  } else if (handoff->token == 0) {
    ++handoff->refused_overwritten;
  } else if (handoff->token != token) {
    ++handoff->refused_workspace;
  } else if (!workspace->memory.fixed()) {
    ++handoff->bound;
    return handoff->memory.data();
  } else if (fits_behind(*workspace, handoff->bytes, used)) {
    ++handoff->bound;
    return tail_of(*workspace, handoff->bytes);
  } else {
    ++handoff->refused_memory;
  }
  return nullptr;
}

void overwrite_handoff(KcpHandoff* handoff, const WorkspaceMemory& workspace, std::size_t used) {
  if (handoff == nullptr || handoff->token == 0 || !workspace.memory.fixed()) return;
  if (!fits_behind(workspace, handoff->bytes, used)) handoff->token = 0;
}

}  // namespace cake::kda
