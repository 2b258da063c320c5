// Products of rows with a large weight, and what layers on rows do between them, each in one pass over memory.
#pragma once
#include "vectors.h"

constexpr int WIDE = 2 * BYTES;  // bytes of a panel's row

// A weight (K, N) as panels (ceil(N / columns), K, columns), zero beyond N.
template <class T> inline void pack(const T* weight, int64_t down, int64_t right, int64_t K, int64_t N, T* panels) {
    constexpr int columns = WIDE / sizeof(T);
    for (int64_t first = 0; first < N; first += columns)
        for (int64_t k = 0; k < K; k++, panels += columns)
            for (int c = 0; c < columns; c++) panels[c] = first + c < N ? weight[k * down + (first + c) * right] : T(0);
}

// z (M, N) = [z +] x (M, K) times a packed weight [+ bias].
template <class T>
inline void multiply(const T* x, int64_t row, int64_t M, int64_t K, const T* panels, int64_t N, const T* bias, bool add,
                     T* z, int64_t out) {
    constexpr int L = Vec<T>::lanes, columns = 2 * L;
    const int64_t blocks = (M + ROWS - 1) / ROWS;
    T* packed = scratch<T, 2>(M * K);  // rows of a block side by side
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t begin = M * b / blocks, rows = M * (b + 1) / blocks - begin;
        T* to = packed + begin * K;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < K; k++) to[k * rows + r] = x[(begin + r) * row + k];
    }
    for (int64_t first = 0; first < N; first += columns, panels += K * columns)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t begin = M * b / blocks;
            const int count = int(N - first);
            pick<ROWS>(int(M * (b + 1) / blocks - begin), [&](auto rows) {
                constexpr int R = decltype(rows)::value;
                V<T> sums[R][2];
                T* to = z + begin * out + first;
                for (int r = 0; r < R; r++)
                    for (int v = 0; v < 2; v++) {
                        sums[r][v] = add ? load_up_to<T>(to + r * out + v * L, std::max(0, count - v * L)) : V<T>{};
                        if (bias) sums[r][v] += load_up_to<T>(bias + first + v * L, std::max(0, count - v * L));
                    }
                const T *a = packed + begin * K, *w = panels;
                const T* next = panels + K * columns + b * K * columns / blocks;  // what the next panel reads
                for (int64_t k = 0; k < K; k++, a += R, w += columns) {
                    const V<T> one = load<T>(w), other = load<T>(w + L);
#pragma GCC unroll 16
                    for (int r = 0; r < R; r++) {
                        const V<T> value = all<T>(a[r]);
                        sums[r][0] += one * value;
                        sums[r][1] += other * value;
                    }
                    if (k * blocks < K) {
                        __builtin_prefetch(next + k * columns, 0, 2);
                        __builtin_prefetch(next + k * columns + L, 0, 2);
                    }
                }
                for (int r = 0; r < R; r++)
                    for (int v = 0; v < 2; v++)
                        if (count > v * L) store_up_to<T>(to + r * out + v * L, sums[r][v], count - v * L);
            });
        }
}

// f(place, count) over a row in whole vectors and a rest.
template <class T, class F> inline void along(int64_t size, F f) {
    constexpr int L = Vec<T>::lanes;
    int64_t k = 0;
    for (; k + L <= size; k += L) f(k, L);
    if (k < size) f(k, int(size - k));
}
