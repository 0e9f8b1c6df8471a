/* Ten thousand small PDGEMMs through pdla, on a hundred BLACS contexts made and given back: what memory grows by.
 *
 *     PDLA_PBLAS_LEAST=0 PDLA_PBLAS_FLOPS=0 mpirun -n 4 ./many_c 10000        a line of JSON from the first process
 */
#include "scalapack.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern void pdla_pblas_calls(long *taken, long *passed);

enum { N = 24, BLOCK = 4, CONTEXTS = 100 };

static double megabytes(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &pages, &resident) != 2) exit(2);
    fclose(file);
    return resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

static void multiply(int calls, int size)
{
    const int zero = 0, one = 1, n = N, block = BLOCK;
    const double alpha = 1, beta = 0;
    int context, nprow, npcol, myrow, mycol;
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "R", 1, size);
    Cblacs_gridinfo(context, &nprow, &npcol, &myrow, &mycol);
    const int cols = numroc_(&n, &block, &mycol, &zero, &npcol), step = (N + 1) * (cols + 1);
    double *x = calloc(3 * step, sizeof(double));
    for (int i = 0; i < calls; i++) {
        const int lead = N + (mycol > 0 && i % 2), desc[9] = {1, context, N, N, BLOCK, BLOCK, 0, 0, lead}; /* a process's own affair */
        pdgemm_("N", "N", &n, &n, &n, &alpha, x, &one, &one, desc, x + step, &one, &one, desc, &beta, x + 2 * step, &one, &one, desc);
    }
    free(x);
    Cblacs_gridexit(context);
}

int main(int argc, char **argv)
{
    const int calls = argc > 1 ? atoi(argv[1]) : 10000;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double before = 0, after, grown, most;
    for (int i = 0; i < CONTEXTS; i++) {
        multiply(calls / CONTEXTS, size);
        if (i == CONTEXTS / 5) before = megabytes(); /* by now everything is loaded, and kept memory is as large as it gets */
    }
    after = megabytes();
    grown = after - before;
    MPI_Reduce(&grown, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    long taken, passed;
    pdla_pblas_calls(&taken, &passed);
    if (rank == 0) printf("{\"calls\": %ld, \"contexts\": %d, \"megabytes\": %.1f, \"grown\": %.2f}\n", taken, CONTEXTS, after, most);
    MPI_Finalize();
    return passed != 0;
}
