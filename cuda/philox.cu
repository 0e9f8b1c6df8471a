// Rows and columns of a random matrix that is drawn tile by tile, bit by bit what `drawn` of pdla/array/numpy.py gives.
//
// Philox4x64-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, 2011): of tile (i, j) and part p of
// a number, the key {seed, p} and the counters {1, j, i, 0}, {2, j, i, 0}, ... give four words each, which NumPy makes numbers
// of in turn: of each word one from [0, 1), or of its halves, the low one first, two integers.
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

    __device__ double operator()(const Block& x, unsigned at) const
    {
        return low + range * ((double)(word(x, at) >> 11) * (1.0 / 9007199254740992.0));
    }
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

// A thread takes as many elements as a block makes numbers: those of one block, or, past an end of tiles or of runs of columns,
// those of several.
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
INTEGERS(float32, float, 1)
INTEGERS(float64, double, 1)
INTEGERS(complex64, float, 2)
INTEGERS(complex128, double, 2)

// flags[t] = 1 where NumPy passes over one of the `draws` halves that tile t = (rows[t / n], cols[t % n]) begins with, since the
// numbers 0 to count - 1 do not come equally often (Lemire, 2019): those after it are others then. A block takes tiles in turn.
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
