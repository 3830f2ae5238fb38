// One thread group: row w, value head h, row r of the state, through steps[0] tokens in time.
// q, k [W, T, HV, DK], v [W, T, HV, DV], decay, beta [W, T, HV]; writes y [W, T, HV, DV] and next
// [W, HV, DV, DK]; all fp32. Idle rows (live 0) touch nothing. Decode has T = 1, prefill W = 1.
  const int h = group / DV % HV, w = group / DV / HV, r = group % DV, count = steps[0];
  if (live[w]) {
    PER_LANE_ARRAY(float, s, DK / LANE_COUNT);
    PER_LANE(float, sum);
    LANES {
      for (int i = 0; i < DK / LANE_COUNT; ++i)
        AT(s)[i] = state[(wide)group * DK + i * LANE_COUNT + lane];
    }
    for (int t = 0; t < count; ++t) {
      const wide at = ((wide)w * count + t) * HV + h;
      GLOBAL const float *key = k + at * DK;
      GLOBAL const float *query = q + at * DK;
      const float keep = decay[at], rate = beta[at], value = v[at * DV + r];
      LANES {
        AT(sum) = 0.0f;
        for (int i = 0; i < DK / LANE_COUNT; ++i) {
          AT(s)[i] = mul(AT(s)[i], keep);
          AT(sum) = add(AT(sum), mul(AT(s)[i], key[i * LANE_COUNT + lane]));
        }
      }
      butterfly_add(sum);
      LANES {
        const float delta = mul(sub(value, AT(sum)), rate);
        AT(sum) = 0.0f;
        for (int i = 0; i < DK / LANE_COUNT; ++i) {
          AT(s)[i] = add(AT(s)[i], mul(delta, key[i * LANE_COUNT + lane]));
          AT(sum) = add(AT(sum), mul(AT(s)[i], query[i * LANE_COUNT + lane]));
        }
      }
      butterfly_add(sum);
      LANES {
        if (lane == 0) y[at * DV + r] = AT(sum);
      }
    }
    LANES {
      for (int i = 0; i < DK / LANE_COUNT; ++i)
        next[(wide)group * DK + i * LANE_COUNT + lane] = AT(s)[i];
    }
  }
