// Counts every operator new of the program, those of the libraries too.
#pragma once

namespace cake::test {

/// Calls of operator new so far. (oneTBB takes memory for its own threads from malloc when it starts.)
long allocations();
/// Bytes they asked for.
long allocated_bytes();

}  // namespace cake::test
