// Copies many rectangles of matrices in one launch: the packing and unpacking of messages, transposes, conjugates, casts,
// and sums with beta.
//
//     to[i][j] = op(from)[i][j]                         or, where `accumulate`,
//     to[i][j] = beta to[i][j] + op(from)[i][j],        computed in the type of `from`
//
// op is the complex conjugate if `conjugate`, else nothing; strides express a transpose. Lists of positions may select rows
// and columns of either side, such as those of a block-cyclic layout or of ragged runs. Written elements must not overlap
// each other or elements read, except that `to` may be `from`.
//
// A block copies a tile: it reads lines along which the source lies in memory, and writes lines of the target, 16 bytes a thread
// where these are neighbours. A line is a row of the target; of the source it may be a column: then the tile is turned in shared
// memory, else it stays in registers.
// Launch: blocks of 32 x 8 threads, any grid (tiles are taken in turn), no dynamic shared memory.
// Compiles with nvcc and NVRTC alike: no headers. With --fmad=false the sums are rounded as on a processor.

struct Rectangle {
    const char* from;
    char* to;
    long long size[2];          // rows, columns
    long long strides[4];       // elements to the next row of `from`, column of `from`, row of `to`, column of `to`
    const long long* lists[4];  // positions, in the same order; null: 0, 1, 2, ...
    long long run;              // of lists along lines: divides all places where positions are no neighbours, and those positions
    long long tiles;            // of this rectangle and of all before it, less than 2^32 of its own
};

#if __CUDA_ARCH__ < 800
constexpr int BLOCKS = 4;  // of a multiprocessor, which has 1024 threads at most
#else
constexpr int BLOCKS = 5;  // the most for which no kernel spills registers
#endif
constexpr int MOST = 32;  // rectangles in a launch: they are its argument, and 4 KiB is the most that this may take

struct Rectangles {
    long long count, conjugate, accumulate;
    double beta[2];  // real and imaginary part
    Rectangle of[MOST];
};

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
    Real re, im;
    Complex() = default;
    template <class Other>
    __device__ explicit Complex(Complex<Other> x) : re(Real(x.re)), im(Real(x.im)) {}
    __device__ Complex(Real re, Real im) : re(re), im(im) {}
};

template <class Real>
__device__ Complex<Real> operator*(Complex<Real> x, Complex<Real> y)
{
    return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}

template <class Real>
__device__ Complex<Real> operator+(Complex<Real> x, Complex<Real> y) { return {x.re + y.re, x.im + y.im}; }

template <class T>
__device__ T conjugated(T x) { return x; }

template <class Real>
__device__ Complex<Real> conjugated(Complex<Real> x) { return {x.re, -x.im}; }

template <class T>
struct Scalar {
    static __device__ T of(const double* x) { return T(x[0]); }
};

template <class Real>
struct Scalar<Complex<Real>> {
    static __device__ Complex<Real> of(const double* x) { return {Real(x[0]), Real(x[1])}; }
};

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
    T of[N];
};

template <class To, class From>
struct Pack {
    static constexpr int SIDE = sizeof(From) > 8 ? 32 : sizeof(From) > 2 ? 64 : 128;  // of a tile
    static constexpr bool COMPUTES = sizeof(From) > 2;                                 // words of 1 or 2 bytes are only copied
    typedef From Tile[SIDE][SIDE + 1];                                                 // + 1: no bank conflicts in columns
    bool conjugate, accumulate;
    From beta;

    // A tile's lines in the source or in the target. Places are elements from `begin` on, and found once for all threads.
    template <class T>
    struct Lines {
        T* begin;
        const long long *lines, *elements;  // where a line begins; how much farther on an element of it is
        int count, length;
    };

    // Whether any N elements of a line from a multiple of N on are a vector in memory. along: the number of an element's stride
    template <class T, int N>
    static __device__ bool has_vectors(const Rectangle& r, const void* begin, int along, int length)
    {
        const bool neighbours = r.strides[along] == 1 && (!r.lists[along] || r.run % N == 0);
        const unsigned long long bytes = (unsigned long long)begin | r.strides[along ^ 1] * sizeof(T);
        return neighbours && length % N == 0 && bytes % alignof(Vector<T, N>) == 0;
    }

