// Sums over the rows of matrices, in one pass: what the gradients of biases, gains and offsets are made of.
//
//     product[i][j] = x[i][j] y[i][j]                                 written where product is not null; y null: all 1
//     sums[p][j] = sum of x[i][j] y[i][j], ROWS p <= i < ROWS (p + 1)
//     sums[p][n + j] = sum of x[i][j], over the same i                where `both`: rows of sums are then 2 n long
//
// for 0 <= i < m, 0 <= j < n; sums has at least one row, and is float32 for 16-bit floats. The same kernel adds up the sums, until
// one row is left: no element waits for more than ROWS others, and the order of addition is the same in every launch.
// Arrays without gaps, at any alignment; product may be x or y. Launch: blocks of 32 x at most 8 threads, any grid.

#include "floats.h"

constexpr int WARP = 32, HIGH = 8, ROWS = 256;  // of a tile, which has WARP * N columns

template <class T, int N>
__device__ void add(Vector<T, N>& sum, const Vector<T, N>& more)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        sum.of[j] += more.of[j];
}

// The first thread of a column of the block writes the sum of the column's threads.
template <class V>
__device__ void down(V& sum, V* to, bool here)
{
    __shared__ V part[HIGH][WARP];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && here) {
        for (unsigned y = 1; y < blockDim.y; y++)
            add(sum, part[y][threadIdx.x]);
        *to = sum;
    }
    __syncthreads();
}

template <class S, int N>
__device__ void tiles(const S* x, const S* y, S* product, Sum<S>* sums, bool both, long long m, long long n)
{
    typedef Vector<S, N> V;
    typedef Vector<Sum<S>, N> W;
    const long long across = (n + WARP * N - 1) / (WARP * N), parts = m > ROWS ? (m + ROWS - 1) / ROWS : 1;
    for (long long t = blockIdx.x; t < across * parts; t += gridDim.x) {
        const long long column = (t % across * WARP + threadIdx.x) * N, top = t / across * ROWS;
        const long long end = column < n ? (m < top + ROWS ? m : top + ROWS) * (n / N) : 0;
        W sum = {}, plain = {};
        for (long long i = ((top + threadIdx.y) * n + column) / N; i < end; i += blockDim.y * (n / N)) {
            const V from = ((const V*)x)[i];
            W of;
#pragma unroll
            for (int j = 0; j < N; j++)
                of.of[j] = from[j];
            if (both)
                add(plain, of);
            if (y) {
                const V by = ((const V*)y)[i];
#pragma unroll
                for (int j = 0; j < N; j++)
                    of.of[j] *= by[j];
            }
            if (product) {
                V to;
#pragma unroll
                for (int j = 0; j < N; j++)
                    to.set(j, of.of[j]);
                ((V*)product)[i] = to;
            }
            add(sum, of);
        }
        W* to = (W*)sums + (t / across * (both ? 2 * n : n) + column) / N;
        down(sum, to, column < n);
        if (both)
            down(plain, to + n / N, column < n);
    }
}

template <class S>
__device__ void columns(const S* x, const S* y, S* product, Sum<S>* sums, bool both, long long m, long long n)
{
    constexpr int N = WIDE<S>;
    const unsigned long long low = (unsigned long long)x | (unsigned long long)y | (unsigned long long)product
                                 | (unsigned long long)n * sizeof(S);
    if (low % 16 == 0 && (unsigned long long)sums % (N * sizeof(Sum<S>)) == 0)
        tiles<S, N>(x, y, product, sums, both, m, n);
    else
        tiles<S, 1>(x, y, product, sums, both, m, n);
}

#define COLUMNS(name, S)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) name(const S* x, const S* y, S* product, Sum<S>* sums, bool both,       \
                                                           long long m, long long n)                                          \
    {                                                                                                                         \
        columns(x, y, product, sums, both, m, n);                                                                             \
    }

COLUMNS(columns_float16, float16)
COLUMNS(columns_bfloat16, bfloat16)
COLUMNS(columns_float32, float)
COLUMNS(columns_float64, double)
