// What torch hands to kernels: rows of tensors.
#pragma once
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "vectors.h"

using at::IntArrayRef;
using at::Tensor;
using Maybe = std::optional<Tensor>;

namespace {

template <class T> const T* at_row(const Tensor& t, int64_t row) { return t.const_data_ptr<T>() + row * t.stride(0); }
template <class T> T* to_row(const Tensor& t, int64_t row) { return t.mutable_data_ptr<T>() + row * t.stride(0); }
template <class T> const T* at_row(const Maybe& t, int64_t row) { return t ? at_row<T>(*t, row) : nullptr; }

void need(const Tensor& t, const char* name) { TORCH_CHECK(t[0].is_contiguous(), name, " has gaps within a row"); }

#define EACH(name, like, ...) AT_DISPATCH_FLOATING_TYPES((like).scalar_type(), name, [&] { __VA_ARGS__ })

}  // namespace
