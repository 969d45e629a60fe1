"""A container: one process tree in namespaces of its own, with a root file system like our image's.

The image is this environment: the interpreter, its packages and this repository, read-only, below a
root in memory; the user, rights and read-only root are the pod's. Not here: limits of memory and
processors, seccomp.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.charts.live.names import resolver_configuration
from tests.charts.renderings import Object

_REPOSITORY: Final = Path(__file__).resolve().parents[3]
_HOME: Final = "/var/lib/magnetar"
# ENV of deploy/Dockerfile, with the place where the packages are here.
IMAGE_VARIABLES: Final = {
    "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": _HOME,
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_SYSTEM: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr")
_ETC: Final = (
    *("alternatives", "host.conf", "ld.so.cache", "localtime", "mime.types", "nsswitch.conf"),
    *("protocols", "services", "ssl"),
)
_START_S: Final = 60.0


def prepare_image(folder: Path) -> None:
    """What of /etc an image has."""
    folder.mkdir()
    found = [f"/etc/{name}" for name in _ETC if Path("/etc", name).exists()]
    java = [str(path) for path in Path("/etc").glob("java*")]
    subprocess.run(["cp", "-a", *found, *java, folder], check=True)
    (folder / "passwd").write_text(
        f"root:x:0:0::/:/bin/sh\nmagnetar:x:10001:10001::{_HOME}:/bin/false\n", "utf-8"
    )
    (folder / "group").write_text("root:x:0:\nmagnetar:x:10001:\n", "utf-8")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How the processes of a container run; ``start`` makes one."""

    pod: Object
    spec: Object
    network: str  # name of the pod's network namespace
    address: str
    folder: Path  # of this container alone
    image: Path  # of prepare_image
    volumes: Mapping[str, Path]
    variables: Mapping[str, str]
    command: Sequence[str]

    def start(self, log: Path) -> "Process":
        root = self.folder / "root"
        root.mkdir(parents=True, exist_ok=True)
        script = self.folder / "start.sh"
        script.write_text("\n".join(self._script(root)) + "\n", "utf-8")
        namespaces = ("--mount", "--uts", "--ipc", "--pid", "--propagation", "private")
        with log.open("ab") as output:
            outer = subprocess.Popen(
                [
                    *("nsenter", f"--net=/run/netns/{self.network}", "unshare", *namespaces),
                    *("--fork", "--kill-child", "/bin/sh", str(script)),
                ],
                env=dict(self.variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Process(outer, self, root)

    def user_words(self) -> list[str]:
        """A command's beginning: it runs as the pod's user, without rights, in its folder."""
        context = {
            **self.pod["spec"].get("securityContext", {}),
            **self.spec.get("securityContext", {}),
        }
        user, group = context.get("runAsUser", 0), context.get("runAsGroup", 0)
        assert user or not context.get("runAsNonRoot"), "runAsNonRoot, and the user is root"
        groups = [context[key] for key in ("fsGroup",) if key in context]
        groups += context.get("supplementalGroups", [])
        words = ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={group}"]
        words += [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
        if "ALL" in context.get("capabilities", {}).get("drop", ()):
            words += ["--bounding-set=-all", "--inh-caps=-all"]
        if context.get("allowPrivilegeEscalation") is False:
            words.append("--no-new-privs")
        return [*words, "/usr/bin/env", "-C", self.spec.get("workingDir", _HOME)]

    def _script(self, root: Path) -> list[str]:
        """Run by a shell in the new namespaces; ends by becoming the command."""
        name = self.pod["metadata"]["name"]
        namespace = self.pod["metadata"]["namespace"]
        hosts = f"127.0.0.1 localhost\n{self.address} {name}\n"
        lines = ["set -e", f"mount -t tmpfs -o mode=755 tmpfs {root}", f"cd {root}"]
        lines += ["mkdir -p etc proc dev tmp var/lib/magnetar"]
        lines += [f"cp -a {self.image}/. etc/", "chown 10001:10001 var/lib/magnetar"]
        for path in _SYSTEM:
            if os.path.islink(path):
                lines.append(f"ln -s {os.readlink(path)} .{path}")
            elif os.path.isdir(path):
                lines += _bind(Path(path), path, is_read_only=True)
        prefixes = {str(Path(path).resolve()) for path in (sys.base_prefix, _REPOSITORY)}
        prefixes.add(sys.prefix)
        binds = [(path, Path(path), True) for path in prefixes if not path.startswith("/usr/")]
        files = {"hosts": hosts, "hostname": name, "resolv.conf": resolver_configuration(namespace)}
        lines += [f"printf %s {shlex.quote(text)} > etc/{file}" for file, text in files.items()]
        lines += ["mount -t proc proc proc", "mount -t tmpfs -o mode=755 tmpfs dev"]
        for device in ("null", "zero", "full", "random", "urandom"):
            lines.append(f"touch dev/{device}; mount --bind /dev/{device} dev/{device}")
        lines += ["mkdir dev/shm", "mount -t tmpfs -o mode=1777,size=64m tmpfs dev/shm"]
        for mount in self.spec.get("volumeMounts") or []:
            source = self.volumes[mount["name"]] / mount.get("subPath", "")
            binds.append((mount["mountPath"], source, bool(mount.get("readOnly"))))
        # Outer ones first: what stands in for the image may be below /tmp, which pods have as well.
        for target, source, is_read_only in sorted(binds):
            lines += _bind(source, target, is_read_only)
        lines.append(f"echo {shlex.quote(name)} > /proc/sys/kernel/hostname")
        if self.spec.get("securityContext", {}).get("readOnlyRootFilesystem"):
            lines.append(f"mount -o remount,ro {root}")
        words = ["/usr/sbin/chroot", str(root), *self.user_words(), *self.command]
        return [*lines, f"exec {shlex.join(words)}"]


def _bind(source: Path, target: str, is_read_only: bool) -> list[str]:
    """Mount a folder or a file at a path below the new root, which is the current folder."""
    here = shlex.quote(f".{target}")
    if source.is_dir():
        lines = [f"mkdir -p {here}"]
    else:
        parent = shlex.quote(f".{os.path.dirname(target)}")
        lines = [f"mkdir -p {parent}", f"touch {here}"]
    lines.append(f"mount --bind {shlex.quote(str(source))} {here}")
    if is_read_only:
        lines.append(f"mount -o remount,bind,ro {here}")
    return lines


class Process:
    """A container that runs, or has ended."""

    def __init__(self, outer: subprocess.Popen[bytes], sandbox: Sandbox, root: Path) -> None:
        self._outer, self._sandbox = outer, sandbox
        self.pid = self._wait_for_root(root)
        """Of the container's first process, as seen from here; 0: it ended at its start."""

    def _wait_for_root(self, root: Path) -> int:
        """Until the mounts are made: before, a signal would meet the shell that makes them."""
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        deadline = time.monotonic() + _START_S
        while self._outer.poll() is None:
            try:
                pid = int(children.read_text("ascii").split()[0])
                if os.readlink(f"/proc/{pid}/root") == str(root):
                    return pid
            except (OSError, IndexError):
                pass  # no child yet, or it has just ended
            assert time.monotonic() < deadline, "a container doesn't come to its begin"
            time.sleep(0.01)
        return 0

    @property
    def exit_code(self) -> int | None:
        """None: it runs. As a shell has it: 128 and the signal's number, if one ended it; some
        versions of unshare tell 1 then."""
        code = self._outer.poll()
        return 128 - code if code is not None and code < 0 else code

    def signal(self, number: signal.Signals) -> None:
        if self.exit_code is None and self.pid:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def execute(self, command: Sequence[str], timeout_s: float) -> str | None:
        """What a command in the container prints; None: it didn't end with 0 in time."""
        if self.exit_code is not None or not self.pid:
            return None
        join = ("nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "--root")
        child = subprocess.Popen(
            [*join, *self._sandbox.user_words(), *command],
            env=dict(self._sandbox.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            output = child.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            _kill_child_of(child)
            child.communicate()
            return None
        return output.decode() if child.returncode == 0 else None


def _kill_child_of(parent: subprocess.Popen[bytes]) -> None:
    """Kill what nsenter has started in a container, which ends nsenter, too.

    Not nsenter itself: its child would become ours and stay a zombie, and the container's first
    process can't end while another one of its namespace is left.
    """
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while parent.poll() is None:
        with contextlib.suppress(OSError):  # it has just ended
            for pid in children.read_text("ascii").split():
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)
