/* Level-3 routines of PBLAS, in place of ScaLAPACK's: each passes its call to Python (pdla.scalapack.pblas), or on to the ScaLAPACK
 * that comes next in the order of libraries.
 *
 * ScaLAPACK gets calls without a product (a size or alpha is 0), calls that are too small (PDLA_PBLAS_LEAST), and all that it might
 * refuse; it then reports the error itself. All processes of the grid decide the same, unless only some give wrong arguments: on
 * these ScaLAPACK ends the job.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The integers of a descriptor of type 2, whose first blocks may be shorter; the usual one, of type 1, lacks IMB and INB. */
enum { DTYPE, CONTEXT, M, N, IMB, INB, MB, NB, RSRC, CSRC, LLD, WORDS };

static long taken, passed;

/* Count the calls of this process that pdla has taken, and passed on to ScaLAPACK. */
void pdla_pblas_calls_(long *taken_, long *passed_) { *taken_ = taken; *passed_ = passed; }
void pdla_pblas_calls(long *taken_, long *passed_) { pdla_pblas_calls_(taken_, passed_); }

static int first_of_grid;

__attribute__((destructor)) static void report(void)
{
    const char *asked = getenv("PDLA_PBLAS_REPORT");
    if (asked && *asked && strcmp(asked, "0") && first_of_grid && taken + passed)
        fprintf(stderr, "pdla: took %ld PBLAS calls, passed on %ld\n", taken, passed);
}

/* ------------------------------------------------------------------ the ScaLAPACK behind us */

/* The paths of the libraries that are loaded, each ended by a zero, and their length. */
typedef struct {
    char *text;
    size_t size;
} paths;

static int add_path(struct dl_phdr_info *library, size_t unused, void *to)
{
    paths *all = to;
    const size_t size = strlen(library->dlpi_name) + 1;
    char *grown = size > 1 ? realloc(all->text, all->size + size) : NULL; /* the program itself has no name */
    (void)unused;
    if (grown) {
        memcpy(grown + all->size, library->dlpi_name, size);
        all->text = grown;
        all->size += size;
    }
    return 0;
}

static int ours(void *function)
{
    Dl_info its, mine;
    return dladdr(function, &its) && dladdr(&taken, &mine) && its.dli_fbase == mine.dli_fbase;
}

/* Find a function of the first loaded library that has it, also of one loaded for one module alone, as Python loads an extension's
   libraries. (List all before opening any, as other threads may load some, too.) */
static void *loaded(const char *name)
{
    paths all = {NULL, 0};
    void *found = NULL;
    dl_iterate_phdr(add_path, &all);
    for (size_t at = 0; at < all.size && !found; at += strlen(all.text + at) + 1) {
        void *library = dlopen(all.text + at, RTLD_LAZY | RTLD_NOLOAD), *symbol = library ? dlsym(library, name) : NULL;
        if (symbol && !ours(symbol))
            found = symbol; /* and the library stays */
        else if (library)
            dlclose(library);
    }
    free(all.text);
    return found;
}

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    const char *library = getenv("PDLA_SCALAPACK");
    if (!found && library) {
        void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
        found = handle ? dlsym(handle, name) : NULL;
    }
    if (!found) found = loaded(name);
    if (!found) {
        fprintf(stderr, "pdla: no %s behind libpdla_pblas.so: link ScaLAPACK after it, or name its file in PDLA_SCALAPACK\n", name);
        abort();
    }
    return found;
}

#define NEXT(type, name) \
    static type real;    \
    if (!real) real = (type)next(name)

typedef void (*gridinfo_t)(const int *, int *, int *, int *, int *);
typedef void (*get_t)(const int *, const int *, int *);
typedef void (*abort_t)(const int *, const int *);

static void gridinfo(pdla_call *call, int context)
{
    NEXT(gridinfo_t, "blacs_gridinfo_");
    real(&context, &call->nprow, &call->npcol, &call->myrow, &call->mycol);
}

static int communicator(int context)
{
    NEXT(get_t, "blacs_get_");
    const int what = 10;
    int comm;
    real(&context, &what, &comm);
    return comm;
}

/* ------------------------------------------------------------------ which calls are taken */

static double least = -1; /* operations of each process: smaller calls go to ScaLAPACK; below 0: not yet read */

static double least_of_all(void)
{
    if (least < 0) {
        const char *asked = getenv("PDLA_PBLAS_LEAST");
        char *end;
        least = asked && *asked ? strtod(asked, &end) : 1e8;
        if (asked && *asked && (*end || !(least >= 0))) {
            fprintf(stderr, "pdla: PDLA_PBLAS_LEAST=%s is no number of at least 0: taken is 1e8\n", asked);
            least = 1e8;
        }
    }
    return least;
}

