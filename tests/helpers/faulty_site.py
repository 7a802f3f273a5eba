"""A site that does something wrong: 'faulty_site.py FAULT site serve …'."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from typing import Any

from consilience import cli
from consilience.study.flower import client, site


def slow(*reply: Any) -> None:
    print("now slow", flush=True)
    time.sleep(600)


def crash(*reply: Any) -> None:
    os._exit(3)


def main() -> None:
    fault = sys.argv.pop(1)
    original, responder = site.site_of, site.responder

    def spoilt(*words: Any) -> Any:
        made = original(*words)
        if fault == "raises":
            return dataclasses.replace(made, data=made.data._replace(x=made.data.x[:, :1]))
        return made

    client.check_leaving = {"slow": slow, "crash": crash}.get(fault, client.check_leaving)
    site.site_of = spoilt  # type: ignore[assignment]
    if fault == "silent":
        site.responder = lambda *words: (
            lambda message, context: (  # type: ignore[assignment,return-value]
                None if message.metadata.message_type == "train" else responder(*words)(message, context)
            )
        )
    cli.main()


if __name__ == "__main__":
    main()
