// Chooses the kernel table of the instruction-set level in use.
#include "cake/core/cpu_isa.h"
#include "kernels.h"

namespace cake {
namespace isa_base {
extern const train_lm::TrainKernels kTrainKernels;
}
namespace isa_v3 {
extern const train_lm::TrainKernels kTrainKernels;
}
namespace isa_v4 {
extern const train_lm::TrainKernels kTrainKernels;
}

namespace train_lm {

const TrainKernels& train_kernels() {
  switch (current_cpu_isa()) {
    case CpuIsa::kV3: return isa_v3::kTrainKernels;
    case CpuIsa::kV4: return isa_v4::kTrainKernels;
    case CpuIsa::kBase: break;
  }
  return isa_base::kTrainKernels;
}

}  // namespace train_lm
}  // namespace cake
