// The documents of one call in a chosen order: where the rows of a problem's tensors lie in it, there and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "audit.h"
#include "cake/core/tensor.h"
#include "kda_case.h"

namespace cake::tool::audit_kda {

/// Documents of one call, as indices into the case.
struct Pack {
  std::vector<std::size_t> documents;
  std::int64_t padding = 0;
};

/// A problem of the audit with its data.
struct Problem {
  AuditProblem text;
  KdaCase kda;
  KdaArrays operands;
};

/// Copies between a problem's order of documents and a call's. Both must outlive it.
class PackOrder {
 public:
  PackOrder(const KdaCase& c, const Pack& pack) : case_(c), pack_(pack) {
    starts_.push_back(0);
    for (const std::int64_t length : c.lengths) starts_.push_back(starts_.back() + length);
    offsets_.push_back(0);
    for (const std::size_t d : pack.documents) {
      offsets_.push_back(offsets_.back() + static_cast<std::int32_t>(c.lengths[d]));
    }
  }

  /// First row of each document of the call, and the end of the last.
  const std::vector<std::int32_t>& offsets() const { return offsets_; }
  std::int64_t documents() const { return static_cast<std::int64_t>(pack_.documents.size()); }
  std::int64_t rows() const { return offsets_.back() + pack_.padding; }
  std::int64_t extent(KdaAxis axis) const {
    return axis == KdaAxis::kToken ? rows() : axis == KdaAxis::kDocument ? documents() : 1;
  }
  /// Bytes of an array in the call.
  std::size_t bytes(const KdaArray& array) const {
    return static_cast<std::size_t>(extent(array.axis)) * array.stride();
  }

  /// Copies an array of the problem to its place in the call.
  void gather(const KdaArray& array, std::byte* to) const {
    for_each_range(array.axis, [&](std::int64_t own, std::int64_t packed, std::int64_t count) {
      std::memcpy(to + static_cast<std::size_t>(packed) * array.stride(),
                  array.bytes.data() + static_cast<std::size_t>(own) * array.stride(),
                  static_cast<std::size_t>(count) * array.stride());
    });
  }
  /// The way back.
  void scatter(const std::byte* from, KdaArray& array) const {
    for_each_range(array.axis, [&](std::int64_t own, std::int64_t packed, std::int64_t count) {
      std::memcpy(array.bytes.data() + static_cast<std::size_t>(own) * array.stride(),
                  from + static_cast<std::size_t>(packed) * array.stride(),
                  static_cast<std::size_t>(count) * array.stride());
    });
  }

 private:
  /// Calls fn(first index in the problem, first index in the call, number of indices).
  template <class Fn>
  void for_each_range(KdaAxis axis, Fn fn) const {
    if (axis == KdaAxis::kNone) return fn(0, 0, 1);
    for (std::size_t i = 0; i < pack_.documents.size(); ++i) {
      const std::size_t d = pack_.documents[i];
      if (axis == KdaAxis::kDocument) {
        fn(static_cast<std::int64_t>(d), static_cast<std::int64_t>(i), 1);
      } else {
        fn(starts_[d], offsets_[i], case_.lengths[d]);
      }
    }
    if (axis == KdaAxis::kToken) fn(starts_.back(), offsets_.back(), pack_.padding);
  }

  const KdaCase& case_;
  const Pack& pack_;
  std::vector<std::int64_t> starts_;   // first row of each document, in the problem's order
  std::vector<std::int32_t> offsets_;  // the same in this call's order
};

/// Row-major view of `data`: the leading extents, then an array's tail.
inline TensorView view_of(std::byte* data, const KdaArray& array, const std::vector<std::int64_t>& leading) {
  std::vector<std::int64_t> shape = leading;
  shape.insert(shape.end(), array.tail.begin(), array.tail.end());
  TensorView v;
  v.data = data;
  v.dtype = array.dtype;
  v.given = true;
  v.ndim = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    v.shape[i] = shape[i];
    v.strides[i] = stride;
    stride *= shape[i];
  }
  return v;
}

}  // namespace cake::tool::audit_kda
