// The engine's kernels as torch operations; each runs on the thread that calls it.
#include "conv_ops.h"
#include "row_ops.h"

TORCH_LIBRARY(dosimeter, m) {
    m.def("vector_bytes() -> int", [] { return int64_t(BYTES); });
    m.def("border(Tensor a, int[] shape, Tensor(a!) padded) -> Tensor(a!)");
    m.def("conv_forward(Tensor padded, Tensor across, Tensor? bias, int[] shape, Tensor(a!) z) -> Tensor(a!)");
    m.def("conv_products(Tensor padded, Tensor back, Tensor mine, int[] shape, Tensor(b!) G, Tensor(a!) found) -> Tensor(a!)");
    m.def("conv_backward(Tensor back, Tensor along, int[] shape, Tensor(a!) images) -> Tensor(a!)");
    m.def("conv_tangent(Tensor padded, Tensor G, Tensor mine, Tensor cross, Tensor squared, Tensor? moved, Tensor across, "
          "Tensor? vb, int[] shape, Tensor(b!) v, Tensor(a!) z) -> Tensor(a!)");
    m.def("conv_returning(Tensor back, Tensor along, Tensor d, Tensor v, int[] shape, Tensor(a!) images) -> Tensor(a!)");
    m.def("pack_weight(Tensor weight, Tensor(a!) panels) -> Tensor(a!)");
    m.def("times(Tensor x, Tensor panels, Tensor? bias, bool add, Tensor(a!) z) -> Tensor(a!)");
    m.def("rank_products(Tensor a, Tensor d, Tensor U, Tensor W, Tensor? bias, Tensor(a!) found) -> Tensor(a!)");
    m.def("rank_tangent(Tensor found, Tensor slopes, Tensor d, Tensor U, Tensor? bias, Tensor(a!) z) -> Tensor(a!)");
    m.def("rank_returning(Tensor found, Tensor slopes, Tensor a, Tensor W, Tensor(a!) rows) -> Tensor(a!)");
    m.def("norm_forward(Tensor a, Tensor constants, Tensor(b!) normal, Tensor(a!) z) -> Tensor(a!)");
    m.def("norm_products(Tensor normal, Tensor back, Tensor mine, Tensor(a!) found) -> Tensor(a!)");
    m.def("norm_tangent(Tensor normal, Tensor back, Tensor mine, Tensor slopes, Tensor? moved, Tensor constants, "
          "Tensor(a!) z) -> Tensor(a!)");
    m.def("norm_returning(Tensor normal, Tensor back, Tensor mine, Tensor slopes, Tensor returned, Tensor constants, "
          "Tensor(a!) rows) -> Tensor(a!)");
}

// By device, so that a pass that is recorded sees these operations and not what they are made of.
TORCH_LIBRARY_IMPL(dosimeter, CPU, m) {
    m.impl("border", &border);
    m.impl("conv_forward", &conv_forward);
    m.impl("conv_products", &conv_products);
    m.impl("conv_backward", &conv_backward);
    m.impl("conv_tangent", &conv_tangent);
    m.impl("conv_returning", &conv_returning);
    m.impl("pack_weight", &pack_weight);
    m.impl("times", &times);
    m.impl("rank_products", &rank_products);
    m.impl("rank_tangent", &rank_tangent);
    m.impl("rank_returning", &rank_returning);
    m.impl("norm_forward", &norm_forward);
    m.impl("norm_products", &norm_products);
    m.impl("norm_tangent", &norm_tangent);
    m.impl("norm_returning", &norm_returning);
}
