// Sums over the rows of matrices, in one pass: what the gradients of biases, gains and offsets are made of.
//
//     product[i][j] = x[i][j] y[i][j]                                 written where product is not null; y null: all 1
//     sums[p][j] = sum of x[i][j] y[i][j], ROWS p <= i < ROWS (p + 1)
//     sums[p][n + j] = sum of x[i][j], over the same i                where `both`: rows of sums are then 2 n long
//
// for 0 <= i < m, 0 <= j < n; sums has at least one row. The same kernel adds up the sums, until one row is left: no element waits
// for more than ROWS others, and the order of addition is the same in every launch.
// Arrays without gaps, at any alignment; product may be x or y. Launch: blocks of 32 x at most 8 threads, any grid. No headers.

template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
    T of[N];

    __device__ void add(const Vector& more)
    {
#pragma unroll
        for (int j = 0; j < N; j++)
            of[j] += more.of[j];
    }
};

constexpr int WARP = 32, HIGH = 8, ROWS = 256;  // of a tile, which has WARP * N columns

// The first thread of a column of the block writes the sum of the column's threads.
template <class V>
__device__ void down(V sum, V* to, bool here)
{
    __shared__ V part[HIGH][WARP];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && here) {
        for (unsigned y = 1; y < blockDim.y; y++)
            sum.add(part[y][threadIdx.x]);
        *to = sum;
    }
    __syncthreads();
}

template <class T, int N>
__device__ void tiles(const T* x, const T* y, T* product, T* sums, bool both, long long m, long long n)
{
    typedef Vector<T, N> V;
    const long long across = (n + WARP * N - 1) / (WARP * N), parts = m > ROWS ? (m + ROWS - 1) / ROWS : 1;
    for (long long t = blockIdx.x; t < across * parts; t += gridDim.x) {
        const long long column = (t % across * WARP + threadIdx.x) * N, top = t / across * ROWS;
        const long long end = column < n ? (m < top + ROWS ? m : top + ROWS) * (n / N) : 0;
        V sum = {}, plain = {};
        for (long long i = ((top + threadIdx.y) * n + column) / N; i < end; i += blockDim.y * (n / N)) {
            V of = ((const V*)x)[i];
            if (both)
                plain.add(of);
            if (y) {
                const V by = ((const V*)y)[i];
#pragma unroll
                for (int j = 0; j < N; j++)
                    of.of[j] *= by.of[j];
            }
            if (product)
                ((V*)product)[i] = of;
            sum.add(of);
        }
        V* to = (V*)sums + (t / across * (both ? 2 * n : n) + column) / N;
        down(sum, to, column < n);
        if (both)
            down(plain, to + n / N, column < n);
    }
}

template <class T>
__device__ void columns(const T* x, const T* y, T* product, T* sums, bool both, long long m, long long n)
{
    const unsigned long long low = (unsigned long long)x | (unsigned long long)y | (unsigned long long)product
                                 | (unsigned long long)sums | (unsigned long long)n * sizeof(T);
    if (low % 16 == 0)
        tiles<T, 16 / sizeof(T)>(x, y, product, sums, both, m, n);
    else
        tiles<T, 1>(x, y, product, sums, both, m, n);
}

extern "C" __global__ void __launch_bounds__(256) columns_float32(const float* x, const float* y, float* product, float* sums,
                                                                  bool both, long long m, long long n)
{
    columns(x, y, product, sums, both, m, n);
}

extern "C" __global__ void __launch_bounds__(256) columns_float64(const double* x, const double* y, double* product, double* sums,
                                                                  bool both, long long m, long long n)
{
    columns(x, y, product, sums, both, m, n);
}
