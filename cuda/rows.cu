// Operations on a matrix's rows, each kernel in one pass over memory: the parts of LayerNorm, RMSNorm and cross-entropy between
// which ranks that share a row add up their sums. The formulas, and the names, are those of pdla/array/composed.py.
//
// A row belongs to a warp or a block; the order in which its threads' values are summed is the same in every launch.
// Matrices m x n without gaps, at any alignment; vectors of m, or n, elements. Launch: blocks of W x H threads, where W is a warp
// and H any, or W is a number of warps and H is 1; at most 256 threads; any grid of one dimension. No headers.

typedef long long Long;

__device__ float root(float x) { return sqrtf(x); }
__device__ double root(double x) { return sqrt(x); }
__device__ float exponential(float x) { return expf(x); }
__device__ double exponential(double x) { return exp(x); }

constexpr int WARP = 32, WARPS = 8;

// The sum over a row's threads, for each of them; all threads of the block call it.
template <class T>
__device__ T over_row(T x)
{
    __shared__ T part[WARPS];
    for (int apart = WARP / 2; apart; apart /= 2)
        x += __shfl_xor_sync(0xffffffff, x, apart);
    if (blockDim.x > WARP) {
        if (threadIdx.x % WARP == 0)
            part[threadIdx.x / WARP] = x;
        __syncthreads();
        x = part[0];
        for (unsigned warp = 1; warp < blockDim.x / WARP; warp++)
            x += part[warp];
        __syncthreads();
    }
    return x;
}

template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
    T of[N];
};

// A matrix, N elements at a time. All threads take the same steps through rows and columns, so that all come to over_row: a row
// beyond the last has no columns.
template <class T, int N>
struct Rows {
    typedef Vector<T, N> V;
    Long m, n;

    __device__ Long top() const { return (Long)blockIdx.x * blockDim.y; }
    __device__ Long down() const { return (Long)gridDim.x * blockDim.y; }
    __device__ Long left() const { return (Long)threadIdx.x * N; }
    __device__ Long on() const { return (Long)blockDim.x * N; }
    __device__ bool first(Long i) const { return i < m && threadIdx.x == 0; }
    __device__ static V at(const T* x) { return *(const V*)x; }
    __device__ static V at(const T* x, Long j, T without)
    {
        V all;
#pragma unroll
        for (int k = 0; k < N; k++)
            all.of[k] = without;
        return x ? at(x + j) : all;
    }

    // Chan, Golub, LeVeque 1983, (2.1), for N elements more, then for a row's threads: nothing large is subtracted.
    __device__ void moments(const T* x, T* sums, T* squares) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            T mean = 0, square = 0, count = 0;
            for (Long j = left(); j < end; j += on()) {
                const V v = at(x + i * n + j);
                T own = 0, spread = 0;
#pragma unroll
                for (int k = 0; k < N; k++)
                    own += v.of[k];
                own *= T(1) / N;
#pragma unroll
                for (int k = 0; k < N; k++)
                    spread += (v.of[k] - own) * (v.of[k] - own);
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

    __device__ void normalise(const T* x, const T* sums, const T* squares, T count, T eps, const T* gain, const T* offset, T* y,
                              T* normal, T* scale) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            const T mean = i < m && sums ? sums[i] / count : T(0), by = i < m ? T(1) / root(squares[i] / count + eps) : T(0);
            for (Long j = left(); j < end; j += on()) {
                V v = at(x + i * n + j), to;
                const V times = at(gain + j), plus = at(offset, j, T(0));
#pragma unroll
                for (int k = 0; k < N; k++) {
                    v.of[k] = (v.of[k] - mean) * by;
                    to.of[k] = v.of[k] * times.of[k] + plus.of[k];
                }
                *(V*)(y + i * n + j) = to;
                if (normal)
                    *(V*)(normal + i * n + j) = v;
            }
            if (first(i))
                scale[i] = by;
        }
    }

    __device__ void row_sums(const T* x, const T* y, const T* gain, T* plain, T* products) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            T sum = 0, product = 0;
            for (Long j = left(); j < end; j += on()) {
                const V v = at(x + i * n + j), with = at(y + i * n + j), times = at(gain, j, T(1));
#pragma unroll
                for (int k = 0; k < N; k++) {
                    const T one = v.of[k] * times.of[k];
                    sum += one;
                    product += one * with.of[k];
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

    __device__ void norm_gradient(const T* dy, const T* normal, const T* scale, const T* gain, const T* plain, const T* products,
                                  T count, T* dx) const
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
                    v.of[k] = (v.of[k] * times.of[k] - (mean + with.of[k] * along)) * by;
                *(V*)(dx + i * n + j) = v;
            }
        }
    }

    __device__ void exponentials(const T* x, const T* top_of, const Long* places, T* to, T* sums) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0;
            const T highest = i < m ? top_of[i] : T(0);
            T sum = 0;
            for (Long j = left(); j < end; j += on()) {
                V v = at(x + i * n + j);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sum += v.of[k] = exponential(v.of[k] - highest);
                *(V*)(to + i * n + j) = v;
            }
            sum = over_row(sum);
            if (first(i)) {
                sums[i] = sum;
                sums[m + i] = 0 <= places[i] && places[i] < n ? x[i * n + places[i]] - highest : T(0);
            }
        }
    }

    __device__ void softmax_gradient(T* x, const T* sums, const Long* places, const bool* ignored, T count) const
    {
        for (Long row = top(); row < m; row += down()) {
            const Long i = row + threadIdx.y, end = i < m ? n : 0, place = i < m ? places[i] : 0;
            const bool none = i < m && ignored[i];
            const T one = T(1) / count, by = i < m ? one / sums[i] : T(0);
            for (Long j = left(); j < end; j += on()) {
                V v = at(x + i * n + j);
#pragma unroll
                for (int k = 0; k < N; k++)
                    v.of[k] = none ? T(0) : j + k == place ? v.of[k] * by - one : v.of[k] * by;
                *(V*)(x + i * n + j) = v;
            }
        }
    }
};

