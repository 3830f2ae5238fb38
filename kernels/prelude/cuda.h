// CUDA prelude: a thread group is one warp. The rounding intrinsics are never fused.
#define DEVICE __device__ __forceinline__
#define GLOBAL
#define LANE_COUNT 32
typedef long long wide;
#define MINUS_INFINITY from_bits(0xff800000u)
#define PER_LANE(type, name) type name
#define PER_LANE_ARRAY(type, name, count) type name[count]
#define AT(name) name
#define LANES for (int lane = threadIdx.x % LANE_COUNT, once = 1; once; once = 0)
#define SHARED(type, name, count) __shared__ type name[count]
#define SYNC() __syncwarp()
DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub(float a, float b) { return __fsub_rn(a, b); }
DEVICE float quotient(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float nearest(float x) { return rintf(x); }
DEVICE float from_bits(unsigned x) { return __uint_as_float(x); }
DEVICE float largest(float a, float b) { return a > b ? a : b; }
DEVICE void butterfly_add(float &x) {
  for (int d = LANE_COUNT / 2; d; d /= 2) x = add(x, __shfl_xor_sync(~0u, x, d));
}
DEVICE void butterfly_max(float &x) {
  for (int d = LANE_COUNT / 2; d; d /= 2) x = largest(x, __shfl_xor_sync(~0u, x, d));
}
