"""Git repositories of the kinds that projects have, for comparisons of two revisions.

In each, `core.N` is 1 in the commit before the last one and 2 in the working tree; the
test module writes the N that it imports to the file that $TOLD names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

GIT = (
    *("git", "-c", "user.name=a", "-c", "user.email=a@example.com"),
    *("-c", "protocol.file.allow=always", "-c", "commit.gpgsign=false"),
)
TEST = """
import os
import pathlib
{imports}

with pathlib.Path(os.environ["TOLD"]).open("a") as told:
    told.write(f"{{core.N}}\\n")


def test_work(gpuperf):
    gpuperf(core.work)
"""
CORE = "N = {n}\n\n\ndef work():\n    return sum(range(N * 1000))\n"
C_CORE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *work(PyObject *self, PyObject *args) { Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"work", work, METH_NOARGS, ""}, {0, 0, 0, 0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "core", "", -1, methods};
PyMODINIT_FUNC PyInit_core(void) {
    PyObject *core = PyModule_Create(&module);
    PyModule_AddIntConstant(core, "N", @N@);
    return core;
}
"""
INI = "[tool.pytest.ini_options]\n"
PROJECT = '[project]\nname = "ab-demo"\nversion = "1.0"\n'
SETUPTOOLS = (
    '[build-system]\nrequires = ["setuptools"]\n'
    'build-backend = "setuptools.build_meta"\n' + PROJECT
)
HATCHLING = (
    '[build-system]\nrequires = ["hatchling"]\n'
    'build-backend = "hatchling.build"\n' + PROJECT
)
IGNORED = [
    *("__pycache__/", "*.so", "build/", "*.egg-info/", ".venv/", ".tox/"),
    *("_version.py", ".coverage"),
]


@dataclass
class Repo:
    """
    A repository, with what a run in it needs.

    Attributes:
        outer: A folder that is the test's.

        root: The root of the working tree.

        python: The interpreter that runs the tests.

        args: The arguments of pytest.

        paths: Those of them that name tests.

        start: How Python is told to run pytest; empty: `-m pytest`.

        below: The folder to start in, relative to the root.

        env: Environment variables of the run.

        request: Fields of the request besides the usual ones.
    """

    outer: Path
    root: Path
    python: str = sys.executable
    args: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    below: str = "."
    env: dict[str, str] = field(default_factory=dict)
    request: dict[str, object] = field(default_factory=dict)

    @staticmethod
    def make(outer: Path, name: str = "repository") -> Repo:
        """Return an empty repository below a folder."""
        repo = Repo(outer=outer, root=outer / name)
        repo.root.mkdir(parents=True)
        repo.git("init", "-q", "-b", "main")
        repo.write(".gitignore", "\n".join(IGNORED) + "\n")
        return repo

    def git(self, *args: str, cwd: Path | None = None) -> str:
        """Run git in the root; return what it prints."""
        done = subprocess.run(
            [*GIT, *args],
            cwd=cwd or self.root,
            check=True,
            capture_output=True,
            encoding="utf-8",
        )
        return done.stdout.strip()

    def write(self, path: str, text: str) -> Path:
        """Write a file of the working tree."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(textwrap.dedent(text), encoding="utf-8")
        return place

    def commit(self, text: str = "x") -> None:
        """Commit all that git does not ignore."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", text)

    def package(
        self,
        at: str = "",
        *,
        tests: str = "tests",
        imports: str = "from pkg import core",
        ini: str = "",
    ) -> None:
        """Make a package `pkg` in two commits."""
        self.write(f"{at}pkg/__init__.py", "")
        self.write(f"{tests}/test_core.py", TEST.format(imports=imports))
        if ini:
            self.write("pyproject.toml", ini)
        self.two_commits(f"{at}pkg/core.py")

    def two_commits(self, path: str, text: str = CORE.replace("{n}", "@N@")) -> None:
        """Commit a file with N = 1 and then with N = 2."""
        for n in "12":
            self.write(path, text.replace("@N@", n))
            self.commit(n)

    def venv(self, folder: Path | None = None) -> Path:
        """Make an environment that has this one's packages, and its own."""
        folder = folder or self.outer / "venv"
        argv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(argv, check=True)
        site = next(folder.glob("lib/python*/site-packages"))
        base = sysconfig.get_path("purelib")
        (site / "base.pth").write_text(f"import site; site.addsitedir({base!r})\n")
        self.python = str(folder / "bin" / "python")
        script = folder / "bin" / "pytest"
        body = "import sys\nfrom pytest import console_main\nsys.exit(console_main())\n"
        script.write_text(f"#!{self.python}\n{body}")
        script.chmod(0o755)
        return folder

    def install(self, *args: str) -> None:
        """Install with the environment's pip and nothing from elsewhere."""
        flags = ("-q", "--no-deps", "--no-index", "--no-build-isolation")
        subprocess.run(
            [self.python, "-m", "pip", "install", *flags, *args],
            cwd=self.root,
            check=True,
            capture_output=True,
            env={**os.environ, "PATH": self._path()},
        )

    def extension(self) -> None:
        """Make a package with a C extension, built by setuptools, in two commits."""
        self.write("src/pkg/__init__.py", "")
        self.write("pyproject.toml", SETUPTOOLS)
        self.write(
            "setup.py",
            """
            from setuptools import Extension, setup
            setup(ext_modules=[Extension("pkg.core", ["src/pkg/core.c"])])
            """,
        )
        self.write("tests/test_core.py", TEST.format(imports="from pkg import core"))
        self.two_commits("src/pkg/core.c", C_CORE)

    def build_in_place(self) -> str:
        """Build the extension in the tree; return the command."""
        argv = [self.python, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(argv, cwd=self.root, check=True, capture_output=True)
        return " ".join(argv)

    def _path(self) -> str:
        """Return PATH with the scripts of this environment, as of ninja."""
        return os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])


