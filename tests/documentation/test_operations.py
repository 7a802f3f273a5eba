"""What the files for operations say is held against the commands, and lines that install against each other."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from consilience import cli
from consilience.benchmark import reproduce
from consilience.errors import InputError

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "examples" / "containers"
SYSTEMD = ROOT / "examples" / "systemd"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITES = ("north", "south", "west")


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())
    return found


def parsed(words: list[str]) -> click.Context:
    """The context of a command as the real command line parses it; unknown words and options are refused."""
    command: click.Command = typer.main.get_command(cli.app)
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)  # type: ignore[assignment]
        context = click.Context(command, info_name=name)
    command.parse_args(context, list(words))
    return context


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The folder /study of a container, with its configuration."""
    (tmp_path / "coordinator.toml").write_text((CONTAINERS / "coordinator.toml").read_text())
    (tmp_path / "site.toml").write_text((CONTAINERS / "site.toml").read_text().replace("NAME", "north"))
    return tmp_path


@pytest.mark.parametrize("name", ["coordinator", *SITES])
def test_services_start_commands_that_exist(name: str, study: Path) -> None:
    service = compose()["services"][name]
    words = [str(word).replace("/study", str(study)) for word in service["command"]]
    context = parsed(words)  # the configuration is read by the real command
    asked = context.params
    assert asked["log_format"] == "json" and Path(asked["study_file"]) == study / "trial.toml"
    test = service["healthcheck"]["test"]
    assert test[:3] == ["CMD", "consilience", "health"]
    own = "trial.run" if name == "coordinator" else f"{name}.site"
    assert test[3] == f"/study/{own}" and service["volumes"] == [f"./{name}:/study"]
    assert Path(asked["folder"]).name == own.replace(name, "north")
    parsed(test[2:])


def test_services_start_again_a_few_times_and_go_on_where_they_were(study: Path) -> None:
    """Without `resume` a coordinator that was started again refused its own folder, for ever."""
    server = parsed(["study", "serve", "--config", str(study / "coordinator.toml")]).params
    assert server["resume"] is True
    for service in compose()["services"].values():
        assert re.fullmatch(r"on-failure:[1-9]", service["restart"])
        assert service["mem_limit"] and service["cpus"] and service["pids_limit"]
        assert service["user"].startswith("${CONSILIENCE_USER:?")  # keys have mode 600: whose they are
    assert 'echo "CONSILIENCE_USER=$(id -u):$(id -g)" > "$here/.env"' in (CONTAINERS / "prepare.sh").read_text()


