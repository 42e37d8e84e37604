#include <cstdio>

#include "cake/core/cpu_isa.h"
#include "cake/core/dtype.h"
#include "cake/core/error.h"
#include "cake/core/info.h"
#include "cake/core/parallel.h"

int main() {
  const cake::BuildInfo info = cake::build_info();
  std::printf("Cake Train %s, %s, %d threads, level %s\n", info.version.c_str(), info.threads.c_str(),
              cake::num_threads(), cake::cpu_isa_name(cake::current_cpu_isa()));
  // An exception of the library is caught by its class on this side of the border.
  try {
    cake::parse_cpu_isa("none");
  } catch (const cake::InvalidArgument& e) {
    return cake::float_to_bf16(1.0f) == 0x3f80 ? 0 : 2;
  }
  return 1;
}