@dataclass(frozen=True)
class Kind:
    """
    A kind of repository, and what becomes of a comparison of its last two commits.

    Attributes:
        build: Makes it.

        level: The level that is proven; None: the comparison is refused.

        says: What the refusal, or a remark, says.

        needs: Modules or programs without which it cannot be made.

        is_fast: Whether it runs by default.
    """

    build: Callable[[Repo], None]
    level: int | None
    says: str = ""
    needs: tuple[str, ...] = ()
    is_fast: bool = False


KINDS: dict[str, Kind] = {}


def kind(
    level: int | None, *, says: str = "", needs: Sequence[str] = (), fast: bool = False
) -> Callable[[Callable[[Repo], None]], Callable[[Repo], None]]:
    """Enter a function that makes a repository under its name."""

    def enter(build: Callable[[Repo], None]) -> Callable[[Repo], None]:
        KINDS[build.__name__] = Kind(build, level, says, tuple(needs), fast)
        return build

    return enter


# ------------------------------------------------- where Python finds the tree by itself


@kind(0)
def flat(repo: Repo) -> None:
    """The folder is on the path: `python -m pytest`."""
    repo.package()


@kind(0)
def src_by_ini(repo: Repo) -> None:
    repo.package("src/", ini=INI + 'pythonpath = ["src"]\n')


@kind(0)
def importlib_mode(repo: Repo) -> None:
    options = 'addopts = "--import-mode=importlib"\npythonpath = ["src"]\n'
    repo.package("src/", ini=INI + options)


@kind(0)
def conftest_by_file(repo: Repo) -> None:
    repo.write(
        "conftest.py",
        """
        import pathlib, sys
        sys.path.insert(0, str(pathlib.Path(__file__).parent / "code"))
        """,
    )
    repo.package("code/")


@kind(0)
def conftest_by_folder(repo: Repo) -> None:
    repo.write(
        "conftest.py", "import os, sys\nsys.path.insert(0, os.getcwd() + '/code')\n"
    )
    repo.package("code/")


