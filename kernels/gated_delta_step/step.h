// One thread group: row w, value head h, row r of the state. Idle rows (live 0) touch nothing.
// Writes y [W, HV, DV] and next [W, HV, DV, DK]; everything is fp32.
  const int h = group / DV % HV, w = group / DV / HV;
  if (live[w]) {
    GLOBAL const float *key = k + (wide)(w * HV + h) * DK;
    GLOBAL const float *query = q + (wide)(w * HV + h) * DK;
    GLOBAL const float *before = state + (wide)group * DK;
    const float keep = decay[w * HV + h], rate = beta[w * HV + h], value = v[group];
    PER_LANE(float, sum);
    LANES {
      AT(sum) = 0.0f;
      for (int i = lane; i < DK; i += LANE_COUNT)
        AT(sum) = add(AT(sum), mul(mul(before[i], keep), key[i]));
    }
    butterfly_add(sum);
    LANES {
      const float delta = mul(sub(value, AT(sum)), rate);
      AT(sum) = 0.0f;
      for (int i = lane; i < DK; i += LANE_COUNT) {
        const float now = add(mul(before[i], keep), mul(delta, key[i]));
        next[(wide)group * DK + i] = now;
        AT(sum) = add(AT(sum), mul(now, query[i]));
      }
    }
    butterfly_add(sum);
    LANES {
      if (lane == 0) y[group] = AT(sum);
    }
  }
