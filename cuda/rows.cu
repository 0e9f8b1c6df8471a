// Operations on a matrix's rows, each kernel in one pass over memory: the parts of LayerNorm, RMSNorm and cross-entropy between
// which ranks that share a row add up their sums, and attention's softmax. The formulas, and the names, are those of
// pdla/array/composed.py.
//
// S is the type of numbers that are stored, T = Sum<S> that of sums: float32 for 16-bit floats. A row belongs to a warp or a block;
// the order in which its threads' values are summed is the same in every launch.
// Matrices m x n without gaps, at any alignment; vectors of m, or n, elements. Launch: blocks of W x H threads, where W is a warp
// and H any, or W is a number of warps and H is 1; at most 256 threads; any grid of one dimension.

#include "floats.h"

typedef long long Long;

__device__ float root(float x) { return sqrtf(x); }
__device__ double root(double x) { return sqrt(x); }

constexpr int WARP = 32, WARPS = 8;

struct Add {
    template <class T>
    __device__ static T of(T x, T y) { return x + y; }
};
struct Larger {
    template <class T>
    __device__ static T of(T x, T y) { return x < y ? y : x; }
};

// The sum over a row's threads, or what else `Op` makes of two, for each of them; all threads of the block call it.
template <class Op = Add, class T>
__device__ T over_row(T x)
{
    __shared__ T part[WARPS];
    for (int apart = WARP / 2; apart; apart /= 2)
        x = Op::of(x, __shfl_xor_sync(0xffffffff, x, apart));
    if (blockDim.x > WARP) {
        if (threadIdx.x % WARP == 0)
            part[threadIdx.x / WARP] = x;
        __syncthreads();
        x = part[0];
        for (unsigned warp = 1; warp < blockDim.x / WARP; warp++)
            x = Op::of(x, part[warp]);
        __syncthreads();
    }
    return x;
}

// A matrix, N elements at a time. All threads take the same steps through rows and columns, so that all come to over_row: a row
// beyond the last has no columns.
template <class S, int N>
struct Rows {
    typedef Vector<S, N> V;
    typedef Sum<S> T;
    typedef Vector<T, N> W;
    Long m, n;

    __device__ Long top() const { return (Long)blockIdx.x * blockDim.y; }
    __device__ Long down() const { return (Long)gridDim.x * blockDim.y; }
    __device__ Long left() const { return (Long)threadIdx.x * N; }
    __device__ Long on() const { return (Long)blockDim.x * N; }
    __device__ bool first(Long i) const { return i < m && threadIdx.x == 0; }
    __device__ static V at(const S* x) { return *(const V*)x; }
    __device__ static V at(const S* x, Long j, T without)
    {
        V all;
#pragma unroll
        for (int k = 0; k < N; k++)
            all.set(k, without);
        return x ? at(x + j) : all;
    }

