// Passes of linear layers under a single image, whose gradients are outer products d a^T, and of batch norm on rows.
#pragma once
#include "common.h"
#include "rows.h"

namespace {

// Weight (K, N) as panels (ceil(N / columns), K, columns).
Tensor pack_weight(const Tensor& weight, const Tensor& panels) {
    EACH("pack_weight", weight, {
        pack<scalar_t>(weight.const_data_ptr<scalar_t>(), weight.stride(0), weight.stride(1), weight.size(0), weight.size(1),
                       panels.mutable_data_ptr<scalar_t>());
    });
    return panels;
}

Tensor times(const Tensor& x, const Tensor& panels, const Maybe& bias, bool add, const Tensor& z) {
    need(x, "x"), need(z, "z");
    EACH("times", x, {
        multiply<scalar_t>(x.const_data_ptr<scalar_t>(), x.stride(0), x.size(0), x.size(1), panels.const_data_ptr<scalar_t>(),
                           z.size(1), bias ? bias->const_data_ptr<scalar_t>() : nullptr, add,
                           z.mutable_data_ptr<scalar_t>(), z.stride(0));
    });
    return z;
}

// With an observed gradient U V of rank one: found (n, 7) is (d.U)(a.V), |a|^2 |d|^2, d.(bias), |d|^2, |a|^2, d.U, a.V
Tensor rank_products(const Tensor& a, const Tensor& d, const Tensor& U, const Tensor& W, const Maybe& bias, const Tensor& found) {
    need(a, "a"), need(d, "d");
    EACH("rank_products", a, {
        using X = V<scalar_t>;
        for (int64_t i = 0; i < a.size(0); i++) {
            const scalar_t *x = at_row<scalar_t>(a, i), *y = at_row<scalar_t>(d, i), *u = at_row<scalar_t>(U, i),
                           *w = at_row<scalar_t>(W, i), *b = at_row<scalar_t>(bias, i);
            X aa{}, av{}, dd{}, du{}, db{};
            along<scalar_t>(a.size(1), [&](int64_t k, int n) {
                const X one = load_up_to<scalar_t>(x + k, n);
                aa += one * one, av += one * load_up_to<scalar_t>(w + k, n);
            });
            along<scalar_t>(d.size(1), [&](int64_t k, int n) {
                const X one = load_up_to<scalar_t>(y + k, n);
                dd += one * one, du += one * load_up_to<scalar_t>(u + k, n);
                if (b) db += one * load_up_to<scalar_t>(b + k, n);
            });
            scalar_t* out = to_row<scalar_t>(found, i);
            out[2] = sum<scalar_t>(db), out[3] = sum<scalar_t>(dd), out[4] = sum<scalar_t>(aa);
            out[5] = sum<scalar_t>(du), out[6] = sum<scalar_t>(av);
            out[0] = out[5] * out[6], out[1] = out[4] * out[3];
        }
    });
    return found;
}

// z = v a + vb with v = cross U V + 2 squared d a^T; slopes (n, 4) are cross and squared of the weight and of the bias.
Tensor rank_tangent(const Tensor& found, const Tensor& slopes, const Tensor& d, const Tensor& U, const Maybe& bias, const Tensor& z) {
    EACH("rank_tangent", z, {
        for (int64_t i = 0; i < z.size(0); i++) {
            const scalar_t *f = at_row<scalar_t>(found, i), *s = at_row<scalar_t>(slopes, i), *y = at_row<scalar_t>(d, i),
                           *u = at_row<scalar_t>(U, i), *b = at_row<scalar_t>(bias, i);
            scalar_t* to = to_row<scalar_t>(z, i);
            const scalar_t own = 2 * s[1] * f[4] + (b ? 2 * s[3] : 0), seen = s[0] * f[6], vector = b ? s[2] : 0;
            along<scalar_t>(z.size(1), [&](int64_t k, int n) {
                auto value = own * load_up_to<scalar_t>(y + k, n) + seen * load_up_to<scalar_t>(u + k, n);
                if (b) value += vector * load_up_to<scalar_t>(b + k, n);
                store_up_to<scalar_t>(to + k, value, n);
            });
        }
    });
    return z;
}

// rows = v^T d
Tensor rank_returning(const Tensor& found, const Tensor& slopes, const Tensor& a, const Tensor& W, const Tensor& rows) {
    EACH("rank_returning", rows, {
        for (int64_t i = 0; i < rows.size(0); i++) {
            const scalar_t *f = at_row<scalar_t>(found, i), *s = at_row<scalar_t>(slopes, i), *x = at_row<scalar_t>(a, i),
                           *w = at_row<scalar_t>(W, i);
            scalar_t* to = to_row<scalar_t>(rows, i);
            const scalar_t own = 2 * s[1] * f[3], seen = s[0] * f[5];
            along<scalar_t>(rows.size(1), [&](int64_t k, int n) {
                store_up_to<scalar_t>(to + k, own * load_up_to<scalar_t>(x + k, n) + seen * load_up_to<scalar_t>(w + k, n), n);
            });
        }
    });
    return rows;
}

// constants (4, C): inverse, shift, weight, bias; normal = a inverse + shift, z = normal weight + bias
Tensor norm_forward(const Tensor& a, const Tensor& constants, const Tensor& normal, const Tensor& z) {
    need(a, "a");
    EACH("norm_forward", a, {
        const scalar_t *inverse = at_row<scalar_t>(constants, 0), *shift = at_row<scalar_t>(constants, 1),
                       *weight = at_row<scalar_t>(constants, 2), *bias = at_row<scalar_t>(constants, 3);
        for (int64_t i = 0; i < a.size(0); i++) {
            const scalar_t* x = at_row<scalar_t>(a, i);
            scalar_t *m = to_row<scalar_t>(normal, i), *to = to_row<scalar_t>(z, i);
            along<scalar_t>(a.size(1), [&](int64_t k, int n) {
                const auto value = load_up_to<scalar_t>(x + k, n) * load_up_to<scalar_t>(inverse + k, n) + load_up_to<scalar_t>(shift + k, n);
                store_up_to<scalar_t>(m + k, value, n);
                store_up_to<scalar_t>(to + k, value * load_up_to<scalar_t>(weight + k, n) + load_up_to<scalar_t>(bias + k, n), n);
            });
        }
    });
    return z;
}

// found (n, 4): cross and squared of the weight's gradient, back normal, and of the bias's, back; mine (V, 2, C)
Tensor norm_products(const Tensor& normal, const Tensor& back, const Tensor& mine, const Tensor& found) {
    need(back, "back");
    EACH("norm_products", back, {
        using X = V<scalar_t>;
        for (int64_t i = 0; i < back.size(0); i++) {
            const scalar_t *m = at_row<scalar_t>(normal, i), *y = at_row<scalar_t>(back, i), *seen = at_row<scalar_t>(mine, i);
            const int64_t C = back.size(1);
            X sums[4] = {};
            along<scalar_t>(C, [&](int64_t k, int n) {
                const X d = load_up_to<scalar_t>(y + k, n), g = d * load_up_to<scalar_t>(m + k, n);
                sums[0] += g * load_up_to<scalar_t>(seen + k, n), sums[1] += g * g;
                sums[2] += d * load_up_to<scalar_t>(seen + C + k, n), sums[3] += d * d;
            });
            for (int s = 0; s < 4; s++) to_row<scalar_t>(found, i)[s] = sum<scalar_t>(sums[s]);
        }
    });
    return found;
}

// z = normal v + vb + moved weight inverse; slopes (n, 4) as of a linear layer
Tensor norm_tangent(const Tensor& normal, const Tensor& back, const Tensor& mine, const Tensor& slopes, const Maybe& moved,
                    const Tensor& constants, const Tensor& z) {
    EACH("norm_tangent", z, {
        using X = V<scalar_t>;
        const scalar_t *inverse = at_row<scalar_t>(constants, 0), *weight = at_row<scalar_t>(constants, 2);
        const int64_t C = z.size(1);
        for (int64_t i = 0; i < z.size(0); i++) {
            const scalar_t *m = at_row<scalar_t>(normal, i), *y = at_row<scalar_t>(back, i), *seen = at_row<scalar_t>(mine, i),
                           *s = at_row<scalar_t>(slopes, i), *da = at_row<scalar_t>(moved, i);
            scalar_t* to = to_row<scalar_t>(z, i);
            along<scalar_t>(C, [&](int64_t k, int n) {
                const X d = load_up_to<scalar_t>(y + k, n), a = load_up_to<scalar_t>(m + k, n);
                X value = a * (s[0] * load_up_to<scalar_t>(seen + k, n) + 2 * s[1] * (d * a));
                value += s[2] * load_up_to<scalar_t>(seen + C + k, n) + 2 * s[3] * d;
                if (da)
                    value += load_up_to<scalar_t>(da + k, n) * load_up_to<scalar_t>(weight + k, n) * load_up_to<scalar_t>(inverse + k, n);
                store_up_to<scalar_t>(to + k, value, n);
            });
        }
    });
    return z;
}

// rows = (back v + returned weight) inverse
Tensor norm_returning(const Tensor& normal, const Tensor& back, const Tensor& mine, const Tensor& slopes, const Tensor& returned,
                      const Tensor& constants, const Tensor& rows) {
    need(returned, "returned");
    EACH("norm_returning", rows, {
        using X = V<scalar_t>;
        const scalar_t *inverse = at_row<scalar_t>(constants, 0), *weight = at_row<scalar_t>(constants, 2);
        for (int64_t i = 0; i < rows.size(0); i++) {
            const scalar_t *m = at_row<scalar_t>(normal, i), *y = at_row<scalar_t>(back, i), *seen = at_row<scalar_t>(mine, i),
                           *s = at_row<scalar_t>(slopes, i), *r = at_row<scalar_t>(returned, i);
            scalar_t* to = to_row<scalar_t>(rows, i);
            along<scalar_t>(rows.size(1), [&](int64_t k, int n) {
                const X d = load_up_to<scalar_t>(y + k, n);
                const X v = s[0] * load_up_to<scalar_t>(seen + k, n) + 2 * s[1] * (d * load_up_to<scalar_t>(m + k, n));
                const X value = d * v + load_up_to<scalar_t>(r + k, n) * load_up_to<scalar_t>(weight + k, n);
                store_up_to<scalar_t>(to + k, value * load_up_to<scalar_t>(inverse + k, n), n);
            });
        }
    });
    return rows;
}

}  // namespace
