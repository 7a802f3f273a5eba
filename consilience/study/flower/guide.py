"""The commands that start a deployed study, written for its server and for every site."""

from __future__ import annotations

from shlex import quote

from consilience.study.flower.app import pin
from consilience.study.protocol.members import Study

GUIDE = """\
# {name}, deployed

The study's hash is `{hash}`, its Flower app's `{pin}`. The app holds no code; a site refuses any other.

## At the server

`{file}`, its key, and a folder `certs` with `ca.crt`, `server.pem`, `server.key` and every site's `NAME.node.pub`:

```
consilience study serve {file} --host ADDRESS --port 8000 --certs certs
```

If it was interrupted, start it again with `--resume`. With `--min-replies N` it goes on without sites that fail.

## At every site

`{file}`, `ca.crt` from the server, and what the site made for itself: its key from `consilience site join` and its node
key from `consilience site nodekey`.

"""


def guide(study: Study, file: str) -> str:
    """Write how to start a study's server and sites.

    Args:
        file: The name of its file.

    Returns:
        The page, as Markdown.
    """
    words = {"name": study.agreement.name, "hash": study.agreement.hash, "pin": pin(study.agreement), "file": file}
    sites = [
        f"```\n# {site.name}\nconsilience site serve {file} TABLE.csv --server ADDRESS:8000 --root ca.crt "
        f"--key {quote(f'{site.name}.key')} --node-key {quote(f'{site.name}.node')}\n```\n"
        for site in study.active
    ]
    return GUIDE.format(**words) + "\n".join(sites)