    // Chan, Golub, LeVeque 1983, (2.1), for N elements more, then for a row's threads: nothing large is subtracted.
    __device__ void moments(const S* x, T* sums, T* squares) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            T mean = 0, square = 0, count = 0;
            for (Long j = left(); j < end; j += on()) {
                const V v = at(x + i * n + j);
                T own = 0, spread = 0;
#pragma unroll
                for (int k = 0; k < N; k++)
                    own += v[k];
                own *= T(1) / N;
#pragma unroll
                for (int k = 0; k < N; k++)
                    spread += (v[k] - own) * (v[k] - own);
                const T share = N / (count + N), apart = own - mean;
                square += spread + apart * apart * count * share;
                mean += apart * share;
                count += N;
            }
            const T sum = over_row(mean * count), apart = count > 0 ? mean - sum / n : T(0);
            square = over_row(square + apart * apart * count);
            if (first(i)) {
                sums[i] = sum;
                squares[i] = square;
            }
        }
    }

    __device__ void normalise(const S* x, const T* sums, const T* squares, T count, T eps, const S* gain, const S* offset, S* y,
                              S* normal, T* scale) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            const T mean = i < m && sums ? sums[i] / count : T(0), by = i < m ? T(1) / root(squares[i] / count + eps) : T(0);
            for (Long j = left(); j < end; j += on()) {
                V v = at(x + i * n + j), to;
                const V times = at(gain + j), plus = at(offset, j, T(0));
#pragma unroll
                for (int k = 0; k < N; k++) {
                    const T one = (v[k] - mean) * by;
                    v.set(k, one);
                    to.set(k, one * times[k] + plus[k]);
                }
                *(V*)(y + i * n + j) = to;
                if (normal)
                    *(V*)(normal + i * n + j) = v;
            }
            if (first(i))
                scale[i] = by;
        }
    }

    __device__ void row_sums(const S* x, const S* y, const S* gain, T* plain, T* products) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            T sum = 0, product = 0;
            for (Long j = left(); j < end; j += on()) {
                const V v = at(x + i * n + j), with = at(y + i * n + j), times = at(gain, j, T(1));
#pragma unroll
                for (int k = 0; k < N; k++) {
                    const T one = v[k] * times[k];
                    sum += one;
                    product += one * with[k];
                }
            }
            sum = over_row(sum), product = over_row(product);
            if (first(i)) {
                products[i] = product;
                if (plain)
                    plain[i] = sum;
            }
        }
    }

    __device__ void norm_gradient(const S* dy, const S* normal, const T* scale, const S* gain, const T* plain, const T* products,
                                  T count, S* dx) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            const T by = i < m ? scale[i] : T(0), along = i < m ? products[i] / count : T(0);
            const T mean = i < m && plain ? plain[i] / count : T(0);
            for (Long j = left(); j < end; j += on()) {
                V v = at(dy + i * n + j);
                const V with = at(normal + i * n + j), times = at(gain + j);
#pragma unroll
                for (int k = 0; k < N; k++)
                    v.set(k, (v[k] * times[k] - (mean + with[k] * along)) * by);
                *(V*)(dx + i * n + j) = v;
            }
        }
    }

    __device__ void exponentials(const S* x, const S* top_of, const Long* places, S* to, T* sums) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            const T highest = i < m ? widen(top_of[i]) : T(0);
            T sum = 0;
            for (Long j = left(); j < end; j += on()) {
                V v = at(x + i * n + j);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    const T power = exponential(v[k] - highest);
                    sum += power;
                    v.set(k, power);
                }
                *(V*)(to + i * n + j) = v;
            }
            sum = over_row(sum);
            if (first(i)) {
                sums[i] = sum;
                sums[m + i] = 0 <= places[i] && places[i] < n ? widen(x[i * n + places[i]]) - highest : T(0);
            }
        }
    }

    __device__ void softmax_gradient(S* x, const T* sums, const Long* places, const bool* ignored, T count) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0, place = i < m ? places[i] : 0;
            const bool none = i < m && ignored[i];
            const T one = T(1) / count, by = i < m ? one / sums[i] : T(0);
            for (Long j = left(); j < end; j += on()) {
                V v = at(x + i * n + j);
#pragma unroll
                for (int k = 0; k < N; k++)
                    v.set(k, none ? T(0) : j + k == place ? v[k] * by - one : v[k] * by);
                *(V*)(x + i * n + j) = v;
            }
        }
    }

    // Attention's weights and, if there are slopes, the gradient with regard to the scores. Row i sees `seen` columns, and one more
    // for each row above it among `queries` rows. weights may be scores, gradient may be slopes.
    __device__ void softmax(const T* scores, const T* slopes, S* weights, S* gradient, Long queries, Long seen) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, all = i < m ? n : 0, last = i < m ? seen + i % queries : 0, end = last < all ? last : all;
            const Long begin = i * n;
            T highest = i < m ? scores[begin] : T(0), sum = 0, along = 0;
            for (Long j = left(); j < end; j += on()) {
                const W v = *(const W*)(scores + begin + j);
#pragma unroll
                for (int k = 0; k < N; k++)
                    highest = j + k < end ? Larger::of(highest, v[k]) : highest;
            }
            highest = over_row<Larger>(highest);
            for (Long j = left(); j < end; j += on()) {
                const W v = *(const W*)(scores + begin + j), slope = slopes ? *(const W*)(slopes + begin + j) : W{};
#pragma unroll
                for (int k = 0; k < N; k++) {
                    const T power = j + k < end ? exponential(v[k] - highest) : T(0);
                    sum += power;
                    along += j + k < end ? power * slope[k] : T(0);
                }
            }
            sum = over_row(sum);
            along = slopes ? over_row(along) / sum : T(0);
            for (Long j = left(); j < all; j += on()) {
                W v = {}, slope = {};
                V weight, turned;
                if (j < end) {
                    v = *(const W*)(scores + begin + j);
                    slope = slopes ? *(const W*)(slopes + begin + j) : W{};
                }
#pragma unroll
                for (int k = 0; k < N; k++) {
                    const T power = j + k < end ? exponential(v[k] - highest) / sum : T(0);
                    weight.set(k, power);
                    turned.set(k, j + k < end ? power * (slope[k] - along) : T(0));
                }
                *(V*)(weights + begin + j) = weight;
                if (slopes)
                    *(V*)(gradient + begin + j) = turned;
            }
        }
    }
};

