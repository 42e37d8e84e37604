// `cake info`: what this build is, what this machine has, and which implementation of each package would run here.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "cake/core/info.h"
#include "commands.h"
#include "machine.h"
#include "modules.h"

namespace cake::tool {
namespace {

/// The environment variables this version reads.
constexpr const char* kVariables[] = {"CAKE_CPU_ISA", "CAKE_NUM_THREADS"};

Json cuda_json() {
  Json cuda;
  cuda["device"] = "cuda";
  cuda["available"] = false;
  cuda["reason"] = build_info().cuda ? "no package of this version has CUDA kernels"
                                     : "built without CUDA (CAKE_CUDA=OFF, or no nvcc was found)";
  return cuda;
}

Json package_json(const Module& module) {
  Json package;
  package["name"] = module.name;
  package["summary"] = module.summary;
  package["deterministic"] = module.deterministic;
  package["implementations"] = Json::array();
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kCuda}) {
    for (const Implementation& implementation : module.implementations(Device{type, 0})) {
      Json entry;
      entry["device"] = type == DeviceType::kCpu ? "cpu" : "cuda";
      entry["name"] = implementation.name;
      entry["refused"] = implementation.refused;
      package["implementations"].push_back(entry);
    }
  }
  return package;
}

Json info_json() {
  Json info;
  info["build"] = build_json();
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    info["environment"][name] = value != nullptr && *value != '\0' ? Json(value) : Json();
  }
  info["devices"] = Json::array({cpu_json(), cuda_json()});
  info["packages"] = Json::array();
  for (const Module& module : modules()) info["packages"].push_back(package_json(module));
  return info;
}

void print_info(const Json& info) {
  const Json& build = info["build"];
  fmt::print("Cake Train {}\n\nBuild\n", build["version"].get<std::string>());
  fmt::print("  compiler         {}, {}\n", build["compiler"].get<std::string>(),
             build["build_type"].get<std::string>());
  fmt::print("  threads          {}\n", build["threads_backend"].get<std::string>());
  fmt::print("  CUDA             {}\n", build["cuda"].get<bool>() ? "compiler found" : "not built");
  fmt::print("  segment          {} tokens\n", build["segment"].get<long long>());
  fmt::print("  planted fault    {}\n", build["planted_fault"].get<bool>() ? "YES: for testing the audit only" : "no");
  fmt::print("\nEnvironment\n");
  for (const auto& [name, value] : info["environment"].items()) {
    fmt::print("  {:<16} {}\n", name, value.is_null() ? "not set" : value.get<std::string>());
  }
  const Json& cpu = info["devices"][0];
  fmt::print("\nDevices\n  cpu   {}, {} cores, {} threads in use\n", cpu["model"].get<std::string>(),
             cpu["cores"].get<int>(), cpu["threads"].get<int>());
  for (const auto& [level, state] : cpu["levels"].items()) {
    fmt::print("        {:<5} {}{}\n", level, state.get<std::string>(), cpu["level_in_use"] == level ? ", in use" : "");
  }
  fmt::print("  cuda  not available: {}\n\nPackages\n", info["devices"][1]["reason"].get<std::string>());
  for (const Json& package : info["packages"]) {
    fmt::print("  {}: {}\n", package["name"].get<std::string>(), package["summary"].get<std::string>());
    for (const Json& entry : package["implementations"]) {
      const auto refused = entry["refused"].get<std::string>();
      fmt::print("    {:<5} {:<14} {}\n", entry["device"].get<std::string>(), entry["name"].get<std::string>(),
                 refused.empty() ? "runs here" : "refused: " + refused);
    }
  }
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("info", "Packages, devices, implementations and build facts");
  command->add_flag("--json", *json, "Machine-readable output");
  command->callback([json, &exit_code] {
    const Json info = info_json();
    if (*json) {
      fmt::print("{}\n", info.dump(2));
    } else {
      print_info(info);
    }
    exit_code = 0;
  });
}

}  // namespace cake::tool
