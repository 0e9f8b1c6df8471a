// Rows added to listed rows of a matrix, where a row may be listed many times: the gradient of an embedding.
//
//     to[rows[u]][j] += from[order[i]][j]    for begins[u] <= i < begins[u + 1], one after another, and 0 <= u < count, 0 <= j < n
//
// No two of `rows` are equal, and one thread makes all additions to an element: the sums have the bits of a processor's, and copies
// of a matrix on several ranks stay equal. Any strides. Launch: blocks of 256 threads, any grid. No headers.

typedef long long Long;
constexpr int THREADS = 256;

template <class T>
__device__ void scatter(const T* from, Long from_row, Long from_col, T* to, Long to_row, Long to_col, const Long* rows,
                        const Long* begins, const Long* order, Long count, Long n)
{
    const Long across = (n + THREADS - 1) / THREADS;
    for (Long t = blockIdx.x; t < across * count; t += gridDim.x) {
        const Long u = t / across, j = t % across * THREADS + threadIdx.x;
        if (j >= n)
            continue;
        T* const here = to + rows[u] * to_row + j * to_col;
        T sum = *here;
#pragma unroll 4
        for (Long i = begins[u]; i < begins[u + 1]; i++)
            sum += from[order[i] * from_row + j * from_col];
        *here = sum;
    }
}

#define SCATTER(name, T)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) name(const T* from, Long from_row, Long from_col, T* to, Long to_row,    \
                                                           Long to_col, const Long* rows, const Long* begins,                  \
                                                           const Long* order, Long count, Long n)                              \
    {                                                                                                                          \
        scatter(from, from_row, from_col, to, to_row, to_col, rows, begins, order, count, n);                                  \
    }

SCATTER(scatter_float32, float)
SCATTER(scatter_float64, double)
