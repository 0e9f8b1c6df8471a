// GeLU, x times the normal distribution's integral up to x, and its slope, in one pass over memory.
//
//     y[i] = z phi,  slope[i] = phi + z exp(-z^2 / 2) / sqrt(2 pi),  phi = (1 + erf(z / sqrt 2)) / 2,  z = x[i] + bias[i % n]
//
// for 0 <= i < size. Arrays without gaps, at any alignment; bias may be null: 0, and so may slope. Any launch of one dimension.

#include "floats.h"

__device__ float error_function(float x) { return erff(x); }
__device__ double error_function(double x) { return erf(x); }

// N elements at a time: `count` vectors of x, y and slope; `row` vectors of the bias, again for each row.
template <class S, int N>
__device__ void vectors(const S* __restrict__ x, const S* __restrict__ bias, S* __restrict__ y, S* __restrict__ slope,
                        long long count, long long row)
{
    typedef Vector<S, N> V;
    typedef Sum<S> T;
    const long long stride = (long long)gridDim.x * blockDim.x, step = stride % row;
    long long i = threadIdx.x + (long long)blockIdx.x * blockDim.x;
    for (long long j = i % row; i < count; i += stride) {
        const V from = ((const V*)x)[i];
        V more = {}, to, turned;
        if (bias) {
            more = ((const V*)bias)[j];
            j += step < row - j ? step : step - row;
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            const T z = from[k] + more[k], integral = T(0.5) + T(0.5) * error_function(z * T(0.70710678118654752440));
            turned.set(k, integral + z * exponential(z * z * T(-0.5)) * T(0.39894228040143267794));
            to.set(k, z * integral);
        }
        ((V*)y)[i] = to;
        if (slope)
            ((V*)slope)[i] = turned;
    }
}

template <class S>
__device__ void gelu(const S* x, const S* bias, S* y, S* slope, long long size, long long n)
{
    constexpr int N = WIDE<S>;
    const unsigned long long low = (unsigned long long)x | (unsigned long long)bias | (unsigned long long)y
                                 | (unsigned long long)slope | (bias ? (unsigned long long)n * sizeof(S) : 0);
    const long long whole = low % 16 == 0 ? size / N * N : 0;
    vectors<S, N>(x, bias, y, slope, whole / N, n < N ? 1 : n / N);
    vectors<S, 1>(x + whole, bias, y + whole, slope ? slope + whole : nullptr, size - whole, n);
}

#define GELU(name, S)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) name(const S* x, const S* bias, S* y, S* slope, long long size,         \
                                                           long long n)                                                       \
    {                                                                                                                         \
        gelu(x, bias, y, slope, size, n);                                                                                     \
    }

GELU(gelu_float16, float16)
GELU(gelu_bfloat16, bfloat16)
GELU(gelu_float32, float)
GELU(gelu_float64, double)
