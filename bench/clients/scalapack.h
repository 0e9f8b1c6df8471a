/* What the clients call of BLACS and ScaLAPACK, which have no headers. */
extern void Cblacs_get(int, int, int *);
extern void Cblacs_gridinit(int *, const char *, int, int);
extern void Cblacs_gridinfo(int, int *, int *, int *, int *);
extern void Cblacs_gridexit(int);
extern int numroc_(const int *, const int *, const int *, const int *, const int *);
extern void descinit_(int *, const int *, const int *, const int *, const int *, const int *, const int *, const int *, const int *, int *);
extern void pdgemm_(const char *, const char *, const int *, const int *, const int *, const double *, const double *, const int *,
                    const int *, const int *, const double *, const int *, const int *, const int *, const double *, double *,
                    const int *, const int *, const int *);
