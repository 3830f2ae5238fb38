// Metal prelude: a thread group is one SIMD group of 32. Contraction and fast maths are off.
#include <metal_stdlib>
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
using namespace metal;
#define DEVICE static inline
#define GLOBAL device
#define LANE_COUNT 32
typedef long wide;
#define MINUS_INFINITY from_bits(0xff800000u)
#define PER_LANE(type, name) type name
#define PER_LANE_ARRAY(type, name, count) type name[count]
#define AT(name) name
#define LANES for (int lane = thread_index_in_simdgroup, once = 1; once; once = 0)
#define SHARED(type, name, count) threadgroup type name[count]
#define SYNC() simdgroup_barrier(mem_flags::mem_threadgroup)
DEVICE float mul(float a, float b) { return a * b; }
DEVICE float add(float a, float b) { return a + b; }
DEVICE float sub(float a, float b) { return a - b; }
DEVICE float quotient(float a, float b) { return precise::divide(a, b); }
DEVICE float nearest(float x) { return rint(x); }
DEVICE float from_bits(uint x) { return as_type<float>(x); }
DEVICE float largest(float a, float b) { return a > b ? a : b; }
DEVICE void butterfly_add(thread float &x) {
  for (ushort d = LANE_COUNT / 2; d; d /= 2) x = add(x, simd_shuffle_xor(x, d));
}
DEVICE void butterfly_max(thread float &x) {
  for (ushort d = LANE_COUNT / 2; d; d /= 2) x = largest(x, simd_shuffle_xor(x, d));
}
