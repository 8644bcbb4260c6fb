"""docker-compose.yml and deploy/: flags that the installed commands accept, secrets, users, volumes."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from compose_files import FILES, FOLDER, ROOT, load, misfits

from fedpriv import wire

COMPOSE = load("docker-compose.yml")
JOINING = load("docker-compose.silo.yml")
ONE_SHOT: dict[str, dict[str, Any]] = {
    "certs": COMPOSE["services"].pop("certs"),
    "silo certs": JOINING["services"].pop("certs"),
}
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: Services of both files; those of the silo that joins are called "joining ...".
ALL: dict[str, dict[str, Any]] = SERVICES | {f"joining {n}": s for n, s in JOINING["services"].items()}
SILOS = (1, 2, 3)


def secrets_of(service: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = (JOINING if service.startswith("joining") else COMPOSE)["secrets"]
    return found


def command_of(service: str) -> list[str]:
    described = ALL[service]
    return [*described["entrypoint"], *described.get("command", [])]


def options_of(service: str) -> dict[str, str | None]:
    """Option -> value of a service's command; an option without ``=`` may be followed by its value."""
    options: dict[str, str | None] = {}
    last = None
    for word in command_of(service)[1:]:
        if word.startswith("--"):
            last, _, value = word.partition("=")
            options[last] = value if "=" in word else None
        else:
            assert last is not None and options[last] is None, f"{service}: stray argument {word!r}"
            options[last] = word
    return options


