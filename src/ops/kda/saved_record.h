// What a saved set says of itself, as text: with it the set's memory alone can leave the object that a forward filled
// (a tensor of a framework that copies, offloads and frees it) and be read by a backward later, in a new object.
#pragma once

#include <string>

#include "cake/core/handle.h"
#include "ops/kda/kcp.h"

namespace cake::kda {

/// At most 448 bytes. Throws InvalidArgument for an empty set.
std::string saved_record(const Tag& tag, const SavedSet& saved);
/// The same for a set of a package over ranks.
std::string saved_record(const Tag& tag, const KcpSavedSet& saved);
/// Fills the record of a set that lies in the memory it was filled in, or in a copy. Throws the errors of check_tag for
/// a record of another package, InvalidArgument for a text that is none, OutOfMemory for memory smaller than the record
/// says.
void restore_saved(SavedSet& saved, const Tag& expected, const std::string& record);
/// The same for a set of a package over ranks. Rows that a replayed forward left in a workspace stay reachable.
void restore_saved(KcpSavedSet& saved, const Tag& expected, const std::string& record);

}  // namespace cake::kda
