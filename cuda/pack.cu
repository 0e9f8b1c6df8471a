// Copies many rectangles of matrices in one launch: the packing and unpacking of messages, transposes, conjugates, casts,
// and sums with beta.
//
//     to[i][j] = op(from)[i][j]                         or, where `accumulate`,
//     to[i][j] = beta to[i][j] + op(from)[i][j],        computed in the type of `from`
//
// op is the complex conjugate where `conjugate`, else nothing; a transpose is a matter of strides. Rows and columns of
// either side may be picked by lists of positions, such as those of a block-cyclic layout or of ragged runs. What is
// written must overlap neither itself nor what is read, but for `to` and `from` one and the same.
// Launch: blocks of 32 x 8 threads, any grid (tiles are taken in turn), no dynamic shared memory.
// Compiles with nvcc and NVRTC alike: no headers. With --fmad=false the sums are rounded as on a processor.

struct Rectangle {
    const char* from;
    char* to;
    long long rows, cols;
    long long from_row, from_col, to_row, to_col;                // elements from one row, or column, to the next
    const long long *from_rows, *from_cols, *to_rows, *to_cols;  // positions; null: 0, 1, 2, ...
    long long turned;  // whether neighbours in memory are those of a column of `from`; in `to` they are those of a row
    long long tiles;   // of this rectangle and of all before it: 32 rows of WIDTH or, turned, of 32 columns
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
    bool conjugate, accumulate;
    From beta;

    __device__ From read(From x) const { return conjugate ? conjugated(x) : x; }

    __device__ void write(To* to, From x) const { *to = To(accumulate ? beta * From(*to) + x : x); }

    // A row's part from column `left` on, read and written by the 32 threads of a warp.
    __device__ void row(const Rectangle& r, const From* from, To* to, long long left) const
    {
        const bool gapless = r.from_col == 1 && r.to_col == 1 && !r.from_cols && !r.to_cols;
        const unsigned long long low = (unsigned long long)(from + left) % alignof(Vector<From, N>)
                                     + (unsigned long long)(to + left) % alignof(Vector<To, N>);
        if (gapless && low == 0 && left + WIDTH <= r.cols) {
            const long long j = left + N * threadIdx.x;
            Vector<From, N> x = *(const Vector<From, N>*)(from + j);
            Vector<To, N> y;
            if (accumulate)
                y = *(const Vector<To, N>*)(to + j);
#pragma unroll
            for (int n = 0; n < N; n++)
                write(&y.of[n], read(x.of[n]));
            *(Vector<To, N>*)(to + j) = y;
            return;
        }
        for (long long j = left + threadIdx.x; j < r.cols && j < left + WIDTH; j += TILE)
            write(to + (r.to_cols ? r.to_cols[j] : j) * r.to_col, read(from[(r.from_cols ? r.from_cols[j] : j) * r.from_col]));
    }

    __device__ void straight(const Rectangle& r, long long top, long long left) const
    {
        for (long long i = top + threadIdx.y; i < r.rows && i < top + TILE; i += blockDim.y)
            row(r, (const From*)r.from + (r.from_rows ? r.from_rows[i] : i) * r.from_row,
                (To*)r.to + (r.to_rows ? r.to_rows[i] : i) * r.to_row, left);
    }

    // Threads of a warp read and write neighbours in memory: the tile turns the rectangle, not the accesses.
    __device__ void turned(const Rectangle& r, long long top, long long left) const
    {
        __shared__ From tile[TILE][TILE + 1];  // + 1: no bank conflicts in columns
        const long long i = top + threadIdx.x, column = left + threadIdx.x;
        if (i < r.rows) {
            const From* from = (const From*)r.from + (r.from_rows ? r.from_rows[i] : i) * r.from_row;
            for (int y = threadIdx.y; y < TILE && left + y < r.cols; y += blockDim.y)
                tile[y][threadIdx.x] = read(from[(r.from_cols ? r.from_cols[left + y] : left + y) * r.from_col]);
        }
        __syncthreads();
        if (column < r.cols) {
            To* to = (To*)r.to + (r.to_cols ? r.to_cols[column] : column) * r.to_col;
            for (int y = threadIdx.y; y < TILE && top + y < r.rows; y += blockDim.y)
                write(to + (r.to_rows ? r.to_rows[top + y] : top + y) * r.to_row, tile[threadIdx.x][y]);
        }
        __syncthreads();
    }

    __device__ void all(const Rectangles& rectangles) const
    {
        int number = 0;
        for (long long t = blockIdx.x; t < rectangles.of[rectangles.count - 1].tiles; t += gridDim.x) {
            while (rectangles.of[number].tiles <= t)
                number++;
            const Rectangle& r = rectangles.of[number];
            const long long here = t - (number ? rectangles.of[number - 1].tiles : 0);
            const int width = r.turned ? TILE : WIDTH;
            const long long across = (r.cols + width - 1) / width;
            const long long top = here / across * TILE, left = here % across * width;
            if (r.turned)
                turned(r, top, left);
            else
                straight(r, top, left);
        }
    }
};

#define PACK(name, To, From)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ Rectangles rectangles, bool conjugate, \
                                                           bool accumulate, From beta)                                    \
    {                                                                                                                     \
        Pack<To, From>{conjugate, accumulate, beta}.all(rectangles);                                                      \
    }

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
