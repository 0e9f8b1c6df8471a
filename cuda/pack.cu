// Copies many rectangles of matrices in one launch: the packing and unpacking of messages, transposes, conjugates, casts,
// and sums with beta.
//
//     to[i][j] = op(from)[i][j]                         or, where `accumulate`,
//     to[i][j] = beta to[i][j] + op(from)[i][j],        computed in the type of `from`
//
// op is the complex conjugate if `conjugate`, else nothing; strides express a transpose. Lists of positions may select rows
// and columns of either side, such as those of a block-cyclic layout or of ragged runs. Written elements must not overlap
// each other or elements read, except that `to` may be `from`.
// Launch: blocks of 32 x 8 threads, any grid (tiles are taken in turn), no dynamic shared memory.
// Compiles with nvcc and NVRTC alike: no headers. With --fmad=false the sums are rounded as on a processor.

struct Rectangle {
    const char* from;
    char* to;
    long long rows, cols;
    long long from_row, from_col, to_row, to_col;                // elements from one row, or column, to the next
    const long long *from_rows, *from_cols, *to_rows, *to_cols;  // positions; null: 0, 1, 2, ...
    long long tiles;  // of this rectangle and of all before it, less than 2^32 of its own: TILE x WIDTH or, turned, SIDE x SIDE
};

constexpr int MOST = 32;  // rectangles in a launch: they are its argument, and 4 KiB is the most that this may take

struct Rectangles {
    Rectangle of[MOST];
    long long count;
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

constexpr int TILE = 32;

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
    T of[N];
};

template <class To, class From>
struct Pack {
    static constexpr int N = 16 / (sizeof(To) < sizeof(From) ? sizeof(From) : sizeof(To));  // elements in 16 bytes
    static constexpr int WIDTH = TILE * N;
    static constexpr int SOME = N < 4 ? N : 4;
    static constexpr int BLOCKS = N == 2 || N == 4 ? 4 : N < 16 ? 3 : 2;  // of a multiprocessor, if no register is to be spilled
    static constexpr int SIDE = sizeof(From) > 8 ? TILE : 2 * TILE;  // of a tile that is turned
    typedef Vector<From, N> Froms;
    typedef Vector<To, N> Tos;
    bool conjugate, accumulate;
    From beta;

    __device__ From read(From x) const { return conjugate ? conjugated(x) : x; }

    __device__ void write(To* to, From x) const { *to = To(accumulate ? beta * From(*to) + x : x); }

    static __device__ long long place(const long long* list, long long i) { return list ? list[i] : i; }

    static __device__ const From* from_row(const Rectangle& r, long long i)
    {
        return (const From*)r.from + place(r.from_rows, i) * r.from_row;
    }

    static __device__ To* to_row(const Rectangle& r, long long i) { return (To*)r.to + place(r.to_rows, i) * r.to_row; }

    // Whether elements from that place on are a vector's in each row.
    template <class T, class V>
    static __device__ bool aligned(const char* begin, long long row, long long place)
    {
        return (((unsigned long long)begin + place * sizeof(T)) | row * sizeof(T)) % alignof(V) == 0;
    }

    // Whether N columns from j on are neighbours in memory, and a vector's.
    template <class T, class V>
    static __device__ bool together(const char* begin, long long row, long long stride, const long long* list, long long j)
    {
        const long long first = place(list, j) * stride;
        bool all = aligned<T, V>(begin, row, first);
#pragma unroll
        for (int n = 1; n < N; n++)
            all = all && place(list, j + n) * stride == first + n;
        return all;
    }

    // A warp copies a row of a tile; each thread copies N neighbours if that may save accesses.
    __device__ void straight(const Rectangle& r, long long top, long long left) const
    {
        const bool lists = r.from_cols || r.to_cols;
        const bool gapless = !lists && r.from_col == 1 && r.to_col == 1 && aligned<From, Froms>(r.from, r.from_row, 0)
                             && aligned<To, Tos>(r.to, r.to_row, 0);
        const bool neighbours = lists || gapless;
        const long long j = left + threadIdx.x * (neighbours ? N : 1);
        bool vector = neighbours && j + N <= r.cols;
        if (vector && !gapless)
            vector = together<From, Froms>(r.from, r.from_row, r.from_col, r.from_cols, j)
                     && together<To, Tos>(r.to, r.to_row, r.to_col, r.to_cols, j);
        if (!vector) {
            elements(r, top, j, neighbours ? 1 : TILE);
            return;
        }
        const long long from = place(r.from_cols, j) * r.from_col, to = place(r.to_cols, j) * r.to_col;
        const long long end = top + TILE < r.rows ? top + TILE : r.rows;
        long long i = top + threadIdx.y;
        if (accumulate)
            for (; i + blockDim.y < end; i += 2 * blockDim.y)
                vectors<2, true>(r, i, from, to);
        else
            for (; i + 3 * blockDim.y < end; i += 4 * blockDim.y)
                vectors<4, false>(r, i, from, to);
#pragma unroll 1
        for (; i < end; i += blockDim.y)
            accumulate ? vectors<1, true>(r, i, from, to) : vectors<1, false>(r, i, from, to);
    }

