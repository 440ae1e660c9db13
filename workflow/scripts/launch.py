"""Run a model program on the devices of its job.

Example:
    python workflow/scripts/launch.py --gpus 2 --processes 2 workflow/scripts/train_adapter.py \
        --model resources/models/gemma-3-12b/manifest.json ...

With `--gpus 0` the program sees no GPU. Otherwise it gets as many GPUs as asked for, and no other
program that was launched by the same user on this machine gets the same ones meanwhile: each GPU
has a lock file, and the kernel frees its lock when the last process of the program has ended,
however it ended. Under Slurm the devices are those of the job.
"""

import argparse
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Only fetching uses the network."""

PRETEND = "CALIBRATION_TUNING_PRETEND_GPUS"
"""For tests on a cluster whose GPUs are pretended: set, the CPU stands for the GPUs of a job."""

SECONDS_BETWEEN_LOOKS = 1.0
"""How often a job that waits for GPUs looks whether they are free."""

SECONDS_TO_FAIL = 3.0
"""How long the other processes of a program go on after one has failed."""

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of the job; 0 for the CPU")
    parser.add_argument("--processes", type=int, default=1, help="each with a GPU of its own")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="program.py and its arguments")
    arguments = parser.parse_args()
    if not arguments.program:
        parser.error("expected a program to run")
    if 0 < arguments.gpus < arguments.processes:
        parser.error("expected a GPU for each process")
    return arguments


def visible_gpus() -> list[str]:
    """The GPUs that this job may use, as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip()]
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return listed.split()


def lock_file(name: str) -> int:
    """Open the lock file of a name, in a folder of this user on this machine."""
    folder = Path(tempfile.gettempdir()) / f"calibration-tuning-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return os.open(folder / name.replace("/", "-"), os.O_RDWR | os.O_CREAT, 0o600)


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_free(candidates: list[str], count: int) -> dict[str, int]:
    """Lock `count` free GPUs, or none if fewer are free; their names and descriptors."""
    gate = lock_file("gate")  # one job at a time looks, so that two never hold half each
    fcntl.flock(gate, fcntl.LOCK_EX)
    locked: dict[str, int] = {}
    for name in candidates:
        descriptor = lock_file(name)
        if len(locked) < count and try_lock(descriptor):
            locked[name] = descriptor
        else:
            os.close(descriptor)
    if len(locked) < count:
        for descriptor in locked.values():
            os.close(descriptor)
        locked = {}
    os.close(gate)
    return locked


def take_gpus(count: int) -> list[int]:
    """Make `count` GPUs the visible ones, waiting until so many are free.

    Returns
    -------
    list of int
        Descriptors of the locks, for the program to inherit; none where a scheduler assigns GPUs.
    """
    if os.environ.get(PRETEND):
        print(f"the CPU stands for {count} GPUs ({PRETEND} is set)", file=sys.stderr, flush=True)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return []
    found = visible_gpus()
    if len(found) < count:
        sys.exit(
            f"error: the model asks for {count} GPUs and this job can use {len(found)} "
            f"({', '.join(found) or 'none'}); expected a smaller gpu in the model's block of "
            f"config/models.yaml, or a machine or CUDA_VISIBLE_DEVICES with as many"
        )
    if "SLURM_JOB_ID" in os.environ:
        return []
    locked = lock_free(found, count)
    if not locked:
        print(f"waiting for {count} free GPUs of {','.join(found)}", file=sys.stderr, flush=True)
    while not locked:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        locked = lock_free(found, count)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(locked)
    for descriptor in locked.values():
        os.set_inheritable(descriptor, True)
    return list(locked.values())


def end_with_parent() -> None:
    """Have the kernel kill this process when the launcher ends, however it ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> socket.socket:
    """A socket that reserves a port: nobody is given it, but a process that asks for it may listen.

    Of two sockets with this option only one may listen, and this one does not.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def start(command: list[str], processes: int, locks: list[int]) -> list[tuple]:
    """Start the processes; each with the file of its messages, None for the first's, which show."""
    reserved = free_port()
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(reserved.getsockname()[1]),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # programs set their own
    }
    started = []
    for rank in range(processes):
        messages = tempfile.TemporaryFile() if rank > 0 else None  # noqa: SIM115
        process = subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=messages,
            stderr=messages,
            pass_fds=[*locks, reserved.fileno()],
            preexec_fn=end_with_parent,
        )
        started.append((process, messages))
    return started


def wait(started: list[tuple]) -> int:
    """Wait for all processes; the exit code of the first that failed, or 0.

    When one fails the others are ended: they would wait for it. A failure of another process than
    the first is shown after what the first one says, since it is the cause.
    """
    deadline = float("inf")
    failed = None
    while None in (codes := [process.poll() for process, _ in started]):
        if failed is None and any(codes):
            failed = next(pair for pair, code in zip(started, codes, strict=True) if code)
            deadline = time.monotonic() + SECONDS_TO_FAIL
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    failed = failed or next((pair for pair in started if pair[0].returncode), None)
    for process, _ in started:
        process.kill()
        process.wait()
    if failed is None:
        return 0
    process, messages = failed
    if messages is not None:
        messages.seek(0)
        sys.stderr.write(messages.read().decode(errors="replace"))
    return process.returncode if process.returncode > 0 else 128 - process.returncode


def main() -> None:
    arguments = parse_arguments()
    os.environ.update(OFFLINE)
    locks = []
    if arguments.gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        locks = take_gpus(arguments.gpus)
    command = [sys.executable, *arguments.program]
    if arguments.processes <= 1:
        os.execv(sys.executable, command)
    # Not torchrun: it starts processes in sessions of their own, which survive a kill -9 of the
    # job and would go on writing beside the job that resumes it; it also imports torch itself and
    # follows a program's one line about a mistake by a page of its own.
    try:
        sys.exit(wait(start(command, arguments.processes, locks)))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