/* Set the limit from now on, in place of PDLA_PBLAS_LEAST; it must be the same on every process. */
void pdla_pblas_least(double flops) { least = flops; }
void pdla_pblas_least_(const double *flops) { least = *flops; }

static int zero(const void *alpha, char type)
{
    if (!alpha) return 0;
    switch (type) {
    case 's': return *(const float *)alpha == 0;
    case 'd': return *(const double *)alpha == 0;
    case 'c': return ((const float *)alpha)[0] == 0 && ((const float *)alpha)[1] == 0;
    default: return ((const double *)alpha)[0] == 0 && ((const double *)alpha)[1] == 0;
    }
}

/* Count the indices, of n in blocks of which the first may be shorter, of process `me` of `all`. In long integers, as n + block may
   overflow an int. */
static long long held(long long n, long long first, long long block, int me, int source, int all)
{
    const int turn = (all + me - source) % all;
    const long long padded = n + block - first, blocks = padded / block, rest = blocks % all;
    const long long size = blocks / all * block + (turn < rest ? block : turn == rest ? padded % block : 0);
    return turn == 0 ? size - (block - first) : size;
}

static int sound(const pdla_call *call, int i)
{
    const int *d = call->desc[i], *at = call->at[i], *shape = call->shape[i];
    return d[DTYPE] == 2 && d[CONTEXT] == call->desc[2][CONTEXT] && shape[0] > 0 && shape[1] > 0
        && d[IMB] > 0 && d[INB] > 0 && d[IMB] <= d[MB] && d[INB] <= d[NB]
        && d[RSRC] >= 0 && d[RSRC] < call->nprow && d[CSRC] >= 0 && d[CSRC] < call->npcol && at[0] > 0 && at[1] > 0
        && at[0] - 1 <= d[M] - shape[0] && at[1] - 1 <= d[N] - shape[1]
        && d[LLD] >= 1 && (d[LLD] >= held(d[M], d[IMB], d[MB], call->myrow, d[RSRC], call->nprow)
                           || !held(d[N], d[INB], d[NB], call->mycol, d[CSRC], call->npcol)); /* as ScaLAPACK has it */
}

/* Whether this process holds some of the rows (along: 0) or columns (1) of sub(X). */
static int has(const pdla_call *call, int i, int along)
{
    const int *d = call->desc[i] + along, me = along ? call->mycol : call->myrow, all = along ? call->npcol : call->nprow;
    const long long begin = call->at[i][along] - 1, end = begin + call->shape[i][along];
    return held(begin, d[IMB], d[MB], me, d[RSRC], all) < held(end, d[IMB], d[MB], me, d[RSRC], all);
}

/* End the job if an argument is NULL that this process must read or write. ScaLAPACK would crash; to NumPy, NULL means memory of
   its own. alpha: its number among the routine's parameters, all of which have the same order from there on. */
static void refuse_null(const pdla_call *call, const char *name, int alpha, const void *const pointers[5])
{
    const int beta = alpha + (call->has_b ? 9 : 5), numbers[] = {alpha, alpha + 1, alpha + 5, beta, beta + 1};
    const char *const names[] = {"alpha", "A", "B", "beta", "C"};
    for (int i = 0; i < 5; i++) {
        const int block = i == 1 || i == 2 || i == 4, x = i / 2; /* of A, B or C */
        if (pointers[i] || (i == 2 && !call->has_b) || (block && !(has(call, x, 0) && has(call, x, 1)))) continue;
        fprintf(stderr, "pdla: %s, parameter number %d: %s is NULL on process {%d,%d}, which has to read or write it%s\n", name,
                numbers[i], names[i], call->myrow, call->mycol, block ? "; one that holds nothing of it may give NULL" : "");
        NEXT(abort_t, "blacs_abort_");
        real(&call->desc[2][CONTEXT], &(int){-numbers[i]});
    }
}

static int cffi_start_python(void); /* 0: Python has started. Called first, as cffi would print an error for each failing call */

static int python_starts(void)
{
    static int refused;
    pdla_which_python();
    if (!refused && cffi_start_python()) {
        refused = 1;
        fputs("pdla: the Python inside did not start, or did not find pdla, as it says above: all goes to ScaLAPACK\n", stderr);
    }
    return !refused;
}

static int one_of(char letter, const char *letters) { return letter && strchr(letters, letter) != NULL; }