    // Copy a vector of each of DEEP rows; all reads come before the writes, so that enough is under way to keep the memory busy.
    template <int DEEP, bool ADDED>
    __device__ void vectors(const Rectangle& r, long long i, long long from, long long to) const
    {
        Froms x[DEEP];
        Tos y[DEEP];
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            x[k] = *(const Froms*)(from_row(r, i + k * blockDim.y) + from);
            if (ADDED)
                y[k] = *(const Tos*)(to_row(r, i + k * blockDim.y) + to);
        }
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
#pragma unroll
            for (int n = 0; n < N; n++)
                y[k].of[n] = To(ADDED ? beta * From(y[k].of[n]) + read(x[k].of[n]) : read(x[k].of[n]));
            *(Tos*)(to_row(r, i + k * blockDim.y) + to) = y[k];
        }
    }

    // Copy N columns, `apart` from each other, SOME at a time; their positions are found once for all rows.
    __device__ void elements(const Rectangle& r, long long top, long long first, int apart) const
    {
#pragma unroll 1
        for (int done = 0; done < N; done += SOME, first += SOME * apart) {
            long long from[SOME], to[SOME];
#pragma unroll
            for (int n = 0; n < SOME; n++) {
                const long long j = first + n * apart;
                from[n] = j < r.cols ? place(r.from_cols, j) * r.from_col : 0;
                to[n] = j < r.cols ? place(r.to_cols, j) * r.to_col : 0;
            }
#pragma unroll 1
            for (long long i = top + threadIdx.y; i < r.rows && i < top + TILE; i += blockDim.y) {
                const From* row = from_row(r, i);
                To* into = to_row(r, i);
                From x[SOME];
#pragma unroll
                for (int n = 0; n < SOME; n++)
                    if (first + n * apart < r.cols)
                        x[n] = row[from[n]];
#pragma unroll
                for (int n = 0; n < SOME; n++)
                    if (first + n * apart < r.cols)
                        write(into + to[n], read(x[n]));
            }
        }
    }

    // Threads of a warp read and write neighbours in memory: the tile turns the rectangle, not the accesses.
    __device__ void turned(const Rectangle& r, long long top, long long left) const
    {
        constexpr int LANES = SIDE / TILE, READS = 4;  // elements of a column, and columns, that a thread reads at once
        __shared__ From tile[SIDE][SIDE + 1];           // + 1: no bank conflicts in columns
        const From* from[LANES];
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            const long long i = top + threadIdx.x + l * TILE;
            from[l] = i < r.rows ? from_row(r, i) : nullptr;
        }
#pragma unroll 1
        for (int at = threadIdx.y; at < SIDE; at += READS * blockDim.y) {
            From x[READS][LANES];
#pragma unroll
            for (int k = 0; k < READS; k++) {
                const int y = at + k * blockDim.y;
                if (y < SIDE && left + y < r.cols) {
                    const long long column = (r.from_cols ? r.from_cols[left + y] : left + y) * r.from_col;
#pragma unroll
                    for (int l = 0; l < LANES; l++)
                        if (from[l])
                            x[k][l] = from[l][column];
                }
            }
#pragma unroll
            for (int k = 0; k < READS; k++)
                if (at + k * blockDim.y < SIDE)
#pragma unroll
                    for (int l = 0; l < LANES; l++)
                        tile[at + k * blockDim.y][threadIdx.x + l * TILE] = read(x[k][l]);
        }
        __syncthreads();
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            const long long j = left + threadIdx.x + l * TILE;
            if (j >= r.cols)
                break;
            To* to = (To*)r.to + (r.to_cols ? r.to_cols[j] : j) * r.to_col;
#pragma unroll 1
            for (int y = threadIdx.y; y < SIDE && top + y < r.rows; y += blockDim.y) {
                To* here = to + (r.to_rows ? r.to_rows[top + y] : top + y) * r.to_row;
                write(here, tile[threadIdx.x + l * TILE][y]);
            }
        }
        __syncthreads();
    }

    template <bool TURNED>
    __device__ void all(const Rectangles& rectangles) const
    {
        constexpr int HEIGHT = TURNED ? SIDE : TILE, ACROSS = TURNED ? SIDE : WIDTH;
        int number = 0;
        for (long long t = blockIdx.x; t < rectangles.of[rectangles.count - 1].tiles; t += gridDim.x) {
            while (rectangles.of[number].tiles <= t)
                number++;
            const Rectangle& r = rectangles.of[number];
            const unsigned here = t - (number ? rectangles.of[number - 1].tiles : 0), across = (r.cols + ACROSS - 1) / ACROSS;
            const long long top = (long long)(here / across) * HEIGHT, left = (long long)(here % across) * ACROSS;
            if constexpr (TURNED)
                turned(r, top, left);
            else
                straight(r, top, left);
        }
    }
};

#define KERNEL(name, To, From, TURNED)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, Pack<To, From>::BLOCKS)                                               \
        name(const __grid_constant__ Rectangles rectangles, bool conjugate, bool accumulate, From beta)                     \
    {                                                                                                                       \
        Pack<To, From>{conjugate, accumulate, beta}.template all<TURNED>(rectangles);                                       \
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