@kind(0)
def absolute_paths(repo: Repo) -> None:
    """Arguments and PYTHONPATH that name the working tree."""
    repo.package("code/", ini=INI)
    test = f"{repo.root}/tests/test_core.py::test_work"
    settings = str(repo.root / "pyproject.toml")
    repo.args = (f"--rootdir={repo.root}", "-c", settings, test)
    repo.paths = (test,)
    repo.env = {"PYTHONPATH": str(repo.root / "code")}


@kind(0)
def subfolder(repo: Repo) -> None:
    """A package in a folder of a larger repository."""
    repo.package("libs/one/", tests="libs/one/tests")
    repo.below = "libs/one"


@kind(0)
def helpers_and_data(repo: Repo) -> None:
    repo.write("tests/__init__.py", "")
    repo.write("tests/helpers.py", "x = 1\n")
    repo.write("tests/data.txt", "x")
    imports = """
    import pathlib
    from tests.helpers import x
    from pkg import core
    assert pathlib.Path("tests/data.txt").read_text() == "x"
    assert pathlib.Path(__file__).with_name("data.txt").exists()
    """
    repo.package(imports=textwrap.dedent(imports))


@kind(0, needs=["xdist"])
def workers_by_ini(repo: Repo) -> None:
    repo.package(ini=INI + 'addopts = "-n 2 --dist loadfile"\n')


@kind(0, needs=["pytest_cov"])
def coverage_by_ini(repo: Repo) -> None:
    repo.package(ini=INI + 'addopts = "--cov=pkg --cov-fail-under=100"\n')


@kind(0, fast=True)
def dirty_and_unicode(repo: Repo) -> None:
    """Uncommitted and untracked files, in a folder with blanks and letters."""
    repo.root = repo.outer / "grün spaced – 测试"
    repo.root.mkdir()
    repo.git("init", "-q", "-b", "main")
    repo.write(".gitignore", "__pycache__/\n")
    repo.package("src/", ini=INI + 'pythonpath = ["src"]\n')
    repo.git("reset", "-q", "HEAD~1")  # the second commit, uncommitted
    repo.write("src/pkg/untracked.py", "N = 2\n")
    repo.write("src/pkg/core.py", "from pkg.untracked import N\ndef work(): ...\n")
    repo.request = {"revision": "HEAD"}


@kind(0)
def failing_hook(repo: Repo) -> None:
    repo.package()
    hook = repo.root / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 7\n")
    hook.chmod(0o755)


@kind(0, fast=True)
def submodule(repo: Repo) -> None:
    """A submodule whose origin is gone: nothing can be fetched."""
    origin = repo.outer / "origin"
    origin.mkdir()
    repo.git("init", "-q", "-b", "main", cwd=origin)
    (origin / ".gitignore").write_text("__pycache__/\n")
    for n in (1, 2):
        (origin / "core.py").write_text(CORE.format(n=n))
        repo.git("add", "-A", cwd=origin)
        repo.git("commit", "-q", "-m", str(n), cwd=origin)
        if n == 1:
            repo.git("submodule", "add", "-q", str(origin), "vendor")
            repo.write(
                "tests/test_core.py", TEST.format(imports="from vendor import core")
            )
            repo.commit()
    repo.git("pull", "-q", cwd=repo.root / "vendor")
    repo.commit()
    shutil.rmtree(origin)


@kind(0, says="are pointers on the old side")
def missing_lfs(repo: Repo) -> None:
    """Objects of git LFS that a clone has skipped: its filter fails."""
    repo.package()
    repo.git("config", "filter.lfs.smudge", "cat")
    repo.git("checkout", "-q", "-b", "other", "HEAD~1")
    repo.write(".gitattributes", "*.bin filter=lfs\n")
    repo.write("tests/big.bin", "version https://git-lfs.github.com/spec/v1\n")
    repo.commit()
    repo.git("checkout", "-q", "main")
    repo.git("config", "filter.lfs.smudge", "false")
    repo.git("config", "filter.lfs.required", "true")
    repo.request = {"revision": "other"}


# ------------------------------------------------------- where Python finds another tree


