"""20,000 damaged configs: each is understood or refused, none ends in anything but a QwispError."""

from __future__ import annotations

import copy
import random

from qwisp.errors import QwispError
from qwisp.memory.dialects import DIALECTS
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.model import ModelSpec

JUNK = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, 10**30, -(2**40)),
    *(0.5, 1e300, float("nan"), float("inf"), "", "x", "yarn", "full_attention", "M*", "bfloat16"),
    *([], [1], [1, 1], [-1], [True], [None], ["full_attention"], [[]], [{}], {}, {"a": 1}),
    {"rope_type": "yarn", "factor": float("nan"), "original_max_position_embeddings": 4096},
    {"kda_layers": [1], "full_attn_layers": [2]},
]
DIALECT_NAMES = sorted(DIALECTS)


def damage(rng, config, keys):
    target = config
    while True:
        nested = [value for value in target.values() if isinstance(value, dict)]
        if not nested or rng.random() < 0.4:
            break
        target = rng.choice(nested)
    if not target:
        return
    present = list(target)
    match rng.randrange(4):
        case 0:
            del target[rng.choice(present)]
        case 1:
            target[rng.choice(present)] = copy.deepcopy(rng.choice(JUNK))
        case 2:
            target[rng.choice(keys)] = copy.deepcopy(rng.choice(JUNK))
        case 3:
            target[rng.choice(present)] = copy.deepcopy(target[rng.choice(present)])


def test_damaged_configs_raise_only_our_errors(configs):
    rng = random.Random(20261130)
    originals = list(configs.values())
    keys = sorted({key for c in originals for key in (*c, *c.get("text_config", {}))})
    understood = 0
    for index in range(20_000):
        config = copy.deepcopy(rng.choice(originals))
        for _ in range(rng.randint(1, 3)):
            damage(rng, config, keys)
        try:
            spec = ModelSpec.from_config(config)
            dialect = DIALECTS[DIALECT_NAMES[index % len(DIALECT_NAMES)]]()
            total = cache_bytes(spec, rng.choice([1, 4096, 65536]), dialect).total_bytes
        except QwispError:
            continue
        understood += 1
        assert isinstance(total, int)
        assert total >= 0
    # Both outcomes must be common, or the mutator tests nothing.
    assert 4_000 < understood < 16_000
