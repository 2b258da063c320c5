// Vectors of the widest kind that the processor has, by the compiler's own extension.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int BYTES = 64;
constexpr int ROWS = 14;  // of a block of two vectors a row: 28 sums of 32 registers
#elif defined(__AVX2__)
constexpr int BYTES = 32;
constexpr int ROWS = 6;
#else
constexpr int BYTES = 16;
constexpr int ROWS = 8;
#endif

template <class T> struct Vec {
    typedef T type __attribute__((vector_size(BYTES)));
    static constexpr int lanes = BYTES / sizeof(T);
};
template <class T> using V = typename Vec<T>::type;

template <class T> inline V<T> load(const T* from) {
    V<T> v;
    std::memcpy(&v, from, BYTES);
    return v;
}
template <class T> inline void store(T* to, V<T> v) { std::memcpy(to, &v, BYTES); }
template <class T> inline V<T> all(T x) { return x - V<T>{}; }
template <class T> inline T sum(V<T> v) {
    T s = 0;
    for (int i = 0; i < Vec<T>::lanes; i++) s += v[i];
    return s;
}

// The first `count` lanes alone.
template <class T> inline void store_part(T* to, V<T> v, int count) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) { _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), (__m512)v); return; }
    if constexpr (sizeof(T) == 8) { _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), (__m512d)v); return; }
#endif
    for (int i = 0; i < count; i++) to[i] = v[i];
}
template <class T> inline void store_up_to(T* to, V<T> v, int count) {
    if (count >= Vec<T>::lanes) store<T>(to, v);
    else store_part<T>(to, v, count);
}
template <class T> inline V<T> load_up_to(const T* from, int count) {
    if (count >= Vec<T>::lanes) return load<T>(from);
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (V<T>)_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), from);
    if constexpr (sizeof(T) == 8) return (V<T>)_mm512_maskz_loadu_pd(__mmask8((1u << count) - 1), from);
#endif
    V<T> v{};
    for (int i = 0; i < count; i++) v[i] = from[i];
    return v;
}

// A block of as many vectors as one has lanes, rows and columns exchanged.
template <class T> inline void transpose(V<T> (&block)[Vec<T>::lanes]) {
    constexpr int L = Vec<T>::lanes;
    V<T> other[L];
#if defined(__clang__)
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++) other[i][j] = block[j][i];
    for (int i = 0; i < L; i++) block[i] = other[i];
#else
    typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> Index __attribute__((vector_size(BYTES)));
    Index low, high;
    for (int i = 0; i < L; i++) {
        low[i] = i / 2 + i % 2 * L;
        high[i] = low[i] + L / 2;
    }
    for (int stage = 1; stage < L; stage *= 2) {
        for (int i = 0; i < L / 2; i++) {
            other[2 * i] = __builtin_shuffle(block[i], block[i + L / 2], low);
            other[2 * i + 1] = __builtin_shuffle(block[i], block[i + L / 2], high);
        }
        for (int i = 0; i < L; i++) block[i] = other[i];
    }
#endif
}

// Memory of this thread that is kept between calls.
template <class T, int KEY> inline T* scratch(size_t size) {
    static thread_local std::vector<T> kept;
    if (kept.size() < size + 64) kept.resize(size + 64);
    auto at = reinterpret_cast<uintptr_t>(kept.data());
    return reinterpret_cast<T*>((at + 63) & ~uintptr_t(63));
}
inline int rounded(int size, int by) { return (size + by - 1) / by * by; }

// f(constant) for one of 1..MOST.
template <int MOST, class F> inline void pick(int n, F f) {
    if constexpr (MOST > 0) {
        if (n == MOST) f(std::integral_constant<int, MOST>{});
        else pick<MOST - 1>(n, f);
    }
}
