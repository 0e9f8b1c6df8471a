/* A BLAS of doubles, in the simplest way, which counts its products; of the other types it has no more than the names, and none
 * with DOUBLES_ALONE. INT: what it takes for sizes. */
#include <stdint.h>
#include <stdlib.h>

#ifndef INT
#define INT int32_t
#endif

long products = 0;

static double at(const double *x, INT ld, char how, INT i, INT j) { return how == 'N' ? x[i + j * ld] : x[j + i * ld]; }

void dscal_(const INT *n, const double *alpha, double *x, const INT *stride) {
    for (INT i = 0; i < *n; i++) x[i * *stride] *= *alpha;
}

void dgemm_(const char *how_a, const char *how_b, const INT *m, const INT *n, const INT *k, const double *alpha, const double *a,
            const INT *lda, const double *b, const INT *ldb, const double *beta, double *c, const INT *ldc) {
    products++;
    for (INT j = 0; j < *n; j++)
        for (INT i = 0; i < *m; i++) {
            double sum = 0, *to = c + i + j * *ldc;
            for (INT l = 0; l < *k; l++) sum += at(a, *lda, *how_a, i, l) * at(b, *ldb, *how_b, l, j);
            *to = *alpha * sum + (*beta == 0 ? 0 : *beta * *to);
        }
}

void dgemv_(const char *how, const INT *m, const INT *n, const double *alpha, const double *a, const INT *lda, const double *x,
            const INT *step, const double *beta, double *y, const INT *stride) {
    products++;
    for (INT i = 0; i < (*how == 'N' ? *m : *n); i++) {
        double sum = 0, *to = y + i * *stride;
        for (INT l = 0; l < (*how == 'N' ? *n : *m); l++) sum += at(a, *lda, *how, i, l) * x[l * *step];
        *to = *alpha * sum + (*beta == 0 ? 0 : *beta * *to);
    }
}

void dsyrk_(const char *triangle, const char *how, const INT *n, const INT *k, const double *alpha, const double *a, const INT *lda,
            const double *beta, double *c, const INT *ldc) {
    products++;
    for (INT j = 0; j < *n; j++)
        for (INT i = *triangle == 'U' ? 0 : j; i < (*triangle == 'U' ? j + 1 : *n); i++) {
            double sum = 0, *to = c + i + j * *ldc;
            for (INT l = 0; l < *k; l++) sum += at(a, *lda, *how, i, l) * at(a, *lda, *how, j, l);
            *to = *alpha * sum + (*beta == 0 ? 0 : *beta * *to);
        }
}

#ifndef DOUBLES_ALONE
void sgemm_(void) { abort(); }
void cgemm_(void) { abort(); }
void zgemm_(void) { abort(); }
void sgemv_(void) { abort(); }
void cgemv_(void) { abort(); }
void zgemv_(void) { abort(); }
void ssyrk_(void) { abort(); }
void csyrk_(void) { abort(); }
void zsyrk_(void) { abort(); }
#endif