@kind(1, fast=True)
def on_a_path_file(repo: Repo) -> None:
    """What an editable install leaves, without a build backend."""
    site = next(repo.venv().glob("lib/python*/site-packages"))
    repo.package("src/", ini=INI)
    (site / "__editable__.pth").write_text(f"{repo.root / 'src'}\n")


@kind(1)
def copied_and_script(repo: Repo) -> None:
    """What an install leaves; `pytest`, not `python -m pytest`: no folder on the path."""
    venv = repo.venv()
    repo.package(ini=INI)
    site = next(venv.glob("lib/python*/site-packages"))
    shutil.copytree(repo.root / "pkg", site / "pkg")
    repo.start = (str(venv / "bin" / "pytest"),)


@kind(1, needs=["setuptools"])
def editable_path(repo: Repo) -> None:
    """An editable install by a `.pth` file."""
    repo.venv()
    repo.package("src/", ini=SETUPTOOLS)
    repo.install("-e", ".")


@kind(1, needs=["setuptools"])
def editable_finder(repo: Repo) -> None:
    repo.venv()
    packages = '[tool.setuptools]\npackages = ["pkg"]\n'
    folders = '[tool.setuptools.package-dir]\npkg = "lib/pkg"\n'
    repo.package("lib/", ini=SETUPTOOLS + packages + folders)
    repo.install("-e", ".")


@kind(1, needs=["setuptools"])
def editable_strict(repo: Repo) -> None:
    repo.venv()
    repo.package("src/", ini=SETUPTOOLS)
    repo.install("-e", ".", "--config-settings", "editable_mode=strict")


@kind(1, needs=["hatchling"])
def editable_hatchling(repo: Repo) -> None:
    repo.venv()
    target = '[tool.hatch.build.targets.wheel]\npackages = ["src/pkg"]\n'
    repo.package("src/", ini=HATCHLING + target)
    repo.install("-e", ".")


@kind(1, needs=["hatchling", "editables"])
def editable_hatchling_exact(repo: Repo) -> None:
    repo.venv()
    exact = "[tool.hatch.build]\ndev-mode-exact = true\n"
    target = '[tool.hatch.build.targets.wheel]\npackages = ["src/pkg"]\n'
    text = HATCHLING.replace('"hatchling"]', '"hatchling", "editables"]')
    repo.package("src/", ini=text + exact + target)
    repo.install("-e", ".")


@kind(1, needs=["setuptools"])
def namespace_editable(repo: Repo) -> None:
    """Two portions of a namespace, one of another project."""
    _other_portion(repo.venv())
    imports = "import space.other\nfrom space.pkg import core"
    repo.package("src/space/", imports=imports, ini=SETUPTOOLS)
    repo.install("-e", ".")


@kind(1, needs=["setuptools"])
def namespace_installed(repo: Repo) -> None:
    _other_portion(repo.venv())
    imports = "import space.other\nfrom space.pkg import core"
    repo.package("src/space/", imports=imports, ini=SETUPTOOLS)
    repo.install(".")


@kind(1, needs=["setuptools"])
def new_module(repo: Repo) -> None:
    """The working tree has a module that the old side must not find there."""
    repo.venv()
    tables = '[tool.setuptools]\npackages = ["space", "space.pkg"]\n'
    tables += '[tool.setuptools.package-dir]\n"space" = "src/space"\n'
    imports = """
    import space.pkg.core as core
    try:
        import space.extra
        assert core.N == 2
    except ImportError:
        assert core.N == 1
    """
    repo.package(
        "src/space/", imports=textwrap.dedent(imports), ini=SETUPTOOLS + tables
    )
    repo.write("src/space/extra.py", "x = 1\n")
    repo.git("add", "-A")
    repo.git("commit", "-q", "--amend", "--no-edit")
    repo.install("-e", ".")


def _other_portion(venv: Path) -> None:
    """Install `space.other` of another project."""
    other = next(venv.glob("lib/python*/site-packages")) / "space" / "other"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")


@kind(1, needs=["setuptools"])
def installed(repo: Repo) -> None:
    repo.venv()
    repo.package("src/", ini=SETUPTOOLS)
    repo.install(".")