@cache
def help_of(command: str) -> str:
    """Help text of an installed command."""
    path = Path(sys.executable).with_name(command)
    quiet = {"COLUMNS": "200", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run(
        [str(path if path.exists() else command), "--help"],
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("name", FILES)
def test_the_file_fits_the_schema_and_compose_accepts_it(name: str, tmp_path: Path) -> None:
    assert misfits(load(name)) == []
    for command in (["docker-compose"], ["docker", "compose"]):
        if shutil.which(command[0]) is None:
            continue
        if (
            subprocess.run([*command, "version"], capture_output=True, timeout=60, check=False).returncode
            != 0
        ):
            continue  # docker without its compose plugin
        done = subprocess.run(
            [*command, "-f", str(ROOT / name), "config", "-q"],
            env=os.environ | FILES[name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_schema_finds_what_is_wrong() -> None:
    broken = load("docker-compose.yml")
    broken["services"]["superlink"]["image"] = "flwr/superlink:latest"
    broken["services"]["superlink"]["port"] = ["8000"]
    broken["services"]["superexec-1"]["volumes"] = ["data:/app/data"]
    broken["services"]["superexec-2"]["depends_on"] = ["supernode-9"]
    broken["services"]["superexec-3"]["networks"] = ["elsewhere"]
    found = " ".join(misfits(broken))
    for words in ("superlink.image", "superlink.port", "superexec-1.volumes", "supernode-9", "elsewhere"):
        assert words in found, words


def test_a_variable_that_a_silo_must_set_is_named() -> None:
    from compose_files import loopback

    with pytest.raises(ValueError, match="SUPERLINK must be set: host:port of the SuperLink"):
        loopback().load(ROOT / "docker-compose.silo.yml", {})


@pytest.mark.parametrize("service", ALL)
def test_every_flag_is_one_that_the_installed_command_accepts(service: str) -> None:
    command = command_of(service)[0]
    assert command in ("flower-superlink", "flower-superexec", "flower-supernode")
    option_and_text = re.compile(r"^  (--[a-z-]+).*(?:\n(?!  -).*)*", re.MULTILINE)
    described = {match[1]: match[0] for match in option_and_text.finditer(help_of(command))}
    assert "--insecure" in described  # the text was understood
    options = options_of(service)
    assert len(options) > 3
    for option, value in options.items():
        assert option in described, f"{service}: {command} has no {option}"
        assert "eprecated" not in described[option], f"{service}: {option} is deprecated"
        takes_value = re.match(rf"\s*{option}[ =]\S*[A-Z{{]", described[option]) is not None
        assert (value is not None) == takes_value, f"{service}: {option} = {value!r}"
    assert "--insecure" not in options


def test_there_are_three_silos_of_two_services() -> None:
    expected = {"superlink", "superexec-server"}
    for silo in SILOS:
        expected |= {f"supernode-{silo}", f"superexec-{silo}"}
    assert set(SERVICES) == expected


@pytest.mark.parametrize("service", ALL)
def test_secrets_are_declared_mounted_and_used(service: str) -> None:
    described = ALL[service]
    mounted = set()
    for secret in described["secrets"]:
        assert secret["source"] in secrets_of(service)
        target = secret["target"]
        mounted.add(target if target.startswith("/") else f"/run/secrets/{target}")
    used = {
        value
        for value in options_of(service).values()
        if value is not None and value.startswith(("/run/secrets/", "/app/certificates/"))
    }
    assert used == mounted
    test = " ".join(described["healthcheck"]["test"])
    assert set(re.findall(r"cafile='([^']+)'", test)) <= mounted


@pytest.mark.parametrize("compose", [COMPOSE, JOINING], ids=list(FILES))
def test_every_declared_secret_is_used(compose: dict[str, Any]) -> None:
    used = {secret["source"] for service in compose["services"].values() for secret in service["secrets"]}
    assert used == set(compose["secrets"])


@pytest.mark.parametrize("service", ALL)
def test_services_are_started_again_and_their_logs_are_bounded(service: str) -> None:
    described = ALL[service]
    assert described["restart"] == "unless-stopped" and described["init"] is True
    assert set(described["logging"]["options"]) == {"max-size", "max-file"}
    assert "healthcheck" in described


@pytest.mark.parametrize("name", ONE_SHOT)
def test_the_certs_step_is_root_without_a_network_and_only_on_demand(name: str) -> None:
    step = ONE_SHOT[name]
    assert step["profiles"] == ["certs"] and step["restart"] == "no"
    assert step["user"] == "0" and step["network_mode"] == "none"
    assert step["cap_drop"] == ["ALL"] and set(step["cap_add"]) == {"CHOWN", "DAC_OVERRIDE", "FOWNER"}
    assert step["entrypoint"][:2] == ["python", "/deploy/certs.py"]
    assert step["volumes"] == ["./deploy:/deploy"]


@pytest.mark.parametrize("service", ALL)
def test_no_service_runs_as_root_or_can_gain_rights(service: str) -> None:
    described = ALL[service]
    assert described["user"] == "49999"
    assert described["cap_drop"] == ["ALL"]
    assert described["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in described and "cap_add" not in described
    for value in [*described["environment"].values(), *command_of(service)]:
        assert not re.search(r"[0-9a-f]{32}|BEGIN [A-Z ]*KEY", value), "a secret belongs in a file"


@pytest.mark.parametrize("service", ALL)
def test_health_checks_ask_the_port_that_the_service_opens(service: str) -> None:
    options = options_of(service)
    test = " ".join(ALL[service]["healthcheck"]["test"])
    if "superexec" in service:
        assert options["--health-server-address"] == "127.0.0.1:9100"
        assert "('127.0.0.1', 9100)" in test
    else:
        assert f"https://localhost:{options['--port']}/health" in test
    source = ALL[service]["healthcheck"]["test"]
    assert source[:3] == ["CMD", "python", "-c"]
    compile(source[3], service, "exec")


def test_services_find_each_other_and_silos_are_apart() -> None:
    def networks(service: str) -> dict[str, Any]:
        found = SERVICES[service]["networks"]
        return found if isinstance(found, dict) else {name: {} for name in found}

    for silo in SILOS:
        node, executor = f"supernode-{silo}", f"superexec-{silo}"
        assert options_of(node)["--superlink"] == "superlink:8000"
        assert set(networks(node)) & set(networks("superlink")) == {"federation"}
        name, _, port = str(options_of(executor)["--runtime-api-address"]).partition(":")
        assert name in networks(node)[f"silo-{silo}"]["aliases"]
        assert port == options_of(node)["--port"]
        assert set(networks(executor)) == {f"silo-{silo}"}, "a ClientApp reaches its own SuperNode only"
        assert COMPOSE["networks"][f"silo-{silo}"]["internal"] is True
        for other in SILOS:
            if other != silo:
                assert not set(networks(node)) & set(networks(f"supernode-{other}")) - {"federation"}
    assert options_of("superexec-server")["--runtime-api-address"] == "superlink:8000"
    assert set(networks("superexec-server")) <= set(networks("superlink"))
    assert SERVICES["superlink"]["ports"] == ["127.0.0.1:8000:8000"]


def test_data_is_where_the_client_app_runs_and_results_can_leave() -> None:
    for silo in SILOS:
        assert "volumes" not in SERVICES[f"supernode-{silo}"]
        data, own = SERVICES[f"superexec-{silo}"]["volumes"]
        source, target, mode = data.split(":")
        assert source == f"./deploy/data/silo-{silo}" and mode == "ro"
        assert SERVICES[f"superexec-{silo}"]["environment"]["FEDPRIV_DATA"] == target
        assert own == f"./deploy/silos/silo-{silo}:/app/silo"  # the silo's ledger outlives its containers
    assert SERVICES["superexec-server"]["volumes"] == ["./deploy/runs:/app/runs"]
    assert SERVICES["superexec-server"]["environment"]["FEDPRIV_RUNS"] == "/app/runs"
    state = options_of("superlink")["--database"]
    assert state is not None and state.startswith("/app/state/")
    assert SERVICES["superlink"]["volumes"] == ["./deploy/state:/app/state"]


def node_config_of(service: str) -> dict[str, Any]:
    """As Flower reads it."""
    from flwr.common.config import parse_config_args

    return parse_config_args([str(options_of(service)["--node-config"])])


def test_node_configs_are_what_the_client_halves_read() -> None:
    for service in (*(f"supernode-{silo}" for silo in SILOS), "joining supernode"):
        config = node_config_of(service)
        assert config[wire.CONFIG_MIN_NEIGHBOURS] >= 1
        assert config[wire.CONFIG_MIN_NOISE_SHARE] > 0
        assert config[wire.CONFIG_SIMULATION] is False
        assert config[wire.CONFIG_STATE_PATH] == "/app/silo"
    assert [node_config_of(f"supernode-{silo}")["partition-id"] for silo in SILOS] == [0, 1, 2]
    assert {node_config_of(f"supernode-{silo}")["num-partitions"] for silo in SILOS} == {3}
    assert node_config_of("joining supernode")["data-path"] == "/app/data/records.csv"


def test_more_node_config_of_all_silos_comes_from_one_variable() -> None:
    from compose_files import loopback
    from flwr.common.config import parse_config_args

    variables = {"SILO_OPTIONS": 'data-path="/app/data/a b.csv" max-epsilon=8.0 delta=1e-5'}
    services = loopback().load(ROOT / "docker-compose.yml", variables)["services"]
    for silo in SILOS:
        config = parse_config_args([services[f"supernode-{silo}"]["command"][-1]])
        assert config["data-path"] == "/app/data/a b.csv" and config["max-epsilon"] == 8.0
        assert config["partition-id"] == silo - 1


def test_the_image_is_built_from_the_app_without_its_secrets() -> None:
    for service in ("superexec-server", *(f"superexec-{silo}" for silo in SILOS)):
        build = SERVICES[service]["build"]
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    lines = (FOLDER / "superexec.Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER")][-1] == "USER app"
    assert 'ENTRYPOINT ["flower-superexec"]' in lines
    replaced = re.search(r"s/(.+?)/(.+?)/", next(line for line in lines if "sed -i" in line))
    assert replaced is not None
    wanted = replaced[1].replace("\\", "")
    assert wanted in (ROOT / "pyproject.toml").read_text(encoding="utf-8"), "Ray would be installed"
    sent = (FOLDER / "superexec.Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in sent
    allowed = {line[1:] for line in sent if line.startswith("!")}
    assert allowed == {name for line in lines if line.startswith("COPY") for name in _copied(line)}
    for name in allowed:
        assert (ROOT / name).exists()
    assert "secrets/" in (FOLDER / ".gitignore").read_text(encoding="utf-8").split()


def _copied(line: str) -> list[str]:
    return [word.removeprefix("./") for word in line.split()[1:-1] if not word.startswith("--")]


def _certs(folder: Path, *arguments: str) -> None:
    command = [sys.executable, str(FOLDER / "certs.py"), *arguments, "--folder", str(folder)]
    subprocess.run(command, capture_output=True, check=True, timeout=120)


@pytest.mark.parametrize("name", FILES)
def test_the_certs_step_makes_what_compose_mounts(name: str, tmp_path: Path) -> None:
    compose, step = load(name), ONE_SHOT["certs" if name == "docker-compose.yml" else "silo certs"]
    words = [word for word in step["entrypoint"][2:] if not word.startswith("--folder")]
    _certs(tmp_path, *words)
    if name == "docker-compose.silo.yml":
        assert not (tmp_path / "secrets" / "ca.crt").exists()  # it comes from the coordinator
        _certs(tmp_path, "coordinator")
    for secret in compose["secrets"].values():
        path = tmp_path / Path(secret["file"]).relative_to("deploy")
        private = path.suffix not in (".crt", ".pem")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if private else 0o644), path
    assert stat.S_IMODE((tmp_path / "secrets" / "ca.key").stat().st_mode) == 0o600
    for described in compose["services"].values():
        for volume in described.get("volumes", []):
            if described.get("profiles") is None:
                assert (tmp_path / Path(volume.split(":")[0]).relative_to("deploy")).is_dir()
    before = {path: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    _certs(tmp_path, *words)
    assert {path: path.read_bytes() for path in (tmp_path / "secrets").iterdir()} == before


def test_certificates_hold_under_strict_verification(tmp_path: Path) -> None:
    _certs(tmp_path, "federation", "--names", "fl.example.org")
    secrets = tmp_path / "secrets"
    pairs: list[tuple[str, str, tuple[str, ...]]] = [
        ("ca.crt", "superlink", ("superlink", "localhost", "fl.example.org"))
    ]
    pairs += [(f"silo-{silo}.pem", f"silo-{silo}", ("supernode", "localhost")) for silo in SILOS]
    for trusted, name, hosts in pairs:
        for host in hosts:
            assert _handshake(secrets / trusted, secrets / f"{name}.pem", secrets / f"{name}.key", host)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(secrets / "ca.crt", secrets / "silo-1.pem", secrets / "silo-1.key", "supernode")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(secrets / "ca.crt", secrets / "superlink.pem", secrets / "superlink.key", "example.com")


def test_a_certificate_that_ends_soon_is_signed_again_for_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("certs", FOLDER / "certs.py")
    assert spec is not None and spec.loader is not None
    certs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(certs)
    monkeypatch.setattr(certs, "DAYS", 29)
    certs.main(["federation", "--folder", str(tmp_path)])
    before = {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    monkeypatch.undo()
    certs.main(["federation", "--folder", str(tmp_path)])
    after = {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"superlink.pem", *(f"silo-{silo}.pem" for silo in SILOS)}
    secrets = tmp_path / "secrets"
    assert _handshake(secrets / "ca.crt", secrets / "superlink.pem", secrets / "superlink.key", "superlink")


def test_keys_of_supernodes_are_of_the_kind_that_flower_reads(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
    from flwr.cli.utils import init_http_client_from_connection  # the command that registers is installed
    from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

    assert init_http_client_from_connection is not None
    _certs(tmp_path, "silo")
    public = load_ssh_public_key((tmp_path / "secrets" / "supernode.pub").read_bytes())
    private = load_ssh_private_key((tmp_path / "secrets" / "supernode").read_bytes(), None)
    assert uses_nist_ec_curve(public)
    assert private.public_key().public_numbers() == public.public_numbers()  # type: ignore[union-attr]


def _handshake(trusted: Path, certificate: Path, key: Path, host: str) -> bool:
    """A TLS handshake in memory, as strict as Python 3.13 is by default."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(trusted))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(8):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            done.add(side)
    return done == {ours, theirs}
