# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
#
# attack: needs=root run=alone delivery=signal limit=60
#
# Promise: listing running programs is safe even if they are hostile; root may change the budget of any program.
# Attempt: another user keeps files open that have the name of a statistics segment: a FIFO that nobody writes to, a
# segment whose text contains terminal escape sequences, one that is too short, and many whose texts look as if they
# were always being written. Root runs `aquifer stat` for all programs, and `aquifer set` on a program of that user.
# Broken: `stat` hangs, takes seconds or shows a control character (1), `set` is refused (2), `stat` does not show the
# program, or does not name the forger (3).
import ctypes, fcntl, os, signal, subprocess, sys, time

NOBODY = 65534
AQUIFER = os.environ["ATTACK_AQUIFER"]
SCRATCH = os.environ["ATTACK_SCRATCH"]
NAME = b"aquifer-stats"
SEAL = getattr(fcntl, "F_ADD_SEALS", 1033)
SHORT, FORGED = 8, b"\x1b[31m"
# The sequence of the first text, by the layout of the segment.
SEQUENCE, UNSETTLED = 1024, 60
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE, MNT_DETACH, PR_SET_DUMPABLE = 0x4000, 1 << 18, 2, 4


def fifo():
    """Holds a FIFO with the name of a segment, on a tmpfs that is then unmounted. False if this is not allowed."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 1)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        return False
    for name, text in (("uid_map", f"0 {NOBODY} 1"), ("setgroups", "deny"), ("gid_map", f"0 {NOBODY} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) or libc.mount(b"none", b"/mnt", b"tmpfs", 0, None):
        return False
    path = b"/mnt/memfd:" + NAME + b" (deleted)"
    os.mkfifo(path)
    held = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    libc.umount2(b"/mnt", MNT_DETACH)
    return os.readlink(f"/proc/self/fd/{held}") == "/memfd:aquifer-stats (deleted)"


def segment(content):
    held = os.memfd_create(NAME.decode(), os.MFD_ALLOW_SEALING)
    os.write(held, content)
    fcntl.fcntl(held, SEAL, 1 | 2 | 4)


def forger(act):
    """Starts a process of another user that calls `act` and stays. Returns its ID, or None if `act` failed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, b"n" if act() is False else b"y")
            time.sleep(60)
        finally:
            os._exit(0)
    os.close(writer)
    started.append(pid)
    return pid if os.read(reader, 1) == b"y" else None


def forged(real):
    segment(b"\0" * SHORT)
    at = real.find(b"sleep")
    segment(real[:at] + FORGED + real[at + len(FORGED) :])
    for _ in range(UNSETTLED):
        segment(real[:SEQUENCE] + b"\1" + real[SEQUENCE + 1 :])


def segment_of(pid):
    for entry in os.scandir(f"/proc/{pid}/fd"):
        if os.readlink(entry.path).startswith("/memfd:aquifer-stats"):
            return open(entry.path, "rb").read()
    return b""


def main():
    os.chown(SCRATCH, NOBODY, NOBODY)
    run = [AQUIFER, "run", "--dram", "32MiB", "--state-dir", SCRATCH, "--", "sleep", "60"]
    program = subprocess.Popen(run, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
    started.append(program.pid)
    content = b""
    while not content and program.poll() is None:
        time.sleep(0.02)
        content = segment_of(program.pid)
    forging = None if program.poll() is not None else forger(lambda: forged(content))
    if forging is None or not forger(fifo):
        print("another user cannot run it here, or there are no user namespaces", file=sys.stderr)
        return 77
    for words in (["stat"], ["stat", "--json"]):
        # `aquifer stat` used to wait for each segment at least as long as it may now wait for all of them together.
        shown = subprocess.run([AQUIFER, *words], capture_output=True, timeout=5)
        if any(byte < 32 and byte != 10 for byte in shown.stdout):
            print(shown.stdout, file=sys.stderr)
            return 1
        if shown.returncode or b"sleep" not in shown.stdout or f"process {forging}:".encode() not in shown.stderr:
            print(shown, file=sys.stderr)
            return 3
    changed = subprocess.run([AQUIFER, "set", str(program.pid), "--dram", "16MiB"], capture_output=True, timeout=20)
    if changed.returncode:
        print(changed.stderr, file=sys.stderr)
        return 2
    return 0


started = []
try:
    status = main()
except subprocess.TimeoutExpired as hanging:
    print(hanging, file=sys.stderr)
    status = 1
for pid in started:
    os.kill(pid, signal.SIGKILL)
sys.exit(status)