template <class T, class... P>
__device__ bool wide(Long n, P... begins)
{
    return ((unsigned long long)begins | ... | (n * sizeof(T))) % 16 == 0;
}

// ALIGNED(T, a call, what must lie at multiples of 16 bytes)
#define ALIGNED(T, call, ...)                    \
    if (wide<T>(n, __VA_ARGS__))                 \
        Rows<T, 16 / sizeof(T)>{m, n}.call;      \
    else                                         \
        Rows<T, 1>{m, n}.call;
#define KERNEL extern "C" __global__ void __launch_bounds__(WARP* WARPS)

#define KERNELS(name, T)                                                                                                          \
    KERNEL moments_##name(const T* x, T* sums, T* squares, Long m, Long n) { ALIGNED(T, moments(x, sums, squares), x) }            \
    KERNEL normalise_##name(const T* x, const T* sums, const T* squares, T count, T eps, const T* gain, const T* offset, T* y,     \
                            T* normal, T* scale, Long m, Long n)                                                                   \
    {                                                                                                                              \
        ALIGNED(T, normalise(x, sums, squares, count, eps, gain, offset, y, normal, scale), x, gain, offset, y, normal)            \
    }                                                                                                                              \
    KERNEL row_sums_##name(const T* x, const T* y, const T* gain, T* plain, T* products, Long m, Long n)                           \
    {                                                                                                                              \
        ALIGNED(T, row_sums(x, y, gain, plain, products), x, y, gain)                                                              \
    }                                                                                                                              \
    KERNEL norm_gradient_##name(const T* dy, const T* normal, const T* scale, const T* gain, const T* plain, const T* products,    \
                                T count, T* dx, Long m, Long n)                                                                    \
    {                                                                                                                              \
        ALIGNED(T, norm_gradient(dy, normal, scale, gain, plain, products, count, dx), dy, normal, gain, dx)                       \
    }                                                                                                                              \
    KERNEL exponentials_##name(const T* x, const T* top, const Long* places, T* to, T* sums, Long m, Long n)                       \
    {                                                                                                                              \
        ALIGNED(T, exponentials(x, top, places, to, sums), x, to)                                                                  \
    }                                                                                                                              \
    KERNEL softmax_gradient_##name(T* x, const T* sums, const Long* places, const bool* ignored, T count, Long m, Long n)          \
    {                                                                                                                              \
        ALIGNED(T, softmax_gradient(x, sums, places, ignored, count), x)                                                           \
    }                                                                                                                              \
    KERNEL recentre_##name(T* squares, const T* own, const T* sums, T n, T count, Long m)                                          \
    {                                                                                                                              \
        for (Long i = threadIdx.x + (Long)blockIdx.x * blockDim.x; i < m; i += (Long)gridDim.x * blockDim.x) {                     \
            const T apart = own[i] / n - sums[i] / count;                                                                          \
            squares[i] += n * apart * apart;                                                                                       \
        }                                                                                                                          \
    }

KERNELS(float32, float)
KERNELS(float64, double)