@pytest.mark.parametrize("party", ["coordinator", "site"])
def test_systemd_units_start_commands_that_exist(party: str, study: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(SYSTEMD / f"consilience-{party}.service")
    service = unit["Service"]
    words = service["ExecStart"].replace("/etc/consilience", str(study)).split()
    assert words[0].endswith("/consilience")
    parsed(words[1:])
    assert service["Restart"] == "on-failure" and int(unit["Unit"]["StartLimitBurst"]) <= 5
    assert service["MemoryMax"] and service["CPUQuota"] and service["TasksMax"]
    assert service["ReadWritePaths"] == service["WorkingDirectory"] == "/etc/consilience"


def test_configurations_name_each_others_places(study: Path) -> None:
    server = parsed(["study", "serve", "--config", str(study / "coordinator.toml")]).params
    site = parsed(["site", "serve", "--config", str(study / "site.toml")]).params
    assert site["server"] == f"{server['name']}:{server['port']}" and server["name"] in compose()["services"]
    assert compose()["networks"]["study"] == {"internal": True}


def test_a_word_that_no_command_has_is_noticed() -> None:
    """The checks above can fail."""
    with pytest.raises(click.UsageError):
        parsed(["study", "serve", "trial.toml", "--hosts", "0.0.0.0"])


def test_the_image_is_built_from_files_that_exist() -> None:
    lines = (CONTAINERS / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        if line.startswith("COPY "):
            *sources, _ = line.split()[1:]
            assert all((ROOT / source).exists() for source in sources), line
    (install,) = [line for line in lines if line.startswith("RUN pip install")]
    words = shlex.split(install)
    assert ".[site]" in words and words[words.index("--constraint") + 1] == "constraints.txt"
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT")]
    assert entry == 'ENTRYPOINT ["consilience"]' and "consilience" in PROJECT["scripts"]
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]
    assert not set(copied) & set(ignored)


def test_the_script_uses_commands_that_exist() -> None:
    text = (CONTAINERS / "prepare.sh").read_text()
    commands = re.findall(r"consilience ((?:study|site) [^\n)]*)", text)
    assert len(commands) == 4
    for line in commands:
        parsed(shlex.split(line))


def test_a_site_needs_no_ray() -> None:
    extras = PROJECT["optional-dependencies"]
    assert not any("simulation" in need or "ray" in need for need in extras["site"])
    assert any("simulation" in need for need in extras["flower"])


INSTALL = re.compile(r"pip install ([^`\n#]*)")
OTHERS = {
    "pandas",
    "onnxruntime",
    "mlflow",
    "wandb",
    "tensorboard",
    "{name}",
    "zarr",
}  # what no extra of ours brings


def installs() -> list[tuple[str, str]]:
    """Every line that installs, in what people read: README, pages, examples, and messages of the package."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    files += [*(ROOT / "examples").rglob("*.md"), *(ROOT / "consilience").rglob("*.py")]
    found = []
    for file in files:
        found += [(file.name, line.strip()) for line in INSTALL.findall(file.read_text())]
    return found


def test_lines_that_install_agree() -> None:
    lines = installs()
    assert len(lines) >= 8
    for file, text in lines:
        line = text.replace("[{extra}]", "[sql]")  # named by the kind of file
        extra = re.match(r"['\"]?consilience\[([a-z,]+)\]['\"]?", line)
        if extra:
            assert line.startswith(f"'consilience[{extra[1]}]'"), f"{file}: {line}: quote it as all others do"
            assert set(extra[1].split(",")) <= set(PROJECT["optional-dependencies"]), f"{file}: {line}"
        elif "-e" in line.split():
            assert re.match(r"-c constraints\.txt -e (\.|\"\.\[[a-z,]+\]\")", line), f"{file}: {line}"
        else:
            assert re.split(r"[\s,:).]", line)[0] in {*OTHERS, "consilience"}, f"{file}: {line}"


def test_links_of_the_wheels_page_are_absolute_and_lead_somewhere() -> None:
    """README.md as the build rewrites it: every relative link becomes an address of a file that exists here."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text()
    for change in hook["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    links = re.findall(r"\]\(([^)]+)\)", text)
    ours = [link for link in links if "consilience-fl/consilience/" in link]
    assert len(ours) > 20
    for link in links:
        assert link.startswith(("https://", "#")), link
    for link in ours:
        path = re.sub(r"https://[^/]+/consilience-fl/consilience/(blob/)?main/", "", link).partition("#")[0]
        assert (ROOT / path).exists(), link


def test_experiments_are_found_inside_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a wheel puts them; `include` and `sources` of the build name the same places."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["sources"] == {"experiments": "consilience/experiments"}
    endings = {Path(pattern).suffix for pattern in build["include"] if pattern.startswith("/experiments")}
    files = [path for path in (ROOT / "experiments").glob("[!_]*/*") if path.is_file()]  # not __pycache__
    assert {path.suffix for path in files} - {".md"} <= endings
    package = tmp_path / "site-packages" / "consilience"
    (package / "experiments" / "paper").mkdir(parents=True)
    (package / "experiments" / "paper" / "table.py").write_text("EXPERIMENT = 1\n")
    monkeypatch.setattr(reproduce, "__file__", str(package / "comparison" / "reproduce.py"))
    monkeypatch.chdir(tmp_path)
    assert reproduce.names() == ["paper/table"]
    (package / "experiments" / "paper" / "table.py").unlink()
    with pytest.raises(InputError, match="no experiments here"):
        reproduce.names()
