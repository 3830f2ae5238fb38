// sdpa_rows: the arithmetic, one text for host, CUDA and Metal. reference.py defines it.
// T is the type of the rows, D the head size. `sizes`: heads, groups, rows of a buffer, block slots.

// e^x for x <= 0: 2^n times a polynomial; 0 below -87 and for NaN.
DEVICE float own_exp(float x) {
  if (!(x >= -87.0f)) return 0.0f;
  float n = nearest(mul(x, 1.44269504088896341f));
  float r = sub(x, mul(n, 0.693359375f));
  r = sub(r, mul(n, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = add(mul(p, r), 1.3981999507e-3f);
  p = add(mul(p, r), 8.3334519073e-3f);
  p = add(mul(p, r), 4.1665795894e-2f);
  p = add(mul(p, r), 1.6666665459e-1f);
  p = add(mul(p, r), 5.0000001201e-1f);
  float y = add(add(mul(p, mul(r, r)), r), 1.0f);
  return mul(y, from_bits(((int)n + 127) << 23));
}

// Whether a ring of `size` rows holds, in `slot`, a position that `position` may read.
// Window 0 means full attention, where every row below the length may be read.
DEVICE bool may_read(int slot, int position, int window, int size) {
  if (window == 0) return true;
  int held = position - (position - slot) % size;
  if (slot > position) held = position - size + (slot - position) % size;
  return held >= 0 && held > position - window;
}
