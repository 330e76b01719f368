// Enough of CUDA to run the house's kernels on the host, one block after the other: a thread is a fiber.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __maxnreg__(n)

struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct Index { unsigned x, y, z; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

// --- fibers ---------------------------------------------------------------------------------------------------------
struct Barrier { unsigned arrived = 0, generation = 0; };
struct Fiber {
  ucontext_t context;  // to start it; from then on jumps, which need no system call
  jmp_buf place;
  const Barrier* waits = nullptr;
  unsigned seen = 0;
  bool started = false, done = false;
  unsigned shuffles = 0, products = 0;
};
static Index threadIdx, blockIdx, gridDim, blockDim;
static std::vector<Fiber> fibers;
static std::vector<Barrier> warp_barriers;
static std::vector<float> exchanged;  // (warp, parity, lane)
static std::vector<unsigned> operands;  // (warp, parity, lane, 6): what each lane feeds to a matrix product
static Barrier block_barrier;
static jmp_buf scheduler;
static std::function<void()> body;
static char* dynamic_shared;

static void meet(Barrier& barrier, unsigned count) {
  Fiber& me = fibers[threadIdx.x];
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  me.waits = &barrier, me.seen = barrier.generation;
  if (!_setjmp(me.place)) _longjmp(scheduler, 1);
}
static inline void __syncthreads() { meet(block_barrier, blockDim.x); }
static inline float __shfl_xor_sync(unsigned, float value, int mask) {
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* slots = &exchanged[(warp * 2 + fibers[threadIdx.x].shuffles++ % 2) * 32];
  slots[lane] = value;
  meet(warp_barriers[warp], 32);
  return slots[lane ^ mask];
}
static inline int __shfl_xor_sync(unsigned all, int value, int mask) {
  float bits;
  std::memcpy(&bits, &value, 4);
  bits = __shfl_xor_sync(all, bits, mask);
  std::memcpy(&value, &bits, 4);
  return value;
}
static void enter() {
  body();
  fibers[threadIdx.x].done = true;
  _longjmp(scheduler, 1);
}
static void run_block(std::vector<char>& stacks) {
  const size_t stack = 65536;
  stacks.resize(stack * blockDim.x);
  fibers.assign(blockDim.x, Fiber());
  warp_barriers.assign(blockDim.x / 32, Barrier());
  exchanged.assign(blockDim.x * 2, NAN);
  operands.assign(blockDim.x * 2 * 6, 0);
  block_barrier = Barrier();
  for (unsigned i = 0; i < blockDim.x; ++i) {
    getcontext(&fibers[i].context);
    fibers[i].context.uc_stack.ss_sp = &stacks[stack * i];
    fibers[i].context.uc_stack.ss_size = stack;
    makecontext(&fibers[i].context, enter, 0);
  }
  for (unsigned left = blockDim.x; left;) {
    for (unsigned i = 0; i < blockDim.x; ++i) {
      Fiber& f = fibers[i];
      if (f.done || (f.waits && f.waits->generation == f.seen)) continue;
      f.waits = nullptr;
      threadIdx = {i, 0, 0};
      if (!_setjmp(scheduler)) {
        if (f.started) _longjmp(f.place, 1);
        f.started = true;
        setcontext(&f.context);
      }
      left -= f.done;
    }
  }
}
template <class... A, size_t... I>
static void launch(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  std::tuple<A...> values;
  ((void)std::memcpy((void*)&std::get<I>(values), arguments[I], sizeof(A)), ...);
  std::vector<char> stacks;
  body = [&] { kernel(std::get<I>(values)...); };
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) blockIdx = {x, y, z}, run_block(stacks);
}
template <class... A>
static void launch(void (*kernel)(A...), const unsigned* grid, unsigned block, unsigned shared, void** arguments) {
  std::vector<uint4> memory(shared / 16 + 1, {~0u, ~0u, ~0u, ~0u});  // NaN until written
  dynamic_shared = (char*)memory.data();
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block, 1, 1};
  launch(kernel, arguments, std::index_sequence_for<A...>());
}

// --- functions ------------------------------------------------------------------------------------------------------
using std::min;
template <class T> static inline T __ldcg(const T* p) { return *p; }
static inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
static inline int __float2int_rn(float x) { return (int)std::lrint(x); }
static inline unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline void __threadfence() {}
template <class T> static T exchange(T* p, T v) { T old = *p; *p = v; return old; }
static inline unsigned long long atomicMax(unsigned long long* p, unsigned long long v) { return exchange(p, std::max(*p, v)); }
static inline unsigned long long atomicExch(unsigned long long* p, unsigned long long v) { return exchange(p, v); }
static inline unsigned atomicAdd(unsigned* p, unsigned v) { return exchange(p, *p + v); }

// --- what the kernels say in PTX ------------------------------------------------------------------------------------
static inline float half_float(unsigned bits) {
  unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 0) return __uint_as_float(sign | __float_as_uint(fraction * 5.9604644775390625e-8f));
  return __uint_as_float(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13);
}
static inline unsigned float_half(float f) {
  unsigned sign = __float_as_uint(f) >> 16 & 0x8000u;
  float size = std::fabs(f);
  if (!(size <= 65504.f)) return sign | 0x7c00u | (size != size);
  int exponent = size < 6.103515625e-5f ? -14 : std::ilogb(size);
  unsigned steps = (unsigned)std::lrint(std::ldexp(size, 10 - exponent));  // 1024 .. 2048, below that subnormal
  return sign | (steps + ((unsigned)(exponent + 14) << 10));
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned char bytes[8];
  std::memcpy(bytes, &a, 4), std::memcpy(bytes + 4, &b, 4);
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= (unsigned)bytes[selector >> 4 * i & 7] << 8 * i;
  return out;
}
// mma.m16n8k16 as the PTX manual lays its fragments out; b: b0, b1 of the caller's own lane.
static inline void mma_host(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned* slots = &operands[(warp * 2 + fibers[threadIdx.x].products++ % 2) * 32 * 6];
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::memcpy(slots + lane * 6, mine, sizeof mine);
  meet(warp_barriers[warp], 32);
  const auto half_at = [&](unsigned of, unsigned which, int high) {
    return half_float(slots[of * 6 + which] >> (high ? 16 : 0) & 0xffffu);
  };
  for (int i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + (i / 2) * 8, column = lane % 4 * 2 + i % 2;
    float sum = 0.f;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned t = k % 8 / 2, upper = k / 8;
      sum += half_at(row % 8 * 4 + t, row / 8 + 2 * upper, k % 2) * half_at(column * 4 + t, 4 + upper, k % 2);
    }
    c[i] += sum;
  }
}
static inline int dot4_host(unsigned a, unsigned b, int c) {
  for (int i = 0; i < 4; ++i) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
  return c;
}
