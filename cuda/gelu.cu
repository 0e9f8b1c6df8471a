// GeLU, x times the normal distribution's integral up to x, and its slope, in one pass over memory.
//
//     y[i] = x[i] phi,  slope[i] = phi + x[i] exp(-x[i]^2 / 2) / sqrt(2 pi),  phi = (1 + erf(x[i] / sqrt 2)) / 2,  0 <= i < n
//
// Arrays without gaps, at any alignment; slope may be null. Any launch of one dimension. No headers.

__device__ float error_function(float x) { return erff(x); }
__device__ double error_function(double x) { return erf(x); }
__device__ float exponential(float x) { return expf(x); }
__device__ double exponential(double x) { return exp(x); }

template <class T>
struct alignas(16) Vector {
    static constexpr int N = 16 / sizeof(T);
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
    typedef Vector<T> V;
    const long long at = threadIdx.x + (long long)blockIdx.x * blockDim.x, stride = (long long)gridDim.x * blockDim.x;
    const bool aligned = ((unsigned long long)x | (unsigned long long)y | (unsigned long long)slope) % 16 == 0;
    const long long whole = aligned ? n / V::N : 0;
    for (long long i = at; i < whole; i += stride) {
        const V from = ((const V*)x)[i];
        V to, turned;
#pragma unroll
        for (int j = 0; j < V::N; j++)
            one(from.of[j], &to.of[j], &turned.of[j]);
        ((V*)y)[i] = to;
        if (slope)
            ((V*)slope)[i] = turned;
    }
    for (long long i = whole * V::N + at; i < n; i += stride) {
        T turned;
        one(x[i], y + i, &turned);
        if (slope)
            slope[i] = turned;
    }
}

extern "C" __global__ void __launch_bounds__(256) gelu_float32(const float* x, float* y, float* slope, long long n)
{
    gelu(x, y, slope, n);
}

extern "C" __global__ void __launch_bounds__(256) gelu_float64(const double* x, double* y, double* slope, long long n)
{
    gelu(x, y, slope, n);
}
