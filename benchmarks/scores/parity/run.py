"""Does one update of ours change the weights as public code does? Equal weights, batches and noise, float64.

    python benchmarks/scores/parity/run.py --corl CORL --td3 TD3 --redq REDQ --sb3 SB3 --d3rlpy D3RLPY \
        --fql FQL --kit KIT --caps CAPS

CORL, TD3, REDQ, FQL, KIT and CAPS are checkouts of github.com/corl-team/CORL, sfujim/TD3, watchernyu/REDQ,
seohongpark/fql, yihaosun1124/OfflineRL-Kit and yassineCh/CAPS; SB3 is the folder that stable_baselines3 and
sb3_contrib lie in, D3RLPY that of d3rlpy. Their code is imported from there and nothing of it is kept here.
Cases without their checkout are left out, and `--only NAME ...` takes some of the cases. ReBRAC and FQL need
jax, flax, optax, chex, distrax and ml_collections. JAX runs uncompiled here, so that it takes our noise: FQL
takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import caps_case
import choice_cases
import crr_case
import kit_cases
import soft_cases
import torch_cases
from common import CHECKPOINTS, FLOOR, compare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("corl", "td3", "redq", "sb3", "d3rlpy", "fql", "kit", "caps"):
        parser.add_argument(f"--{name}", type=Path, help=f"where {name} lies")
    parser.add_argument("--only", nargs="*", help="names of cases")
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    cases = torch_cases.CASES | soft_cases.CASES | crr_case.CASES | choice_cases.CASES | kit_cases.CASES
    cases |= caps_case.CASES
    try:
        import jax_cases
    except ImportError as missing:
        print(f"ReBRAC and FQL are left out: {missing}", file=sys.stderr)
    else:
        cases |= jax_cases.CASES
    print(f"largest relative difference of a weight (at least {FLOOR} each) after n updates")
    print("| case | " + " | ".join(f"{count}" for count in CHECKPOINTS) + " |")
    print("|---|" + "---|" * len(CHECKPOINTS))
    for name, (needs, build) in cases.items():
        checkout = getattr(options, needs)
        if checkout is None or (options.only and name not in options.only):
            continue
        torch.manual_seed(0)
        found = compare(build(checkout))
        if found[0]:
            raise RuntimeError(f"{name}: the first weights differ by {found[0]}")
        print(f"| {name} | " + " | ".join(f"{found[count]:.1e}" for count in CHECKPOINTS) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