// Whether rows of n numbers of type S begin at multiples of N of them, for N = WIDE<S>.
template <class S, class... P>
__device__ bool wide(Long n, P... begins)
{
    return ((unsigned long long)begins | ... | (n * sizeof(S))) % 16 == 0;
}

// ALIGNED(S, a call, what must lie at multiples of 16 bytes: of sums, whose N numbers are longer, the part sizeof(S) / sizeof(T))
#define ALIGNED(S, call, ...)                    \
    if (wide<S>(n, __VA_ARGS__))                 \
        Rows<S, WIDE<S>>{m, n}.call;             \
    else                                         \
        Rows<S, 1>{m, n}.call;
#define KERNEL extern "C" __global__ void __launch_bounds__(WARP* WARPS)

#define KERNELS(name, S)                                                                                                         \
    KERNEL moments_##name(const S* x, Sum<S>* sums, Sum<S>* squares, Long m, Long n)                                             \
    {                                                                                                                            \
        ALIGNED(S, moments(x, sums, squares), x)                                                                                 \
    }                                                                                                                            \
    KERNEL normalise_##name(const S* x, const Sum<S>* sums, const Sum<S>* squares, Sum<S> count, Sum<S> eps, const S* gain,      \
                            const S* offset, S* y, S* normal, Sum<S>* scale, Long m, Long n)                                     \
    {                                                                                                                            \
        ALIGNED(S, normalise(x, sums, squares, count, eps, gain, offset, y, normal, scale), x, gain, offset, y, normal)          \
    }                                                                                                                            \
    KERNEL row_sums_##name(const S* x, const S* y, const S* gain, Sum<S>* plain, Sum<S>* products, Long m, Long n)               \
    {                                                                                                                            \
        ALIGNED(S, row_sums(x, y, gain, plain, products), x, y, gain)                                                            \
    }                                                                                                                            \
    KERNEL norm_gradient_##name(const S* dy, const S* normal, const Sum<S>* scale, const S* gain, const Sum<S>* plain,           \
                                const Sum<S>* products, Sum<S> count, S* dx, Long m, Long n)                                     \
    {                                                                                                                            \
        ALIGNED(S, norm_gradient(dy, normal, scale, gain, plain, products, count, dx), dy, normal, gain, dx)                     \
    }                                                                                                                            \
    KERNEL exponentials_##name(const S* x, const S* top, const Long* places, S* to, Sum<S>* sums, Long m, Long n)                \
    {                                                                                                                            \
        ALIGNED(S, exponentials(x, top, places, to, sums), x, to)                                                                \
    }                                                                                                                            \
    KERNEL softmax_gradient_##name(S* x, const Sum<S>* sums, const Long* places, const bool* ignored, Sum<S> count, Long m,      \
                                   Long n)                                                                                       \
    {                                                                                                                            \
        ALIGNED(S, softmax_gradient(x, sums, places, ignored, count), x)                                                         \
    }                                                                                                                            \
    KERNEL softmax_##name(const Sum<S>* scores, const Sum<S>* slopes, S* weights, S* gradient, Long queries, Long seen,          \
                          Long m, Long n)                                                                                        \
    {                                                                                                                            \
        ALIGNED(S, softmax(scores, slopes, weights, gradient, queries, seen), (Long)scores * sizeof(S) / sizeof(*scores),        \
                (Long)slopes * sizeof(S) / sizeof(*scores), weights, gradient)                                                   \
    }

KERNELS(float16, float16)
KERNELS(bfloat16, bfloat16)
KERNELS(float32, float)
KERNELS(float64, double)

#define RECENTRE(name, T)                                                                                      \
    KERNEL recentre_##name(T* squares, const T* own, const T* sums, T n, T count, Long m)                      \
    {                                                                                                          \
        for (Long i = threadIdx.x + (Long)blockIdx.x * blockDim.x; i < m; i += (Long)gridDim.x * blockDim.x) { \
            const T apart = own[i] / n - sums[i] / count;                                                      \
            squares[i] += n * apart * apart;                                                                   \
        }                                                                                                      \
    }

RECENTRE(float32, float)
RECENTRE(float64, double)
