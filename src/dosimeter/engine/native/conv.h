// Convolutions of few channels, one image after another, so that its windows are read where they are.
//
// An image is (high, wide, C) with its border, and `run` = kernel * C numbers of a window's row lie side by side. Weights
// come in two orders: `across` (kernel, run, outputs padded to vectors) and `along` (O, kernel, run padded to vectors).
#pragma once
#include "vectors.h"

struct Shape {
    int height, width, channels, kernel, stride, padding, outputs;
    int high() const { return height + 2 * padding; }
    int line() const { return (width + 2 * padding) * channels; }
    int size() const { return high() * line(); }
    int run() const { return kernel * channels; }
    int down() const { return (high() - kernel) / stride + 1; }
    int right() const { return (width + 2 * padding - kernel) / stride + 1; }
    int positions() const { return down() * right(); }
    int step() const { return stride * channels; }
};

// sums[p][v] += window p times weights, over all of a window.
template <class T, int P, int N>
inline void dot(V<T> (&sums)[P][N], const T* image, int step, const Shape& s, const T* across, int wide) {
    const int run = s.run(), line = s.line();
    for (int y = 0; y < s.kernel; y++) {
        const T* from = image + y * line;
        const T* weight = across + size_t(y) * run * wide;
        for (int j = 0; j < run; j++, weight += wide) {
            V<T> w[N];
            for (int v = 0; v < N; v++) w[v] = load<T>(weight + v * Vec<T>::lanes);
            const T* at = from + j;
#pragma GCC unroll 16
            for (int p = 0; p < P; p++, at += step)
                for (int v = 0; v < N; v++) sums[p][v] += w[v] * all<T>(*at);
        }
    }
}

template <class T> struct Source {
    const T* image;   // with border
    const T* across;  // weights
};

// z (positions, O) = bias + the windows of one or two sources times their weights.
template <class T, int N>
inline void correlate_columns(const Shape& s, Source<T> one, Source<T> two, const T* bias, int wide, int at, T* z) {
    constexpr int MOST = N == 1 ? 16 : ROWS, L = Vec<T>::lanes;
    const int step = s.step(), count = s.outputs - at;
    const int parts = (s.right() + MOST - 1) / MOST;
    for (int y = 0; y < s.down(); y++)
        for (int part = 0, x = 0; part < parts; part++) {
            const int end = s.right() * (part + 1) / parts, begin = x;
            const size_t place = size_t(y) * s.stride * s.line() + size_t(begin) * step;
            pick<MOST>(end - begin, [&](auto size) {
                constexpr int P = decltype(size)::value;
                V<T> sums[P][N];
                for (int v = 0; v < N; v++) {
                    V<T> first = bias ? load_up_to<T>(bias + at + v * L, count - v * L) : V<T>{};
                    for (int p = 0; p < P; p++) sums[p][v] = first;
                }
                dot<T, P, N>(sums, one.image + place, step, s, one.across + at, wide);
                if (two.image) dot<T, P, N>(sums, two.image + place, step, s, two.across + at, wide);
                T* to = z + (size_t(y) * s.right() + begin) * s.outputs + at;
                for (int p = 0; p < P; p++)
                    for (int v = 0; v < N; v++) store_up_to<T>(to + p * s.outputs + v * L, sums[p][v], count - v * L);
            });
            x = end;
        }
}

template <class T> inline void correlate(const Shape& s, Source<T> one, Source<T> two, const T* bias, T* z) {
    constexpr int L = Vec<T>::lanes;
    const int wide = rounded(s.outputs, L);
    int at = 0;
    for (; wide - at >= 2 * L; at += 2 * L) correlate_columns<T, 2>(s, one, two, bias, wide, at, z);
    if (at < wide) correlate_columns<T, 1>(s, one, two, bias, wide, at, z);
}

// Where vector v of a window, padded runs one after another, lies in an image, seen from the window's first pixel.
inline void places(const Shape& s, int lanes, std::vector<int>& found) {
    const int across = rounded(s.run(), lanes) / lanes;
    for (int v = 0; v < s.kernel * across; v++) found.push_back(v / across * s.line() + v % across * lanes);
}

