"""A server whose app holds code: 'evil_server.py study serve …' in a folder with evil.py."""

from __future__ import annotations

from pathlib import Path

from consilience import cli
from consilience.study.flower import server
from consilience.study.protocol.agreement import Agreement


def main() -> None:
    honest = server.write_app

    def changed(agreement: Agreement, folder: Path) -> Path:
        honest(agreement, folder)
        text = (folder / "pyproject.toml").read_text().replace("consilience.study.flower.refusal:", "evil:")
        (folder / "pyproject.toml").write_text(text)
        (folder / "evil.py").write_text(Path("evil.py").read_text())
        return folder

    server.write_app = changed
    cli.main()


if __name__ == "__main__":
    main()