/* name, parameter: of the routine, and the number of its alpha. */
static int take(pdla_call *call, const char *name, int parameter, const char *letters[2], const void *alpha, const void *a,
                const void *b, const void *beta, void *c)
{
    gridinfo(call, call->desc[2][CONTEXT]);
    if (call->nprow > 0 && call->myrow >= 0) {
        first_of_grid = call->myrow == 0 && call->mycol == 0;
        int fine = one_of(call->words[0], letters[0]) && one_of(call->words[1], letters[1]) && !zero(alpha, call->scalar);
        for (int i = 0; i < 3; i++) fine = fine && ((i == 1 && !call->has_b) || sound(call, i));
        if (fine && call->flops >= least_of_all() * call->nprow * call->npcol) {
            refuse_null(call, name, parameter, (const void *[]){alpha, a, b, beta, c});
            call->comm = communicator(call->desc[2][CONTEXT]);
            for (int i = 0; i < 3; i++) call->lld[i] = call->desc[i][LLD], call->desc[i][LLD] = 1;
            if (python_starts() && pdla_take(call, (void *)alpha, (void *)a, (void *)b, (void *)beta, c)) {
                taken++;
                return 1;
            }
        }
    }
    passed++;
    return 0;
}

/* ------------------------------------------------------------------ the routines */

static char upper(const char *word) { return *word >= 'a' && *word <= 'z' ? *word - 32 : *word; }

static void operand(pdla_call *call, int i, int rows, int cols, const int *ia, const int *ja, const int *desc)
{
    call->has_b |= i == 1;
    call->shape[i][0] = rows;
    call->shape[i][1] = cols;
    call->at[i][0] = *ia;
    call->at[i][1] = *ja;
    const int type = desc[DTYPE] == 1 ? 2 : desc[DTYPE]; /* any but 2 has at least nine integers; ScaLAPACK refuses unknown ones */
    const int usual[WORDS] = {type, desc[1], desc[2], desc[3], desc[4], desc[5], desc[4], desc[5], desc[6], desc[7], desc[8]};
    memcpy(call->desc[i], desc[DTYPE] == 2 ? desc : usual, sizeof usual);
}

static pdla_call begin(char routine, char type, char scalar, char first, char second, double flops)
{
    pdla_call call;
    memset(&call, 0, sizeof call);
    call.routine = routine;
    call.type = type;
    call.scalar = scalar;
    call.words[0] = first;
    call.words[1] = second;
    call.flops = flops;
    return call;
}

/* Operations of one multiplication and addition. */
#define FLOPS(t) (#t[0] == 'c' || #t[0] == 'z' ? 8.0 : 2.0)

#define MATRIX(X, x) const void *X, const int *i##x, const int *j##x, const int *desc##x

typedef void (*gemm_t)(const char *, const char *, const int *, const int *, const int *, const void *, MATRIX(a, a), MATRIX(b, b),
                       const void *, void *, const int *, const int *, const int *);