@kind(1, needs=["setuptools"])
def installed_and_script(repo: Repo) -> None:
    """`pytest`, not `python -m pytest`: the folder is not on the path."""
    venv = repo.venv()
    repo.package(ini=SETUPTOOLS + '[tool.setuptools]\npackages = ["pkg"]\n')
    repo.install(".")
    repo.start = (str(venv / "bin" / "pytest"),)


@kind(1, needs=["setuptools"])
def environment_in_the_tree(repo: Repo) -> None:
    """What tox and nox make: an install in an environment inside the tree."""
    repo.venv(repo.root / ".tox" / "py")
    repo.package("src/", ini=SETUPTOOLS)
    repo.install(".")


@kind(1, needs=["setuptools"])
def editable_in_the_tree(repo: Repo) -> None:
    """What `uv sync` makes: an editable install in .venv."""
    repo.venv(repo.root / ".venv")
    repo.package("src/", ini=SETUPTOOLS)
    repo.install("-e", ".")


@kind(1, needs=["setuptools"])
def pytest_plugin(repo: Repo) -> None:
    """A plugin of pytest, which is imported before any conftest."""
    repo.venv()
    entry = '[project.entry-points.pytest11]\nab = "pkg.core"\n'
    repo.package("src/", ini=SETUPTOOLS + entry)
    repo.install("-e", ".")


@kind(1, needs=["setuptools"])
def pytest_plugin_installed(repo: Repo) -> None:
    repo.venv()
    entry = '[project.entry-points.pytest11]\nab = "pkg.core"\n'
    repo.package("src/", ini=SETUPTOOLS + entry)
    repo.install(".")


# ------------------------------------------------------------ where something is compiled


BACKEND = """
import os
import pathlib
import zipfile


def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "ab_demo-1.0-py3-none-any.whl"
    source = pathlib.Path("csrc/core.cu").read_text()
    files = {
        "pkg/__init__.py": "",
        "pkg/core.py": source.lstrip("/ "),
        "ab_demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: ab-demo\\nVersion: 1.0\\n",
        "ab_demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files["ab_demo-1.0.dist-info/RECORD"] = "".join(f"{f},,\\n" for f in files)
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    with pathlib.Path(os.environ["BUILDS"]).open("a") as builds:
        builds.write("x")
    return name
"""


@kind(2, needs=["pip"])
def built_by_a_backend(repo: Repo) -> None:
    """Code that only a build makes; the environment has what was built once."""
    site = next(repo.venv().glob("lib/python*/site-packages"))
    repo.write(
        "pyproject.toml",
        '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n' + PROJECT,
    )
    repo.write("backend.py", BACKEND.replace("\\\\n", "\\n"))
    repo.write("tests/test_core.py", TEST.format(imports="from pkg import core"))
    repo.two_commits("csrc/core.cu", "// N = @N@\ndef work(): ...\n")
    (site / "pkg").mkdir()
    (site / "pkg" / "__init__.py").touch()
    (site / "pkg" / "core.py").write_text("N = 2\ndef work(): ...\n")
    repo.env = {"BUILDS": str(repo.outer / "builds")}


@kind(2, needs=["setuptools", "cc"])
def extension_installed(repo: Repo) -> None:
    repo.venv()
    repo.extension()
    repo.install(".")


@kind(2, needs=["uv", "setuptools", "cc"])
def extension_without_pip(repo: Repo) -> None:
    """An environment as uv makes it, which has no pip."""
    site = next(repo.venv().glob("lib/python*/site-packages"))
    repo.extension()
    repo.install(".")
    (site / "without_pip.pth").write_text("import sys; sys.modules['pip'] = None\n")
    repo.env = {"PATH": repo._path()}