// G (O, kernel, run padded) = what came back (positions, O) times windows.
template <class T> inline void gradient(const Shape& s, const T* image, const T* back, T* G) {
    constexpr int L = Vec<T>::lanes, MOST = BYTES == 32 ? 5 : 12;
    const int run = s.run(), across = rounded(run, L) / L, vectors = s.kernel * across, outputs = s.outputs;
    const int parts = (outputs + MOST - 1) / MOST;
    static thread_local std::vector<int> lies, windows;
    lies.clear(), windows.clear();
    places(s, L, lies);
    for (int p = 0; p < s.positions(); p++)
        windows.push_back(p / s.right() * s.stride * s.line() + p % s.right() * s.step());
    auto block = [&](auto rows, auto columns, int o, int first) {
        constexpr int O = decltype(rows)::value, N = decltype(columns)::value;
        V<T> sums[O][N] = {};
        int lie[N];
        for (int v = 0; v < N; v++) lie[v] = lies[first + v];
        const T* d = back + o;
        for (size_t p = 0; p < windows.size(); p++, d += outputs) {
            const T* from = image + windows[p];
            V<T> a[N];
            for (int v = 0; v < N; v++) a[v] = load<T>(from + lie[v]);
#pragma GCC unroll 16
            for (int i = 0; i < O; i++)
                for (int v = 0; v < N; v++) sums[i][v] += a[v] * all<T>(d[i]);
        }
        for (int v = 0; v < N; v++) {
            const int left = run - (first + v) % across * L;  // beyond the run are the pixels of another window
            for (int i = 0; i < O; i++) {
                T* to = G + (size_t(o + i) * vectors + first + v) * L;
                if (left < L) store<T>(to, V<T>{});
                store_up_to<T>(to, sums[i][v], left);
            }
        }
    };
    for (int part = 0, o = 0; part < parts; part++) {
        const int end = outputs * (part + 1) / parts;
        pick<MOST>(end - o, [&](auto rows) {
            int first = 0;
            for (; vectors - first >= 2; first += 2) block(rows, std::integral_constant<int, 2>{}, o, first);
            if (first < vectors) block(rows, std::integral_constant<int, 1>{}, o, first);
        });
        o = end;
    }
}

template <class T> struct Returned {
    const T* back;   // (positions, O)
    const T* along;  // weights
};

// Adds what comes back by one or two weights to the windows of an image with border.
template <class T> inline void scatter(const Shape& s, Returned<T> one, Returned<T> two, T* image) {
    constexpr int L = Vec<T>::lanes, MOST = BYTES == 32 ? 3 : 5;
    const int vectors = s.kernel * rounded(s.run(), L) / L, outputs = s.outputs, right = s.right();
    const int apart = (s.kernel + s.stride - 1) / s.stride;  // windows that share no pixel: no sum waits for another
    static thread_local std::vector<int> lies;
    lies.clear();
    places(s, L, lies);
    auto block = [&](auto many, auto columns, int y, int x, int first) {
        constexpr int P = decltype(many)::value, N = decltype(columns)::value;
        V<T> sums[P][N] = {};
        auto add = [&](Returned<T> r) {
            const T* d = r.back + (size_t(y) * right + x) * outputs;
            const T* w = r.along + size_t(first) * L;
            for (int o = 0; o < outputs; o++, w += vectors * L) {
                V<T> a[N];
                for (int v = 0; v < N; v++) a[v] = load<T>(w + v * L);
#pragma GCC unroll 8
                for (int p = 0; p < P; p++)
                    for (int v = 0; v < N; v++) sums[p][v] += a[v] * all<T>(d[p * apart * outputs + o]);
            }
        };
        add(one);
        if (two.back) add(two);
        T* to = image + size_t(y) * s.stride * s.line() + size_t(x) * s.step();
        for (int v = 0; v < N; v++)
            for (int p = 0; p < P; p++) {
                T* at = to + lies[first + v] + size_t(p) * apart * s.step();
                store<T>(at, load<T>(at) + sums[p][v]);
            }
    };
    for (int y = 0; y < s.down(); y++)
        for (int start = 0; start < apart && start < right; start++) {
            const int count = (right - start + apart - 1) / apart, parts = (count + MOST - 1) / MOST;
            for (int part = 0, p = 0; part < parts; part++) {
                const int end = count * (part + 1) / parts;
                pick<MOST>(end - p, [&](auto many) {
                    const int x = start + p * apart;
                    int first = 0;
                    for (; vectors - first >= MOST; first += MOST)
                        block(many, std::integral_constant<int, MOST>{}, y, x, first);
                    pick<MOST - 1>(vectors - first, [&](auto columns) { block(many, columns, y, x, first); });
                });
                p = end;
            }
        }
}

// across (kernel * run, outputs padded) from along (O, kernel, run padded).
template <class T> inline void turn(const Shape& s, const T* along, T* across) {
    constexpr int L = Vec<T>::lanes;
    const int run = s.run(), wide = rounded(run, L), outputs = rounded(s.outputs, L);
    for (int y = 0; y < s.kernel; y++)
        for (int j = 0; j < run; j += L)
            for (int o = 0; o < outputs; o += L) {
                V<T> block[L];
                for (int i = 0; i < L; i++)
                    block[i] = o + i < s.outputs ? load<T>(along + (size_t(o + i) * s.kernel + y) * wide + j) : V<T>{};
                transpose<T>(block);
                for (int i = 0; i < L && j + i < run; i++) store<T>(across + size_t(y * run + j + i) * outputs + o, block[i]);
            }
}
