"""The rules of library/: who may import whom, by what names, and what without TensorFlow.

All is read from the source; nothing is imported.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT

LIBRARY = ROOT / "library"
PACKAGES = {path.parent.name for path in LIBRARY.glob("*/__init__.py")}
PROGRAMS = [ROOT / name for name in ("run.py", "convert_dataset.py", "demo.py")]
SOURCES = [*sorted(LIBRARY.rglob("*.py")), *sorted((ROOT / "project").glob("*.py")), *PROGRAMS]

SLOW = ("tensorflow", "tensorflow_estimator", "tf_keras", "tensorflow_hub", "matplotlib")

WITHOUT_TENSORFLOW = [*PROGRAMS[:2], *(LIBRARY / name for name in ("config", "convert", "util"))]
"""What does not import TensorFlow before its functions are called: programs, packages."""


class Import(NamedTuple):
    """What a statement imports: `from module import name`; no name for `import module`."""

    module: str
    name: str
    at_once: bool  # when the file is imported: not in a function, not for the type checker alone


def imports_of(path: Path) -> Iterator[Import]:
    """All imports of a file."""

    def walk(node: ast.AST, at_once: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(each.name, "", at_once) for each in child.names)
            elif isinstance(child, ast.ImportFrom):
                folder = path.relative_to(ROOT).parts[: -child.level] if child.level else ()
                module = ".".join([*folder, *([child.module] if child.module else [])])
                yield from (Import(module, each.name, at_once) for each in child.names)
            later = isinstance(child, ast.FunctionDef | ast.Lambda)
            later |= isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            yield from walk(child, at_once and not later)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


IMPORTS = {path: list(imports_of(path)) for path in SOURCES}


def package_of(path: Path) -> str:
    """The package of the library that a file is in, or ""."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "library" and len(parts) > 2 else ""


def packages_in(each: Import) -> list[str]:
    """The packages of the library that an import names: `from library import a, b` names two."""
    words = [*each.module.split("."), each.name]
    return [word for word in words[1:2] if words[0] == "library" and word in PACKAGES]


def public_names(package: str) -> dict[str, str]:
    """The names that a package offers, and the module of each."""
    found = IMPORTS[LIBRARY / package / "__init__.py"]
    own = f"library.{package}"
    return {each.name: each.module for each in found if f"{each.module}.".startswith(f"{own}.")}


def offers(package: str, name: str) -> bool:
    """Whether a package has a public name; the Estimator's are those of the official package."""
    tree = ast.parse((LIBRARY / package / "__init__.py").read_text(encoding="utf-8"))
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    known = name in public_names(package) or name in defined or package == "estimator"
    return known and not name.startswith("_")


def shown(path: Path, each: Import) -> str:
    return f"{path.relative_to(ROOT)}: {each.module} {each.name}".rstrip()


def test_the_library_does_not_know_the_project():
    names = ("project", "run", "convert_dataset", "demo")
    assert not [
        shown(path, each)
        for path, found in IMPORTS.items()
        for each in found
        if path.is_relative_to(LIBRARY) and each.module.split(".")[0] in names
    ]


def test_packages_are_entered_through_their_public_names():
    reached_into = set()
    for path, found in IMPORTS.items():
        for each in found:
            for package in packages_in(each):
                entry = f"library.{package}"
                whole = each.module == "library" or (each.module, each.name) == (entry, "")
                known = each.module == entry and offers(package, each.name)
                if package != package_of(path) and not whole and not known:
                    reached_into.add(shown(path, each))
    assert not reached_into


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_says_what_it_is_for_and_offers_what_is_there(package):
    tree = ast.parse((LIBRARY / package / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    for name, module in public_names(package).items():
        if module == f"library.{package}":  # a module
            assert (LIBRARY / package / f"{name}.py").exists()
            continue
        path = LIBRARY / package / f"{module.rpartition('.')[2]}.py"
        assert not name.startswith("_")
        assert not (LIBRARY / package / f"{name}.py").exists(), f"{name} is a module, too"
        assert path.exists(), f"{package} offers {name} of {module}"
        assert name in path.read_text(encoding="utf-8")


def test_packages_import_each_other_in_no_circle():
    above = {
        package: {
            named
            for path, found in IMPORTS.items()
            if package_of(path) == package
            for each in found
            for named in packages_in(each)
            if named != package
        }
        for package in PACKAGES
    }
    assert not above.get("util")
    assert not above.get("estimator")
    circles = set()
    while lowest := [name for name, needed in above.items() if not needed & above.keys()]:
        above = {name: needed for name, needed in above.items() if name not in lowest}
    for name, needed in above.items():
        circles.add(f"{name}: {', '.join(sorted(needed & above.keys()))}")
    assert not circles


def imported_at_once(path: Path, seen: set[Path]) -> Iterator[str]:
    """The modules outside this project that importing a file imports, each with what did it."""
    if path in seen:
        return
    seen.add(path)
    for each in IMPORTS[path]:
        if not each.at_once:
            continue
        (package,) = packages_in(each) or [""]
        module = each.module
        if package and each.name in (names := public_names(package)):
            module = names[each.name]
            module += f".{each.name}" * (module == f"library.{package}")
        file = ROOT / f"{module.replace('.', '/')}.py"
        if file in IMPORTS:
            yield from imported_at_once(file, seen)
        else:
            yield f"{module.split('.')[0]} by {path.relative_to(ROOT)}"


@pytest.mark.parametrize("start", WITHOUT_TENSORFLOW, ids=lambda path: path.name)
def test_tensorflow_is_not_imported_before_it_is_needed(start):
    files = [start] if start.is_file() else sorted(start.glob("*.py"))
    seen: set[Path] = set()
    found = {line for path in files for line in imported_at_once(path, seen)}
    assert len(found) > 3
    assert not {line for line in found if line.split()[0] in SLOW}
