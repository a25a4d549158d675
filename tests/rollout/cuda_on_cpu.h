// Enough of CUDA to run a kernel on a CPU, block after block, each thread a fiber that waits where threads wait.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim;

namespace cpu {
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current, alive, arrived, generation;
static std::vector<unsigned> warp_arrived, warp_generation;
static std::vector<double> lanes;
static std::function<void()> body;

static void yield() { swapcontext(&fibers[current].context, &scheduler); }
static void run_body() {
    body();
    fibers[current].done = true;
    yield();
}
static void wait_warp() {
    unsigned warp = current / 32, mine = warp_generation[warp];
    if (++warp_arrived[warp] == 32) {
        warp_arrived[warp] = 0;
        ++warp_generation[warp];
    }
    while (warp_generation[warp] == mine) yield();
}
template <class T> T exchange(T value, unsigned source_lane) {
    double stored = 0;
    std::memcpy(&stored, &value, sizeof value);
    lanes[current] = stored;
    wait_warp();
    T other;
    std::memcpy(&other, &lanes[current / 32 * 32 + source_lane], sizeof other);
    wait_warp();
    return other;
}
static void launch(Index grid, unsigned threads, std::function<void()> kernel) {
    body = kernel;
    blockDim = {threads, 1, 1};
    for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
            blockIdx = {x, y, 0};
            fibers = std::vector<Fiber>(threads);
            warp_arrived.assign(threads / 32, 0);
            warp_generation.assign(threads / 32, 0);
            lanes.assign(threads, 0);
            arrived = generation = 0;
            for (auto& fiber : fibers) {
                fiber.stack.resize(32768);
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.data();
                fiber.context.uc_stack.ss_size = fiber.stack.size();
                makecontext(&fiber.context, run_body, 0);
            }
            for (alive = threads; alive > 0;)
                for (current = 0; current < threads; ++current) {
                    if (fibers[current].done) continue;
                    threadIdx = {current, 0, 0};
                    swapcontext(&scheduler, &fibers[current].context);
                    alive -= fibers[current].done;
                }
        }
}
}  // namespace cpu

static void __syncthreads() {
    unsigned mine = cpu::generation;
    if (++cpu::arrived == blockDim.x) {
        cpu::arrived = 0;
        ++cpu::generation;
    }
    while (cpu::generation == mine) cpu::yield();
}
template <class T> T __shfl_xor_sync(unsigned, T value, int step) { return cpu::exchange(value, cpu::current % 32 ^ step); }
template <class T> T __shfl_sync(unsigned, T value, int lane) { return cpu::exchange(value, lane); }
template <class T> T __shfl_up_sync(unsigned, T value, int step) {
    int lane = cpu::current % 32;
    return cpu::exchange(value, lane >= step ? lane - step : lane);
}
static unsigned __ballot_sync(unsigned, bool predicate) {
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane) votes |= (unsigned)cpu::exchange((int)predicate, lane) << lane;
    return votes;
}
static int __ffs(unsigned bits) { return __builtin_ffs(bits); }
static int __clz(unsigned bits) { return bits ? __builtin_clz(bits) : 32; }
static void __threadfence() {}
static unsigned atomicAdd(unsigned* at, unsigned value) {
    unsigned before = *at;
    *at += value;
    return before;
}
static float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
static float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }

struct f16;
static inline float widen(f16 value);
static inline void narrow(float value, f16& out);
static inline float load_written(const float* at) { return *at; }
