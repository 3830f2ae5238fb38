// One thread group: row w, head h. Reads the partials, writes out [W, H, D]; an idle row is zeros.
  const int heads = sizes[0], slots = sizes[3];
  const int w = group / heads;
  const int blocks = (length[w] + 255) / 256;
  float top = MINUS_INFINITY;
  for (int j = 0; j < blocks; ++j) top = largest(top, m[(wide)group * slots + j]);
  LANES {
    for (int d = lane; d < D; d += LANE_COUNT) {
      float total = 0.0f, weight = 0.0f;
      for (int j = 0; j < blocks; ++j) {
        const wide at = (wide)group * slots + j;
        const float share = own_exp(sub(m[at], top));
        total = add(total, mul(share, o[at * D + d]));
        weight = add(weight, mul(share, l[at]));
      }
      out[(wide)group * D + d] = blocks ? quotient(total, weight) : 0.0f;
    }
  }
