// Facts about this machine and this build, as every command reports them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace cake::tool {

/// JSON objects keep the order in which their keys were written.
using Json = nlohmann::ordered_json;

/// What a level says when the processor cannot run it.
inline constexpr const char* kNotOnThisCpu = "not on this CPU";

/// The processor as /proc/cpuinfo names it, "unknown" where it does not.
std::string cpu_model();
/// Cores this process may run on.
int usable_cores();
/// {"base": "yes", "v3": "yes", "v4": "not on this CPU"}.
std::vector<std::pair<std::string, std::string>> isa_levels();
/// {"device", "model", "cores", "threads", "levels", "level_in_use"}.
Json cpu_json();
/// {"version", "compiler", "build_type", "threads_backend", "cuda", "segment", "planted_fault"}.
Json build_json();

}  // namespace cake::tool