@kind(2, needs=["Cython", "setuptools", "cc"])
def cython_installed(repo: Repo) -> None:
    """Cython writes the C file at each build; git ignores it."""
    repo.venv()
    repo.write(".gitignore", "\n".join([*IGNORED, "*.c"]) + "\n")
    repo.write("src/pkg/__init__.py", "")
    repo.write(
        "pyproject.toml",
        SETUPTOOLS.replace('["setuptools"]', '["setuptools", "Cython"]'),
    )
    repo.write(
        "setup.py",
        """
        from Cython.Build import cythonize
        from setuptools import setup
        setup(ext_modules=cythonize(["src/pkg/core.pyx"], quiet=True))
        """,
    )
    repo.write("tests/test_core.py", TEST.format(imports="from pkg import core"))
    repo.two_commits("src/pkg/core.pyx", "N = @N@\n\n\ndef work():\n    return N\n")
    repo.install(".")


@kind(1, needs=["setuptools"])
def unpacked_sdist(repo: Repo) -> None:
    """A release put under git: with what its build has written down."""
    repo.venv()
    repo.write(".gitignore", "__pycache__/\nbuild/\n")
    about = "Metadata-Version: 2.1\nName: ab-demo\nVersion: 1.0\n"
    for path in ("PKG-INFO", "src/ab_demo.egg-info/PKG-INFO"):
        repo.write(path, about)
    repo.write("src/ab_demo.egg-info/SOURCES.txt", "src/pkg/core.py\n")
    repo.package("src/", ini=SETUPTOOLS)
    repo.install(".")
    repo.git("checkout", "-q", ".")


@kind(2, needs=["setuptools", "cc"])
def extension_with_fallback(repo: Repo) -> None:
    """Without its extension the package runs, on other code."""
    repo.venv()
    fallback = """
    try:
        from pkg import _core as core
    except ImportError:
        from pkg import slow as core
    """
    repo.write("src/pkg/slow.py", "N = 0\ndef work(): ...\n")
    repo.extension()
    repo.git("reset", "-q", "--hard", "HEAD~1")
    for n in "12":
        code = C_CORE.replace("@N@", n).replace("PyInit_core", "PyInit__core")
        (repo.root / "src/pkg/core.c").unlink(missing_ok=True)
        repo.write("src/pkg/_core.c", code)
        setup = repo.root / "setup.py"
        text = setup.read_text().replace("pkg.core", "pkg._core")
        setup.write_text(text.replace("pkg/core.c", "pkg/_core.c"))
        repo.write("src/pkg/__init__.py", fallback)
        repo.commit(n)
    repo.install(".")


@kind(2, needs=["mesonpy", "ninja", "cc"])
def editable_meson(repo: Repo) -> None:
    repo.venv()
    repo.write("src/pkg/__init__.py", "")
    repo.write(
        "meson.build",
        """
        project('ab-demo', 'c', version: '1.0')
        py = import('python').find_installation(pure: false)
        py.install_sources('src/pkg/__init__.py', subdir: 'pkg')
        py.extension_module('core', 'src/pkg/core.c', install: true, subdir: 'pkg')
        """,
    )
    repo.write(
        "pyproject.toml",
        '[build-system]\nrequires = ["meson-python"]\nbuild-backend = "mesonpy"\n'
        + PROJECT,
    )
    repo.write("tests/test_core.py", TEST.format(imports="from pkg import core"))
    repo.two_commits("src/pkg/core.c", C_CORE)
    repo.install("-e", ".")
    repo.env = {"PATH": repo._path()}


@kind(2, needs=["scikit_build_core", "cmake", "ninja", "cc"])
def editable_scikit_build(repo: Repo) -> None:
    repo.venv()
    repo.write("src/pkg/__init__.py", "")
    repo.write(
        "CMakeLists.txt",
        """
        cmake_minimum_required(VERSION 3.18)
        project(ab_demo LANGUAGES C)
        find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
        python_add_library(core MODULE src/pkg/core.c WITH_SOABI)
        install(TARGETS core DESTINATION pkg)
        """,
    )
    backend = '[build-system]\nrequires = ["scikit-build-core"]\n'
    backend += 'build-backend = "scikit_build_core.build"\n'
    wheel = '[tool.scikit-build]\nwheel.packages = ["src/pkg"]\n'
    repo.write("pyproject.toml", backend + PROJECT + wheel)
    repo.write("tests/test_core.py", TEST.format(imports="from pkg import core"))
    repo.two_commits("src/pkg/core.c", C_CORE)
    repo.install("-e", ".")
    repo.env = {"PATH": repo._path()}


