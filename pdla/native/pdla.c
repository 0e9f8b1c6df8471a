/* The functions of pdla.h: each calls its counterpart in Python (pdla.native.interface), with room for the text of an error. */
#include "pdla.h"
#include <string.h>

#define ROOM 4096

static _Thread_local char said[ROOM];

static const char silent[] = "the Python inside did not start, or did not find pdla: what it printed says why; PDLA_PYTHON names another";

const char *pdla_error(void) { return said; }

static int cffi_start_python(void); /* 0: Python has started. Called first, as cffi would print an error for each failing call */

#define CALL(function, ...)                                                 \
    do {                                                                    \
        pdla_which_python();                                                \
        strcpy(said, silent);                                               \
        int status = PDLA_OTHER;                                            \
        if (!cffi_start_python()) function(__VA_ARGS__, &status, said);     \
        if (!status) said[0] = 0;                                           \
        return status;                                                      \
    } while (0)

int pdla_grid(int comm, int axes, const int *shape, pdla_handle *grid) { CALL(py_grid, comm, axes, (int *)shape, grid); }

int pdla_local_shape(pdla_handle grid, int64_t m, int64_t n, const char *layout, int64_t *rows, int64_t *cols)
{
    CALL(py_local_shape, grid, m, n, (char *)layout, rows, cols);
}

int pdla_matrix(pdla_handle grid, char type, int64_t m, int64_t n, const char *layout, void *local, int64_t down, int64_t across,
                pdla_handle *matrix)
{
    CALL(py_matrix, grid, type, m, n, (char *)layout, local, down, across, matrix);
}

int pdla_part(pdla_handle matrix, int64_t i0, int64_t i1, int64_t j0, int64_t j1, pdla_handle *part)
{
    CALL(py_part, matrix, i0, i1, j0, j1, part);
}

int pdla_gemm(char opa, char opb, const void *alpha, pdla_handle A, pdla_handle B, const void *beta, pdla_handle C)
{
    CALL(py_gemm, opa, opb, (void *)alpha, A, B, (void *)beta, C);
}

int pdla_copy(char op, pdla_handle A, pdla_handle C) { CALL(py_copy, op, A, C); }

int pdla_free(pdla_handle handle) { CALL(py_free, handle); }
