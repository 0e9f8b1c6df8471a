// GeLU, x times the normal distribution's integral up to x, and its slope, in one pass over memory.
//
//     y[i] = z phi,  slope[i] = phi + z exp(-z^2 / 2) / sqrt(2 pi),  phi = (1 + erf(z / sqrt 2)) / 2,  z = x[i] + bias[i % n]
//
// for 0 <= i < size. Arrays without gaps, at any alignment; bias may be null: 0, and so may slope. Any launch of one dimension.
// No headers.

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

// N elements at a time: `count` vectors of x, y and slope; `row` vectors of the bias, again for each row.
template <class T, int N>
__device__ void vectors(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, T* __restrict__ slope,
                        long long count, long long row)
{
    typedef Vector<T, N> V;
    const long long stride = (long long)gridDim.x * blockDim.x, step = stride % row;
    long long i = threadIdx.x + (long long)blockIdx.x * blockDim.x;
    for (long long j = i % row; i < count; i += stride) {
        V from = ((const V*)x)[i], to, turned;
        if (bias) {
            const V more = ((const V*)bias)[j];
#pragma unroll
            for (int k = 0; k < N; k++)
                from.of[k] += more.of[k];
            j += step < row - j ? step : step - row;
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            one(from.of[k], &to.of[k], &turned.of[k]);
        ((V*)y)[i] = to;
        if (slope)
            ((V*)slope)[i] = turned;
    }
}

template <class T>
__device__ void gelu(const T* x, const T* bias, T* y, T* slope, long long size, long long n)
{
    constexpr int N = 16 / sizeof(T);
    const unsigned long long low = (unsigned long long)x | (unsigned long long)bias | (unsigned long long)y
                                 | (unsigned long long)slope | (bias ? (unsigned long long)n * sizeof(T) : 0);
    const long long whole = low % 16 == 0 ? size / N * N : 0;
    vectors<T, N>(x, bias, y, slope, whole / N, n < N ? 1 : n / N);
    vectors<T, 1>(x + whole, bias, y + whole, slope ? slope + whole : nullptr, size - whole, n);
}

extern "C" __global__ void __launch_bounds__(256) gelu_float32(const float* x, const float* bias, float* y, float* slope,
                                                               long long size, long long n)
{
    gelu(x, bias, y, slope, size, n);
}

extern "C" __global__ void __launch_bounds__(256) gelu_float64(const double* x, const double* bias, double* y, double* slope,
                                                               long long size, long long n)
{
    gelu(x, bias, y, slope, size, n);
}
