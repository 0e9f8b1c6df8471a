// What the kernels of layers share: 16-bit floats, which are stored but never computed with, and vectors of floats.
// No headers: launch.py puts this text where a source includes it.

struct float16 {
    unsigned short bits;
};
struct bfloat16 {
    unsigned short bits;
};

#ifdef __CUDACC__  // else those of tests/helpers/cuda_host.h
__device__ inline float half_to_float(unsigned short bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ inline unsigned short float_to_half(float x)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

// To the nearest bfloat16, and to the even one of two; a NaN stays one.
__device__ inline unsigned short float_to_bfloat(float x)
{
    unsigned short bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    const unsigned all = __float_as_uint(x);
    bits = (x != x ? all | 0x400000 : all + 0x7fff + (all >> 16 & 1)) >> 16;
#endif
    return bits;
}

__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(float16 x) { return half_to_float(x.bits); }
__device__ inline float widen(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline void narrow(float x, float& to) { to = x; }
__device__ inline void narrow(double x, double& to) { to = x; }
__device__ inline void narrow(float x, float16& to) { to.bits = float_to_half(x); }
__device__ inline void narrow(float x, bfloat16& to) { to.bits = float_to_bfloat(x); }

template <class S>
using Sum = decltype(widen(S()));  // the type in which numbers stored as S are computed and summed

// N numbers that are loaded and stored at once; v[i] and set(i, x) are in the type of sums.
template <class S, int N>
struct alignas(N * sizeof(S)) Vector {
    S of[N];

    __device__ Sum<S> operator[](int i) const { return widen(of[i]); }
    __device__ void set(int i, Sum<S> x) { narrow(x, of[i]); }
};

template <class S>
constexpr int WIDE = 16 / sizeof(S);  // numbers in 16 bytes

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
