// CUDA's kernels on a processor, to test what they compute: each thread of a block is a fiber, which runs until it meets a
// barrier or ends. From one barrier to the next they run in turn, upwards and downwards, so that a missing one shows. A warp
// goes on past its shuffles while others wait: only barriers of the block hold it up, as on a device.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct Place {
    unsigned x, y, z;
};
static Place threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr size_t STACK = 64 << 10, WARP = 32;
enum Stop { SHUFFLE, BARRIER, END, STOPS };
struct Fiber {
    ucontext_t context;
    Place place;
    Stop at;
    std::vector<char> stack;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static Fiber* current;
static void (*body)(void**);
static void** arguments;

inline void stop(Stop at)
{
    current->at = at;
    swapcontext(&current->context, &scheduler);
}

inline void enter()
{
    body(arguments);
    stop(END);
}

// Where threads stop together: what only some of them reach ends the program.
inline Stop together(const size_t (&stopped)[STOPS], size_t count, const char* what)
{
    for (Stop at : {SHUFFLE, BARRIER, END})
        if (stopped[at] == count)
            return at;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

// A warp, past its shuffles, to the next barrier or to the end.
inline Stop warp(size_t begin, bool upwards)
{
    const size_t count = std::min(WARP, fibers.size() - begin);
    for (;;) {
        size_t stopped[STOPS] = {};
        for (size_t n = 0; n < count; n++) {
            current = &fibers[begin + (upwards ? n : count - 1 - n)];
            threadIdx = current->place;
            swapcontext(&scheduler, &current->context);
            stopped[current->at]++;
        }
        const Stop at = together(stopped, count, "a shuffle or a barrier that only some threads of a warp reach");
        if (at != SHUFFLE)
            return at;
    }
}

// From here to the next barrier, or to the end; whether the threads go on.
inline bool phase(bool upwards)
{
    const size_t count = (fibers.size() + WARP - 1) / WARP;
    size_t stopped[STOPS] = {};
    for (size_t n = 0; n < count; n++)
        stopped[warp((upwards ? n : count - 1 - n) * WARP, upwards)]++;
    return together(stopped, count, "a barrier that only some threads of a block reach") == BARRIER;
}

inline void block()
{
    fibers.resize(blockDim.x * blockDim.y * blockDim.z);
    for (size_t n = 0; n < fibers.size(); n++) {
        Fiber& fiber = fibers[n];
        fiber.stack.resize(STACK);
        fiber.place = {unsigned(n % blockDim.x), unsigned(n / blockDim.x % blockDim.y), unsigned(n / blockDim.x / blockDim.y)};
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    for (bool upwards = true; phase(upwards); upwards = !upwards) {
    }
}

template <class... Of, size_t... n>
void call(void (*kernel)(Of...), void** from, std::index_sequence<n...>) { kernel(*(Of*)from[n]...); }

template <class... Of>
void apply(void (*kernel)(Of...), void** from) { call(kernel, from, std::index_sequence_for<Of...>()); }

inline void launch(void (*what)(void**), const unsigned* grid, const unsigned* shape, void** from)
{
    body = what, arguments = from;
    gridDim = {grid[0], grid[1], grid[2]}, blockDim = {shape[0], shape[1], shape[2]};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
                block();
}

}  // namespace host

inline void __syncthreads() { host::stop(host::BARRIER); }

inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) { return (unsigned __int128)x * y >> 64; }

template <class To, class From>
inline To bits_as(From x)
{
    To y;
    static_assert(sizeof x == sizeof y, "as many bits");
    std::memcpy(&y, &x, sizeof y);
    return y;
}

inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
inline float half_to_float(unsigned short bits) { return bits_as<_Float16>(bits); }
inline unsigned short float_to_half(float x) { return bits_as<unsigned short>((_Float16)x); }

// What the thread `apart` places on, or back, in its warp has given.
template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, unsigned apart)
{
    static T given[1024];
    const unsigned at = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    if (mask != 0xffffffff || apart >= 32 || host::fibers.size() % 32)
        std::fprintf(stderr, "a shuffle of a part of a warp\n"), std::abort();
    given[at] = x;
    host::stop(host::SHUFFLE);
    x = given[at ^ apart];
    host::stop(host::SHUFFLE);
    return x;
}

// launch_name(grid, block, arguments), as cuLaunchKernel takes them: a pointer to each argument.
#define LAUNCH(name)                                                                                     \
    extern "C" void launch_##name(const unsigned* grid, const unsigned* block, void** arguments)         \
    {                                                                                                    \
        host::launch([](void** from) { host::apply(name, from); }, grid, block, arguments);              \
    }
