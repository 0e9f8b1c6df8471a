// CUDA's kernels on a processor, to test what they compute: each thread of a block is a fiber, which runs until it meets a
// barrier or ends. From one barrier to the next they run in turn, upwards and downwards, so that a missing one shows.

#include <ucontext.h>

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

constexpr size_t STACK = 64 << 10;
struct Fiber {
    ucontext_t context;
    Place place;
    bool ended;
    std::vector<char> stack;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static Fiber* current;
static void (*body)(void**);
static void** arguments;

inline void enter()
{
    body(arguments);
    current->ended = true;
    swapcontext(&current->context, &scheduler);
}

// From here to the next barrier, or to the end; whether the threads go on. A barrier that some never reach ends the program.
inline bool phase(bool upwards)
{
    size_t ended = 0;
    for (size_t n = 0; n < fibers.size(); n++) {
        current = &fibers[upwards ? n : fibers.size() - 1 - n];
        threadIdx = current->place;
        swapcontext(&scheduler, &current->context);
        ended += current->ended;
    }
    if (ended && ended < fibers.size()) {
        std::fprintf(stderr, "a barrier that only some threads of a block reach\n");
        std::abort();
    }
    return !ended;
}

inline void block()
{
    fibers.resize(blockDim.x * blockDim.y * blockDim.z);
    for (size_t n = 0; n < fibers.size(); n++) {
        Fiber& fiber = fibers[n];
        fiber.stack.resize(STACK);
        fiber.ended = false;
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

inline void __syncthreads() { swapcontext(&host::current->context, &host::scheduler); }

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

// What the thread `apart` places on, or back, in its warp has given: here all threads of a block must come to it.
template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, unsigned apart)
{
    static T given[1024];
    const unsigned at = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    if (mask != 0xffffffff || apart >= 32 || host::fibers.size() % 32)
        std::fprintf(stderr, "a shuffle of a part of a warp\n"), std::abort();
    given[at] = x;
    __syncthreads();
    x = given[at ^ apart];
    __syncthreads();
    return x;
}

// launch_name(grid, block, arguments), as cuLaunchKernel takes them: a pointer to each argument.
#define LAUNCH(name)                                                                                     \
    extern "C" void launch_##name(const unsigned* grid, const unsigned* block, void** arguments)         \
    {                                                                                                    \
        host::launch([](void** from) { host::apply(name, from); }, grid, block, arguments);              \
    }
