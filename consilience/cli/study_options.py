"""The options that commands of studies share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Study_ = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file, NAME.toml.")]
Table_ = Annotated[Path, typer.Argument(help="The site's rows: a CSV file in UTF-8 with a header row.")]
Model_ = Annotated[Path, typer.Argument(help="The file of the pooled model.")]
Key_ = Annotated[Path | None, typer.Option("--key", help="Your private key; by default the only one in this folder.")]
Inputs_ = Annotated[
    Path | None, typer.Option("--inputs", help="The coordinator's unlabelled rows, for a student model.")
]
Memory_ = Annotated[
    Path | None,
    typer.Option("--memory", help="What `site fit` keeps at the site; SITE.memory beside the key by default."),
]
Files_ = Annotated[list[Path], typer.Argument(help="Files received from the sites.")]
StudyOut_ = Annotated[
    Path | None, typer.Option("--out", "-o", help="Where to write; beside the study file by default.")
]
AcceptDifference_ = Annotated[
    bool, typer.Option("--accept-difference", help="Pool although the model less an earlier one shows a site's reply.")
]
SiteOut_ = Annotated[
    Path | None, typer.Option("--out", "-o", help="Where to write; by default SITE.reply, SITE.join and so on.")
]
OneClass_ = Annotated[bool, typer.Option("--one-class", help="Confirm that all rows here are of one class.")]
Ledger_ = Annotated[
    Path | None, typer.Option("--ledger", help="What this site ever released; SITE.ledger beside the key by default.")
]
Replace_ = Annotated[
    bool, typer.Option("--replace", help="Write over a reply from other rows, which was never handed over.")
]
