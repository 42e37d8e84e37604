// Objects of the wrong class are refused by the compiler, not by a check at run time.
#include <utility>

#include "cake/kda_det_train.h"

namespace kda = cake::kda_det_train;

void backward(const kda::Inputs& inputs, const cake::ConstTensorView& dout, const kda::Gradients& gradients) {
  kda::Workspace workspace;
  kda::Saved saved;
  kda::Saved moved = std::move(saved);
#if defined(workspace_as_saved)
  kda::backward(inputs, dout, {}, gradients, {}, &workspace, &workspace);
#elif defined(saved_as_workspace)
  kda::backward(inputs, dout, {}, gradients, {}, &moved, &moved);
#elif defined(copied_saved)
  kda::Saved copy = moved;
  kda::backward(inputs, dout, {}, gradients, {}, &workspace, &copy);
#else
  kda::backward(inputs, dout, {}, gradients, {}, &workspace, &moved);
#endif
}
