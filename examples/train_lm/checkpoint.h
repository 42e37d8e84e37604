// Checkpoints: a run's whole state in one file, written atomically, refused unless it is whole.
//
//   offset  bytes  content
//   0       8      "CAKETRLM"
//   8       8      version (1), unsigned little endian, as the two sizes below
//   16      8      bytes of the header H
//   24      8      bytes of the payload P
//   32      H      JSON: options, text digest, step, position, powers of the betas, table of tensors
//   32+H    P      fp32 parameters, first moments, second moments (flat arrays with the table's offsets), then three
//                  float64 per step done: loss, learning rate, gradient norm
//   32+H+P  32     SHA-256 of everything before it
#pragma once

#include <string>

#include "trainer.h"

namespace cake::train_lm {

/// Version this build writes and reads.
inline constexpr std::uint64_t kCheckpointVersion = 1;

/// Writes `state` to `path` (see files.h: on failure the old file stays). Throws FileError.
void save_checkpoint(const std::string& path, const TrainState& state);
/// Reads a checkpoint. Throws FileError naming the file and the reason: missing, not a checkpoint, another version,
/// truncated, corrupt.
TrainState load_checkpoint(const std::string& path);

}  // namespace cake::train_lm
