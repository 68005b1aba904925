// Kernels that stand for an engine's work on a device, in tests and in bench/gpu: `./dev ptx` makes cuda_kernels.c.
#include "stdint.h"

static __device__ uint64_t now_ns()
{
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Begins to write after so long a time, as what comes after other work does. Any grid, in one dimension.
extern "C" __global__ void test_fill(uint8_t *to, uint64_t bytes, uint64_t value, uint64_t delay_ns)
{
  const uint64_t begin_ns = now_ns();
  while (now_ns() - begin_ns < delay_ns) {
  }
  const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < bytes; at += threads) {
    to[at] = (uint8_t)value;
  }
}

// c = a x b, squares of n numbers a row, n a multiple of 32: blocks of 32 x 32 threads, n / 32 of them in x and in y.
extern "C" __global__ __launch_bounds__(1024) void test_multiply(const float *a, const float *b, float *c, uint64_t n)
{
  __shared__ float left[32][32];
  __shared__ float right[32][32];
  const uint64_t row = (uint64_t)blockIdx.y * 32 + threadIdx.y;
  const uint64_t column = (uint64_t)blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (uint64_t tile = 0; tile < n; tile += 32) {
    left[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
    __syncthreads();
    for (unsigned i = 0; i < 32; i++) {
      sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    }
    __syncthreads();
  }
  c[row * n + column] = sum;
}
