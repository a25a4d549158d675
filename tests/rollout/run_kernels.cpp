// The decode kernels as plain functions of a shared library, run by the fibers of cuda_on_cpu.h.
#include "cuda_on_cpu.h"

#include KERNELS

#include "half_on_cpu.h"

extern "C" {
void run_add_norm(unsigned grid_x, unsigned grid_y, unsigned threads, STREAM* a, COMPUTE* b, NORM* c, void* d, int e,
                  float f, float g, int h) {
    cpu::launch({grid_x, grid_y, 1}, threads, [=] { add_norm(a, b, c, d, e, f, g, h); });
}
void run_plain_norm(unsigned grid_x, unsigned grid_y, unsigned threads, COMPUTE* a, NORM* b, COMPUTE* c, int d, float e,
                    float f) {
    cpu::launch({grid_x, grid_y, 1}, threads, [=] { plain_norm(a, b, c, d, e, f); });
}
void run_rotate_and_store(unsigned grid_x, unsigned grid_y, unsigned threads, COMPUTE* a, long long* b, float* c,
                          float* d, NORM* e, NORM* f, COMPUTE* g, COMPUTE* h, COMPUTE* i, int j, int k, int l, float m,
                          float n) {
    cpu::launch({grid_x, grid_y, 1}, threads, [=] { rotate_and_store(a, b, c, d, e, f, g, h, i, j, k, l, m, n); });
}
void run_activate(unsigned grid_x, unsigned grid_y, unsigned threads, COMPUTE* a, COMPUTE* b, int c, int d) {
    cpu::launch({grid_x, grid_y, 1}, threads, [=] { activate(a, b, c, d); });
}
void run_attend(unsigned grid_x, unsigned grid_y, unsigned threads, COMPUTE* a, COMPUTE* b, COMPUTE* c, long long* d,
                COMPUTE* e, int f, int g, int h, float i, float j) {
    cpu::launch({grid_x, grid_y, 1}, threads, [=] { attend(a, b, c, d, e, f, g, h, i, j); });
}
void run_draw(unsigned grid_x, unsigned grid_y, unsigned threads, float* a, double* b, long long* c, float* d, float* e,
              int f, int g, float h, float i) {
    cpu::launch({grid_x, grid_y, 1}, threads, [=] { draw(a, b, c, d, e, f, g, h, i); });
}
}
