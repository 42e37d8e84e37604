// Objects of the wrong class are refused by the compiler, not by a check at run time.
#include <utility>

#include "cake/kda_det_train.h"
#include "cake/kda_det_train_kcp.h"
#include "cake/kda_nondet_train.h"

namespace other = cake::kda_nondet_train;
namespace kda = cake::kda_det_train;
namespace kcp = cake::kda_det_train_kcp;

void backward(const kda::Inputs& inputs, const cake::ConstTensorView& dout, const kda::Gradients& gradients,
              const cake::kcp::Context& context) {
  kda::Workspace workspace;
  kda::Saved saved;
  kda::Saved moved = std::move(saved);
  other::Workspace other_workspace;
  other::Saved other_saved;
  kcp::Workspace kcp_workspace;
  kcp::Saved kcp_saved;
#if defined(workspace_as_saved)
  kda::backward(inputs, dout, {}, gradients, {}, &workspace, &workspace);
#elif defined(saved_as_workspace)
  kda::backward(inputs, dout, {}, gradients, {}, &moved, &moved);
#elif defined(copied_saved)
  kda::Saved copy = moved;
  kda::backward(inputs, dout, {}, gradients, {}, &workspace, &copy);
#elif defined(det_saved_in_nondet)
  other::backward({}, dout, {}, {}, {}, &other_workspace, &moved);
#elif defined(nondet_saved_in_det)
  kda::backward(inputs, dout, {}, gradients, {}, &workspace, &other_saved);
#elif defined(det_workspace_in_nondet)
  other::backward({}, dout, {}, {}, {}, &workspace, &other_saved);
#elif defined(nondet_workspace_in_det)
  kda::backward(inputs, dout, {}, gradients, {}, &other_workspace, &moved);
#elif defined(saved_in_kcp)
  kcp::backward({}, context, dout, {}, {}, {}, &kcp_workspace, &moved);
#elif defined(kcp_saved_in_one_rank)
  kda::backward(inputs, dout, {}, gradients, {}, &workspace, &kcp_saved);
#else
  kcp::backward({}, context, dout, {}, {}, {}, &kcp_workspace, &kcp_saved);
  other::backward({}, dout, {}, {}, {}, &other_workspace, &other_saved);
  kda::backward(inputs, dout, {}, gradients, {}, &workspace, &moved);
#endif
}