#define GEMM(t, letters)                                                                                                          \
    void p##t##gemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k, const void *alpha,         \
                     MATRIX(a, a), MATRIX(b, b), const void *beta, void *c, const int *ic, const int *jc, const int *descc)       \
    {                                                                                                                             \
        const char ta = upper(transa), tb = upper(transb), *valid[2] = {letters, letters};                                        \
        pdla_call call = begin('g', #t[0], #t[0], ta, tb, FLOPS(t) * *m * *n * *k);                                               \
        operand(&call, 0, ta == 'N' ? *m : *k, ta == 'N' ? *k : *m, ia, ja, desca);                                               \
        operand(&call, 1, tb == 'N' ? *k : *n, tb == 'N' ? *n : *k, ib, jb, descb);                                               \
        operand(&call, 2, *m, *n, ic, jc, descc);                                                                                 \
        if (take(&call, "p" #t "gemm", 6, valid, alpha, a, b, beta, c)) return;                                                   \
        NEXT(gemm_t, "p" #t "gemm_");                                                                                             \
        real(transa, transb, m, n, k, alpha, a, ia, ja, desca, b, ib, jb, descb, beta, c, ic, jc, descc);                         \
    }

typedef void (*symm_t)(const char *, const char *, const int *, const int *, const void *, MATRIX(a, a), MATRIX(b, b), const void *,
                       void *, const int *, const int *, const int *);

#define SYMM(t, name, routine)                                                                                                    \
    void p##t##name##_(const char *side, const char *uplo, const int *m, const int *n, const void *alpha, MATRIX(a, a),           \
                       MATRIX(b, b), const void *beta, void *c, const int *ic, const int *jc, const int *descc)                   \
    {                                                                                                                             \
        const char s = upper(side), *valid[2] = {"LR", "LU"};                                                                     \
        const int order = s == 'L' ? *m : *n;                                                                                     \
        pdla_call call = begin(routine, #t[0], #t[0], s, upper(uplo), FLOPS(t) * *m * *n * order);                                \
        operand(&call, 0, order, order, ia, ja, desca);                                                                           \
        operand(&call, 1, *m, *n, ib, jb, descb);                                                                                 \
        operand(&call, 2, *m, *n, ic, jc, descc);                                                                                 \
        if (take(&call, "p" #t #name, 5, valid, alpha, a, b, beta, c)) return;                                                    \
        NEXT(symm_t, "p" #t #name "_");                                                                                           \
        real(side, uplo, m, n, alpha, a, ia, ja, desca, b, ib, jb, descb, beta, c, ic, jc, descc);                                \
    }

typedef void (*syrk_t)(const char *, const char *, const int *, const int *, const void *, MATRIX(a, a), const void *, void *,
                       const int *, const int *, const int *);

/* alpha and beta of herk are real. */
#define SYRK(t, name, routine, letters, scalar)                                                                                   \
    void p##t##name##_(const char *uplo, const char *trans, const int *n, const int *k, const void *alpha, MATRIX(a, a),          \
                       const void *beta, void *c, const int *ic, const int *jc, const int *descc)                                 \
    {                                                                                                                             \
        const char u = upper(uplo), tr = upper(trans), *valid[2] = {"LU", letters};                                               \
        pdla_call call = begin(routine, #t[0], scalar, u, tr, FLOPS(t) / 2 * *n * *n * *k);                                       \
        operand(&call, 0, tr == 'N' ? *n : *k, tr == 'N' ? *k : *n, ia, ja, desca);                                               \
        operand(&call, 2, *n, *n, ic, jc, descc);                                                                                 \
        if (take(&call, "p" #t #name, 5, valid, alpha, a, NULL, beta, c)) return;                                                 \
        NEXT(syrk_t, "p" #t #name "_");                                                                                           \
        real(uplo, trans, n, k, alpha, a, ia, ja, desca, beta, c, ic, jc, descc);                                                 \
    }

typedef void (*tran_t)(const int *, const int *, const void *, MATRIX(a, a), const void *, void *, const int *, const int *,
                       const int *);

/* The operations that a core does in the time of moving a word. */
#define WORD 200.0

#define TRAN(t, name, letter)                                                                                                     \
    void p##t##name##_(const int *m, const int *n, const void *alpha, MATRIX(a, a), const void *beta, void *c, const int *ic,     \
                       const int *jc, const int *descc)                                                                           \
    {                                                                                                                             \
        const char *valid[2] = {"TC", "N"};                                                                                       \
        pdla_call call = begin('a', #t[0], #t[0], letter, 'N', WORD * *m * *n);                                                   \
        operand(&call, 0, *n, *m, ia, ja, desca);                                                                                 \
        operand(&call, 2, *m, *n, ic, jc, descc);                                                                                 \
        if (take(&call, "p" #t #name, 3, valid, alpha, a, NULL, beta, c)) return;                                                 \
        NEXT(tran_t, "p" #t #name "_");                                                                                           \
        real(m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc);                                                              \
    }

typedef void (*geadd_t)(const char *, const int *, const int *, const void *, MATRIX(a, a), const void *, void *, const int *,
                        const int *, const int *);

#define GEADD(t)                                                                                                                  \
    void p##t##geadd_(const char *trans, const int *m, const int *n, const void *alpha, MATRIX(a, a), const void *beta, void *c,  \
                      const int *ic, const int *jc, const int *descc)                                                             \
    {                                                                                                                             \
        const char tr = upper(trans), *valid[2] = {"NTC", "N"};                                                                   \
        pdla_call call = begin('a', #t[0], #t[0], tr, 'N', WORD * *m * *n);                                                       \
        operand(&call, 0, tr == 'N' ? *m : *n, tr == 'N' ? *n : *m, ia, ja, desca);                                               \
        operand(&call, 2, *m, *n, ic, jc, descc);                                                                                 \
        if (take(&call, "p" #t "geadd", 4, valid, alpha, a, NULL, beta, c)) return;                                               \
        NEXT(geadd_t, "p" #t "geadd_");                                                                                           \
        real(trans, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc);                                                       \
    }

#define FOR_ALL(t) GEMM(t, "NTC") SYMM(t, symm, 's') GEADD(t)
FOR_ALL(s)
FOR_ALL(d)
FOR_ALL(c)
FOR_ALL(z)
SYRK(s, syrk, 'k', "NTC", 's')
SYRK(d, syrk, 'k', "NTC", 'd')
SYRK(c, syrk, 'k', "NT", 'c')
SYRK(z, syrk, 'k', "NT", 'z')
SYRK(c, herk, 'j', "NC", 's')
SYRK(z, herk, 'j', "NC", 'd')
SYMM(c, hemm, 'h')
SYMM(z, hemm, 'h')
TRAN(s, tran, 'T')
TRAN(d, tran, 'T')
TRAN(c, tranu, 'T')
TRAN(z, tranu, 'T')
TRAN(c, tranc, 'C')
TRAN(z, tranc, 'C')
