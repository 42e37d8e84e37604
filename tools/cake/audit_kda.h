// The audit's problems of the KDA packages.
#pragma once

#include "audit.h"
#include "kda_packages.h"

namespace cake::tool {

/// KdaDet or KdaNondet under audit.
template <class Package>
const AuditSubject& kda_audit_subject();

}  // namespace cake::tool
