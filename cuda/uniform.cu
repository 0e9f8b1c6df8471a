// A number from [0, 1) for each row and column, a function of both and the key alone: splitmix64's mixing of counters, bit by bit
// the result of `uniform` of pdla/array/numpy.py.
//
//     out[i][j] = mixed(mixed(rows[i] + key) + cols[j] * GOLDEN) / 2^64, cut to 53 bits,  0 <= i < m, 0 <= j < n
//
// out is m x n without gaps, at a multiple of 16 bytes; key has been mixed. Any launch of one dimension. No headers.

typedef unsigned long long Word;

constexpr Word GOLDEN = 0x9E3779B97F4A7C15;

__device__ Word mixed(Word x)
{
    x *= GOLDEN;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

struct alignas(16) Pair {
    double of[2];
};

extern "C" __global__ void __launch_bounds__(256) uniform(const Word* __restrict__ rows, const Word* __restrict__ cols, Word key,
                                                          double* __restrict__ out, long long m, long long n)
{
    const long long size = m * n, stride = 2LL * gridDim.x * blockDim.x;
    for (long long first = 2 * (threadIdx.x + (long long)blockIdx.x * blockDim.x); first < size; first += stride) {
        Pair drawn;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const long long at = first + half < size ? first + half : first;
            const Word bits = mixed(mixed(rows[at / n] + key) + cols[at % n] * GOLDEN) >> 11;
            drawn.of[half] = (double)bits * (1.0 / 9007199254740992.0);
        }
        if (first + 1 < size)
            *(Pair*)(out + first) = drawn;
        else
            out[first] = drawn.of[0];
    }
}
