// The audit's problems of the KDA packages over ranks.
#pragma once

#include "audit.h"
#include "kda_packages.h"

namespace cake::tool {

/// KdaDetKcp or KdaNondetKcp under audit, ranks as threads, against its package on one rank.
template <class Package>
const AuditSubject& kcp_audit_subject();

}  // namespace cake::tool
