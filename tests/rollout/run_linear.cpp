// The linear kernels as plain functions of a shared library, run by the fibers of cuda_on_cpu.h.
#include "cuda_on_cpu.h"

#include KERNELS

#include "half_on_cpu.h"

#define RUN(NAME)                                                                                                      \
    extern "C" void run_##NAME(                                                                                        \
        unsigned grid_x, unsigned grid_y, unsigned threads, INPUT* a, WEIGHT* b, OUTPUT* c, OUTPUT* d, float* e,       \
        unsigned* f, int g, int h, int i, int j, int k                                                                 \
    ) {                                                                                                                \
        cpu::launch({grid_x, grid_y, 1}, threads, [=] { NAME(a, b, c, d, e, f, g, h, i, j, k); });                     \
    }

RUN(linear_8x64)
RUN(linear_8x64_deep)
RUN(linear_16x64)
RUN(linear_16x32)
RUN(linear_32x64)
RUN(linear_32x32)
RUN(linear_64x64)
