// ffi functions without an op: facts of the build, threads.
#include <tvm/ffi/container/map.h>

#include "cake/core/canonical.h"
#include "cake/core/cpu_isa.h"
#include "cake/core/info.h"
#include "cake/core/parallel.h"
#include "ffi/ffi.h"

namespace cake::ffi {
namespace {

OptionMap info() {
  return translated([] {
    const BuildInfo b = build_info();
    OptionMap map;
    const auto text = [&](const char* name, const std::string& value) { map.Set(name, tvm::ffi::String(value)); };
    text("version", b.version);
    text("compiler", b.compiler);
    text("build_type", b.build_type);
    text("threads", b.threads);
    text("cpu_isa", cpu_isa_name(current_cpu_isa()));
    map.Set("cuda", b.cuda);
    map.Set("segment", static_cast<int64_t>(b.segment));
    map.Set("planted_fault", b.planted_fault);
    return map;
  });
}

int64_t get_num_threads() {
  return translated([] { return static_cast<int64_t>(num_threads()); });
}
void put_num_threads(int64_t threads) {
  translated([&] {
    if (threads < 0 || threads > 65536) {
      throw InvalidArgument("threads: got " + std::to_string(threads) + ", expected 0 to 65536");
    }
    set_num_threads(static_cast<int>(threads));
  });
}

}  // namespace
}  // namespace cake::ffi

TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_core_info, cake::ffi::info)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_core_num_threads, cake::ffi::get_num_threads)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_core_set_num_threads, cake::ffi::put_num_threads)
