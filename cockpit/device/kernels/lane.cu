// Kernels every lane needs, whatever runs in it: the gate a task yields at and a load for measurements.
typedef unsigned int u32;
typedef unsigned long long u64;

// Stop here while *word is not 0 (host memory, written by the urgent task's thread). One thread, so that what is
// parked holds no compute unit. After timeout_ns it goes on and counts that in passed[1]; passed[0] counts stops.
extern "C" __global__ void gate(const volatile u32* word, volatile u32* passed, u64 timeout_ns) {
  if (*word == 0) return;
  u64 began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  passed[0] = passed[0] + 1;
  do {
    __nanosleep(500);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - began > timeout_ns) {
      passed[1] = passed[1] + 1;
      return;
    }
  } while (*word != 0);
}

// Read `count` 16-byte words: a load that wants memory bandwidth only. `out` keeps the reads alive.
extern "C" __global__ void stream_read(const uint4* from, u64 count, u32* out) {
  u32 sum = 0;
  u64 step = (u64)gridDim.x * blockDim.x;
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    sum ^= a.x ^ b.y ^ c.z ^ d.w;
  }
  for (; i < count; i += step) sum ^= from[i].x;
  if (sum == 0x9e3779b9u) *out = sum;
}
