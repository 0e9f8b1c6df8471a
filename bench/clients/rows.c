/* A code whose processes own uneven runs of rows, as PETSc's do, calls pdla.h on its own arrays: C = A B, then D = C^T by blocks.
 *
 *     mpirun -n 4 ./rows_c                  "rows: right" from the first process, status 0
 */
#include <mpi.h>
#include <pdla.h>
#include <stdio.h>
#include <stdlib.h>

enum { M = 61, N = 37, K = 50 };

static int first(int n, int rank, int size) { return n * rank / size * rank / size; } /* later ranks own more */

static double a(int i, int j) { return (i + 2 * j) % 5 - 2; }
static double b(int i, int j) { return (3 * i + j) % 7 - 3; }

static double c(int i, int j)
{
    double sum = 0;
    for (int l = 0; l < K; l++) sum += a(i, l) * b(l, j);
    return sum;
}

static void check(int status)
{
    if (status) {
        fprintf(stderr, "%s\n", pdla_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Its rows of an n-row matrix in pdla's words: Cuts('row', (0, 3, 12, ...)). */
static void owned(char *text, int n, int size)
{
    text += sprintf(text, "rows=Cuts('row', (");
    for (int r = 0; r <= size; r++) text += sprintf(text, "%d, ", first(n, r, size));
    sprintf(text, "))");
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size, wrong = 0, any;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *by_m = malloc(64 + 16 * size), *by_k = malloc(64 + 16 * size);
    owned(by_m, M, size);
    owned(by_k, K, size);
    const int i0 = first(M, rank, size), i1 = first(M, rank + 1, size), l0 = first(K, rank, size), l1 = first(K, rank + 1, size);
    double *A = malloc(sizeof(double) * M * K), *B = malloc(sizeof(double) * K * N), *C = malloc(sizeof(double) * M * N);
    for (int i = i0; i < i1; i++)
        for (int l = 0; l < K; l++) A[(i - i0) * K + l] = a(i, l);
    for (int l = l0; l < l1; l++)
        for (int j = 0; j < N; j++) B[(l - l0) * N + j] = b(l, j);

    pdla_handle grid, hA, hB, hC;
    const double one = 1, none = 0;
    check(pdla_grid(MPI_Comm_c2f(MPI_COMM_WORLD), 1, &size, &grid));
    check(pdla_matrix(grid, 'd', M, K, by_m, A, K, 1, &hA));
    check(pdla_matrix(grid, 'd', K, N, by_k, B, N, 1, &hB));
    check(pdla_matrix(grid, 'd', M, N, by_m, C, N, 1, &hC));
    check(pdla_gemm('N', 'N', &one, hA, hB, &none, hC));
    for (int i = i0; i < i1; i++)
        for (int j = 0; j < N; j++) wrong |= C[(i - i0) * N + j] != c(i, j);

    /* The transpose in columns of balanced blocks, column by column in memory. */
    pdla_handle hD;
    int64_t rows, cols;
    check(pdla_local_shape(grid, N, M, "cols='row'", &rows, &cols));
    double *D = malloc(sizeof(double) * rows * cols + 1);
    check(pdla_matrix(grid, 'd', N, M, "cols='row'", D, 1, rows, &hD));
    check(pdla_copy('T', hC, hD));
    int j0 = 0;
    for (int r = 0; r < rank; r++) j0 += M / size + (r < M % size);
    for (int j = 0; j < cols; j++)
        for (int i = 0; i < rows; i++) wrong |= D[i + j * rows] != c(j0 + j, i);

    /* What is refused is refused everywhere, with words, and nothing hangs. */
    wrong |= pdla_gemm('N', 'N', &one, hA, hC, &none, hC) != PDLA_SHAPE || !*pdla_error();
    wrong |= pdla_matrix(grid, 'q', M, K, by_m, A, K, 1, &hD) != PDLA_SHAPE;
    wrong |= pdla_matrix(grid, 'd', M, K, "rows='moon'", A, K, 1, &hD) != PDLA_LAYOUT;
    wrong |= pdla_part(hA, 0, M + 1, 0, K, &hD) != PDLA_SHAPE;
    wrong |= pdla_part(grid, 0, 1, 0, 1, &hD) != PDLA_HANDLE;

    check(pdla_free(grid));
    check(pdla_free(hA));
    wrong |= pdla_free(hA) != PDLA_HANDLE;
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) printf("rows: %s\n", any ? "WRONG" : "right");
    MPI_Finalize();
    check(pdla_free(hB)); /* after MPI_Finalize is early enough */
    free(A), free(B), free(C), free(D), free(by_m), free(by_k);
    return any;
}
