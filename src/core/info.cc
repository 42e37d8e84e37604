#include "cake/core/info.h"

#include "cake/core/canonical.h"
#include "core/parallel.h"

namespace cake {

BuildInfo build_info() {
  BuildInfo info;
  info.version = CAKE_VERSION;
  info.compiler = CAKE_COMPILER;
  info.build_type = CAKE_BUILD_TYPE;
  info.threads = thread_backend_name();
  info.cuda = CAKE_HAVE_CUDA != 0;
  info.segment = kSegment;
#ifdef CAKE_PLANT_ORDER_FAULT
  info.planted_fault = true;
#endif
  return info;
}

}  // namespace cake
