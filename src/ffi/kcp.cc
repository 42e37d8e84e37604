// ffi functions of the neutral objects over ranks: partitions, contexts, recompute handles.
#include "cake/kcp.h"

#include <limits>

#include "core/checks.h"
#include "ffi/comm.h"

namespace cake::ffi {
namespace {

using tvm::ffi::Array;
using tvm::ffi::String;

std::vector<std::int32_t> offsets_of(const Array<int64_t>& list) {
  std::vector<std::int32_t> offsets;
  offsets.reserve(list.size());
  for (const int64_t x : list) {
    if (x < 0 || x > std::numeric_limits<std::int32_t>::max()) {
      checks::fail("cu_seqlens", std::to_string(x), "0 to 2^31 - 1");
    }
    offsets.push_back(static_cast<std::int32_t>(x));
  }
  return offsets;
}

HandleRef held(kcp::Partition partition) {
  return HandleRef(make_handle(std::make_shared<kcp::Partition>(std::move(partition))));
}
std::shared_ptr<kcp::Partition> partition_of(const HandleRef& ref) {
  return ref->handle.get<kcp::Partition>(kcp::Partition::tag(), "partition");
}
std::shared_ptr<kcp::Context> context_of(const HandleRef& ref) {
  return ref->handle.get<kcp::Context>(kcp::Context::tag(), "ctx");
}
std::shared_ptr<kcp::RecomputeHandle> recompute_of(const HandleRef& ref) {
  return ref->handle.get<kcp::RecomputeHandle>(kcp::RecomputeHandle::tag(), "recompute_handle");
}

HandleRef partition_make(Array<int64_t> cu_seqlens, int64_t world_size, String layout) {
  return translated([&] {
    return held(kcp::Partition::make(offsets_of(cu_seqlens), clamped(world_size), kcp::parse_layout(layout)));
  });
}
HandleRef partition_from_cut_points(Array<int64_t> cu_seqlens, Array<int64_t> cut_points) {
  return translated([&] {
    const std::vector<std::int64_t> cuts(cut_points.begin(), cut_points.end());
    return held(kcp::Partition::from_cut_points(offsets_of(cu_seqlens), cuts));
  });
}
/// A rank's fragments as document, offset, length, document, ...
HandleRef partition_from_fragments(Array<int64_t> cu_seqlens, Array<Array<int64_t>> fragments) {
  return translated([&] {
    std::vector<std::vector<kcp::Fragment>> ranks;
    for (const Array<int64_t>& list : fragments) {
      std::vector<kcp::Fragment>& mine = ranks.emplace_back();
      for (int64_t i = 0; i + 2 < static_cast<int64_t>(list.size()); i += 3) {
        mine.push_back({list[i], list[i + 1], list[i + 2]});
      }
    }
    return held(kcp::Partition::from_fragments(offsets_of(cu_seqlens), std::move(ranks)));
  });
}
int64_t partition_world_size(HandleRef partition) {
  return translated([&] { return static_cast<int64_t>(partition_of(partition)->world_size()); });
}
int64_t partition_documents(HandleRef partition) {
  return translated([&] { return partition_of(partition)->documents(); });
}
Array<int64_t> partition_cu_seqlens(HandleRef partition) {
  return translated([&] {
    const std::vector<std::int32_t>& offsets = partition_of(partition)->cu_seqlens();
    const std::vector<int64_t> wide(offsets.begin(), offsets.end());
    return Array<int64_t>(wide.begin(), wide.end());
  });
}
int64_t partition_rows(HandleRef partition, int64_t rank) {
  return translated([&] { return partition_of(partition)->rows(clamped(rank)); });
}
void partition_global_rows(HandleRef partition, int64_t rank, Tensor rows) {
  translated([&] {
    const std::vector<std::int64_t> list = partition_of(partition)->global_rows(clamped(rank));
    const TensorView out = view(rows, "rows");
    checks::require_dtype(out, "rows", {DType::kInt64});
    checks::require_shape(out, "rows", "[rows(rank)]", {static_cast<std::int64_t>(list.size())});
    for (std::size_t i = 0; i < list.size(); ++i) {
      static_cast<std::int64_t*>(out.data)[static_cast<std::int64_t>(i) * out.strides[0]] = list[i];
    }
  });
}
Array<int64_t> partition_fragments(HandleRef partition, int64_t rank) {
  return translated([&] {
    Array<int64_t> list;
    for (const kcp::Fragment& f : partition_of(partition)->fragments(clamped(rank))) {
      for (const std::int64_t x : {f.document, f.offset, f.length}) list.push_back(x);
    }
    return list;
  });
}

/// A context with what it is made of: it lives no longer than its communicator.
struct HeldContext {
  std::shared_ptr<Communicator> communicator;
  kcp::Context context;
};

HandleRef context_make(HandleRef partition, HandleRef communicator, int64_t conv_kernel_size) {
  return translated([&] {
    const auto comm = communicator_of(communicator);
    const int taps = clamped(conv_kernel_size);
    auto both = std::make_shared<HeldContext>(HeldContext{comm, kcp::Context(*partition_of(partition), *comm, taps)});
    return HandleRef(make_handle(std::shared_ptr<kcp::Context>(both, &both->context)));
  });
}
/// rank, ranks, rows of this rank, documents, conv_kernel_size.
Array<int64_t> context_facts(HandleRef context) {
  return translated([&] {
    const auto c = context_of(context);
    return Array<int64_t>{c->rank(), c->partition().world_size(), c->rows(), c->partition().documents(),
                          c->conv_kernel_size()};
  });
}
Array<int64_t> context_counters(HandleRef context) {
  return translated([&] {
    const CommCounters& c = context_of(context)->communicator().counters();
    return Array<int64_t>{static_cast<int64_t>(c.messages_sent), static_cast<int64_t>(c.bytes_sent),
                          static_cast<int64_t>(c.bytes_received), static_cast<int64_t>(c.all_gathers)};
  });
}
/// Takes part in the agreement that a call of the other ranks begins with, so that they fail with this rank's message
/// instead of waiting for it.
void context_refuse(HandleRef context, String what, String message) {
  translated([&] {
    const std::string text = message;
    try {
      require_agreement(context_of(context)->communicator(), std::string(what).c_str(),
                        [&]() -> AgreementFields { throw InvalidArgument(text); });
    } catch (const InvalidArgument&) {  // NOLINT(bugprone-empty-catch): its own, which the caller has
    }
  });
}

kcp::Halo halo_of(const std::string& which) {
  if (which == "before") return kcp::Halo::kBefore;
  if (which == "after") return kcp::Halo::kAfter;
  checks::fail("halo", "\"" + which + "\"", "before or after");
}
int64_t context_halo_rows(HandleRef context, String which) {
  return translated([&] { return context_of(context)->halo_rows(halo_of(which)); });
}
Array<int64_t> context_fragment_halo_rows(HandleRef context, String which) {
  return translated([&] {
    const auto c = context_of(context);
    const kcp::Halo halo = halo_of(which);
    Array<int64_t> rows;
    const auto fragments = static_cast<std::int64_t>(c->partition().fragments(c->rank()).size());
    for (std::int64_t i = 0; i < fragments; ++i) rows.push_back(c->halo_rows(halo, i));
    return rows;
  });
}
Array<int64_t> context_halo_bytes(HandleRef context, String which, int64_t row_bytes) {
  return translated([&] {
    if (row_bytes < 0) checks::fail("row_bytes", std::to_string(row_bytes), "0 or more");
    const auto [sent, received] = context_of(context)->halo_bytes(halo_of(which), static_cast<std::size_t>(row_bytes));
    return Array<int64_t>{static_cast<int64_t>(sent), static_cast<int64_t>(received)};
  });
}

/// Bytes of one row of x [rows, ...], whose rows have no gaps inside.
std::size_t row_bytes_of(const TensorView& x, const char* name, std::int64_t rows) {
  if (x.ndim < 1 || x.shape[0] != rows) {
    checks::fail(name, ConstTensorView(x).shape_string(), "[" + std::to_string(rows) + ", ...]");
  }
  std::int64_t numbers = 1;
  for (int i = x.ndim - 1; i > 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (x.shape[at] != 1 && x.strides[at] != numbers) checks::fail(name, "rows with gaps", "contiguous rows");
    numbers *= x.shape[at];
  }
  return static_cast<std::size_t>(numbers) * dtype_size(x.dtype);
}

void context_exchange_halo(HandleRef context, String which, Tensor local, Tensor rows_out) {
  translated([&] {
    const auto c = context_of(context);
    kcp::Halo halo{};
    TensorView from, to;
    std::size_t bytes = 0;
    require_agreement(c->communicator(), "exchange_halo", [&]() -> AgreementFields {
      halo = halo_of(which);
      from = view(local, "local");
      to = view(rows_out, "out");
      bytes = row_bytes_of(from, "local", c->rows());
      const std::size_t out_bytes = row_bytes_of(to, "out", c->halo_rows(halo));
      if (out_bytes != bytes || to.dtype != from.dtype) checks::fail("out", "rows of another kind", "those of local");
      if (!ConstTensorView(to).is_contiguous()) checks::fail("out", "a strided tensor", "a contiguous one");
      return {{"call", "exchange_halo"}, {"halo", which}, {"bytes of a row", std::to_string(bytes)}};
    });
    const auto stride = static_cast<std::size_t>(from.strides[0]) * dtype_size(from.dtype);
    c->exchange_halo(halo, from.data, stride, bytes, to.data);
  });
}

HandleRef recompute_make() {
  return translated([] { return HandleRef(make_handle(std::make_shared<kcp::RecomputeHandle>())); });
}
Array<String> recompute_entries(HandleRef recompute) {
  return translated([&] {
    Array<String> names;
    for (const std::string& name : recompute_of(recompute)->entries()) names.push_back(name);
    return names;
  });
}
void recompute_clear(HandleRef recompute) {
  translated([&] { recompute_of(recompute)->clear(); });
}
int64_t recompute_nbytes(HandleRef recompute) {
  return translated([&] { return static_cast<int64_t>(recompute_of(recompute)->nbytes()); });
}

}  // namespace
}  // namespace cake::ffi

TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_make, cake::ffi::partition_make)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_from_cut_points, cake::ffi::partition_from_cut_points)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_from_fragments, cake::ffi::partition_from_fragments)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_world_size, cake::ffi::partition_world_size)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_documents, cake::ffi::partition_documents)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_cu_seqlens, cake::ffi::partition_cu_seqlens)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_rows, cake::ffi::partition_rows)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_global_rows, cake::ffi::partition_global_rows)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_partition_fragments, cake::ffi::partition_fragments)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_context_make, cake::ffi::context_make)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_context_facts, cake::ffi::context_facts)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_context_counters, cake::ffi::context_counters)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_context_refuse, cake::ffi::context_refuse)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_context_halo_rows, cake::ffi::context_halo_rows)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_context_fragment_halo_rows, cake::ffi::context_fragment_halo_rows)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_context_halo_bytes, cake::ffi::context_halo_bytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_context_exchange_halo, cake::ffi::context_exchange_halo)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_recompute_make, cake::ffi::recompute_make)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_recompute_entries, cake::ffi::recompute_entries)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_recompute_clear, cake::ffi::recompute_clear)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kcp_recompute_nbytes, cake::ffi::recompute_nbytes)
