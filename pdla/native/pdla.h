/* pdla from C: matrices on the caller's own memory, cut over grids of processes, and their products.
 *
 * The caller initialises and finalises MPI, and names a communicator as in Fortran: MPI_Comm_c2f(comm). All processes of the
 * communicator make a "collective" call, with the same arguments except addresses and strides. A call fails on all of them. (A
 * process whose handles are all invalid, or mostly of another communicator, cannot reach the others, which may wait for it.)
 * Functions return 0, or an error number; pdla_error() gives the text, in which `out` is C. Before MPI_Init and after MPI_Finalize
 * all but pdla_free fail. Link with -lpdla.
 */
#ifndef PDLA_H
#define PDLA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int64_t pdla_handle; /* a grid or a matrix; 0 is none */

enum { PDLA_OK, PDLA_SHAPE, PDLA_LAYOUT, PDLA_GRID, PDLA_PLAN, PDLA_DISAGREE, PDLA_HANDLE, PDLA_OTHER };

/* Why the last call of this thread failed; "" if it did not. The text is valid until the thread's next call. */
const char *pdla_error(void);

/* Collective: make a grid of one to three axes, named row, col, depth; ranks go along col first, then row, then depth. After `comm`
 * is freed, its grids and matrices can only be freed. Its processes free it together, and several communicators in the same order.
 * (For a number that names no communicator, MPI itself may end the program.) */
int pdla_grid(int comm, int axes, const int *shape, pdla_handle *grid);

/* Rows and columns of this process's block. `layout` is as in Python: "rows='row', cols=Cyclic('col', 64)"; "": all have copies. */
int pdla_local_shape(pdla_handle grid, int64_t m, int64_t n, const char *layout, int64_t *rows, int64_t *cols);

/* Collective: make an m x n matrix of type s, d, c or z, in either case, whose block is at `local`. Element (i, j) of the block is
 * down * i + across * j elements further on; down and across are at least 1, and no two elements have one place. The matrix is the
 * caller's memory, without a copy. `local` must outlive the matrix. */
int pdla_matrix(pdla_handle grid, char type, int64_t m, int64_t n, const char *layout, void *local, int64_t down, int64_t across,
                pdla_handle *matrix);

/* Rows [i0, i1) and columns [j0, j1) of a matrix, on the same memory. A dimension that is cut along several axes can
 * be taken as a whole only. All processes give the same bounds: as no message is sent, nothing compares them. */
int pdla_part(pdla_handle matrix, int64_t i0, int64_t i1, int64_t j0, int64_t j1, pdla_handle *part);

/* Collective: C = alpha op(A) op(B) + beta C; an op is N, T or C. alpha and beta point to numbers of the matrices' type. C has no
 * partial sums, and shares no memory with A and B. */
int pdla_gemm(char opa, char opb, const void *alpha, pdla_handle A, pdla_handle B, const void *beta, pdla_handle C);

/* Collective: C = op(A), from one layout to another. C may have partial sums only in the layout of op(A), on A's grid. */
int pdla_copy(char op, pdla_handle A, pdla_handle C);

/* Free a grid or a matrix, in any order, before or after MPI_Finalize; the caller's memory is not touched. */
int pdla_free(pdla_handle handle);

#ifdef __cplusplus
}
#endif
#endif