@kind(0, needs=["setuptools", "cc"])
def built_in_place(repo: Repo) -> None:
    """A build command, for trees that a conftest puts first."""
    repo.write(
        "conftest.py",
        """
        import pathlib, sys
        sys.path.insert(0, str(pathlib.Path(__file__).parent / "src"))
        """,
    )
    repo.extension()
    repo.request = {"build_command": repo.build_in_place()}


@kind(None, says="git does not have src/pkg/core.", needs=["setuptools", "cc"])
def not_built_in_place(repo: Repo) -> None:
    """The same without the command: git has no compiled file."""
    built_in_place(repo)
    repo.request = {}


@kind(None, says="cannot be built", needs=["setuptools"])
def broken_build_command(repo: Repo) -> None:
    repo.package()
    repo.request = {"build_command": "echo it breaks; exit 3"}


# ------------------------------------------------------------- what is refused, or remarked


@kind(
    None, says="git does not have pkg/_version.py; name it in the ini option", fast=True
)
def generated_file(repo: Repo) -> None:
    """A generated module that git ignores."""
    repo.write("pkg/_version.py", "version = '1'\n")
    repo.package(imports="import pkg._version\nfrom pkg import core")


@kind(0)
def carried_file(repo: Repo) -> None:
    generated_file(repo)
    repo.request = {"carry": ["pkg/_version.py"]}


@kind(None, says="FileNotFoundError")
def untracked_data(repo: Repo) -> None:
    """A test module reads a file that git does not have."""
    imports = """
    import pathlib
    from pkg import core
    assert pathlib.Path(__file__).with_name("big.bin").read_text()
    """
    repo.package(imports=textwrap.dedent(imports))
    repo.write("tests/big.bin", "x")


@kind(
    None,
    says="which is a shallow clone; fetch more of its history: git fetch --deepen=1",
)
def shallow(repo: Repo) -> None:
    repo.package()
    clone = repo.outer / "clone"
    repo.git("clone", "-q", "--depth=1", f"file://{repo.root}", str(clone))
    repo.root = clone


@kind(None, says="SyntaxError")
def broken_revision(repo: Repo) -> None:
    repo.write("pkg/__init__.py", "")
    repo.write("tests/test_core.py", TEST.format(imports="from pkg import core"))
    repo.write("pkg/core.py", "def work(:\n")
    repo.commit()
    repo.write("pkg/core.py", CORE.format(n=2))
    repo.commit()


@kind(None, says="the old side did not collect its tests within")
def hanging_revision(repo: Repo) -> None:
    """It is given a few times what the new side took, not the run's whole limit."""
    repo.write("pkg/__init__.py", "")
    repo.write("tests/test_core.py", TEST.format(imports="from pkg import core"))
    repo.write("pkg/core.py", "import time\ntime.sleep(600)\n")
    repo.commit()
    repo.write("pkg/core.py", CORE.format(n=2))
    repo.commit()


@kind(
    None, says="the revision has none of the tests that were named: tests/test_new.py"
)
def new_test_file(repo: Repo) -> None:
    repo.package()
    repo.write("tests/test_new.py", TEST.format(imports="from pkg import core"))
    repo.commit()
    repo.args = repo.paths = ("tests/test_new.py",)
    repo.request = {"test_ids": ["tests/test_new.py::test_work"], "revision": "HEAD~2"}


def need(names: Sequence[str]) -> None:
    """Skip a test that needs a module or a program that is not here."""
    for name in names:
        if shutil.which(name) is None:
            pytest.importorskip(name, reason=f"{name} is not installed")


def without_git_variables() -> Mapping[str, str]:
    """Return this environment as outside of a hook of git."""
    return {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
