// GeLU, x times the normal distribution's integral up to x, and its slope, in one pass over memory.
//
//     y[i] = x[i] phi,  slope[i] = phi + x[i] exp(-x[i]^2 / 2) / sqrt(2 pi),  phi = (1 + erf(x[i] / sqrt 2)) / 2,  0 <= i < n
//
// or, with a bias, of x[i][j] + bias[j], 0 <= i < m, 0 <= j < n. Arrays without gaps, at any alignment; slope may be null.
// Launch: gelu_ any of one dimension, biased_ blocks of 32 x any threads, any grid. No headers.

__device__ float error_function(float x) { return erff(x); }
__device__ double error_function(double x) { return erf(x); }
__device__ float exponential(float x) { return expf(x); }
__device__ double exponential(double x) { return exp(x); }

template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
    T of[N];
};

template <class T>
__device__ void one(T x, T* y, T* slope)
{
    const T integral = T(0.5) + T(0.5) * error_function(x * T(0.70710678118654752440));
    *slope = integral + x * exponential(x * x * T(-0.5)) * T(0.39894228040143267794);
    *y = x * integral;
}

template <class T>
__device__ void gelu(const T* __restrict__ x, T* __restrict__ y, T* __restrict__ slope, long long n)
{
    constexpr int N = 16 / sizeof(T);
    typedef Vector<T, N> V;
    const long long at = threadIdx.x + (long long)blockIdx.x * blockDim.x, stride = (long long)gridDim.x * blockDim.x;
    const bool aligned = ((unsigned long long)x | (unsigned long long)y | (unsigned long long)slope) % 16 == 0;
    const long long whole = aligned ? n / N : 0;
    for (long long i = at; i < whole; i += stride) {
        const V from = ((const V*)x)[i];
        V to, turned;
#pragma unroll
        for (int j = 0; j < N; j++)
            one(from.of[j], &to.of[j], &turned.of[j]);
        ((V*)y)[i] = to;
        if (slope)
            ((V*)slope)[i] = turned;
    }
    for (long long i = whole * N + at; i < n; i += stride) {
        T turned;
        one(x[i], y + i, &turned);
        if (slope)
            slope[i] = turned;
    }
}

constexpr int WARP = 32, ROWS = 64;  // of a tile, which has WARP * N columns: a thread keeps its columns' bias

template <class T, int N>
__device__ void tiles(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, T* __restrict__ slope, long long m,
                      long long n)
{
    typedef Vector<T, N> V;
    const long long across = (n + WARP * N - 1) / (WARP * N), count = across * ((m + ROWS - 1) / ROWS);
    for (long long t = blockIdx.x; t < count; t += gridDim.x) {
        const long long column = (t % across * WARP + threadIdx.x) * N, top = t / across * ROWS;
        if (column >= n)
            continue;
        const V more = *(const V*)(bias + column);
        for (long long i = top + threadIdx.y; i < m && i < top + ROWS; i += blockDim.y) {
            const V from = *(const V*)(x + i * n + column);
            V to, turned;
#pragma unroll
            for (int j = 0; j < N; j++)
                one(from.of[j] + more.of[j], &to.of[j], &turned.of[j]);
            *(V*)(y + i * n + column) = to;
            if (slope)
                *(V*)(slope + i * n + column) = turned;
        }
    }
}

template <class T>
__device__ void biased(const T* x, const T* bias, T* y, T* slope, long long m, long long n)
{
    const unsigned long long low = (unsigned long long)x | (unsigned long long)bias | (unsigned long long)y
                                 | (unsigned long long)slope | (unsigned long long)n * sizeof(T);
    if (low % 16 == 0)
        tiles<T, 16 / sizeof(T)>(x, bias, y, slope, m, n);
    else
        tiles<T, 1>(x, bias, y, slope, m, n);
}

extern "C" __global__ void __launch_bounds__(256) gelu_float32(const float* x, float* y, float* slope, long long n)
{
    gelu(x, y, slope, n);
}

extern "C" __global__ void __launch_bounds__(256) gelu_float64(const double* x, double* y, double* slope, long long n)
{
    gelu(x, y, slope, n);
}

extern "C" __global__ void __launch_bounds__(256) biased_float32(const float* x, const float* bias, float* y, float* slope,
                                                                 long long m, long long n)
{
    biased(x, bias, y, slope, m, n);
}

extern "C" __global__ void __launch_bounds__(256) biased_float64(const double* x, const double* bias, double* y, double* slope,
                                                                 long long m, long long n)
{
    biased(x, bias, y, slope, m, n);
}
