// Rows and columns of a random matrix that is drawn tile by tile, bit by bit what `drawn` of pdla/array/numpy.py gives.
//
// Philox4x64-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, 2011): of tile (i, j) and part p of
// a number, the key {seed, p} and the counters {1, j, i, 0}, {2, j, i, 0}, ... give four words each, which NumPy makes numbers
// of in turn: of each word one from [0, 1), and of that one of the normal distribution, or of its halves, the low one first,
// two integers.
//
// rows, cols  for each of the block's m rows and n columns its tile times TILE, and where in the tile it begins
// out         m x n numbers of one or two parts, without gaps, at a multiple of 16 bytes; size = m n
// Any launch of one dimension. No headers.

typedef unsigned long long Word;

constexpr Word TILE = 1 << 14;

struct Block {
    Word of[4];
};

struct Counter {
    Word count, j, i;

    __device__ bool operator!=(const Counter& other) const { return count != other.count || j != other.j || i != other.i; }
};

// Which block of a tile's has the number of this row and column, where each makes so many numbers.
__device__ Counter counter(Word row, Word col, Word draws)
{
    return {1 + (row % TILE + col % TILE) / draws, col / TILE, row / TILE};
}

__device__ Block philox(Counter at, Word seed, Word part)
{
    Block x = {at.count, at.j, at.i, 0};
#pragma unroll
    for (int round = 0; round < 10; round++) {
        constexpr Word FIRST = 0xD2E7470EE14C6C93, SECOND = 0xCA5A826395121157;
        x = {__umul64hi(SECOND, x.of[2]) ^ x.of[1] ^ seed, SECOND * x.of[2],
             __umul64hi(FIRST, x.of[0]) ^ x.of[3] ^ part, FIRST * x.of[0]};
        seed += 0x9E3779B97F4A7C15;
        part += 0xBB67AE8584CAA73B;
    }
    return x;
}

__device__ Word word(const Block& x, unsigned at)  // by choice: an index that is not known would put the block into memory
{
    const Word low = at & 1 ? x.of[1] : x.of[0], high = at & 1 ? x.of[3] : x.of[2];
    return at & 2 ? high : low;
}

__device__ Word half(const Block& x, unsigned at)
{
    return word(x, at / 2) >> (at & 1 ? 32 : 0) & 0xffffffff;
}

struct Uniform {
    static constexpr int DRAWS = 4;
    double low, range;

    __device__ static double plain(const Block& x, unsigned at) { return (double)(word(x, at) >> 11) * (1.0 / 9007199254740992.0); }

    __device__ double operator()(const Block& x, unsigned at) const { return low + range * plain(x, at); }
};

// A polynomial by Horner's rule, the highest power first.
template <int N>
__device__ double powers(const double (&of)[N], double r)
{
    double sum = of[0];
#pragma unroll
    for (int i = 1; i < N; i++)
        sum = sum * r + of[i];
    return sum;
}

struct Ratio {
    double above[8], below[8];

    __device__ double operator()(double r) const { return powers(above, r) / powers(below, r); }
};

// The normal distribution's quantile, step by step as in pdla/array/quantile.py, which says whence it is.
__device__ __noinline__ double quantile(double uniform)
{
    constexpr Ratio MIDDLE = {
        {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
         1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0},
        {5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
         5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0}};
    constexpr Ratio TAIL = {
        {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
         3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0},
        {1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
         6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0}};
    constexpr Ratio FAR = {
        {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
         2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0},
        {2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
         1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0}};
    constexpr double ATANH[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    constexpr double LOG2 = 0.6931471805599453, HALF = 0.7071067811865476;
    const double q = uniform - 0.5 + 1.0 / 18014398509481984.0, r = 0.180625 - q * q;
    if (fabs(q) <= 0.425)
        return MIDDLE(r) * q;
    int e;
    const double m = frexp(0.5 - fabs(q), &e), s = (m - HALF) / (m + HALF);
    const double t = sqrt((0.5 - e) * LOG2 - 2 * s * powers(ATANH, s * s));
    const double far = t <= 5 ? TAIL(t - 1.6) : FAR(t - 5);
    return q < 0 ? -far : far;
}

struct Normal {
    static constexpr int DRAWS = 4;

    __device__ double operator()(const Block& x, unsigned at) const { return quantile(Uniform::plain(x, at)); }
};

struct Integers {
    static constexpr int DRAWS = 8;
    long long low;
    Word count;  // 2^32 at most

    __device__ long long operator()(const Block& x, unsigned at) const { return low + (long long)(half(x, at) * count >> 32); }
};

template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
    T of[N];
};

