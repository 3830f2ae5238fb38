// Host prelude: one thread group at a time, its 32 lanes in lock step, statement by statement.
// Build with -ffp-contract=off: no multiply may be fused with an add.
#include <cmath>
#include <cstdint>
#include <cstring>
#define DEVICE static inline
#define GLOBAL
#define LANE_COUNT 32
typedef int64_t wide;
#define MINUS_INFINITY from_bits(0xff800000u)
#define PER_LANE(type, name) type name[LANE_COUNT]
#define PER_LANE_ARRAY(type, name, count) type name[LANE_COUNT][count]
#define AT(name) name[lane]
#define LANES for (int lane = 0; lane < LANE_COUNT; ++lane)
#define SHARED(type, name, count) type name[count]
#define SYNC()
DEVICE float mul(float a, float b) { return a * b; }
DEVICE float add(float a, float b) { return a + b; }
DEVICE float sub(float a, float b) { return a - b; }
DEVICE float quotient(float a, float b) { return a / b; }
DEVICE float nearest(float x) { return std::rint(x); }
DEVICE float from_bits(uint32_t x) { float y; std::memcpy(&y, &x, 4); return y; }
DEVICE float largest(float a, float b) { return a > b ? a : b; }
DEVICE void butterfly_add(float *x) {
  for (int d = LANE_COUNT / 2; d; d /= 2) {
    float y[LANE_COUNT];
    for (int i = 0; i < LANE_COUNT; ++i) y[i] = add(x[i], x[i ^ d]);
    std::memcpy(x, y, sizeof y);
  }
}
DEVICE void butterfly_max(float *x) {
  for (int d = LANE_COUNT / 2; d; d /= 2) {
    float y[LANE_COUNT];
    for (int i = 0; i < LANE_COUNT; ++i) y[i] = largest(x[i], x[i ^ d]);
    std::memcpy(x, y, sizeof y);
  }
}
