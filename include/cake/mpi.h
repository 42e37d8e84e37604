// Ranks of MPI as a Communicator (libcake_mpi, built where CMake finds MPI).
#pragma once

#include <chrono>
#include <memory>

#include "cake/comm.h"

namespace cake {

/// All ranks of MPI_COMM_WORLD, on a communicator of its own. Collective. Initialises MPI when the program has not, and
/// finalises it then with the last communicator. Calls come from one thread at a time (MPI_THREAD_SERIALIZED). A rank
/// that aborts, or does not answer within `timeout`, gives CommError on the others; after one the communicator is of no
/// more use. Throws CommError when MPI cannot start.
CAKE_API std::unique_ptr<Communicator> make_mpi_communicator(std::chrono::milliseconds timeout = kDefaultCommTimeout);

}  // namespace cake
