"""A study: the agreement, and below it the sites that signed.

The list of sites is not hashed, so that a site can join or leave without anybody training again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from consilience.errors import InputError, unknown_name
from consilience.privacy.secure_aggregation.masks import is_usable
from consilience.study.protocol.agreement import FORMAT, Agreement, from_toml
from consilience.study.protocol.names import check_name, check_new_name
from consilience.study.protocol.secure import Drop, drop_of
from consilience.study.protocol.signature import is_weak, verifies
from consilience.study.protocol.toml import convert, parse
from consilience.study.validation.gate import MOST_ROWS
from consilience.version import __version__

SITES_BEGIN = "# Sites, written by "  # the rest of that line has been worded differently
SITES = f"{SITES_BEGIN}`consilience study add` and `study leave`. Not part of what is signed.\n"


@dataclass(frozen=True)
class Member:
    """A site that signed the agreement.

    Attributes:
        name: The site's name.
        number: Decides its random numbers; never given twice.
        key: Its public key.
        signature: Its signature of the agreement's hash, the name and the rows.
        left: Whether it has left the study.
        rows: The most rows it will ever say it has; 0 before anybody has signed.
        masks: Its public key for masks; empty in studies that do not mask.
    """

    name: str
    number: int
    key: str
    signature: str
    left: bool = False
    rows: int = 0
    masks: str = ""


class Sender(NamedTuple):
    """Who gave sums for the scaling, before anybody signed.

    Attributes:
        name: The site's name.
        key: Its public key.
        masks: Its public key for masks, where the sums are masked.
        signature: Its signature of that.
    """

    name: str
    key: str
    masks: str = ""
    signature: str = ""


class PooledModel(NamedTuple):
    """A model that was pooled, so that it can be marked when a site leaves.

    Attributes:
        checksum: Hash of the model's file.
        sites: The sites whose replies are in it.
        superseded: Whether one of them has left since.
    """

    checksum: str
    sites: tuple[str, ...]
    superseded: bool = False


@dataclass(frozen=True)
class Study:
    """An agreement, the sites that signed it, and the models that were pooled under it.

    Attributes:
        agreement: What was signed.
        sites: Every site that ever signed, those that left included.
        models: The models that were pooled.
        sums: Who gave sums for the scaling; a site of such a name joins with the same key.
        text: The agreement as people wrote it.
        drops: Sites that masked sums go on without.
    """

    agreement: Agreement
    sites: tuple[Member, ...] = ()
    models: tuple[PooledModel, ...] = ()
    sums: tuple[Sender, ...] = ()
    text: str = field(default="", compare=False)
    drops: tuple[Drop, ...] = ()

    @property
    def active(self) -> tuple[Member, ...]:
        """The sites that have not left."""
        return tuple(site for site in self.sites if not site.left)

    @property
    def next_number(self) -> int:
        """The number of the next site to join."""
        return max((site.number for site in self.sites), default=-1) + 1

    def member(self, name: str) -> Member:
        """Find a site of the study.

        Raises:
            InputError: It is not listed, or has left.
        """
        for site in self.sites:
            if site.name == name and not site.left:
                return site
        if any(site.name == name for site in self.sites):
            raise InputError(f"The site '{name}' has left the study '{self.agreement.name}'.")
        names = [site.name for site in self.active]
        raise unknown_name(f"site in the study '{self.agreement.name}'", name, names or ["none"])

    def with_member(self, name: str, key: str, signature: str, rows: int = 0, masks: str = "") -> Study:
        """Add a site, with a number of its own.

        Args:
            signature: Its signature of the agreement, the name and the rows.
            rows: The number of rows it commits to.
            masks: Its public key for masks.

        Raises:
            InputError: The name or the key is another site's, the name cannot be one, or the signature is wrong.
        """
        check_new_name(name)
        if any(site.name.casefold() == name.casefold() for site in self.active):
            raise InputError(f"The site '{name}' is in the study already: a second one needs another name.")
        if any(site.key == key and not site.left for site in self.sites):
            raise InputError(f"The key of '{name}' belongs to another site already: let it make one of its own.")
        if any(giver.name.casefold() == name.casefold() and giver.key != key for giver in self.sums):
            raise InputError(f"The sums of '{name}' were signed with another key: ask the site which key is its own.")
        check_rows(self.agreement, name, rows)
        if is_weak(key):
            raise InputError(f"The key of '{name}' is none that only its owner can sign with: let it make a new one.")
        if self.agreement.secure and not is_usable(masks):
            raise InputError(
                f"'{name}' gives no key for masks, or one whose secrets everybody knows: let it join anew."
            )
        member = Member(name, self.next_number, key, signature, rows=rows, masks=masks)
        _check_signature(self.agreement, member)
        return replace(self, sites=(*self.sites, member))

    def without(self, name: str) -> Study:
        """Mark a site as having left, and the models that hold it as superseded.

        Returns:
            The study after the site has left.

        Raises:
            InputError: There is no such site.
        """
        member = self.member(name)
        sites = list(self.sites)
        sites[sites.index(member)] = replace(member, left=True)
        models = tuple(m._replace(superseded=m.superseded or name in m.sites) for m in self.models)
        return replace(self, sites=tuple(sites), models=models)

    def recorded(self, checksum: str, names: Sequence[str]) -> Study:
        """Add a model; superseded at once if it holds a site that has left.

        Args:
            checksum: Hash of the model's file.
            names: The sites whose replies are in it.
        """
        others = tuple(model for model in self.models if model.checksum != checksum)
        superseded = not {*names} <= {site.name for site in self.active}
        return replace(self, models=(*others, PooledModel(checksum, tuple(names), superseded)))


def signed_words(agreement: Agreement, name: str, rows: int, masks: str = "") -> bytes:
    """Return what a site signs when it joins: the agreement, the name it goes by, and how many rows it may speak for.

    Args:
        rows: The number of rows it commits to.
        masks: Its public key for masks, in a study that masks.
    """
    if agreement.secure:
        return f"{agreement.hash} {rows} {masks} {name}".encode()
    return f"{agreement.hash} {rows} {name}".encode()


def check_rows(agreement: Agreement, name: str, rows: int) -> None:
    """Refuse a number of rows that no site of the study can commit to.

    Raises:
        InputError: It is too small or larger than any site has.
    """
    if not agreement.smallest <= rows <= MOST_ROWS:
        raise InputError(
            f"'{name}' commits to {rows:,} rows; a whole number from {agreement.smallest} to {MOST_ROWS:,} is needed: "
            "give `site join` the site's table, or its number of rows with --rows."
        )


def _check_signature(agreement: Agreement, site: Member) -> None:
    if not verifies(site.key, "agreement", signed_words(agreement, site.name, site.rows, site.masks), site.signature):
        raise InputError(
            f"The signature of '{site.name}' is not for this agreement and this name: one was changed after that site "
            "signed, an older version wrote it, or the key is wrong: let the coordinator delete the sites' part of the "
            "study's file, and every site sign again with `consilience site join`."
        )


def read(path: Path) -> Study:
    """Read a study; a changed agreement is refused, as signatures no longer fit.

    Raises:
        InputError: The file cannot be read, a value is wrong, or a signature is not for this agreement.
    """
    text, value = parse(path)
    if value.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {value.get('format')}; consilience {__version__} reads {FORMAT}: use the same version "
            "at all sites."
        )
    agreement = from_toml(value, path)
    try:
        sites = tuple(Member(**convert(Member, site)) for site in value.get("sites", ()))
        models = tuple(_pooled_model(entry) for entry in value.get("models", ()))
        sums = tuple(Sender(**{k: str(v) for k, v in giver.items()}) for giver in value.get("sums", ()))
        drops = tuple(map(drop_of, value.get("drops", ())))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: the list of sites is damaged ({error}); restore it from a copy.") from error
    for site in sites:
        check_name(site.name)
        check_rows(agreement, site.name, site.rows)
        _check_signature(agreement, site)
    names = [site.name.casefold() for site in sites if not site.left]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two of the sites have the same name; restore the list from a copy.")
    return Study(agreement, sites, models, sums, text.split(SITES_BEGIN)[0].rstrip("\n") + "\n", drops)


def _pooled_model(entry: dict[str, Any]) -> PooledModel:
    """A model of the list in a study's file."""
    model = PooledModel(entry["checksum"], tuple(entry["sites"]), entry["superseded"])
    texts = (model.checksum, *model.sites)
    if not all(isinstance(text, str) for text in texts) or type(model.superseded) is not bool:
        raise TypeError(f"{entry!r} is not a model")
    return model
