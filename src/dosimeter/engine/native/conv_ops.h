// Passes of a convolution; see conv.h.
#pragma once
#include "common.h"
#include "conv.h"

namespace {

Shape shaped(IntArrayRef s) {
    TORCH_CHECK(s.size() == 7, "a shape is (height, width, channels, kernel, stride, padding, outputs)");
    return {int(s[0]), int(s[1]), int(s[2]), int(s[3]), int(s[4]), int(s[5]), int(s[6])};
}

// One image between its own order (strides of height, width and channels) and that of the kernels, with a border.
struct Order {
    int64_t height, width, channels;
    explicit Order(const Tensor& t) : height(t.stride(1)), width(t.stride(2)), channels(t.stride(3)) {}
};

template <class T, bool IN> void move(const Shape& s, Order o, std::conditional_t<IN, const T*, T*> own, std::conditional_t<IN, T*, const T*> whole) {
    for (int y = 0; y < s.height; y++) {
        auto* row = own + y * o.height;
        auto* line = whole + (y + s.padding) * s.line() + s.padding * s.channels;
        if (o.channels == 1 && o.width == s.channels) {
            if constexpr (IN) std::memcpy(line, row, sizeof(T) * s.width * s.channels);
            else std::memcpy(row, line, sizeof(T) * s.width * s.channels);
            continue;
        }
        for (int c = 0; c < s.channels; c++)
            for (int x = 0; x < s.width; x++) {
                if constexpr (IN) line[x * s.channels + c] = row[x * o.width + c * o.channels];
                else row[x * o.width + c * o.channels] = line[x * s.channels + c];
            }
    }
}

Tensor border(const Tensor& a, IntArrayRef shape, const Tensor& padded) {
    const Shape s = shaped(shape);
    EACH("border", a, {
        for (int64_t i = 0; i < a.size(0); i++)
            move<scalar_t, true>(s, Order(a), at_row<scalar_t>(a, i), to_row<scalar_t>(padded, i));
    });
    return padded;
}

Tensor conv_forward(const Tensor& padded, const Tensor& across, const Maybe& bias, IntArrayRef shape, const Tensor& z) {
    const Shape s = shaped(shape);
    EACH("conv_forward", z, {
        for (int64_t i = 0; i < z.size(0); i++)
            correlate<scalar_t>(s, {at_row<scalar_t>(padded, i), across.const_data_ptr<scalar_t>()}, {nullptr, nullptr},
                                bias ? bias->const_data_ptr<scalar_t>() : nullptr, to_row<scalar_t>(z, i));
    });
    return z;
}

// found (n, 2 + O): <g, G>, |g|^2 and the sum of what came back, of every image.
Tensor conv_products(const Tensor& padded, const Tensor& back, const Tensor& mine, IntArrayRef shape, const Tensor& G,
                     const Tensor& found) {
    const Shape s = shaped(shape);
    need(back, "back");
    EACH("conv_products", back, {
        constexpr int L = Vec<scalar_t>::lanes;
        for (int64_t i = 0; i < back.size(0); i++) {
            const scalar_t *d = at_row<scalar_t>(back, i), *seen = at_row<scalar_t>(mine, i);
            scalar_t *g = to_row<scalar_t>(G, i), *out = to_row<scalar_t>(found, i);
            gradient<scalar_t>(s, at_row<scalar_t>(padded, i), d, g);
            V<scalar_t> cross[2] = {}, squared[2] = {};
            const int64_t size = G.stride(0) / L;
            for (int64_t k = 0; k < size; k++) {
                const V<scalar_t> x = load<scalar_t>(g + k * L);
                cross[k & 1] += x * load<scalar_t>(seen + k * L);
                squared[k & 1] += x * x;
            }
            out[0] = sum<scalar_t>(cross[0] + cross[1]);
            out[1] = sum<scalar_t>(squared[0] + squared[1]);
            for (int o = 0; o < s.outputs; o += L) {
                V<scalar_t> total{};
                for (int p = 0; p < s.positions(); p++) total += load_up_to<scalar_t>(d + p * s.outputs + o, s.outputs - o);
                store_up_to<scalar_t>(out + 2 + o, total, s.outputs - o);
            }
        }
    });
    return found;
}

template <class T> void come_back(const Shape& s, Returned<T> one, Returned<T> two, Order o, T* image) {
    T* whole = scratch<T, 0>(s.size() + Vec<T>::lanes);
    std::memset(whole, 0, sizeof(T) * (s.size() + Vec<T>::lanes));
    scatter<T>(s, one, two, whole);
    move<T, false>(s, o, image, whole);
}

Tensor conv_backward(const Tensor& back, const Tensor& along, IntArrayRef shape, const Tensor& images) {
    const Shape s = shaped(shape);
    need(back, "back");
    EACH("conv_backward", back, {
        for (int64_t i = 0; i < back.size(0); i++)
            come_back<scalar_t>(s, {at_row<scalar_t>(back, i), along.const_data_ptr<scalar_t>()}, {nullptr, nullptr},
                                Order(images), to_row<scalar_t>(images, i));
    });
    return images;
}

// v = cross mine + 2 squared G, which is kept, and z = windows v + windows of what moved W + vb.
Tensor conv_tangent(const Tensor& padded, const Tensor& G, const Tensor& mine, const Tensor& cross, const Tensor& squared,
                    const Maybe& moved, const Tensor& across, const Maybe& vb, IntArrayRef shape, const Tensor& v,
                    const Tensor& z) {
    const Shape s = shaped(shape);
    EACH("conv_tangent", z, {
        constexpr int L = Vec<scalar_t>::lanes;
        scalar_t* turned = scratch<scalar_t, 1>(size_t(s.kernel) * s.run() * rounded(s.outputs, L));
        for (int64_t i = 0; i < z.size(0); i++) {
            const scalar_t *g = at_row<scalar_t>(G, i), *seen = at_row<scalar_t>(mine, i);
            scalar_t* to = to_row<scalar_t>(v, i);
            const V<scalar_t> c = all<scalar_t>(*at_row<scalar_t>(cross, i)), q = all<scalar_t>(2 * *at_row<scalar_t>(squared, i));
            for (int64_t k = 0; k < G.stride(0); k += L)
                store<scalar_t>(to + k, c * load<scalar_t>(seen + k) + q * load<scalar_t>(g + k));
            turn<scalar_t>(s, to, turned);
            correlate<scalar_t>(s, {at_row<scalar_t>(padded, i), turned},
                                {at_row<scalar_t>(moved, i), across.const_data_ptr<scalar_t>()}, at_row<scalar_t>(vb, i),
                                to_row<scalar_t>(z, i));
        }
    });
    return z;
}

Tensor conv_returning(const Tensor& back, const Tensor& along, const Tensor& d, const Tensor& v, IntArrayRef shape,
                      const Tensor& images) {
    const Shape s = shaped(shape);
    need(back, "back");
    EACH("conv_returning", back, {
        for (int64_t i = 0; i < back.size(0); i++)
            come_back<scalar_t>(s, {at_row<scalar_t>(back, i), along.const_data_ptr<scalar_t>()},
                                {at_row<scalar_t>(d, i), at_row<scalar_t>(v, i)}, Order(images), to_row<scalar_t>(images, i));
    });
    return images;
}

}  // namespace

