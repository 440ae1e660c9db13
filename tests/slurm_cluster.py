"""A real Slurm on this machine for the tests: one node, pretend GPUs, no systemd.

Everything lives in one folder; only the links in /etc/slurm lie outside, since Slurm's job steps
drop SLURM_CONF. Needs root and Debian's packages, which `install` brings.

    python tests/slurm_cluster.py start /tmp/slurm     # then sbatch, squeue and so on work
    python tests/slurm_cluster.py stop /tmp/slurm
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
GPUS = 2
PORTS = {"SlurmctldPort": 26817, "SlurmdPort": 26818, "SrunPortRange": "26900-26999"}
ETC = Path("/etc/slurm")

CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={SlurmctldPort}
SlurmdPort={SlurmdPort}
SrunPortRange={SrunPortRange}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.own
SlurmdPidFile={folder}/slurmd.own
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
# No systemd and no cgroups of our own: plain processes, memory watched by sampling.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,bf_interval=2,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
# Finished jobs stay visible, so that Snakemake can ask for them.
MinJobAge=3600
KillWait=2
InactiveLimit=0
# What no partition can hold is refused, instead of waiting for ever.
EnforcePartLimits=ALL
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.txt
AccountingStorageType=accounting_storage/none
GresTypes=gpu
DefMemPerCPU=500
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=1-00:00:00 DefaultTime=00:10:00 State=UP
PartitionName=gpu Nodes={host} MaxTime=1-00:00:00 DefaultTime=00:10:00 State=UP
"""


def install() -> str | None:
    """Install Debian's packages where they are not there; why that cannot be, or None."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    if all(shutil.which(program) for program in PROGRAMS):
        return None
    if shutil.which("apt-get") is None:
        return "Slurm is not installed and there is no apt-get"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # Keeps Debian from starting the daemons with no configuration.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
            result = subprocess.run(
                ["apt-get", "-qq", *command], env=environment, capture_output=True, text=True
            )
            if result.returncode:
                return f"apt-get {command[0]} failed: {result.stderr.strip()[-200:]}"
    finally:
        if ours:
            policy.unlink()
    return None


def configure(folder: Path) -> None:
    """Write the configuration and link it from /etc/slurm."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir(exist_ok=True)
    if not (folder / "munge.key").exists():
        (folder / "munge.key").touch(mode=0o600)
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    total = psutil.virtual_memory().total // 2**20
    text = CONFIGURATION.format(
        host=host(), folder=folder, cpus=os.cpu_count(), memory=total - 1024, gpus=GPUS, **PORTS
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # loaded, not used
    devices = []
    for number in range(GPUS):
        device = folder / f"gpu{number}"
        if not device.exists():
            device.touch()
        devices.append(f"NodeName={host()} Name=gpu File={device}\n")
    (folder / "gres.conf").write_text("".join(devices))
    ETC.mkdir(exist_ok=True)
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        link = ETC / name
        if link.exists() and not link.is_symlink():
            raise RuntimeError(f"{link} is a file of this machine's own Slurm: left alone")
        link.unlink(missing_ok=True)
        link.symlink_to(folder / name)


def host() -> str:
    return socket.gethostname().split(".")[0]


def daemons(folder: Path) -> dict[str, list[str]]:
    munge = f"--socket={folder}/munge.socket --key-file={folder}/munge.key"
    munge += f" --pid-file={folder}/munged.own --log-file={folder}/munged.log"
    munge += f" --seed-file={folder}/munged.seed"
    return {
        "munged": ["munged", "--foreground", *munge.split()],
        "slurmctld": ["slurmctld", "-D", "-f", str(folder / "slurm.conf")],
        "slurmd": ["slurmd", "-D", "-f", str(folder / "slurm.conf"), "-N", host()],
    }


def launch(folder: Path, name: str) -> None:
    """Start one daemon; its process id is kept so that exactly it can be stopped."""
    with open(folder / f"{name}.out", "ab") as output:
        process = subprocess.Popen(
            daemons(folder)[name],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (folder / f"{name}.pid").write_text(str(process.pid))


def wait_until(ready, what: str, folder: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            logs = [p.read_text()[-400:] for p in sorted(folder.glob("*.log"))]
            raise RuntimeError(f"{what} did not come up: {logs}")
        time.sleep(0.1)


def answers(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def node_is_up() -> bool:
    found = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout
    if "drain" in found or "down" in found:  # left over from an earlier start
        answers("scontrol", "update", f"NodeName={host()}", "State=RESUME")
    return any(state in found for state in ("idle", "mixed", "allocated"))


def start_controller(folder: Path) -> None:
    launch(folder, "slurmctld")
    wait_until(lambda: answers("scontrol", "ping"), "slurmctld", folder)


def start(folder: Path) -> None:
    """Start everything in a folder."""
    stop(folder)
    configure(folder)
    launch(folder, "munged")
    socket_file = f"--socket={folder}/munge.socket"
    wait_until(lambda: answers("munge", "-n", socket_file), "munged", folder)
    start_controller(folder)
    launch(folder, "slurmd")
    wait_until(node_is_up, "slurmd", folder)


def kill(folder: Path, name: str, how: signal.Signals = signal.SIGKILL) -> None:
    """Kill one daemon, if it runs."""
    pid_file = folder / f"{name}.pid"
    if not pid_file.exists():
        return
    try:
        process = psutil.Process(int(pid_file.read_text()))
        if process.name() == name:
            process.send_signal(how)
            process.wait(10)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        process.kill()
    pid_file.unlink()


def stop(folder: Path) -> None:
    """Cancel all jobs and stop what was started in a folder."""
    if (folder / "slurmctld.pid").exists():
        answers("scancel", "--quiet", f"--user={os.getuid()}")
    for name in ("slurmd", "slurmctld", "munged"):
        kill(folder, name, signal.SIGTERM)
    for link in ETC.glob("*.conf"):
        if link.is_symlink() and link.resolve().parent == folder.resolve():
            link.unlink()


if __name__ == "__main__":
    verb, state = sys.argv[1], Path(sys.argv[2]).absolute()
    if verb == "start":
        if reason := install():
            sys.exit(reason)
        start(state)
    else:
        stop(state)
