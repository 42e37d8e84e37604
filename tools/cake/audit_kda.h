// The audit's problems of the KDA packages.
#pragma once

#include "audit.h"

namespace cake::tool {

/// cake_kda_det_train.
const AuditSubject& kda_audit_subject();

}  // namespace cake::tool