// All numbers that a block makes, for neighbours in memory.
template <class T, int PARTS, class Number>
__device__ void whole(Counter at, Word seed, T* out, Number number)
{
    constexpr int N = 16 / sizeof(T), COUNT = Number::DRAWS * PARTS / N;
    Vector<T, N> made[COUNT];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const Block x = philox(at, seed, part);
#pragma unroll
        for (int k = 0; k < Number::DRAWS; k++)
            made[(k * PARTS + part) / N].of[(k * PARTS + part) % N] = (T)number(x, k);
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        ((Vector<T, N>*)out)[k] = made[k];
}

// A thread makes as many elements as a block has numbers: those of one block or, across an end of tiles or of runs of columns, of
// several.
template <class T, int PARTS, class Number>
__device__ void fill(const Word* __restrict__ rows, const Word* __restrict__ cols, Word seed, T* __restrict__ out, long long size,
                     long long n, Number number)
{
    constexpr int DRAWS = Number::DRAWS;
    const long long stride = (long long)DRAWS * gridDim.x * blockDim.x;
    for (long long first = DRAWS * (threadIdx.x + (long long)blockIdx.x * blockDim.x); first < size; first += stride) {
        long long i = first / n, j = first % n;
        if (j + DRAWS <= n && (rows[i] + cols[j]) % DRAWS == 0 && cols[j + DRAWS - 1] - cols[j] == DRAWS - 1) {
            whole<T, PARTS>(counter(rows[i], cols[j], DRAWS), seed, out + first * PARTS, number);
            continue;
        }
        Counter held = {0, 0, 0};
        Block drawn[PARTS];
#pragma unroll 1
        for (long long at = first; at < size && at < first + DRAWS; at++) {
            const Counter wanted = counter(rows[i], cols[j], DRAWS);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                if (held != wanted)
                    drawn[part] = philox(wanted, seed, part);
                out[at * PARTS + part] = (T)number(drawn[part], (rows[i] + cols[j]) % DRAWS);
            }
            held = wanted;
            if (++j == n)
                j = 0, i++;
        }
    }
}

#define UNIFORM(name, T, PARTS)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) uniform_##name(const Word* rows, const Word* cols, Word seed, T* out,     \
                                                                     long long size, long long n, double low, double range)     \
    {                                                                                                                           \
        fill<T, PARTS>(rows, cols, seed, out, size, n, Uniform{low, range});                                                    \
    }

#define NORMAL(name, T, PARTS)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) normal_##name(const Word* rows, const Word* cols, Word seed, T* out,      \
                                                                    long long size, long long n, double, double)                \
    {                                                                                                                           \
        fill<T, PARTS>(rows, cols, seed, out, size, n, Normal{});                                                               \
    }

#define INTEGERS(name, T, PARTS)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) integers_##name(const Word* rows, const Word* cols, Word seed, T* out,    \
                                                                      long long size, long long n, long long low, Word count)   \
    {                                                                                                                           \
        fill<T, PARTS>(rows, cols, seed, out, size, n, Integers{low, count});                                                   \
    }

UNIFORM(float32, float, 1)
UNIFORM(float64, double, 1)
UNIFORM(complex64, float, 2)
UNIFORM(complex128, double, 2)
NORMAL(float32, float, 1)
NORMAL(float64, double, 1)
NORMAL(complex64, float, 2)
NORMAL(complex128, double, 2)
INTEGERS(float32, float, 1)
INTEGERS(float64, double, 1)
INTEGERS(complex64, float, 2)
INTEGERS(complex128, double, 2)

// flags[t] = 1 if NumPy skips one of the first `draws` halves of tile t = (rows[t / n], cols[t % n]), as else the numbers 0 to
// count - 1 would not be equally frequent (Lemire, 2019). All later numbers are others then. A block takes tiles in turn.
extern "C" __global__ void __launch_bounds__(256) passed_over(const Word* __restrict__ rows, const Word* __restrict__ cols, Word seed,
                                                              unsigned char* __restrict__ flags, long long size, long long n,
                                                              Word count, int parts, int draws)
{
    const Word bound = (1ULL << 32) % count;
    for (long long tile = blockIdx.x; tile < size; tile += gridDim.x)
        for (int first = 8 * threadIdx.x; first < draws; first += 8 * blockDim.x)
#pragma unroll 1
            for (int part = 0; part < parts; part++) {
                const Block x = philox({1 + (Word)first / 8, cols[tile % n], rows[tile / n]}, seed, part);
                bool over = false;
#pragma unroll
                for (int k = 0; k < 8; k++)
                    over |= (half(x, k) * count & 0xffffffff) < bound;
                if (over)
                    flags[tile] = 1;
            }
}
