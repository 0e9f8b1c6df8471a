// Copies a rectangle of a matrix, transposed or conjugated on the way: the packing step of a redistribution.
//
//     dst[i][j] = op(src)[i][j],  0 <= i < rows, 0 <= j < cols
//
// op(src) is src or, with transpose, its transpose (src is then cols x rows); with conjugate, the complex conjugate.
// Both are row-major; src_ld and dst_ld are the elements from one row to the next. src and dst must not overlap.
// Launch: blocks of 32 x 8 threads, any grid (tiles are taken in turn), no dynamic shared memory.
// Compiles with nvcc and NVRTC alike: no headers. Its NumPy twin is the copy of pdla/array/numpy.py.

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
    Real re, im;
};

template <class T>
__device__ T conjugated(T x) { return x; }

template <class Real>
__device__ Complex<Real> conjugated(Complex<Real> x) { return {x.re, -x.im}; }

constexpr int TILE = 32;

template <class T>
__device__ void pack(const T* __restrict__ src, long long src_ld, T* __restrict__ dst, long long dst_ld,
                     long long rows, long long cols, bool transpose, bool conjugate)
{
    __shared__ T tile[TILE][TILE + 1];  // + 1: no bank conflicts in columns
    const long long tiles_across = (cols + TILE - 1) / TILE;
    const long long tiles = tiles_across * ((rows + TILE - 1) / TILE);
    const long long stride = (long long)gridDim.x * gridDim.y;

    for (long long t = blockIdx.x + (long long)blockIdx.y * gridDim.x; t < tiles; t += stride) {
        const long long i0 = t / tiles_across * TILE, j0 = t % tiles_across * TILE;
        // Threads of a warp read and write neighbours in memory: the tile turns the rectangle, not the accesses.
        const long long from_i = transpose ? j0 : i0, from_j = transpose ? i0 : j0;
        const long long from_rows = transpose ? cols : rows, from_cols = transpose ? rows : cols;
        for (int y = threadIdx.y; y < TILE; y += blockDim.y)
            if (from_i + y < from_rows && from_j + threadIdx.x < from_cols) {
                const T x = src[(from_i + y) * src_ld + from_j + threadIdx.x];
                tile[y][threadIdx.x] = conjugate ? conjugated(x) : x;
            }
        __syncthreads();
        for (int y = threadIdx.y; y < TILE; y += blockDim.y)
            if (i0 + y < rows && j0 + threadIdx.x < cols)
                dst[(i0 + y) * dst_ld + j0 + threadIdx.x] = transpose ? tile[threadIdx.x][y] : tile[y][threadIdx.x];
        __syncthreads();
    }
}

#define PACK(name, T)                                                                                          \
    extern "C" __global__ void pack_##name(const T* src, long long src_ld, T* dst, long long dst_ld,           \
                                           long long rows, long long cols, bool transpose, bool conjugate)     \
    {                                                                                                          \
        pack<T>(src, src_ld, dst, dst_ld, rows, cols, transpose, conjugate);                                   \
    }

PACK(float32, float)
PACK(float64, double)
PACK(complex64, Complex<float>)
PACK(complex128, Complex<double>)
