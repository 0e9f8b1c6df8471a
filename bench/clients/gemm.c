/* PDGEMM from C: its time through pdla and by ScaLAPACK alone, in turns, from block-cyclic matrices of integers.
 *
 *     mpirun -n 4 ./gemm_c 1024 64 5        n, block, turns; a line of JSON from the first process
 *
 * Linked as any ScaLAPACK program, with libpdla_pblas.so before ScaLAPACK.
 */
#include "scalapack.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

extern void pdla_pblas_least(double flops);
extern void pdla_pblas_calls(long *taken, long *passed);

static const int zero = 0, one = 1;
static int n, block, nprow, npcol, myrow, mycol, rows, cols, desc[9];

/* The global index of a local one. */
static int global(int local, int me, int all) { return (local / block * all + me) * block + local % block; }

static double value(int i, int j, int seed) { return (i * 7 + j * 13 + i * j % 11 + seed) % 5 - 2; }

static double *filled(int seed)
{
    double *x = malloc(sizeof(double) * rows * cols);
    for (int j = 0; j < cols; j++)
        for (int i = 0; i < rows; i++) x[i + (size_t)j * rows] = value(global(i, myrow, nprow), global(j, mycol, npcol), seed);
    return x;
}

static double seconds(const double *a, const double *b, double *c, double flops)
{
    const double alpha = 1, beta = 0;
    pdla_pblas_least(flops);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    pdgemm_("N", "N", &n, &n, &n, &alpha, a, &one, &one, desc, b, &one, &one, desc, &beta, c, &one, &one, desc);
    double mine = MPI_Wtime() - start, most;
    MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size, context, info;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    n = argc > 1 ? atoi(argv[1]) : 1024;
    block = argc > 2 ? atoi(argv[2]) : 64;
    const int turns = argc > 3 ? atoi(argv[3]) : 5;
    for (nprow = (int)sqrt(size); size % nprow; nprow--) continue;
    npcol = size / nprow;
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "R", nprow, npcol);
    Cblacs_gridinfo(context, &nprow, &npcol, &myrow, &mycol);
    rows = numroc_(&n, &block, &myrow, &zero, &nprow);
    cols = numroc_(&n, &block, &mycol, &zero, &npcol);
    const int lead = rows > 1 ? rows : 1;
    descinit_(desc, &n, &n, &block, &block, &zero, &zero, &context, &lead, &info);

    double *a = filled(1), *b = filled(2), *c = filled(3), *d = filled(3), *times = malloc(sizeof(double) * 2 * turns);
    seconds(a, b, c, 0); /* the first calls: the plan, and Python's start */
    seconds(a, b, c, 0);
    seconds(a, b, d, HUGE_VAL);
    int wrong = 0, any;
    for (long i = 0; i < (long)rows * cols; i++) wrong |= c[i] != d[i];
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    for (int t = 0; t < turns; t++) {
        times[t] = seconds(a, b, c, 0);
        times[turns + t] = seconds(a, b, d, HUGE_VAL);
    }
    long taken, passed;
    pdla_pblas_calls(&taken, &passed);
    if (rank == 0) {
        printf("{\"n\": %d, \"block\": %d, \"ranks\": %d, \"equal\": %s, \"taken\": %ld, \"passed\": %ld", n, block, size, any ? "false" : "true", taken, passed);
        for (int side = 0; side < 2; side++) {
            printf(", \"%s\": [", side ? "scalapack" : "pdla");
            for (int t = 0; t < turns; t++) printf("%s%.6f", t ? ", " : "", times[side * turns + t]);
            printf("]");
        }
        printf("}\n");
    }
    free(a), free(b), free(c), free(d), free(times);
    Cblacs_gridexit(context);
    MPI_Finalize();
    return any || !taken;
}
