// One thread group: row w, head h, block j. Writes m, l [W, H, slots] and o [W, H, slots, D].
  const int heads = sizes[0], groups = sizes[1], slots = sizes[3], window = sizes[4];
  const wide buffer_rows = sizes[2];
  const int j = group % slots, h = group / slots % heads, w = group / slots / heads;
  const int count = length[w] - j * 256;
  if (count > 0) {
    const wide first = base[w] + (wide)j * 256;
    GLOBAL const T *keys = k + ((wide)(h / (heads / groups)) * buffer_rows + first) * D;
    GLOBAL const T *values = v + ((wide)(h / (heads / groups)) * buffer_rows + first) * D;
    GLOBAL const float *query = q + (wide)(w * heads + h) * D;
    const wide at = ((wide)w * heads + h) * slots + j;
    SHARED(float, p, 256);
    PER_LANE(float, top);
    PER_LANE(float, sum);
    LANES {
      AT(top) = MINUS_INFINITY;
      for (int i = 0; i < 256; i += LANE_COUNT) {
        const int key = i + lane;
        float s = MINUS_INFINITY;
        if (key < count && may_read(j * 256 + key, position[w], window, ring[w])) {
          s = 0.0f;
          for (int d = 0; d < D; ++d) s = add(s, mul(query[d], (float)keys[(wide)key * D + d]));
        }
        p[key] = s;
        AT(top) = largest(AT(top), s);
      }
    }
    butterfly_max(top);
    LANES {
      const float floor = AT(top) == MINUS_INFINITY ? 0.0f : AT(top);
      AT(sum) = 0.0f;
      for (int i = 0; i < 256; i += LANE_COUNT) {
        p[i + lane] = own_exp(sub(p[i + lane], floor));
        AT(sum) = add(AT(sum), p[i + lane]);
      }
    }
    butterfly_add(sum);
    SYNC();
    LANES {
      for (int d = lane; d < D; d += LANE_COUNT) {
        float total = 0.0f;
        // Rows past the length are not there, and rows that may not be read weigh exactly 0.
        for (int key = 0; key < 256 && key < count; ++key)
          if (p[key] != 0.0f) total = add(total, mul(p[key], (float)values[(wide)key * D + d]));
        o[at * D + d] = total;
      }
      if (lane == 0) {
        m[at] = AT(top);
        l[at] = AT(sum);
      }
    }
  }