    // What a thread takes at once: N elements from `element` on of each DEEP lines, from `line` on, that are APART. A warp takes 8
    // vectors of each of 4 lines, whose elements are in 32 banks of shared memory however the tile is turned.
    template <int N>
    struct Part {
        static constexpr int LANES = N == 1 ? 32 : 8, APART = 32 / LANES;
        int line, element;

        template <int DEEP, class Work>
        static __device__ void each(int length, Work work)
        {
            constexpr int LINES = DEEP * APART, DOWN = SIDE / LINES, ACROSS = SIDE / (LANES * N);
#pragma unroll 1
            for (int i = threadIdx.y; i < DOWN * ACROSS; i += blockDim.y) {
                const int line = i % DOWN * LINES + threadIdx.x / LANES, element = (i / DOWN * LANES + threadIdx.x % LANES) * N;
                if (element < length)
                    work(Part{line, element});
            }
        }
    };

    // All reads come before what needs them, so that enough is under way to keep the memory busy. The last line is read again in
    // place of those beyond it: a read on a condition would keep its registers for the length of the loop.
    template <class T, int N, int DEEP>
    static __device__ void load(Vector<T, N> (&x)[DEEP], const Lines<T>& side, const Part<N>& part)
    {
        const T* const begin = side.begin + side.elements[part.element];
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            const int line = part.line + k * part.APART, last = side.count - 1;
            x[k] = *(const Vector<T, N>*)(begin + side.lines[line < last ? line : last]);
        }
    }

    template <int N, int DEEP>
    __device__ void compute(Vector<From, N> (&x)[DEEP], const Lines<To>& to, const Part<N>& part) const
    {
#pragma unroll
        for (int k = 0; k < DEEP; k++)
#pragma unroll
            for (int n = 0; n < N; n++)
                x[k].of[n] = conjugate ? conjugated(x[k].of[n]) : x[k].of[n];
        if (!accumulate)
            return;
        Vector<To, N> y[DEEP];
        load(y, to, part);
#pragma unroll
        for (int k = 0; k < DEEP; k++)
#pragma unroll
            for (int n = 0; n < N; n++)
                x[k].of[n] = beta * From(y[k].of[n]) + x[k].of[n];
    }

    template <int N, int DEEP>
    __device__ void store(Vector<From, N> (&x)[DEEP], const Lines<To>& to, const Part<N>& part) const
    {
        if constexpr (COMPUTES)
            compute(x, to, part);
        To* const begin = to.begin + to.elements[part.element];
#pragma unroll
        for (int k = 0; k < DEEP; k++)
            if (part.line + k * part.APART < to.count) {
                Vector<To, N> y;
#pragma unroll
                for (int n = 0; n < N; n++)
                    y.of[n] = To(x[k].of[n]);
                *(Vector<To, N>*)(begin + to.lines[part.line + k * part.APART]) = y;
            }
    }

    template <int N>
    __device__ void copy(const Lines<From>& from, const Lines<To>& to) const
    {
        constexpr int DEEP = N == 1 && sizeof(From) < 8 ? 8 : 4;
        Part<N>::template each<DEEP>(to.length, [&](const Part<N>& part) {
            Vector<From, N> x[DEEP];
            load(x, from, part);
            store(x, to, part);
        });
    }

    template <int N>
    static __device__ void fill(Tile& tile, const Lines<From>& from)
    {
        constexpr int SHARE = SIDE * SIDE / (256 * N), DEEP = SHARE < 8 ? SHARE : 8;
        Part<N>::template each<DEEP>(from.length, [&](const Part<N>& part) {
            Vector<From, N> x[DEEP];
            load(x, from, part);
#pragma unroll
            for (int k = 0; k < DEEP; k++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    tile[part.element + n][part.line + k * part.APART] = x[k].of[n];
        });
    }

    template <int N>
    __device__ void drain(const Tile& tile, const Lines<To>& to) const
    {
        constexpr int DEEP = N * sizeof(From) > 16 ? 1 : N > 4 ? 2 : 4;
        Part<N>::template each<DEEP>(to.length, [&](const Part<N>& part) {
            Vector<From, N> x[DEEP];
#pragma unroll
            for (int k = 0; k < DEEP; k++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    x[k].of[n] = tile[part.line + k * part.APART][part.element + n];
            store(x, to, part);
        });
    }

    template <bool TURNED>
    __device__ void copy_tile(const Rectangle& r, long long top, long long left) const
    {
        __shared__ long long places[4][SIDE];
        const long long down = r.size[0] - top, right = r.size[1] - left;
        const int rows = down < SIDE ? down : SIDE, cols = right < SIDE ? right : SIDE;
        for (int i = threadIdx.x + 32 * threadIdx.y; i < 4 * SIDE; i += 32 * blockDim.y) {
            const int which = i / SIDE, n = i % SIDE;
            const long long at = (which % 2 ? left : top) + n;
            if (n < (which % 2 ? cols : rows))
                places[which][n] = (r.lists[which] ? r.lists[which][at] : at) * r.strides[which];
        }
        __syncthreads();
        const Lines<To> to = {(To*)r.to, places[2], places[3], rows, cols};
        if constexpr (TURNED) {
            constexpr int N = 16 / sizeof(From), M = 16 / sizeof(To);
            __shared__ Tile tile;
            const Lines<From> from = {(From*)r.from, places[1], places[0], cols, rows};
            has_vectors<From, N>(r, r.from, 0, rows) ? fill<N>(tile, from) : fill<1>(tile, from);
            __syncthreads();
            has_vectors<To, M>(r, r.to, 3, cols) ? drain<M>(tile, to) : drain<1>(tile, to);
        } else {
            constexpr int N = 16 / (sizeof(To) < sizeof(From) ? sizeof(From) : sizeof(To));
            const Lines<From> from = {(From*)r.from, places[0], places[1], rows, cols};
            const bool vectors = has_vectors<From, N>(r, r.from, 1, cols) && has_vectors<To, N>(r, r.to, 3, cols);
            vectors ? copy<N>(from, to) : copy<1>(from, to);
        }
        __syncthreads();
    }

    template <bool TURNED>
    __device__ void all(const Rectangles& rectangles) const
    {
        int number = 0;
        for (long long t = blockIdx.x; t < rectangles.of[rectangles.count - 1].tiles; t += gridDim.x) {
            while (rectangles.of[number].tiles <= t)
                number++;
            const Rectangle& r = rectangles.of[number];
            const unsigned here = t - (number ? rectangles.of[number - 1].tiles : 0), across = (r.size[1] + SIDE - 1) / SIDE;
            copy_tile<TURNED>(r, (long long)(here / across) * SIDE, (long long)(here % across) * SIDE);
        }
    }
};

#define KERNEL(name, To, From, TURNED)                                                                                \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) name(const __grid_constant__ Rectangles rectangles)     \
    {                                                                                                                 \
        const bool conjugate = rectangles.conjugate, accumulate = rectangles.accumulate;                              \
        Pack<To, From>{conjugate, accumulate, Scalar<From>::of(rectangles.beta)}.template all<TURNED>(rectangles);    \
    }
#define PACK(name, To, From)      \
    KERNEL(name, To, From, false) \
    KERNEL(name##_turned, To, From, true)

typedef Complex<float> complex64;
typedef Complex<double> complex128;

PACK(pack_float32_float32, float, float)
PACK(pack_float64_float64, double, double)
PACK(pack_float32_float64, float, double)
PACK(pack_float64_float32, double, float)
PACK(pack_complex64_complex64, complex64, complex64)
PACK(pack_complex128_complex128, complex128, complex128)
PACK(pack_complex64_complex128, complex64, complex128)
PACK(pack_complex128_complex64, complex128, complex64)
PACK(pack_1, unsigned char, unsigned char)  // any type of so many bytes, neither conjugated nor summed
PACK(pack_2, unsigned short, unsigned short)
