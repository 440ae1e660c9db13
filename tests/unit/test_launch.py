"""The launcher: devices that no two jobs share, processes that end together, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "workflow" / "scripts" / "launch.py"
PROGRAM = """
import json, os, sys, time
started = time.time()
time.sleep(float(sys.argv[2]))
record = {"start": started, "end": time.time(), "pid": os.getpid(), **os.environ}
open(sys.argv[1] + os.environ.get("RANK", ""), "w").write(json.dumps(record))
print("said by", os.environ.get("RANK", ""))
sys.exit(int(sys.argv[3].split(",")[int(os.environ.get("RANK", "0"))]))
"""


@pytest.fixture
def launch(tmp_path):
    """Start the launcher with a program that records what it sees; ended with the test."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    started = []

    def start(name, options, seconds=0.0, codes="0,0", program=program, **environment):
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "CUDA"))}
        process = subprocess.Popen(
            [
                sys.executable,
                LAUNCH,
                *options.split(),
                program,
                tmp_path / name,
                str(seconds),
                codes,
            ],
            env=keep | {"TMPDIR": str(tmp_path)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def seen(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def is_running(pid: str) -> bool:
    """Whether a process is there and more than a zombie that nobody has asked about."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_jobs_never_share_a_gpu(launch, tmp_path):
    jobs = {"a": 1, "b": 1, "c": 2, "d": 1}
    started = [
        launch(name, f"--gpus {gpus}", seconds=0.4, CUDA_VISIBLE_DEVICES="4,GPU-7")
        for name, gpus in jobs.items()
    ]
    messages = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0, 0]
    assert any("waiting for" in message for message in messages)
    assert all(message.count("\n") <= 1 for message in messages)
    records = [seen(tmp_path, name) for name in jobs]
    for record, gpus in zip(records, jobs.values(), strict=True):
        record["gpus"] = set(record["CUDA_VISIBLE_DEVICES"].split(","))
        assert len(record["gpus"]) == gpus
        assert record["gpus"] <= {"4", "GPU-7"}
    for one, other in combinations(records, 2):
        if one["gpus"] & other["gpus"]:
            assert one["end"] <= other["start"] or other["end"] <= one["start"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_job_frees_its_gpus_and_ends_its_processes(launch, tmp_path, processes):
    pids = tmp_path / "pids"
    program = tmp_path / "sleeper.py"
    program.write_text(f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n")
    with program.open("a") as file:
        file.write("time.sleep(60)\n")
    gpus = f"--gpus 2 --processes {processes}"
    job = launch("first", gpus, program=program, CUDA_VISIBLE_DEVICES="0,1")
    wait_for(lambda: pids.exists() and pids.read_text().count("\n") == processes)
    job.send_signal(signal.SIGKILL)
    job.wait()
    after = launch("second", "--gpus 2", CUDA_VISIBLE_DEVICES="0,1")
    assert after.wait(timeout=30) == 0
    for pid in pids.read_text().split():
        assert not is_running(pid)


def test_a_cpu_job_sees_no_gpu_and_no_program_uses_the_network(launch, tmp_path):
    assert launch("cpu", "--gpus 0 --processes 0", CUDA_VISIBLE_DEVICES="0,1").wait() == 0
    record = seen(tmp_path, "cpu")
    assert record["CUDA_VISIBLE_DEVICES"] == ""
    assert record["HF_HUB_OFFLINE"] == record["TRANSFORMERS_OFFLINE"] == "1"


def test_under_slurm_the_gpus_are_those_of_the_job(launch, tmp_path):
    held = launch("held", "--gpus 2", seconds=30, CUDA_VISIBLE_DEVICES="0,1")
    job = launch("slurm", "--gpus 2", CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_ID="7")
    assert job.wait(timeout=20) == 0
    assert held.poll() is None
    assert seen(tmp_path, "slurm")["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize("scheduler", [{}, {"SLURM_JOB_ID": "7"}])
def test_too_few_gpus_are_one_clear_line(launch, scheduler):
    job = launch("few", "--gpus 3", CUDA_VISIBLE_DEVICES="0, 1", **scheduler)
    _, message = job.communicate(timeout=20)
    assert job.returncode == 1
    assert message.startswith("error: the model asks for 3 GPUs and this job can use 2 (0, 1);")
    assert "config/models.yaml" in message
    assert message.count("\n") == 1


def test_gpus_are_those_that_nvidia_smi_lists(launch, tmp_path):
    job = launch("none", "--gpus 1", PATH=str(tmp_path))
    assert "can use 0 (none)" in job.communicate(timeout=20)[1]
    lister = tmp_path / "nvidia-smi"
    lister.write_text("#!/bin/sh\necho 0\necho 1\n")
    lister.chmod(0o755)
    assert launch("all", "--gpus 2", PATH=f"{tmp_path}:{os.environ['PATH']}").wait() == 0
    assert seen(tmp_path, "all")["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_processes_know_each_other_and_only_the_first_is_shown(launch, tmp_path):
    job = launch("two", "--gpus 0 --processes 2")
    output, _ = job.communicate(timeout=20)
    assert job.returncode == 0
    assert output == "said by 0\n"
    records = [seen(tmp_path, f"two{rank}") for rank in range(2)]
    assert [(r["RANK"], r["LOCAL_RANK"], r["WORLD_SIZE"]) for r in records] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
    ]
    assert records[0]["MASTER_PORT"] == records[1]["MASTER_PORT"]


def test_a_program_may_listen_at_the_reserved_port_and_no_other_is_given_it(tmp_path, launch):
    program = tmp_path / "listen.py"
    program.write_text(
        "import os, socket\n"
        "if os.environ['RANK'] == '0':\n"
        "    server = socket.socket(socket.AF_INET6)\n"
        "    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    server.bind(('::', int(os.environ['MASTER_PORT'])))\n"
        "    server.listen()\n"
    )
    job = launch("listen", "--gpus 0 --processes 2", program=program)
    assert job.communicate(timeout=20)[1] == ""
    assert job.returncode == 0


@pytest.mark.parametrize(("processes", "codes"), [(1, "7"), (2, "7,0"), (2, "0,7")])
def test_exit_codes_pass_through(launch, processes, codes):
    assert launch("code", f"--gpus 0 --processes {processes}", codes=codes).wait(timeout=30) == 7


def test_when_one_process_fails_the_others_end_and_its_words_come_last(launch, tmp_path):
    program = tmp_path / "fails.py"
    program.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    sys.exit('error: of the second')\n"
        "print('the first', file=sys.stderr, flush=True)\n"
        "time.sleep(60)\n"
    )
    job = launch("fails", "--gpus 0 --processes 2", program=program)
    _, message = job.communicate(timeout=30)
    assert job.returncode == 1
    assert message == "the first\nerror: of the second\n"
