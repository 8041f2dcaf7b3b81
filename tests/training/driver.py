"""A process that has imported torch once and forks a training at a time, to be killed at random moments.

Run as a script with one JSON argument; prints a JSON line for what happened.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def forked(task: dict[str, Any], out: Path, dies_at_write: int = 0) -> int:
    """The process id of a training in a child."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        from frugalvit.run import train

        if dies_at_write:
            die_at_write(dies_at_write)
        train(task["made"], out=out, resume=True, device="cpu", workers=task["workers"])
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def die_at_write(count: int) -> None:
    """Kill this process before its `count`-th call that makes a file lasting or moves it into place."""
    left = [count]
    for place, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (Path, "replace")):

        def dying(*given: Any, real: Any = getattr(place, name)) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given)

        setattr(place, name, dying)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_after(child: int, seconds: float) -> bool:
    """Whether the child was still at work then; now it is gone in either case."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return ended(child) == -signal.SIGKILL


def newest(out: Path) -> int:
    return max((int(one.stem[5:]) for one in out.glob("state/step-*.safetensors")), default=0)


def main() -> None:
    import torch
    import torch._dynamo  # torch's optimizers import it, and take a second for it
    from sklearn.datasets import load_digits

    import frugalvit.run  # noqa: F401
    from frugalvit.recipes.find import recipe

    torch.set_num_threads(1)
    load_digits()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "forking is safe without threads only"
    task = json.loads(sys.argv[1])
    task["made"] = recipe(*task["recipe"])
    folder, draw = Path(task["folder"]), random.Random(task["seed"])
    began = time.monotonic()
    assert ended(forked(task | {"workers": 0}, folder / "whole")) == 0
    seconds = time.monotonic() - began
    for workers, kills in task["plans"]:
        out, steps = folder / f"workers{workers}", []
        longest = 1.6 * seconds / max(kills, 1)
        for _ in range(4 * kills):
            if len(steps) < kills:
                if killed_after(forked(task | {"workers": workers}, out), draw.uniform(0.03, longest)):
                    steps.append(newest(out))
                longest *= 0.8 if newest(out) >= task["last"] else 1.1 if steps[-2:] == [newest(out)] * 2 else 1.0
        assert ended(forked(task | {"workers": workers}, out)) == 0
        print(json.dumps({"workers": workers, "steps": steps}))
    for count in task["writes"]:
        child = forked(task | {"workers": 0}, folder / "writes", dies_at_write=count)
        code = ended(child)
        assert code in (-signal.SIGKILL, 0), code
        print(json.dumps({"write": count, "killed": code != 0, "step": newest(folder / "writes")}))
    if task["writes"]:
        assert ended(forked(task | {"workers": 0}, folder / "writes")) == 0


if __name__ == "__main__":
    main()
