"""Commands for masked sums: keys before the scaling's, and how a sum goes on without a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.app import site_app, study_app
from consilience.cli.handed import locking_study, say, server_key, site_home, write_files
from consilience.cli.study_options import Key_, Study_
from consilience.errors import InputError


@study_app.command()
@locking_study
def drop(
    study_file: Study_,
    sites: Annotated[list[str], typer.Argument(help="The sites whose file does not come.")],
    round_: Annotated[int, typer.Option("--round", help="The round that goes on without them.")] = 1,
    model: Annotated[
        Path | None, typer.Option(help="The model, where it is statistics about it that do not come.")
    ] = None,
    counts: Annotated[
        bool, typer.Option("--counts", help="With --model: it is counts for its prediction sets that do not come.")
    ] = False,
    key: Key_ = None,
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; beside the study file.")] = None,
) -> None:
    """Sum on without sites, where a study masks: writes the request that the other sites answer by `site unmask`.

    Only for sites whose file you do not have. From then on their files for this sum are refused.
    """
    from consilience.study.coordinator import own_key
    from consilience.study.masking import REPLY, counts_of, statistics_of
    from consilience.study.model import read_model
    from consilience.study.protocol.members import read
    from consilience.study.protocol.text import study_text
    from consilience.study.summing import drop_sites

    study = read(study_file)
    signing_key = server_key(study_file, key)
    own_key(study.agreement, signing_key)
    if not 1 <= round_ <= study.agreement.rounds:
        raise InputError(f"--round {round_}: the study has {study.agreement.rounds}.")
    what = REPLY
    if counts and model is None:
        raise InputError("--counts are counts about a model: give it with --model.")
    if model is not None:
        checksum = read_model(model, study).checksum
        what = statistics_of(checksum)
        if counts:
            what = counts_of(checksum)
    study, request = drop_sites(study, sites, signing_key, round_, what)
    write_files(study_file, study_text(study), "Study", shared=True)  # first, so that no late file is used
    path = out_ or study_file.with_suffix(".drop")
    write_files(path, request, "Request to the other sites", shared=True)
    command = f"`consilience site unmask {study_file.name} {path.name}`"
    say(f"Next: send it to the other sites, who run {command}; then pool with their .unmask files beside the replies.")
    say(f"Files of {', '.join(sites)} for this sum are refused from now on: with the masks told, they could be read.")


@site_app.command()
def unmask(
    study_file: Study_,
    request: Annotated[Path, typer.Argument(metavar="DROP", help="What `study drop` wrote at the coordinator.")],
    key: Key_ = None,
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; SITE.unmask by default.")] = None,
) -> None:
    """Tell the masks shared with sites that did not send their part of one sum, so that it goes on without them.

    Whoever has these masks of all sites and a file of the missing one can read that file: ask it first whether it
    really sent nothing.
    """
    from consilience.study.masking import MaskBook
    from consilience.study.protocol.members import read

    study = read(study_file)
    home = site_home(study, key)
    told = MaskBook(home.book, study, home.member, home.key).tell(request)
    write_files(out_ or Path(f"{home.member.name}.unmask"), told, "For the coordinator")


@site_app.command()
def keys(
    study_file: Study_,
    name: Annotated[str, typer.Argument(help="This site's name, visible to everyone in the study.")],
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; NAME.keys by default.")] = None,
) -> None:
    """Write this site's keys, where a study masks the sums that its scaling comes from; before `site sums`."""
    from consilience.cli.commands.site import site_key
    from consilience.study.protocol.members import read
    from consilience.study.scaling import keys_text

    text = keys_text(read(study_file).agreement, name, site_key(name))
    write_files(out_ or Path(f"{name}.keys"), text, "For the coordinator", shared=True)


@study_app.command("keys")
@locking_study
def list_keys(
    study_file: Study_, files: Annotated[list[Path], typer.Argument(help="The NAME.keys files of the sites.")]
) -> None:
    """List the sites that will give masked sums for the scaling, before `site sums`; all of them must then."""
    from consilience.study.protocol.members import read
    from consilience.study.protocol.text import study_text
    from consilience.study.scaling import with_keys

    study = read(study_file)
    if study.sites:
        raise InputError("Sites have already signed, and their signatures would not cover new constants.")
    write_files(study_file, study_text(with_keys(study, files)), "Study", shared=True)
    say("Next: send the study to these sites, who run `consilience site sums`.")
